#!/usr/bin/env python3
"""Compiles LibTorch's adapter and what uses it against those of many versions of torch, without linking.

    python tests/libtorch/check_versions.py                     # all versions that are to be had
    python tests/libtorch/check_versions.py 2.4.1 2.13.0        # some
    python tests/libtorch/check_versions.py --folder /tmp/torch # keeps the headers there for the next time

The headers come out of torch's wheels for ARM, which hold the same headers as those for x86 and a tenth of the rest.
Where the headers of CUDA's runtime are found, what needs them is compiled as well.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = [
    *("2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0"),
    *("2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0"),
]
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux2014_aarch64")  # later versions, earlier ones
PYTHON = "311"  # for which all these versions have wheels; the headers do not depend on it
WARNINGS = [
    *("-Wall", "-Wextra", "-Wpedantic", "-Wshadow"),
    *("-Wconversion", "-Wno-sign-conversion", "-Werror"),
]
SOURCES = [
    *sorted((ROOT / "tests/libtorch").glob("*.cpp")),
    ROOT / "tests/gpu/libtorch_test.cpp",
    *sorted((ROOT / "examples/cpp/torch").glob("*.cpp")),
]
# With the headers of CUDA; of torch's wheels for the CPU only a generated one is missing.
CUDA_SOURCE = ROOT / "tests/libtorch/cuda/streams.cpp"
GENERATED = "c10/cuda/impl/cuda_cmake_macros.h"


def main() -> int:
    """The number of versions that are not there or do not compile."""
    options = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        failed = 0
        for version in options.versions:
            found = check(version, folder, options.compiler)
            failed += bool(found)
            print(f"torch {version}: {found or 'compiles'}", flush=True)
            if not options.folder:
                shutil.rmtree(folder / version, ignore_errors=True)
    return failed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=f"default: {VERSIONS}")
    parser.add_argument("--folder", type=Path, help="keeps the headers here, 80 MB per version")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "c++"))
    return parser.parse_args()


def check(version: str, folder: Path, compiler: str) -> str:
    """What is wrong; empty where nothing is."""
    headers = folder / version / "torch" / "include"
    if not headers.exists():
        missing = fetch(version, folder / version)
        if missing:
            return f"not to be had: {missing}"
    for source in SOURCES:
        error = compile_only(source, headers, compiler, WARNINGS)
        if error:
            return f"{source.relative_to(ROOT)} does not compile\n{error}"
    error = check_with_cuda(headers, compiler)
    return f"{CUDA_SOURCE.relative_to(ROOT)} does not compile\n{error}" if error else ""


def check_with_cuda(headers: Path, compiler: str) -> str:
    """The first errors of what is compiled with CUDA's headers; nothing where these are not there."""
    runtime = cuda_headers()
    if runtime is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        generated = Path(folder) / GENERATED
        generated.parent.mkdir(parents=True)
        generated.write_text("#pragma once\n")
        system = ["-isystem", folder, "-isystem", str(runtime)]
        return compile_only(CUDA_SOURCE, headers, compiler, [*WARNINGS, *system])


def cuda_headers() -> Path | None:
    """The folder of CUDA's headers."""
    told = [os.environ.get(name) for name in ("CUDAToolkit_ROOT", "CUDA_PATH", "CUDA_HOME")]
    roots = [*filter(None, told), "/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"))]
    folders = [Path(root) / "include" for root in roots]
    return next((path for path in folders if (path / "cuda_runtime_api.h").exists()), None)


def fetch(version: str, folder: Path) -> str:
    """Unpacks the headers of a version; returns why not, else nothing."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    for platform in PLATFORMS:
        with tempfile.TemporaryDirectory() as wheels:
            which = ["--platform", platform, "--python-version", PYTHON, "--dest", wheels]
            ended = subprocess.run(
                [*pip, *which, f"torch=={version}"], capture_output=True, text=True, check=False
            )
            for wheel in Path(wheels).glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    names = [n for n in archive.namelist() if n.startswith("torch/include/")]
                    archive.extractall(folder, names)
                return ""
    return ended.stderr.strip().rpartition("\n")[2]


def compile_only(source: Path, headers: Path, compiler: str, flags: list[str]) -> str:
    """The first errors of a file; nothing where there are none."""
    torch = [headers, headers / "torch/csrc/api/include"]
    system = [flag for path in torch for flag in ("-isystem", str(path))]
    line = [compiler, "-std=c++20", "-fsyntax-only", *flags, *system]
    line += [f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests/libtorch'}"]
    ended = subprocess.run([*line, str(source)], capture_output=True, text=True, check=False)
    return "\n".join(ended.stderr.splitlines()[:12]) if ended.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
