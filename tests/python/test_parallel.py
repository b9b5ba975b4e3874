"""Runs the checks of tests/parallel/python with 1 to 4 ranks, under the rendezvous and under mpirun."""

from __future__ import annotations

import pytest
from launching import PARALLEL, check, check_under_mpirun, find_mpirun

SIZES = [1, 2, 3, 4]
SHORT_STALLS = {"RUEDA_STALL_WARNING": "1", "RUEDA_STALL_ERROR": "2"}

needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
needs_torch = pytest.mark.usefixtures("torch")


@pytest.fixture(scope="session")
def torch() -> object:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("script", ["check_reductions.py", "check_exchanges.py"])
def test_collectives(script: str, size: int) -> None:
    check(PARALLEL / script, size)


@needs_mpirun
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("script", ["check_reductions.py", "check_exchanges.py"])
def test_collectives_under_mpirun(script: str, size: int) -> None:
    check_under_mpirun(PARALLEL / script, size)


@needs_mpirun
@pytest.mark.parametrize("script", ["check_reductions.py", "check_exchanges.py"])
def test_collectives_over_mpi(script: str) -> None:
    check_under_mpirun(PARALLEL / script, 3, extra={"RUEDA_TRANSPORT": "mpi"})


# Two and three ranks: below.
@pytest.mark.parametrize("size", [1, 4])
def test_messages(size: int) -> None:
    check(PARALLEL / "check_messages.py", size)


@needs_torch
def test_messages_of_tensors() -> None:
    check(PARALLEL / "check_messages.py", 2, ["torch", "check_tensors"])


@needs_mpirun
@pytest.mark.parametrize(("size", "transport"), [(2, "auto"), (3, "mpi")])
def test_messages_under_mpirun(size: int, transport: str) -> None:
    extra = {"RUEDA_TRANSPORT": transport}
    check_under_mpirun(PARALLEL / "check_messages.py", size, extra=extra)


def test_join_averages_over_all() -> None:
    check(PARALLEL / "check_exchanges.py", 3, extra={"RUEDA_JOIN_AVERAGE": "all"})


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bad_input(size: int) -> None:
    ended = check(PARALLEL / "check_bad_input.py", size, extra=SHORT_STALLS)
    assert "'forgotten'" in ended[0].output  # the warning


@needs_mpirun
def test_bad_input_under_mpirun() -> None:
    check_under_mpirun(PARALLEL / "check_bad_input.py", 2, extra=SHORT_STALLS)


@pytest.mark.parametrize(
    "option",
    [
        {"RUEDA_FUSION_THRESHOLD": "0"},
        {"RUEDA_FUSION_THRESHOLD": "100"},
        {"RUEDA_RING_CHUNK": "64"},
        {"RUEDA_CACHE_CAPACITY": "0"},
        {"RUEDA_CACHE_CAPACITY": "3"},
    ],
    ids=str,
)
def test_reductions_with_extreme_options(option: dict[str, str]) -> None:
    check(PARALLEL / "check_reductions.py", 3, extra=option)


@needs_torch
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "script",
    [
        "check_torch_buckets.py",
        "check_torch_collectives.py",
        "check_torch_optimizer.py",
        "check_torch_optimizer_use.py",
        "check_torch_persistent.py",
        "check_torch_state.py",
    ],
)
def test_torch(script: str, size: int) -> None:
    check(PARALLEL / script, size)


@needs_torch
@pytest.mark.parametrize("views", ["0", "1"])
@pytest.mark.parametrize("script", ["check_torch_optimizer.py", "check_torch_optimizer_use.py"])
def test_torch_with_and_without_buckets(script: str, views: str) -> None:
    check(PARALLEL / script, 1 if views == "1" else 3, extra={"GRADIENT_AS_BUCKET_VIEW": views})


@needs_torch
def test_examples() -> None:
    check(PARALLEL / "check_examples.py", 1)


@needs_torch
def test_torch_compile() -> None:
    check(PARALLEL / "check_torch_compile.py", 2)


@needs_torch
@needs_mpirun
def test_torch_buckets_under_mpirun() -> None:
    check_under_mpirun(PARALLEL / "check_torch_buckets.py", 2)
