"""One to four processes on one GPU: alone through NCCL, together through pinned memory of the host."""

from __future__ import annotations

import pytest
from gpu_worlds import check_world, path

EVERYWHERE = ["check_gpu_collectives.py", "check_gpu_streams.py", "check_gpu_training.py"]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("script", EVERYWHERE)
def test_on_the_road_that_is_chosen(script: str, size: int) -> None:
    check_world(script, size, path(size))


@pytest.mark.parametrize("script", EVERYWHERE)
def test_one_rank_through_the_host(script: str) -> None:
    check_world(script, 1, {"RUEDA_GPU_BACKEND": "staged", "EXPECTED_ROAD": "staged"})


@pytest.mark.parametrize("size", [1, 2])
def test_persistent_operations(size: int) -> None:
    check_world("check_gpu_persistent.py", size, path(size))


@pytest.mark.parametrize("size", [1, 2])
def test_horovod(size: int) -> None:
    check_world("check_gpu_horovod.py", size, path(size))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_cannot_be_reduced(size: int) -> None:
    check_world("check_gpu_bad_input.py", size, path(size))


def test_nccl_refuses_a_shared_gpu() -> None:
    check_world("check_gpu_shared.py", 2, {"RUEDA_GPU_BACKEND": "nccl"})


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("script", ["check_gpu_c10d.py", "check_gpu_c10d_streams.py"])
def test_torch_distributed(script: str, size: int) -> None:
    check_world(script, size, path(size))
