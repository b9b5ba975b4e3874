"""Every rank: a run that is saved and resumed goes on as the one without interruption."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import parallel
import rueda
import rueda.torch as rt
import torch
from parallel import raises
from rueda.compression import RandomK
from rueda.torch.strategies import DiLoCo, Strategy, Synchronous
from torch import nn
from torch.nn.utils import parameters_to_vector
from training import same_bits

# Whose ranks take part in each exchange in the same order, so that runs are reproducible.
REPRODUCIBLE = (
    "local:4",
    "postlocal:3,after=1",
    "diloco:4",
    "diloco:4,fragments=2,delay=1,mixing=0.5",
    "sparseloco:4,0.5",
    "desloc:4,4,4",
    "easgd:4",
    "adpsgd:2",
    "noloco:4",
    "noloco:4,timeout=100",
)
TABLES = ("ssp:inf", "downpour:2", "downpour:2,server=adagrad", "hogwild", "hogwild:2", "aeasgd:2")
STATE = "rueda_strategy"

Saved = tuple[dict[str, Any], dict[str, Any]]


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _wrap(trained: nn.Module, strategy: Strategy | str) -> Any:
    return rt.wrap(trained, torch.optim.Adam(trained.parameters(), lr=0.02), strategy=strategy)


def _train(trained: nn.Module, wrapped: Any, begin: int, end: int) -> None:
    """Steps ``begin`` to ``end``, each with this rank's own batch."""
    for step in range(begin, end):
        torch.manual_seed(100 * step + rueda.rank())
        wrapped.zero_grad()
        trained(torch.randn(5, 3)).square().mean().backward()
        wrapped.step()


def _save(trained: nn.Module, wrapped: Any) -> Saved:
    """Copies of both states, while no rank changes a table."""
    rueda.barrier()
    saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
    rueda.barrier()
    return saved


def _resume(saved: Saved, strategy: Strategy | str, freeze: Callable[[nn.Module], None]) -> Any:
    """A model and its optimizer as a new process would create and load them."""
    trained = _model()
    freeze(trained)
    wrapped = _wrap(trained, strategy)
    trained.load_state_dict(saved[0])
    wrapped.load_state_dict(saved[1])
    return trained, wrapped


def _vector(trained: nn.Module) -> torch.Tensor:
    return parameters_to_vector(trained.parameters()).detach().clone()


def _freeze_first(trained: nn.Module) -> None:
    trained[0].requires_grad_(False)  # type: ignore[index]


def _nothing(_: nn.Module) -> None:
    """Freezes nothing."""


def _ends(strategy: str, freeze: Callable[[nn.Module], None]) -> list[torch.Tensor]:
    """The consolidated parameters without interruption, and resumed after the third step, before which it freezes."""
    trained = _model()
    wrapped = _wrap(trained, strategy)
    _train(trained, wrapped, 0, 2)
    freeze(trained)
    _train(trained, wrapped, 2, 3)
    saved = _save(trained, wrapped)
    ends = []
    for resumes in (False, True):
        if resumes:
            trained, wrapped = _resume(saved, strategy, freeze)
        _train(trained, wrapped, 3, 8)
        wrapped.close()
        same_bits(*trained.parameters())
        ends.append(_vector(trained))
    return ends


def check_a_layer_that_was_frozen_within_a_period() -> None:
    """Its local steps are averaged, though it was frozen when the state was loaded."""
    for strategy in REPRODUCIBLE:
        assert torch.equal(*_ends(strategy, _freeze_first)), strategy


def check_a_layer_that_was_frozen_where_ranks_share_a_table() -> None:
    """Ranks differ in when they read, so only one rank's run can be compared."""
    for strategy in TABLES:
        ends = _ends(strategy, _freeze_first)
        assert rueda.size() > 1 or torch.equal(*ends), strategy


def check_one_rank_goes_on_with_the_read_in_flight() -> None:
    if rueda.size() > 1:
        return
    for strategy in TABLES:
        assert torch.equal(*_ends(strategy, _nothing)), strategy


