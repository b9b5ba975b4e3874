"""Every rank: torch's own functions for states, which leave out what Rueda adds to an optimizer's state."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import parallel
import rueda
import rueda.checkpoint as ck
import rueda.torch as rt
import torch
import torch.distributed.checkpoint as dcp
from parallel import folder, raises
from rueda import InvalidArgumentError
from rueda.torch.strategies import Synchronous
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

MARK = "needs_rueda_"
# Each has something to lose after two steps.
STRATEGIES = ("accumulate:3", "local:3", "diloco:3", "sparseloco:3,0.5", "downpour:3", "noloco:3")


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))


def _make(kind: Any, make: Any = torch.optim.Adam) -> tuple[nn.Module, Any]:
    """A model and its optimizer: wrapped with a strategy, or distributed with options."""
    trained = _model()
    optimizer = make(trained.parameters(), lr=0.02)
    if isinstance(kind, dict):
        return trained, rt.DistributedOptimizer(optimizer, trained.named_parameters(), **kind)
    return trained, rt.wrap(trained, optimizer, strategy=kind)


COMPRESSED = {"compression": rt.CompressionPolicy({"*": "topk:0.1"}, min_elements=0)}
LEAVES = {"reproducible": True, "leaves": 4}


def _train(trained: nn.Module, optimizer: Any, begin: int, end: int) -> None:
    for step in range(begin, end):
        optimizer.zero_grad()
        leaves = optimizer.leaves() if hasattr(optimizer, "leaves") else (None,)
        for leaf in leaves:
            torch.manual_seed(100 * step + (10 + leaf.number if leaf else rueda.rank()))
            trained(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _taken(kind: Any, steps: int = 2, **options: Any) -> tuple[nn.Module, Any, Any]:
    """A training, and its state as torch's function takes it, as a file would keep that."""
    trained, optimizer = _make(kind)
    _train(trained, optimizer, 0, steps)
    states = get_state_dict(trained, optimizer, options=StateDictOptions(**options))
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return trained, optimizer, torch.load(file, weights_only=True)


def _set(trained: nn.Module, optimizer: Any, states: Any, **options: Any) -> None:
    set_state_dict(
        trained,
        optimizer,
        model_state_dict=states[0],
        optim_state_dict=states[1],
        options=StateDictOptions(**options),
    )


def _marks(state: dict[str, Any]) -> list[str]:
    return [key for group in state["param_groups"] for key in group if key.startswith(MARK)]


def _unmark(state: dict[str, Any]) -> None:
    """Removes the marks, as older versions had none, and other news."""
    state["param_groups"] = [
        {key: each for key, each in group.items() if not key.startswith(MARK)}
        for group in state["param_groups"]
    ]
    state.get("rueda_strategy", {}).pop("ranks_stay_equal", None)


