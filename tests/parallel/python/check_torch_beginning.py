"""Every rank: all of a model becomes that of one rank, whatever its state_dict() shows of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import parallel
import rueda
import rueda.elastic
import rueda.horovod.torch as hvd
import rueda.torch as rt
import torch
from parallel import raises, still_works
from rueda.torch.state_exchange import exchange_state
from torch import nn
from training import same_bits

STRATEGIES = ("sync", "local:2", "diloco:2", "downpour:1")


class Hidden(nn.Module):
    """With what a state_dict() lacks or has as copies; values are each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(rueda.rank())
        self.backbone = nn.Linear(4, 4).requires_grad_(False)
        self.backbone.register_buffer("scale", torch.rand(4))
        self.head = nn.Linear(4, 2)
        self.tied = nn.Linear(4, 2)
        self.tied.weight = self.head.weight
        self.register_buffer("frequencies", torch.rand(3, 4), persistent=False)
        self.register_buffer("expanded", torch.rand(1, 4).expand(3, 4), persistent=False)
        self.register_buffer("none", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x) * self.frequencies.mean())

    def everything(self) -> list[torch.Tensor]:
        return [*self.parameters(), *self.buffers()]


class Copied(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(
            lambda module, state, prefix, _: state.update(
                {name: each.clone() for name, each in state.items()}
            )
        )


class LeftOut(Hidden):
    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        whole = super().state_dict(*arguments, **options)
        return {name: each for name, each in whole.items() if not name.startswith("backbone.")}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


class WithExtraState(Hidden):
    def get_extra_state(self) -> dict[str, int]:
        return {"rank": self.rank}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.rank = state["rank"]

    def __init__(self) -> None:
        self.rank = rueda.rank()
        super().__init__()
        self.rank = rueda.rank()


KINDS = (Hidden, Copied, LeftOut, WithExtraState)


def is_of(rank: int, module: Hidden) -> bool:
    """Whether it has the values of that rank."""
    own = rueda.rank()
    with as_rank(rank):
        other = type(module)()
    assert rueda.rank() == own
    return all(map(torch.equal, module.everything(), other.everything()))


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    own = rueda.rank
    rueda.rank = lambda: rank
    try:
        yield
    finally:
        rueda.rank = own


def check_all_of_a_model_is_that_of_the_first_rank() -> None:
    for kind in KINDS:
        for strategy in STRATEGIES:
            module = kind()
            optimizer = torch.optim.SGD(module.head.parameters(), lr=0.1)
            wrapped = rt.wrap(module, optimizer, strategy=strategy)
            assert is_of(0, module), (kind, strategy)
            for _ in range(4):
                wrapped.zero_grad()
                module(torch.full((1, 4), rueda.rank() + 1.0)).square().sum().backward()
                wrapped.step()
            wrapped.consolidate()
            same_bits(*module.everything())
            wrapped.close()


def check_extra_state_stays() -> None:
    module = WithExtraState()
    rt.wrap(module, torch.optim.SGD(module.parameters(), lr=0.1))
    assert module.rank == rueda.rank()


def check_caches_that_cannot_be_the_same() -> None:
    """They are filled while the model runs, or nobody can send them."""
    module = nn.Linear(3, 1)
    own = rueda.rank() + 1
    module.register_buffer("filled", torch.full((own, 2), float(own)), persistent=False)
    module.register_buffer("sparse", (torch.eye(2) * own).to_sparse(), persistent=False)
    module.register_buffer("narrow", torch.ones(2).to(torch.float8_e5m2), persistent=False)
    module.register_buffer("absent", torch.ones(2, device="meta"), persistent=False)
    rt.wrap(module, torch.optim.SGD(module.parameters(), lr=0.1))
    assert torch.equal(module.filled, torch.full((own, 2), float(own)))
    assert torch.equal(module.sparse.to_dense(), torch.eye(2) * own)
    same_bits(*module.parameters())


def check_models_whose_ties_differ() -> None:
    module = Hidden()
    last = rueda.rank() == rueda.size() - 1
    if last:
        module.tied.weight = nn.Parameter(module.tied.weight.detach().clone())
    with raises(rt.MismatchError, "number of tensors of the model"):
        rt.wrap(module, torch.optim.SGD(module.head.parameters(), lr=0.1))
    still_works()


def two_parts() -> nn.Module:
    torch.manual_seed(rueda.rank())
    return nn.ModuleDict({"body": nn.Linear(3, 2), "head": nn.Linear(3, 2)})


def wrapped_part(module: nn.Module, part: str, strategy: str) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(module[part].parameters(), lr=0.1)
    return rt.wrap(module, optimizer, strategy=strategy)


def step(module: nn.Module, part: str, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    module[part](torch.full((1, 3), rueda.rank() + 1.0)).square().sum().backward()
    optimizer.step()


def check_what_another_optimizer_has_trained_is_not_overwritten() -> None:
    """A head that is trained later: the first optimizer's parameters must be the same on all ranks, or stay out."""
    for strategy in ("local:4", "diloco:4", "easgd:4", "downpour:4"):
        module = two_parts()
        first = wrapped_part(module, "body", strategy)
        second = wrapped_part(module, "head", "local:4")  # nothing has been trained yet
        second.close()
        step(module, "body", first)
        before = module["body"].weight.detach().clone()
        with raises(rt.InvalidArgumentError, "'body.weight'", "differ", first.strategy.describe()):
            wrapped_part(module, "head", "local:4")
        still_works()
        assert torch.equal(module["body"].weight, before)
        head = module["head"]
        rt.wrap(head, torch.optim.SGD(head.parameters(), lr=0.1), strategy="local:4").close()
        assert torch.equal(module["body"].weight, before)
        first.consolidate()
        before = module["body"].weight.detach().clone()
        second = wrapped_part(module, "head", "local:4")
        assert torch.equal(module["body"].weight, before)
        for part, optimizer in (("body", first), ("head", second)) * 4:
            step(module, part, optimizer)
        first.consolidate()
        second.consolidate()
        same_bits(*module.parameters())
        first.close()
        second.close()


def check_what_nobody_trains_any_more_is_that_of_the_first_rank() -> None:
    """Of an optimizer that was deleted, although a scheduler has made it part of a cycle; and of one with "sync"."""
    module = two_parts()
    first = wrapped_part(module, "body", "local:4")
    scheduler = torch.optim.lr_scheduler.ConstantLR(first)
    step(module, "body", first)
    first_value = rt.broadcast(module["body"].weight.detach(), 0)
    del first, scheduler
    wrapped_part(module, "head", "local:4").close()
    assert torch.equal(module["body"].weight, first_value)
    same_bits(*module.parameters())
    first = wrapped_part(module, "body", "sync")
    with torch.no_grad():
        module["body"].weight.fill_(rueda.rank())
    wrapped_part(module, "head", "local:4").close()
    assert not module["body"].weight.any()
    first.close()


def check_the_same_parameters_are_wrapped_again() -> None:
    """The new optimizer trains them: they begin with those of the first rank, as always."""
    module = two_parts()
    first = wrapped_part(module, "body", "local:4")
    step(module, "body", first)
    again = wrapped_part(module, "body", "local:4")
    same_bits(*module.parameters())
    again.close()


def check_a_state_that_horovod_synchronizes() -> None:
    for kind in KINDS:
        module = kind()
        state = hvd.elastic.TorchState(model=module)
        state.sync()
        assert is_of(0, module), kind
        if kind is WithExtraState:
            assert module.rank == 0


def check_a_state_that_is_synchronized() -> None:
    for kind in KINDS:
        module = kind()
        optimizer = torch.optim.SGD(module.head.parameters(), lr=0.1, momentum=0.9)
        state = rueda.elastic.State(module=module, optimizer=optimizer)
        state.sync()
        assert is_of(0, module), kind
        if kind is WithExtraState:
            assert module.rank == 0


def check_states_whose_hidden_parts_do_not_fit() -> None:
    """What an overridden state_dict() leaves out counts as well, but not what a model has kept while it ran."""
    module = LeftOut()
    if rueda.rank():
        module.frequencies = torch.zeros(5)
    rueda.elastic.State(module=module).sync()
    same_bits(*module.parameters())
    assert len(module.frequencies) == (5 if rueda.rank() else 3)
    module = LeftOut()
    if rueda.rank() == rueda.size() - 1:
        module.backbone = nn.Linear(4, 5).requires_grad_(False)
    with raises(rt.InvalidArgumentError, "'backbone.weight' is (5, 4)"):
        rueda.elastic.State(module=module).sync()
    still_works()


def check_caches_of_ranks_that_have_the_state_stay() -> None:
    """Several sources: what they have besides the state may be their own."""
    module = Hidden()
    sources = range(rueda.size() - 1)
    frequencies = module.frequencies.clone()
    state = rueda.elastic.shared_state.SharedState([module])
    rt.broadcast_parameters(module.state_dict())
    state.copy_from(sources)
    if rueda.rank() in sources:
        assert torch.equal(module.frequencies, frequencies)
    else:
        with as_rank(0):
            assert torch.equal(module.frequencies, Hidden().frequencies)


def check_a_parameter_that_no_state_dict_has_is_sent_by_every_source() -> None:
    module = LeftOut()
    with as_rank(0):
        right = LeftOut()
    is_source = rueda.rank() < rueda.size() - 1
    if is_source:
        for own, value in zip(module.everything(), right.everything(), strict=True):
            own.data = value.detach().clone()
    exchange_state([module], None, range(rueda.size() - 1))
    assert all(map(torch.equal, module.parameters(), right.parameters()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.run(globals())
