"""The checks of tests/parallel/python on 1 to 4 ranks, under the rendezvous and under mpirun."""

from __future__ import annotations

import pytest
from launching import PARALLEL, check, find_mpirun
from worlds import Run, Worlds, each_check

SIZES = [1, 2, 3, 4]
COLLECTIVES = [
    "check_reductions.py",
    "check_exchanges.py",
    "check_compression.py",
    "check_leaves.py",
]
OVER_MPI = {"RUEDA_TRANSPORT": "mpi"}
OVER_TCP = {"RUEDA_TRANSPORT": "tcp"}
SHORT_STALLS = {"RUEDA_STALL_WARNING": "1", "RUEDA_STALL_ERROR": "2"}

needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
needs_torch = pytest.mark.usefixtures("torch")


@pytest.fixture(scope="session")
def torch() -> object:
    return pytest.importorskip("torch")


@each_check(
    [
        *(Run(script, size) for script in COLLECTIVES for size in SIZES),
        *(Run("check_messages.py", size) for size in (1, 4)),  # two and three ranks: see below
        Run("check_exchanges.py", 3, extra={"RUEDA_JOIN_AVERAGE": "all"}),
        Run("check_leaves.py", 8),
        Run("check_leaves.py", 3, extra={"RUEDA_FUSION_THRESHOLD": "0"}),
        *(Run("check_leaves.py", size, extra={"RUEDA_ALGORITHM": "ring"}) for size in (2, 3, 4)),
        *(Run(script, 3, extra=OVER_TCP) for script in [*COLLECTIVES, "check_messages.py"]),
    ]
)
def test_collectives(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@each_check(
    [
        *(Run("check_tables.py", size) for size in SIZES),
        Run("check_tables.py", 3, extra=OVER_TCP),
        *(Run("check_tables.py", size, extra={"RUEDA_ALGORITHM": "ring"}) for size in (3, 4)),
    ]
)
def test_tables(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@needs_mpirun
@each_check([Run("check_tables.py", 3, mpirun=True, extra=OVER_MPI)])
def test_tables_under_mpirun(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@needs_mpirun
@each_check(
    [
        *(Run(script, size, mpirun=True) for script in COLLECTIVES for size in SIZES),
        *(Run(script, 3, mpirun=True, extra=OVER_MPI) for script in COLLECTIVES),
        Run("check_messages.py", 2, mpirun=True),
        Run("check_messages.py", 3, mpirun=True, extra=OVER_MPI),
    ]
)
def test_collectives_under_mpirun(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@needs_torch
def test_messages_of_tensors() -> None:
    check(PARALLEL / "check_messages.py", 2, ["torch", "check_tensors"])


@each_check([Run("check_bad_input.py", size, extra=SHORT_STALLS) for size in (2, 3, 4)])
def test_bad_input(worlds: Worlds, run: Run, check: str) -> None:
    written = worlds.check(run, check)
    assert ("'forgotten'" in written) == (check == "check_missing_name_stalls"), (
        written
    )  # the warning


@needs_mpirun
@each_check([Run("check_bad_input.py", 2, mpirun=True, extra=SHORT_STALLS)])
def test_bad_input_under_mpirun(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@each_check(
    [
        Run("check_reductions.py", 3, extra=option)
        for option in (
            {"RUEDA_FUSION_THRESHOLD": "0"},
            {"RUEDA_FUSION_THRESHOLD": "100"},
            {"RUEDA_RING_CHUNK": "64"},
            {"RUEDA_CACHE_CAPACITY": "0"},
            {"RUEDA_CACHE_CAPACITY": "3"},
        )
    ]
)
def test_reductions_with_extreme_options(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@needs_torch
@each_check(
    [
        Run(f"check_torch_{script}.py", size)
        for script in (
            "collectives",
            "compression",
            "sparse",
            "strategies",
            "strategies_sparse_and_pairs",
        )
        for size in SIZES
    ]
    # About torch's work on each rank. It depends on whether there are other ranks, and results on
    # how many. A fourth rank has neighbours like the third's, and the layers below are checked on
    # four above.
    + [
        Run(f"check_torch_{script}.py", size)
        for script in (
            "buckets",
            "large_gradients",
            "layouts",
            "optimizer",
            "optimizer_use",
            "overlap",
            "persistent",
            "state",
        )
        for size in (1, 2, 3)
    ]
    + [
        Run("check_torch_strategies_bytes.py", size, extra={"RUEDA_ALGORITHM": "ring"})
        for size in (2, 3)
    ]
    + [
        Run(f"check_torch_strategies_{part}.py", size)
        for part in ("bad_input", "closing", "optimizers", "state")
        for size in (2, 3)
    ]
    + [Run("check_torch_strategies_resumed.py", size) for size in (1, 2, 3)]
    + [Run("check_torch_beginning.py", size) for size in (2, 3)]
    + [Run("check_torch_state_functions.py", size) for size in (1, 2)]
    + [Run("check_torch_strategies_uneven.py", 2, extra=SHORT_STALLS)]
    + [Run("check_torch_strategies_served.py", size) for size in (1, 2, 4)]
    + [
        Run(f"check_torch_strategies_{part}.py", 3, extra=OVER_TCP)
        for part in ("served", "sparse_and_pairs")
    ]
    + [Run("check_torch_strategies_shares.py", 4, extra=OVER_TCP)]
    + [Run("check_torch_agreement.py", size) for size in (2, 3, 4)]
)
def test_torch(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@needs_torch
@each_check(
    [
        Run(f"check_torch_{script}.py", size, extra={"GRADIENT_AS_BUCKET_VIEW": views})
        for script in ("optimizer", "optimizer_use")
        for size, views in ((3, "0"), (1, "1"))
    ]
)
def test_torch_with_and_without_buckets(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@needs_torch
def test_examples() -> None:
    check(PARALLEL / "check_examples.py", 1)


@needs_torch
def test_torch_compile() -> None:
    check(PARALLEL / "check_torch_compile.py", 2)


@needs_torch
@needs_mpirun
@each_check([Run("check_torch_buckets.py", 2, mpirun=True)])
def test_torch_buckets_under_mpirun(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)