def _same(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@contextmanager
def _warned(text: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    told = [str(each.message) for each in found]
    assert any(text in each for each in told) if text else not any("anew" in t for t in told), told


def check_what_was_left_out_is_missed() -> None:
    for kind, lost in (
        *((strategy, "rueda_strategy") for strategy in STRATEGIES),
        (Synchronous(COMPRESSED["compression"]), "rueda_compression"),
        (COMPRESSED, "rueda_compression"),
        (LEAVES, "rueda_leaves"),
    ):
        options: dict[str, Any]
        for options in ({}, {"cpu_offload": True}):
            _, optimizer, states = _taken(kind, **options)
            assert not _marks(vars(optimizer))
            fresh = _make(kind)
            with raises(InvalidArgumentError, lost, "get_state_dict", "optimizer.state_dict()"):
                _set(*fresh, states, **options)
            assert not _marks(vars(fresh[1]))


def check_another_strategy_misses_it_too() -> None:
    """The state has parameters of its rank, or gradients that are pending."""
    for strategy in ("local:3", "accumulate:3"):
        _, _, states = _taken(strategy)
        for kind, part in (
            ("sync", "'rueda_strategy'"),
            ({}, "'rueda_strategy'"),
            (LEAVES, "'rueda_strategy'"),
        ):
            with raises(InvalidArgumentError, part):
                _set(*_make(kind), states)


def check_a_whole_state_goes_on() -> None:
    for kind in (*STRATEGIES[:4], COMPRESSED, LEAVES):
        trained, optimizer = _make(kind)
        _train(trained, optimizer, 0, 2)
        saved = copy.deepcopy((trained.state_dict(), optimizer.state_dict()))
        assert _marks(saved[1]), kind
        again, other = _make(kind)
        again.load_state_dict(saved[0])
        other.load_state_dict(saved[1])
        assert _marks(saved[1]), "the caller's state was changed"
        assert not _marks(vars(other))
        for one, its in ((trained, optimizer), (again, other)):
            _train(one, its, 2, 6)
        assert _same(trained, again), kind


def check_nothing_is_missed_where_nothing_is_lost() -> None:
    """Neither ``sync``, nor anything before its first batch, nor between the steps of ``accumulate``."""
    for kind, steps in (("sync", 3), ({}, 3), ("local:3", 0), ("diloco:3", 0), ("accumulate:3", 3)):
        trained, optimizer, states = _taken(kind, steps)
        assert not _marks(states[1]) + _marks(optimizer.state_dict()), kind
        again, other = _make(kind)
        _set(again, other, states)
        for one, its in ((trained, optimizer), (again, other)):
            _train(one, its, 3, 6)
        assert _same(trained, again), kind


def check_states_of_plain_optimizers_and_of_older_versions() -> None:
    """They load as ever; where torch's functions may have left something out, with a warning."""
    plain = torch.optim.Adam((trained := _model()).parameters(), lr=0.02)
    trained(torch.ones(2, 6)).sum().backward()
    plain.step()
    plain.zero_grad()
    for kind in ("local:3", "accumulate:3", COMPRESSED, LEAVES):
        with _warned(""):
            _make(kind)[1].load_state_dict(plain.state_dict())
        with _warned("starts anew"):
            _set(*_make(kind), copy.deepcopy(get_state_dict(trained, plain)))
        _, other, states = _taken(kind)
        _unmark(states[1])
        with _warned("starts anew"):
            _set(*_make(kind), states)
        older = other.state_dict()
        _unmark(older)
        with _warned(""):
            _make(kind)[1].load_state_dict(older)
    with _warned(""):
        _set(*_make("sync"), copy.deepcopy(get_state_dict(trained, plain)))


def check_a_plain_optimizer_takes_marked_states() -> None:
    """It keeps the mark as any unknown option; an optimizer of Rueda's that is made of it does not."""
    for kind in ("local:3", COMPRESSED):
        _, _, states = _taken(kind)
        trained = _model()
        plain = torch.optim.Adam(trained.parameters(), lr=0.5)
        _set(trained, plain, copy.deepcopy(states))
        assert plain.param_groups[0]["lr"] == 0.02
        trained(torch.ones(2, 6)).sum().backward()
        plain.step()
        plain.zero_grad()
        wrapped = rt.wrap(trained, plain, "local:3")
        assert not _marks(wrapped.state_dict())
        _set(trained, wrapped, copy.deepcopy(get_state_dict(trained, wrapped)))


def check_states_whose_groups_torch_takes_apart() -> None:
    """Torch drops the mark, and plain optimizers take these states as well."""
    for kind in ("local:3", COMPRESSED):
        for option in ("flatten_optimizer_state_dict", "full_state_dict"):
            _, _, states = _taken(kind, **{option: True})
            with _warned("starts anew"):
                _set(*_make(kind), copy.deepcopy(states), **{option: True})
            trained = _model()
            plain = torch.optim.Adam(trained.parameters(), lr=0.5)
            _set(trained, plain, states, **{option: True})
            assert plain.param_groups[0]["lr"] == 0.02


def check_torchs_checkpoints() -> None:
    """They take the mark from the state into which they load, so that only a warning is left in a new process."""
    for kind in ("local:3", COMPRESSED, LEAVES):
        with folder() as path:
            trained, optimizer = _make(kind)
            _train(trained, optimizer, 0, 2)
            own = path / str(rueda.rank())
            dcp.save(
                {"o": get_optimizer_state_dict(trained, optimizer)}, checkpoint_id=own, no_dist=True
            )
            for steps in (0, 2):
                again, other = _make(kind)
                _train(again, other, 0, steps)
                state = {"o": get_optimizer_state_dict(again, other)}
                dcp.load(state, checkpoint_id=own, no_dist=True)
                if steps:
                    with raises(InvalidArgumentError, "get_state_dict"):
                        set_optimizer_state_dict(again, other, state["o"])
                else:
                    with _warned("starts anew"):
                        set_optimizer_state_dict(again, other, state["o"])


def check_steps_of_torchs_functions_are_none_of_the_training() -> None:
    """For an optimizer without state torch takes one: it shifts no period, and the other ranks need not take it."""
    sgd = torch.optim.SGD
    for kind in ("sync", *STRATEGIES[:4], {}, COMPRESSED, {"overlap_forward": True}, LEAVES):
        trained, optimizer = _make(kind, sgd)
        again, other = _make(kind, sgd)
        for begin in (0, 1, 2, 4):
            if rueda.rank() == 0:
                get_state_dict(again, other)
            for one, its in ((trained, optimizer), (again, other)):
                _train(one, its, begin, begin + 1)
        assert _same(trained, again), kind
        if hasattr(optimizer, "_rueda_replica"):
            kept, its = (each.state_dict()["rueda_strategy"] for each in (optimizer, other))
            assert (kept["steps"], kept["batches"]) == (its["steps"], its["batches"]), kind


def check_an_optimizer_without_strategy_refuses_what_it_would_lose() -> None:
    for kind in ({}, LEAVES):
        for strategy in STRATEGIES:
            trained, wrapped = _make(strategy)
            _train(trained, wrapped, 0, 2)
            rueda.barrier()
            state = copy.deepcopy(wrapped.state_dict())
            rueda.barrier()
            _, optimizer = _make(kind)
            before = copy.deepcopy(optimizer.state_dict())
            with raises(InvalidArgumentError, wrapped.strategy.describe(), "wrap()", "switch("):
                optimizer.load_state_dict(state)
            _unmark(state)
            with raises(InvalidArgumentError, wrapped.strategy.describe()):
                optimizer.load_state_dict(state)
            assert optimizer.state_dict() == before
            wrapped.close(drop_incomplete=True)
        for strategy, steps in (("sync", 2), ("accumulate:2", 2), ("local:3", 0)):
            trained, wrapped = _make(strategy)
            _train(trained, wrapped, 0, steps)
            _make(kind)[1].load_state_dict(wrapped.state_dict())


def check_a_checkpoint_of_pending_batches() -> None:
    """Loading it into an optimizer without a strategy changes nothing, neither there nor in the model."""
    with folder() as path:
        trained, wrapped = _make("accumulate:3")
        _train(trained, wrapped, 0, 5)
        ck.save(path, 5, model=trained, optimizer=wrapped).result(60)
        again, optimizer = _make({})
        with raises(InvalidArgumentError, "optimizer: the state belongs to Grad", "rank 0"):
            ck.load(path, model=again, optimizer=optimizer)
        assert _same(again, _model())
        _train(trained, wrapped, 5, 6)
        ck.save(path, 6, model=trained, optimizer=wrapped).result(60)
        ck.load(path, model=again, optimizer=optimizer)
        assert _same(again, trained)


if __name__ == "__main__":
    parallel.run(globals())
