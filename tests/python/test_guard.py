"""The guard of asynchronous training, on quadratics that workers in this process descend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from rueda.torch.strategies import Guard  # noqa: E402

WORKERS = 4
RATE = 0.5
CURVATURES = torch.logspace(-3, 0, 20)


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
    """How far the centre is from the minimum after each push, at the start 1 in each direction."""
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
        counts[who][push - seen[who]] += WORKERS  # each of as many owners counts it
        centre = centre + factor * delta
        pulled[who], seen[who] = centre.clone(), push + 1
        far.append(float(centre.abs().max()))
    return far


def test_windows_never_run_away_where_ranks_take_turns() -> None:
    # Most of what is pushed is in directions of little curvature, in which pushes hardly change.
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
