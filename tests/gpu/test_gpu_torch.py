"""One to four processes on one GPU: torch.distributed's backend, training, the drop-in for Horovod."""

from __future__ import annotations

import pytest
from gpu_worlds import check_world, path

STAGED = {"RUEDA_GPU_BACKEND": "staged", "EXPECTED_ROAD": "staged"}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("script", ["check_gpu_c10d.py", "check_gpu_c10d_streams.py"])
def test_torch_distributed(script: str, size: int) -> None:
    check_world(script, size, path(size))


@pytest.mark.parametrize("size", [1, 2])
def test_training(size: int) -> None:
    check_world("check_gpu_training.py", size, path(size))


def test_training_staged_at_one_rank() -> None:
    check_world("check_gpu_training.py", 1, STAGED)


@pytest.mark.parametrize("size", [1, 2])
def test_strategies(size: int) -> None:
    check_world("check_gpu_strategies.py", size, path(size))


@pytest.mark.parametrize("size", [1, 2])
def test_as_on_cpu(size: int) -> None:
    check_world("check_gpu_as_on_cpu.py", size, path(size))


def test_lost_ranks() -> None:
    check_world("check_gpu_recovery.py", 3, path(3), options=["--min-np", "1"])


@pytest.mark.parametrize("size", [1, 2])
def test_horovod(size: int) -> None:
    check_world("check_gpu_horovod.py", size, path(size))


@pytest.mark.parametrize(
    "script", ["check_gpu_training.py", "check_gpu_c10d.py", "check_gpu_c10d_streams.py"]
)
def test_four_ranks(script: str) -> None:
    check_world(script, 4, path(4))
