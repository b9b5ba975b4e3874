"""Two ranks on one GPU over NCCL, which NCCL 2.30 and newer allow."""

from __future__ import annotations

import pytest
from gpu_worlds import REHEARSAL, check_world

OLDEST = 23000  # 2.30.0 in Horovod's notation
ALLOWED = {
    "RUEDA_GPU_BACKEND": "nccl",
    "EXPECTED_ROAD": "nccl",
    "RUEDA_GPU_SHARING": "on",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}


@pytest.fixture(scope="module", autouse=True)
def _nccl_allows_it() -> None:
    if REHEARSAL:
        pytest.skip("a rehearsal has no NCCL")
    import rueda.horovod.torch as hvd  # which loads torch's, of which torch itself tells what it was built with

    version = hvd.nccl_built()
    if version < OLDEST:
        pytest.skip(f"NCCL {version} allows one rank on a card: {OLDEST} and newer allow more")


@pytest.mark.parametrize(
    "script",
    [
        "check_gpu_collectives.py",
        "check_gpu_streams.py",
        "check_gpu_training.py",
        "check_gpu_persistent.py",
        "check_gpu_strategies.py",
        "check_gpu_c10d.py",
    ],
)
def test_two_ranks(script: str) -> None:
    check_world(script, 2, ALLOWED)


def test_three_ranks_of_which_two_are_lost() -> None:
    check_world("check_gpu_recovery.py", 3, ALLOWED, options=["--min-np", "1"])
