"""Records what the GPU tests run on: card, driver, torch, NCCL, compilers."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path


def first_lines(command: list[str], lines: int = 1) -> str:
    """Returns the last lines a program says about itself, or why there are none."""
    if shutil.which(command[0]) is None:
        return f"there is no {command[0]}"
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "; ".join((ended.stdout or ended.stderr).strip().split("\n")[-lines:])


def facts() -> dict[str, object]:
    """Returns all facts as texts and numbers."""
    import rueda
    import torch
    from rueda import _native

    found: dict[str, object] = {
        "python": f"{platform.python_version()} {sys.executable}",
        "processors": os.cpu_count(),
        "gpu": first_lines(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        ),
        "nvcc": first_lines(["nvcc", "--version"]),
        "compiler": first_lines(["c++", "-dumpfullversion"]),
        "compute-sanitizer": first_lines(["compute-sanitizer", "--version"], 2),
        "torch": torch.__version__,
        "torch's CUDA": torch.version.cuda,
        "GPUs that torch sees": torch.cuda.device_count(),
        "rueda": rueda.__version__,
        "rueda's GPU support": str(_native.gpu_support()),
    }
    if torch.cuda.is_available():
        found["torch's NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def main() -> None:
    """Prints the facts, and records them."""
    found = facts()
    for name, value in found.items():
        print(f"{name}: {value}")
    if record := os.environ.get("RUEDA_TEST_RECORD"):
        with Path(record).open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
