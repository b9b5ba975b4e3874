"""A world of one rank, and the kernels alone, under NVIDIA's memory checker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_worlds import REHEARSAL, run_world

FOUND_ERRORS = 86
# If it cannot attach to the GPU, as in some sandboxes, nothing has been checked.
REFUSALS = ("Device not supported", "device is not supported", "Unable to find the injection")


@pytest.fixture(scope="module")
def sanitizer() -> list[str]:
    if REHEARSAL:
        pytest.skip("a rehearsal has no GPU")
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if program is None:
        pytest.skip("compute-sanitizer is not on the PATH")
    # torch and NCCL try calls that a driver may refuse; only memory accesses matter.
    options = ["--tool", "memcheck", "--report-api-errors", "no"]
    return [program, *options, "--error-exitcode", str(FOUND_ERRORS)]


def must_be_clean(returncode: int, output: str) -> None:
    for refusal in REFUSALS:
        if refusal in output:
            pytest.skip(f"compute-sanitizer says: {refusal}")
    assert returncode == 0, output
    assert "ERROR SUMMARY: 0 errors" in output, output


def test_world_of_one_rank(sanitizer: list[str]) -> None:
    # Torch's allocator hands out parts of large blocks, so accesses past their ends would go
    # unnoticed.
    ended = run_world(
        "check_gpu_sanitized.py",
        1,
        extra={"EXPECTED_ROAD": "nccl", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        under=sanitizer,
    )
    must_be_clean(ended.returncode, ended.output)


def test_kernels(sanitizer: list[str]) -> None:
    # .ci/gpu-build.sh has built it next to this environment.
    program = Path(sys.prefix).parent / "tests" / "cuda_hardware_test"
    if not program.exists():
        pytest.skip(f"{program} has not been built: `make test-gpu-sanitizer` does")
    ended = subprocess.run(
        [*sanitizer, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    must_be_clean(ended.returncode, ended.stdout)