def check_a_layer_that_requires_gradients_only_since_the_state_was_saved() -> None:
    """As in a run without interruption: switch() trains it, too."""
    for strategy in ("local:2", "diloco:2", "adpsgd:1"):
        trained = _model()
        _freeze_first(trained)
        wrapped = _wrap(trained, strategy)
        _train(trained, wrapped, 0, 3)
        trained, wrapped = _resume(_save(trained, wrapped), strategy, _nothing)
        with raises(rt.InvalidArgumentError, "'0.weight' requires gradients now", "switch()"):
            _train(trained, wrapped, 3, 4)
        wrapped.switch(strategy)
        before = _vector(trained[0])
        _train(trained, wrapped, 4, 6)
        wrapped.close()
        same_bits(*trained.parameters())
        assert not torch.equal(_vector(trained[0]), before)


def check_states_of_other_parameters() -> None:
    """The error says which, on every rank; the optimizer goes on."""
    for strategy in ("local:2", "desloc:2,2,2", "adpsgd:1", "noloco:2", "diloco:2", "ssp:inf"):
        trained = _model()
        wrapped = _wrap(trained, strategy)
        _train(trained, wrapped, 0, 2)
        saved = _save(trained, wrapped)[1]
        other = copy.deepcopy(saved)
        other[STATE]["trained"] = ["2.weight", "head.weight", "head.bias"]
        text = "the optimizer lacks 'head.weight', 'head.bias'"
        with raises(rt.InvalidArgumentError, text):
            wrapped.load_state_dict(other)
        wrapped.load_state_dict(saved)
        _train(trained, wrapped, 2, 4)
        wrapped.close()
        same_bits(*trained.parameters())


def check_a_copy_of_other_parameters() -> None:
    """As in a state of a version that did not save which parameters it trains."""
    trained = _model()
    wrapped = _wrap(trained, "easgd:2")
    saved = _save(trained, wrapped)[1]
    del saved[STATE]["trained"]
    centre = saved[STATE]["kept"]["centre"]
    centre["head"] = centre.pop("0.bias")
    centre["2.bias"] = torch.zeros(5)
    with raises(
        rt.InvalidArgumentError,
        "only the state has 'head'",
        "the state lacks '0.bias'",
        "another shape have '2.bias'",
    ):
        wrapped.load_state_dict(saved)


def _of_before(saved: Saved, prefix: str) -> Saved:
    """The states as the version before saved them, with such names of a strategy's tensors."""

    def renamed(kept: Any) -> Any:
        if isinstance(kept, list):
            return [renamed(each) for each in kept]
        if not isinstance(kept, dict):
            return kept
        return {
            prefix + key if key in saved[0] else key: renamed(each) for key, each in kept.items()
        }

    state = dict(saved[1])
    strategy = dict(state[STATE])
    strategy.pop("trained")
    strategy["kept"] = renamed(strategy["kept"])
    strategy["kept"].pop("coming", None)
    return saved[0], {**state, STATE: strategy}


def check_states_of_the_version_before() -> None:
    """Also those of a compiled model, whose parameters had other names."""
    compiled = [(each, "_orig_mod.") for each in (*REPRODUCIBLE, "accumulate:2", *TABLES)]
    for strategy, prefix in (("local:4", ""), ("diloco:4", ""), ("hogwild", ""), *compiled):
        trained = _model()
        wrapped = _wrap(trained, strategy)
        _train(trained, wrapped, 0, 3)
        saved = _of_before(_save(trained, wrapped), prefix)
        _train(trained, wrapped, 3, 7)
        wrapped.close(drop_incomplete=True)
        end = _vector(trained)
        trained, wrapped = _resume(saved, strategy, _nothing)
        _train(trained, wrapped, 3, 7)
        wrapped.close(drop_incomplete=True)
        same_bits(*trained.parameters())
        assert strategy in TABLES or torch.equal(_vector(trained), end), (strategy, prefix)


