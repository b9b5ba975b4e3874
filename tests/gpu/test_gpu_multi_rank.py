"""Two ranks on one card over NCCL, which NCCL 2.30 and newer allow."""

from __future__ import annotations

import pytest
from gpu_worlds import REHEARSAL, check_world

OLDEST = (2, 30, 0)
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
    import torch

    version = torch.cuda.nccl.version()
    if version < OLDEST:
        pytest.skip(
            f"NCCL {'.'.join(map(str, version))} allows one rank on a card: 2.30 and newer allow more"
        )


@pytest.mark.parametrize(
    "script", ["check_gpu_collectives.py", "check_gpu_streams.py", "check_gpu_training.py"]
)
def test_two_ranks(script: str) -> None:
    check_world(script, 2, ALLOWED)
