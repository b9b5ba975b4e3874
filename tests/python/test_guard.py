"""How large steps may be that come late, and the guard that looks after that."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "strategies"))


@pytest.fixture(scope="module")
def measured() -> ModuleType:
    """The simulations of the benchmark, which know nothing of what they are compared with."""
    pytest.importorskip("torch")
    import guard

    return guard


@pytest.mark.parametrize("delay", [0, 1, 2, 3, 7, 20])
def test_the_limit_of_one_delay_is_where_trajectories_begin_to_grow(
    measured: ModuleType, delay: int
) -> None:
    limit = measured.stability_limit({delay: 1})
    assert not measured.grows(0.95 * limit, [delay] * 20_000)
    assert measured.grows(1.05 * limit, [delay] * 20_000)


@pytest.mark.parametrize("name", ["0 or 6, each half of the time", "0 to 10, each as often"])
def test_the_limit_of_random_delays_is_where_trajectories_begin_to_grow(
    measured: ModuleType, name: str
) -> None:
    delays = measured.RANDOM[name]
    assert measured.stability_limit(delays) == pytest.approx(
        measured.measured_limit(delays, steps=20_000), rel=0.05
    )


@settings(max_examples=20, deadline=None)
@given(
    delays=st.dictionaries(st.integers(0, 12), st.floats(0.1, 10), min_size=1, max_size=4),
    unit=st.floats(0.01, 100),
)
def test_only_how_often_each_delay_occurs_counts(delays: dict[int, float], unit: float) -> None:
    pytest.importorskip("torch")
    from rueda.torch.strategies import stability_limit

    limit = stability_limit(delays, steps=2_000)
    assert 0 < limit <= 2
    in_other_unit = {delay: weight * unit for delay, weight in delays.items()}
    assert stability_limit(in_other_unit, steps=2_000) == pytest.approx(limit, rel=0.02)
    if len(delays) > 1:
        # No spread of delays is worse than their longest, as of a constant one, by more than the simulation's error.
        assert limit >= 0.9 * stability_limit({max(delays): 1.0})


def test_delays_that_are_none() -> None:
    pytest.importorskip("torch")
    from rueda.torch.strategies import stability_limit

    for delays in ({}, {3: 0.0}, {-1: 1.0}):
        with pytest.raises(ValueError, match="no delays"):
            stability_limit(delays)


def test_the_guard_speaks_where_runs_grow_and_not_where_they_are_stable(
    measured: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers in an order drawn by chance; runs grow from 1.5 on (docs/strategies.md)."""
    with caplog.at_level(logging.WARNING, "rueda"):
        quiet = [measured.train(2, 0.7, seed, pushes=200)[1] for seed in range(8)]
        assert sum(advised > 0 for advised in quiet) <= 1, quiet
        before = len(caplog.records)
        loud = [measured.train(2, 2.25, seed, pushes=100)[1] for seed in range(4)]
    assert all(advised > 50 for advised in loud), loud
    # Each worker says it once.
    assert len(caplog.records) - before == 8
    assert "a lower learning rate" in caplog.text
