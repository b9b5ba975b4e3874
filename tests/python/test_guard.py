"""The guard of asynchronous training, on quadratics that workers in this process minimize."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from rueda.torch.strategies import Guard, stability_limit  # noqa: E402

WORKERS = 4
RATE = 0.5
CURVATURES = torch.logspace(-3, 0, 20)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "strategies"


@pytest.fixture
def benchmark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program of benchmarks/strategies that the parameter names."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    return importlib.import_module(request.param)


def in_turns() -> Iterator[int]:
    while True:
        yield from range(WORKERS)


def by_chance(seed: int) -> Iterator[int]:
    draw = np.random.default_rng(seed)
    while True:
        yield int(draw.integers(WORKERS))


def descend(
    order: Iterable[int], window: int, guards: list[Guard] | None, pushes: int = 200
) -> list[float]:
    """The centre's largest distance from the minimum after each push; initially 1 per direction."""
    centre = torch.ones(len(CURVATURES))
    pulled = [centre.clone() for _ in range(WORKERS)]
    seen = [0] * WORKERS
    counts: list[Counter[int]] = [Counter() for _ in range(WORKERS)]
    reached = (1 - RATE * CURVATURES) ** window
    far = []
    for push, who in zip(range(pushes), order, strict=False):
        delta = (reached - 1) * pulled[who]
        factor = 1.0
        if guards is not None:
            factor = guards[who].advise(pulled[who], delta, counts[who], 1.0, float(seen[who]))
        counts[who][push - seen[who]] += WORKERS  # counted by as many owners
        centre = centre + factor * delta
        pulled[who], seen[who] = centre.clone(), push + 1
        far.append(float(centre.abs().max()))
    return far


def test_windows_never_run_away_where_ranks_take_turns() -> None:
    # Most pushes are in directions of little curvature, in which they hardly change.
    assert max(descend(in_turns(), 20, None)) > 100
    guarded = descend(in_turns(), 20, [Guard(WORKERS, 20) for _ in range(WORKERS)])
    assert max(guarded) <= 1
    assert guarded[-1] < 0.6


@pytest.mark.parametrize("seed", range(6))
def test_windows_never_run_away_where_ranks_come_by_chance(seed: int) -> None:
    guarded = descend(by_chance(seed), 20, [Guard(WORKERS, 20) for _ in range(WORKERS)])
    assert max(guarded) <= 1
    assert guarded[-1] < 0.25


def test_first_windows_are_shrunk_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(WORKERS, "epoch")
    assert guard.advise(torch.ones(2), -torch.ones(2), {}, 1.0, 0.0) == pytest.approx(
        0.356, abs=1e-3
    )
    assert guard.advised == 0
    assert not caplog.records


def test_first_single_steps_are_left_alone() -> None:
    assert Guard(WORKERS).advise(torch.ones(2), -torch.ones(2), {}, 1.0, 0.0) == 1.0


def test_pushes_that_are_small_enough_are_not_shrunk() -> None:
    """As those of ADAG, which divides a window by its steps."""
    assert Guard(WORKERS, 20).advise(torch.ones(2), -torch.ones(2), {}, 1 / 20, 0.0) == 1.0


@pytest.mark.parametrize("benchmark", ["guard"], indirect=True)
@pytest.mark.parametrize(
    "delays",
    [
        {0: 1.0},
        {1: 1.0},
        {8: 1.0},
        {20: 1.0},
        {0: 1.0, 6: 1.0},
        dict.fromkeys(range(4), 1.0),
        {k: 0.5**k for k in range(21)},
    ],
    ids=str,
)
def test_limits_are_what_a_simulation_of_its_own_finds(
    benchmark: ModuleType, delays: dict[int, float]
) -> None:
    measured = benchmark.measured_limit(delays, steps=20_000)
    assert stability_limit(delays) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("benchmark", ["guard"], indirect=True)
def test_it_is_silent_where_steps_are_safe_and_speaks_where_they_are_not(
    benchmark: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    grows_from = 1.125  # growing_rate(WORKERS, range(9))
    for seed in range(3):
        _, advised = benchmark.train(WORKERS, grows_from / 2, seed)
        assert advised == 0
    assert not caplog.records
    _, advised = benchmark.train(WORKERS, 1.5 * grows_from, 0)
    assert advised > 0
    assert len(caplog.records) == WORKERS  # once each
    assert "pushes over-correct: their gain is " in caplog.text


@pytest.mark.parametrize("benchmark", ["guarded_windows"], indirect=True)
def test_the_digits_are_learnt_by_guarded_windows_in_turns_and_not_without(
    benchmark: ModuleType,
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert benchmark.train(20, is_guarded=False, in_turns=True, seed=0).accuracy < 50
        guarded = benchmark.train(20, is_guarded=True, in_turns=True, seed=0)
        again = benchmark.train(20, is_guarded=True, in_turns=True, seed=0)
    finally:
        torch.set_num_threads(threads)
    assert guarded.accuracy >= 93
    assert again == guarded  # fully deterministic


def test_nothing_is_advised_once_a_training_has_diverged() -> None:
    """Its gain is NaN then; as a factor, that would be refused by the table."""
    guard, x = Guard(ranks=2), torch.ones(3)
    for push in range(6):
        delta = torch.full((3,), float("nan") if push > 2 else -2.5) * x
        factor = guard.advise(x, delta, {1: 4 * push}, 1.0, float(push))
        x = x + delta
        assert 0 < factor <= 1  # not NaN
