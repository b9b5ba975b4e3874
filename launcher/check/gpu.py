"""CUDA and NCCL."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..native import Native
from .row import Row, missing
from .shared_object import ldconfig, probe

_ASK_NCCL = """
import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
answer(version.value)
"""

_ASK_CUDA = """
import ctypes, sys
cuda, version, devices = ctypes.CDLL(sys.argv[1]), ctypes.c_int(), ctypes.c_int()
cuda.cuDriverGetVersion(ctypes.byref(version))
error = cuda.cuInit(0)
if error == 0:
    cuda.cuDeviceGetCount(ctypes.byref(devices))
answer([version.value, error, devices.value])
"""


def support_row(native: Native) -> Row:
    """What this build of Rueda does with GPUs."""
    if native.module is None:
        return missing("GPU support", "the native extension is missing")
    built, kernels, _ = native.module.gpu_support()
    if not built:
        return missing(
            "GPU support",
            "librueda was built without cuda.h",
            "needed for GPUs only: pip install nvidia-cuda-runtime nvidia-cuda-nvcc, then install Rueda again",
        )
    note = (
        f"kernels by {kernels}"
        if kernels
        else "no kernels, because nvcc was missing at build time: tensors are packed one by one"
    )
    return Row("GPU support", True, note=note)


def _nccl_candidates() -> Iterator[Path]:
    for folder in map(Path, sys.path):
        yield from folder.glob("nvidia/nccl/lib/libnccl.so.2")
        yield from folder.glob("nvidia/*/lib/libnccl.so.2")
        yield from folder.glob("torch/lib/libnccl.so.2")
    yield from ldconfig("libnccl.so.2")


def nccl_row() -> Row:
    """NCCL of PyPI's wheel, of torch, or of the system."""
    path = next(_nccl_candidates(), None)
    if path is None:
        return missing(
            "NCCL",
            "no libnccl.so.2 in the nvidia-nccl wheel, in torch or in the system",
            "needed for GPUs only: pip install nvidia-nccl-cu12",
        )
    try:
        number = int(probe(_ASK_NCCL, str(path)))
    except OSError as error:
        return missing("NCCL", str(error), path=str(path))
    # 22703 is 2.27.3
    return Row("NCCL", True, f"{number // 10000}.{number // 100 % 100}.{number % 100}", str(path))


def driver_row() -> Row:
    """libcuda, which comes with the driver."""
    found = ldconfig("libcuda.so.1")
    if not found:
        return missing("CUDA driver", "no libcuda.so.1", "needed for GPUs only: install the driver")
    path = str(found[0])
    try:
        version, error, devices = probe(_ASK_CUDA, path)
    except OSError as failure:
        return missing("CUDA driver", str(failure), path=path)
    if error != 0:
        return missing(
            "CUDA driver", f"cuInit fails with error {error}", "see whether nvidia-smi works", path
        )
    text = f"CUDA {version // 1000}.{version % 1000 // 10}"
    return Row("CUDA driver", True, text, path, f"{devices} device{'s' if devices != 1 else ''}")


def toolkit_row() -> Row:
    """nvcc, needed only to build."""
    path = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if path is None:
        return missing("CUDA toolkit", "no nvcc on the PATH", "needed only to build CUDA kernels")
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"release ([\d.]+)", answer)
    return Row("CUDA toolkit", True, match[1] if match else "", path)
