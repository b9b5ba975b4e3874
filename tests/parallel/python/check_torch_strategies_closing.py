"""Every rank: closed optimizers, the states that they leave, and batches that would be lost."""

from __future__ import annotations

import copy

import parallel
import rueda
import rueda.torch as rt
import torch
from parallel import raises
from rueda.torch.strategies import parse_strategy
from simulated import fresh, train
from torch import nn
from torch.nn.utils import parameters_to_vector
from training import Optimizer, adam, model, same_bits, sgd


def _float(strategy: str) -> tuple[nn.Module, Optimizer]:
    """A model of float32, which strategies over a table need."""
    trained = model().float()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.5, nesterov=True)
    return trained, rt.wrap(trained, optimizer, strategy=strategy)


def _step(trained: nn.Module, wrapped: Optimizer) -> None:
    wrapped.zero_grad()
    trained(torch.full((2, 6), rueda.rank() + 1.0)).square().mean().backward()
    wrapped.step()


def check_a_state_saved_after_close() -> None:
    """It is that of the consolidated training: a new optimizer goes on as the old one would have."""
    for strategy in (
        "sync",
        "accumulate:3",
        "local:3",
        "postlocal:2,after=4",
        "diloco:3",
        "diloco:5,fragments=2,delay=4,mixing=0.5",
        "sparseloco:3,0.25",
        "desloc:2,3,4",
        "easgd:2",
        "adpsgd:1",
        "noloco:2",
    ):
        ends = []
        for closes in (False, True):
            trained, optimizer = fresh(adam)
            wrapped = rt.wrap(trained, optimizer, strategy=strategy)
            train(trained, wrapped, 0, 6)
            wrapped.consolidate()
            if closes:
                wrapped.close()
                saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
                before = parse_strategy(strategy)
                assert saved[1]["rueda_strategy"]["strategy"] == before.describe()
                assert wrapped.strategy.describe() == f"{before.describe()} (closed)"
                assert wrapped.strategy.ranks_stay_equal == before.ranks_stay_equal
                trained, optimizer = fresh(adam, seed=2)
                wrapped = rt.wrap(trained, optimizer, strategy=strategy)
                trained.load_state_dict(saved[0])
                wrapped.load_state_dict(saved[1])
                assert wrapped._rueda_replica.steps == saved[1]["rueda_strategy"]["steps"]
            train(trained, wrapped, 6, 6)
            ends.append(parameters_to_vector(trained.parameters()).detach())
        assert torch.equal(*ends), strategy


def check_a_state_of_a_table_saved_after_close() -> None:
    for strategy in ("ssp:2", "downpour:1,server=adagrad", "hogwild", "aeasgd:2", "eamsgd:2"):
        trained, wrapped = _float(strategy)
        for _ in range(3):
            _step(trained, wrapped)
        wrapped.close()
        saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
        before = parameters_to_vector(trained.parameters()).detach().clone()
        trained, wrapped = _float(strategy)
        trained.load_state_dict(saved[0])
        wrapped.load_state_dict(saved[1])
        wrapped.consolidate()
        assert torch.equal(parameters_to_vector(trained.parameters()), before), strategy
        _step(trained, wrapped)
        wrapped.close()


def check_what_compression_has_lost_outlives_close() -> None:
    torch.manual_seed(0)
    trained = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    wrapped = rt.wrap(trained, optimizer, strategy="sync:codec=topk:0.05")
    wrapped.zero_grad()
    trained(torch.rand(4, 64)).square().mean().backward()
    wrapped.step()
    residuals = copy.deepcopy(wrapped.state_dict()["rueda_compression"]["residuals"])
    wrapped.close()
    kept = wrapped.state_dict()["rueda_compression"]["residuals"]
    assert residuals
    assert all(torch.equal(kept[name], each) for name, each in residuals.items())


def check_nothing_is_loaded_into_a_closed_optimizer() -> None:
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    train(trained, wrapped, 0, 2)
    wrapped.close()
    other = torch.optim.SGD(trained.parameters(), lr=0.7)
    for state in (wrapped.state_dict(), other.state_dict()):
        with raises(rt.InvalidArgumentError, "the optimizer was closed"):
            wrapped.load_state_dict(state)
    assert wrapped.param_groups[0]["lr"] == 0.1


def check_batches_without_a_step_yet() -> None:
    """consolidate() keeps them for their step; switch() and close() do not lose them unasked."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="accumulate:3")
    train(trained, wrapped, 0, 4)
    wrapped.consolidate()
    train(trained, wrapped, 4, 1)
    for loses in (wrapped.close, lambda: wrapped.switch("local:2")):
        with raises(
            rt.InvalidArgumentError,
            "2 of 3 batches",
            "step() with 1 more first",
            "drop_incomplete=True",
        ):
            loses()
    train(trained, wrapped, 5, 1)
    other, optimizer = fresh(sgd)
    whole = rt.wrap(other, optimizer, strategy="accumulate:3")
    train(other, whole, 0, 6)
    assert torch.equal(*(parameters_to_vector(each.parameters()) for each in (trained, other)))
    whole.close()
    train(trained, wrapped, 6, 1)
    before = parameters_to_vector(trained.parameters()).detach().clone()
    wrapped.close(drop_incomplete=True)
    assert torch.equal(parameters_to_vector(trained.parameters()), before)
    kept = wrapped.state_dict()["rueda_strategy"]["kept"]
    assert kept["taken"] == 0
    assert not any(bool(each.any()) for each in kept["sums"].values())


def check_batches_that_a_switch_drops() -> None:
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="accumulate:3")
    train(trained, wrapped, 0, 4)
    mine = rueda.rank() != rueda.size() - 1
    with raises(rt.InvalidArgumentError, f"rank {rueda.size() - 1}: 1 of 3 batches"):
        wrapped.switch("sync", drop_incomplete=mine)
    wrapped.switch("sync", drop_incomplete=True)
    train(trained, wrapped, 4, 2)
    same_bits(*trained.parameters())


if __name__ == "__main__":
    parallel.run(globals())
