"""A few of the jobs that `python -m tests.chaos` runs by the hundred, and the schedule itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .harness import Job, command
from .schedule import KINDS, worlds

pytest.importorskip("rueda._native")


@given(
    kills=st.integers(1, 40),
    ranks=st.integers(3, 9),
    seed=st.integers(0, 1 << 32),
    kinds=st.lists(
        st.sampled_from([kind for kind in KINDS if kind != "pause"]), min_size=1, unique=True
    ),
)
def test_a_schedule_can_be_repeated_and_leaves_somebody(
    kills: int, ranks: int, seed: int, kinds: list[str]
) -> None:
    made = list(worlds(kills, ranks, seed, tuple(kinds)))
    assert made == list(worlds(kills, ranks, seed, tuple(kinds)))
    lost = 0
    for world in made:
        victims = [victim for blow in world.blows for victim in blow.victims]
        assert len(set(victims)) == len(victims)
        assert set(victims) < set(range(ranks))
        lost += len(victims) + sum(blow.kind == "launcher" for blow in world.blows)
    assert lost >= kills


@pytest.mark.parametrize(
    ("transport", "kinds", "kills"),
    [
        ("shm", ("kill", "first", "two", "again"), 6),
        ("tcp", ("first", "two", "again"), 4),
        ("shm", ("freeze", "pause"), 2),
    ],
)
def test_ranks_go_on_after_random_blows(transport: str, kinds: tuple[str, ...], kills: int) -> None:
    for world in worlds(kills, 4, 3, kinds):
        variables = {"RUEDA_TRANSPORT": transport}
        Job(world, lambda rest: command(4, rest, ["--no-mpi"]), variables).run()
