"""Every rank: a strategy's state: saved, loaded, and carried over to another strategy."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import parallel
import rueda
import rueda.elastic
import rueda.torch as rt
import torch
from parallel import raises
from rueda.torch.strategies import (
    DiLoCo,
    GradientAccumulation,
    PostLocalSGD,
    SparseLoCo,
    Strategy,
    Synchronous,
)
from simulated import fresh, train
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from training import batch, close, same_bits, sgd, share


def check_consolidating_twice_changes_nothing() -> None:
    """Even with a mean in flight: without training, there is nothing for an outer step."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy=DiLoCo(3, delay=2))
    train(trained, wrapped, 0, 4)
    wrapped.consolidate()
    once = parameters_to_vector(trained.parameters()).detach().clone()
    wrapped.consolidate()
    assert torch.equal(parameters_to_vector(trained.parameters()), once)
    wrapped.switch("sync")
    assert torch.equal(parameters_to_vector(trained.parameters()), once)
    train(trained, wrapped, 4, 2)
    same_bits(*trained.parameters())


class Scaled(nn.Module):
    """With a zero-dimensional parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 4).double()
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def check_switching_makes_ranks_equal_for_good() -> None:
    """Including zero-dimensional parameters, step counts and learning rates."""
    trained = Scaled()
    wrapped = rt.wrap(trained, torch.optim.Adam(trained.parameters(), lr=0.01), strategy="local:4")
    torch.manual_seed(rueda.rank())
    for step in range(3):
        wrapped.zero_grad()
        trained(torch.rand(5, 6, dtype=torch.float64)).square().mean().backward()
        if rueda.rank() == 0 and step == 1:  # one step fewer for this parameter
            trained.scale.grad = None
        wrapped.step()
    wrapped.param_groups[0]["lr"] = 0.01 * (rueda.rank() + 1)
    wrapped.switch("sync")
    assert wrapped.param_groups[0]["lr"] == 0.01
    for _ in range(3):
        wrapped.zero_grad()
        trained(torch.rand(5, 6, dtype=torch.float64)).square().mean().backward()
        wrapped.step()
        same_bits(*trained.parameters())


def _compressed() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model large enough for its gradients to be compressed."""
    torch.manual_seed(0)
    trained = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    return trained, rt.wrap(trained, optimizer, strategy=Synchronous(codec="topk:0.05"))


def check_what_compression_has_lost_is_kept() -> None:
    """Residuals match DistributedOptimizer's to the bit, also through a saved state."""
    runs = []
    for resumes in (False, True):
        trained, wrapped = _compressed()
        for step in range(6):
            if resumes and step == 3:
                state = copy.deepcopy(wrapped.state_dict())
                assert any(
                    bool(each.any()) for each in state["rueda_compression"]["residuals"].values()
                )
                parameters = trained.state_dict()
                trained, wrapped = _compressed()
                trained.load_state_dict(parameters)
                wrapped.load_state_dict(state)
            torch.manual_seed(10 * step + rueda.rank())
            wrapped.zero_grad()
            trained(torch.rand(4, 64)).square().mean().backward()
            wrapped.step()
        runs.append(parameters_to_vector(trained.parameters()).detach())
    assert torch.equal(*runs)


def check_a_step_that_is_left_out() -> None:
    """As a gradient scaler does if gradients are not finite: the next ones are still reduced."""
    runs = []
    for leaves_out in (False, True):
        trained, optimizer = fresh(sgd)
        wrapped = rt.wrap(trained, optimizer)
        if leaves_out:
            x, y = batch(7)
            F.cross_entropy(trained(share(x)), share(y)).backward()
            wrapped.synchronize()
            trained.zero_grad()
        for step in range(2):
            x, y = batch(step)
            F.cross_entropy(trained(share(x)), share(y)).backward()
            wrapped.synchronize()
            same_bits(*(each.grad for each in trained.parameters()))
            wrapped.step()
            trained.zero_grad()
        same_bits(*trained.parameters())
        runs.append(parameters_to_vector(trained.parameters()).detach())
    assert torch.equal(*runs)


@dataclass
class MeanGradients(Strategy):
    """A user's own strategy."""

    reduces_gradients: ClassVar[bool] = True
    ranks_stay_equal: ClassVar[bool] = True

    def before_step(self) -> bool:
        self.replica.set_gradients(self.replica.average(self.replica.gradients(), "gradients"))
        return True


