"""Some of the jobs that `python -m tests.chaos` runs by the hundred, and the schedule itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .harness import Job, command, flags_of
from .schedule import HARMLESS, KINDS, quantile, worlds

pytest.importorskip("rueda._native")


@given(
    kills=st.integers(1, 40),
    ranks=st.integers(3, 9),
    seed=st.integers(0, 1 << 32),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, unique=True),
)
def test_a_schedule_can_be_repeated_and_leaves_somebody(
    kills: int, ranks: int, seed: int, kinds: list[str]
) -> None:
    made = list(worlds(kills, ranks, seed, tuple(kinds)))
    assert made == list(worlds(kills, ranks, seed, tuple(kinds)))
    harmless = HARMLESS if set(kinds) - set(HARMLESS) else ()
    lost = 0
    for world in made:
        alive, newcomer = set(range(ranks)), ranks - 1
        for blow in world.blows:
            victims = set(blow.victims)
            assert len(victims) == len(blow.victims)
            assert victims <= alive
            assert (blow.kind == "restart") <= world.is_replaced
            if blow.kind not in HARMLESS:
                alive -= victims
            if blow.kind == "restart":
                alive.add(newcomer := newcomer + 1)
            lost += len(victims) or 1 if blow.kind not in harmless else 0
        assert alive
    assert lost >= kills


def test_a_quantile_leaves_no_more_above_it_than_its_share() -> None:
    for count in range(1, 500):
        ordered = [float(value) for value in range(count)]
        for share in (0.5, 0.9, 0.99):
            found = quantile(ordered, share)
            above = sum(value > found for value in ordered)
            assert above <= (1 - share) * count + 1e-9
            assert above + 1 > (1 - share) * count - 1e-9  # the next smaller one has more
    assert quantile([float(value) for value in range(100)], 0.99) == 98


@pytest.mark.parametrize(
    ("transport", "kinds", "kills"),
    [
        ("shm", ("kill", "first", "two", "again"), 6),
        ("tcp", ("first", "two", "again"), 4),
        ("shm", ("freeze", "pause"), 2),
        ("shm", ("slow",), 1),
        ("tcp", ("slow",), 1),
        ("shm", ("restart",), 2),
        ("tcp", ("restart",), 1),
    ],
)
def test_ranks_go_on_after_random_blows(transport: str, kinds: tuple[str, ...], kills: int) -> None:
    for world in worlds(kills, 4, 3, kinds):
        variables = {"RUEDA_TRANSPORT": transport}
        flags = ["--no-mpi", *flags_of(world)]
        Job(world, lambda rest: command(4, rest, flags), variables).run()  # noqa: B023