def _large() -> nn.Module:
    """A model large enough for its gradients to be compressed."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 64), nn.Linear(64, 64))


def check_states_move_between_a_compiled_model_and_the_plain_one() -> None:
    """Both ways, with what compression has lost."""
    strategies = (Synchronous("topk:0.05"), "accumulate:3", "diloco:2", "noloco:2", "local:2")
    for strategy in strategies:
        for compiles in ((False, True), (True, False)):
            ends = []
            for compiled in (compiles, (False, False)):
                trained = _large()
                wrapped = _wrap(torch.compile(trained) if compiled[0] else trained, strategy)
                _train(trained, wrapped, 0, 4)
                saved = _save(trained, wrapped)
                assert "_orig_mod" not in repr(saved[1])
                trained = _large()
                wrapped = _wrap(torch.compile(trained) if compiled[1] else trained, strategy)
                trained.load_state_dict(saved[0])
                wrapped.load_state_dict(saved[1])
                _train(trained, wrapped, 4, 8)
                wrapped.close(drop_incomplete=True)
                ends.append(_vector(trained))
            assert torch.equal(*ends), strategy


def check_names_that_would_be_the_same_without_torch_compile() -> None:
    """A module's own name for a part is left alone then."""
    trained = nn.ModuleDict({"_orig_mod": nn.Linear(2, 1)})
    trained.register_parameter("weight", nn.Parameter(torch.ones(3)))
    wrapped = _wrap(trained, "easgd:1")
    saved = copy.deepcopy(wrapped.state_dict())
    assert set(saved[STATE]["trained"]) == {"weight", "_orig_mod.weight", "_orig_mod.bias"}
    wrapped.load_state_dict(saved)
    wrapped.close()


def _random_run(strategy: Strategy, resumes_at: int | None = None) -> list[torch.Tensor]:
    """The parameters, which begin at 0, after each two of 40 equal steps."""
    trained = nn.ParameterList([torch.zeros(20, 25), torch.zeros(20, 25)])
    wrapped = rt.wrap(trained, torch.optim.SGD(trained.parameters(), lr=0.1), strategy=strategy)
    after = []
    for step in range(40):
        if step == resumes_at:
            saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
            trained = nn.ParameterList([torch.ones(20, 25), torch.ones(20, 25)])
            plain = torch.optim.SGD(trained.parameters(), lr=0.1)
            wrapped = rt.wrap(trained, plain, strategy=strategy)
            trained.load_state_dict(saved[0])
            wrapped.load_state_dict(saved[1])
        wrapped.zero_grad()
        (sum(each.sum() for each in trained) * (rueda.rank() + 1)).backward()  # type: ignore[union-attr]
        wrapped.step()
        if step % 2:
            after.append(_vector(trained))
    wrapped.consolidate()
    same_bits(*trained.parameters())
    return after


def check_randomly_chosen_elements_are_others_in_each_round() -> None:
    """A seed that stays the same would train the same tenth of the elements for ever."""
    # Without momentum an element moves in those rounds only that send it.
    for codec in ("randomk:0.1", RandomK(0.1, seed=2**64 - 1)):
        after = _random_run(DiLoCo(2, outer_momentum=0.0, codec=codec))
        rounds = [now != before for before, now in pairwise(after)]
        # Each rank owns a part of a tensor, whose tenth is rounded up.
        assert all(100 <= each.sum() <= 100 + 2 * rueda.size() for each in rounds)
        assert (after[-1] != 0).float().mean() > 0.8  # 1 - 0.9^20 = 0.88
        for left, right in pairwise(rounds):
            assert not torch.equal(left, right)


def check_a_resumed_run_chooses_the_same_elements() -> None:
    for strategy in (
        DiLoCo(2, codec="randomk:0.1"),
        DiLoCo(4, fragments=2, delay=1, mixing=0.5, codec=RandomK(0.2, seed=5)),
    ):
        plain = _random_run(strategy)
        for step in (5, 8, 11):
            resumed = _random_run(strategy, resumes_at=step)
            assert all(map(torch.equal, plain, resumed))


if __name__ == "__main__":
    rueda.init()
    parallel.run(globals())