# Strategies that average gradients over all ranks.
AVERAGING = (Synchronous(), PostLocalSGD(2, after=99), GradientAccumulation(1), MeanGradients())


def _scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=256.0)


def check_a_scaler_before_synchronize() -> None:
    """It would unscale gradients yet to be averaged, and look for infinities in its rank's only."""
    for strategy in AVERAGING:
        for fused in (False, True):
            make = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused)
            trained, optimizer = fresh(make)
            alone, single = fresh(make)
            wrapped = rt.wrap(trained, optimizer, strategy=strategy)
            scaler = _scaler()
            for step in range(3):
                x, y = batch(step)
                wrapped.zero_grad()
                scaler.scale(F.cross_entropy(trained(share(x)), share(y))).backward()
                with raises(rt.InvalidArgumentError, "synchronize() first"):
                    scaler.step(wrapped)
                wrapped.synchronize()
                scaler.step(wrapped)
                scaler.update()
                single.zero_grad()
                F.cross_entropy(alone(x), y).backward()
                single.step()
            close(trained, alone)
            same_bits(*trained.parameters())


def check_a_scaler_of_ranks_that_train_by_themselves() -> None:
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy=PostLocalSGD(2, after=1))
    scaler = _scaler()
    for step in range(3):
        x, y = batch(step)
        wrapped.zero_grad()
        scaler.scale(F.cross_entropy(trained(share(x)), share(y))).backward()
        if step == 0:
            wrapped.synchronize()
        scaler.step(wrapped)
        scaler.update()
    same_bits(*trained.parameters())


def check_steps_that_a_scaler_leaves_out() -> None:
    """If one rank finds an infinity. The next gradients are averaged, however they were cleared."""
    clearings = (
        lambda trained, wrapped: wrapped.zero_grad(),
        lambda trained, wrapped: trained.zero_grad(),
        lambda trained, wrapped: trained.zero_grad(set_to_none=False),
    )
    for strategy in AVERAGING:
        for clear in clearings:
            trained, optimizer = fresh(sgd)
            wrapped = rt.wrap(trained, optimizer, strategy=strategy)
            scaler = _scaler()
            for step in range(4):
                x, y = batch(step)
                if step == 1 and rueda.rank() == rueda.size() - 1:
                    x = x * float("inf")
                clear(trained, wrapped)
                scaler.scale(F.cross_entropy(trained(share(x)), share(y))).backward()
                wrapped.synchronize()
                scaler.step(wrapped)
                scaler.update()
                same_bits(*trained.parameters())
            assert scaler.get_scale() == 128.0
            assert wrapped.state_dict()["rueda_strategy"]["steps"] == 3


def check_a_scaler_with_several_batches_to_a_step() -> None:
    """Each rank would decide on its own which batches count."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="accumulate:2")
    scaler = _scaler()
    x, y = batch(0)
    scaler.scale(F.cross_entropy(trained(share(x)), share(y))).backward()
    wrapped.synchronize()
    with raises(rt.UnsupportedError, "takes no GradScaler", "backward_passes_per_step=2"):
        scaler.step(wrapped)
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    disabled.step(wrapped)


def check_moments_of_parameters_that_some_ranks_do_not_use() -> None:
    """Averaged with that parameter's moments on other ranks, or zeros if there are none."""
    used = nn.ParameterDict({name: torch.ones(3) for name in ("first", "others", "nobody's")})
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    parameters = [*used.values(), frozen]
    used["frozen"] = frozen
    for options in ({}, {"amsgrad": True}):
        groups = [{"params": parameters[:1]}, {"params": parameters[1:], **options}]
        optimizer = torch.optim.Adam(groups, lr=0.01)
        wrapped = rt.wrap(used, optimizer, strategy="desloc:2,2,2")
        mine = "first" if rueda.rank() == 0 else "others"
        alone = nn.Parameter(used[mine].detach().clone())
        single = torch.optim.Adam([alone], lr=0.01, **(options if mine == "others" else {}))
        for _ in range(2):
            for trained, steps in ((used[mine], wrapped), (alone, single)):
                steps.zero_grad()
                (trained.sum() * (rueda.rank() + 1)).backward()
                steps.step()
        assert set(wrapped.state) == {used[mine]}
        sizes = torch.zeros(2, 3)
        kept = single.state[alone]
        sizes[0 if mine == "first" else 1] = torch.stack(
            [
                kept["exp_avg"][0],
                kept["exp_avg_sq"][0],
                kept.get("max_exp_avg_sq", torch.zeros(1))[0],
            ]
        )
        mean = rt.allreduce(sizes, name="moments")[0 if mine == "first" else 1]
        averaged = wrapped.state[used[mine]]
        for place, name in enumerate(("exp_avg", "exp_avg_sq", "max_exp_avg_sq")):
            if name in averaged:
                torch.testing.assert_close(averaged[name], mean[place].expand(3))
        assert averaged["step"] == 2


