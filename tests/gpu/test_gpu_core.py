"""One to four processes on one GPU through rueda.torch: alone over NCCL, together staged.

Staged tensors go through pinned host memory. The order is that of first_light.py: what most depends
on comes first.
"""

from __future__ import annotations

import pytest
from gpu_worlds import check_world, path

STAGED = {"RUEDA_GPU_BACKEND": "staged", "EXPECTED_ROAD": "staged"}


def test_collectives_over_nccl() -> None:
    check_world("check_gpu_collectives.py", 1, path(1))


def test_streams_over_nccl() -> None:
    check_world("check_gpu_streams.py", 1, path(1))


@pytest.mark.parametrize("script", ["check_gpu_collectives.py", "check_gpu_streams.py"])
def test_staged_at_two_ranks(script: str) -> None:
    check_world(script, 2, path(2))


@pytest.mark.parametrize("script", ["check_gpu_collectives.py", "check_gpu_streams.py"])
def test_staged_at_one_rank(script: str) -> None:
    check_world(script, 1, STAGED)


@pytest.mark.parametrize("size", [1, 2])
def test_persistent_operations(size: int) -> None:
    check_world("check_gpu_persistent.py", size, path(size))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_cannot_be_reduced(size: int) -> None:
    check_world("check_gpu_bad_input.py", size, path(size))


def test_nccl_refuses_a_shared_gpu() -> None:
    check_world("check_gpu_shared.py", 2, {"RUEDA_GPU_BACKEND": "nccl"})


@pytest.mark.parametrize("script", ["check_gpu_collectives.py", "check_gpu_streams.py"])
def test_staged_at_four_ranks(script: str) -> None:
    check_world(script, 4, path(4))