def check_a_scheduler_of_before() -> None:
    """It keeps changing the learning rate after a state was loaded, without warnings."""
    for wrap in (rt.wrap, lambda trained, optimizer: rt.DistributedOptimizer(optimizer)):
        trained, optimizer = fresh(sgd)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        wrapped = wrap(trained, optimizer)
        wrapped.load_state_dict(wrapped.state_dict())
        before = wrapped.param_groups[0]["lr"]
        train(trained, wrapped, 0, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scheduler.step()
        assert wrapped.param_groups[0]["lr"] == before / 2


def check_a_scheduler_of_before_with_leaves() -> None:
    trained, optimizer = fresh(sgd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    names = trained.named_parameters()
    wrapped = rt.DistributedOptimizer(optimizer, names, reproducible=True, leaves=4)
    wrapped.load_state_dict(wrapped.state_dict())
    before = wrapped.param_groups[0]["lr"]
    scheduler.step()
    assert wrapped.param_groups[0]["lr"] == before / 2


# Strategies that measure the first steps from a copy of the parameters, and some that do not.
KEEPING = (
    "diloco:2",
    "diloco:2,fragments=2,delay=1",
    "sparseloco:2",
    "easgd:1",
    "noloco:2",
    "downpour:1",
    "downpour:1,server=adagrad",
    "adag:1",
    "dynsgd:1",
    "hogwild",
    "aeasgd:1",
    "eamsgd:1",
)
TAKING_OVER = ("local:1", "oneshot", "adpsgd:1", "ssp:0", "desloc:2,2,2")


def _constant(strategy: str) -> tuple[nn.Linear, Any]:
    """A model whose parameters are all 0, and its wrapped optimizer."""
    trained = _filled(nn.Linear(2, 1), 0.0)
    momentum = {"momentum": 0.9, "nesterov": True} if strategy.startswith("eamsgd") else {}
    plain: torch.optim.Optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, **momentum)
    if strategy.startswith("desloc"):
        plain = torch.optim.Adam(trained.parameters())
    return trained, rt.wrap(trained, plain, strategy)


@torch.no_grad()
def _filled(trained: nn.Linear, value: float) -> nn.Linear:
    for each in trained.parameters():
        each.fill_(value)
    return trained


def _stays(trained: nn.Linear, wrapped: Any) -> None:
    """Takes steps without gradients."""
    for _ in range(2):
        wrapped.zero_grad()
        (trained(torch.ones(1, 2)) * 0).sum().backward()
        wrapped.step()


def _is_filled(trained: nn.Linear, value: float) -> None:
    torch.testing.assert_close(
        parameters_to_vector(trained.parameters()), torch.full((3,), value), rtol=1e-5, atol=0
    )


def check_weights_that_are_loaded_after_wrap() -> None:
    """A strategy that keeps a copy of the parameters would mix the two."""
    says = ("'weight' has changed since", "load weights before wrap()")
    weights = _filled(nn.Linear(2, 1), 5.0).state_dict()
    for strategy in KEEPING:
        trained, wrapped = _constant(strategy)
        trained.load_state_dict(weights)
        for use in (wrapped.step, wrapped.synchronize, wrapped.consolidate, wrapped.close):
            with raises(rt.InvalidArgumentError, *says):
                use()
        with raises(rt.InvalidArgumentError, *says):
            wrapped.switch("sync")
        _is_filled(trained, 5.0)
        plain = torch.optim.Optimizer.state_dict(wrapped)
        wrapped.load_state_dict(plain)
        _stays(trained, wrapped)
        wrapped.consolidate()
        _is_filled(trained, 5.0)
        wrapped.switch(strategy)
        trained.load_state_dict(_filled(nn.Linear(2, 1), 6.0).state_dict())
        with raises(rt.InvalidArgumentError, *says):
            wrapped.step()
        trained.load_state_dict(weights)
        wrapped.close()
    for strategy in TAKING_OVER:
        trained, wrapped = _constant(strategy)
        trained.load_state_dict(weights)
        _stays(trained, wrapped)
        wrapped.close()
        _is_filled(trained, 5.0)


def check_weights_that_come_back_before_the_first_step() -> None:
    """As where a framework evaluates with averaged weights first."""
    for strategy in KEEPING:
        trained, wrapped = _constant(strategy)
        wrapped.consolidate()
        _filled(trained, 5.0)
        _filled(trained, 0.0)
        _stays(trained, wrapped)
        _filled(trained, 5.0)  # a later step is not asked about
        wrapped.zero_grad()
        wrapped.step()
        wrapped.close()


def check_weights_that_are_loaded_after_the_state() -> None:
    """The copy of a saved state is of the saved parameters."""
    for strategy in KEEPING:
        trained, wrapped = _constant(strategy)
        _stays(trained, wrapped)
        rueda.barrier()
        weights, state = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
        rueda.barrier()
        wrapped.close()
        trained, wrapped = _constant(strategy)
        _filled(trained, 5.0)
        wrapped.load_state_dict(state)
        trained.load_state_dict(weights)
        _stays(trained, wrapped)
        wrapped.close()
        _is_filled(trained, 0.0)


def check_another_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        trained, optimizer = fresh(sgd)
        wrapped = rt.wrap(trained, optimizer, strategy=SparseLoCo(2))
        train(trained, wrapped, 0, 4)
        same_bits(*trained.parameters())
        for strategy in ("ssp:1", "downpour:1,server=adagrad"):
            served = nn.Linear(6, 3, dtype=torch.float32)
            wrapped = rt.wrap(
                served, torch.optim.SGD(served.parameters(), lr=0.1), strategy=strategy
            )
            for _ in range(3):
                wrapped.zero_grad()
                served(torch.ones(2, 6, dtype=torch.float32)).sum().backward()
                wrapped.step()
            rueda.barrier()
            saved = wrapped.state_dict()
            rueda.barrier()
            wrapped.load_state_dict(saved)
            wrapped.close()
            same_bits(*served.parameters())
    finally:
        torch.set_default_dtype(torch.float32)


def check_consolidating_in_inference_mode() -> None:
    """E.g. before an evaluation: training continues, also with foreach as on a GPU."""
    ends = []
    usual = torch.optim.SGD
    for mode, outer in (
        (torch.no_grad, usual),
        (torch.inference_mode, usual),
        (torch.inference_mode, partial(usual, foreach=True)),
    ):
        trained, optimizer = fresh(sgd)
        torch.optim.SGD = outer  # type: ignore[misc,assignment]
        try:
            wrapped = rt.wrap(trained, optimizer, strategy="diloco:3")
        finally:
            torch.optim.SGD = usual  # type: ignore[misc]
        train(trained, wrapped, 0, 2)
        with mode():
            wrapped.consolidate()
        train(trained, wrapped, 2, 4)
        same_bits(*trained.parameters())
        ends.append(parameters_to_vector(trained.parameters()))
    assert all(torch.equal(ends[0], end) for end in ends[1:])


def check_momentum_of_complex_parameters_is_averaged() -> None:
    trained = nn.ParameterList([torch.zeros(8, dtype=torch.complex64)])
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    wrapped = rt.wrap(trained, optimizer, strategy="local:5")
    (trained[0] * (rueda.rank() + 1j)).real.sum().backward()
    wrapped.step()
    mine = wrapped.state[trained[0]]["momentum_buffer"].clone()
    wrapped.switch("sync")
    mean = rt.allreduce(torch.view_as_real(mine), name="momentum")
    kept = wrapped.state[trained[0]]["momentum_buffer"]
    torch.testing.assert_close(torch.view_as_real(kept), mean)


def check_closures_that_are_refused() -> None:
    """Before anything is evaluated: ranks might evaluate a different number of times."""
    for strategy in (PostLocalSGD(2, after=2), "easgd:2", "adpsgd:1", "accumulate:2"):
        trained, optimizer = fresh(sgd)
        wrapped = rt.wrap(trained, optimizer, strategy=strategy)
        with raises(rt.UnsupportedError, "takes no closure"):
            wrapped.step(lambda: 1 / 0)


def check_elastic_steps_refuse_strategies() -> None:
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    with raises(rt.InvalidArgumentError, "DistributedOptimizer()"):
        next(rueda.elastic.steps(1, trained, wrapped))


if __name__ == "__main__":
    rueda.init()
    parallel.run(globals())
