"""rueda/torch.h on tensors of a GPU: compiles a program here against the installed torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_worlds import REHEARSAL, path
from launching import run_to_end

ROOT = Path(__file__).resolve().parents[2]


def flags(folder: Path) -> list[str]:
    """Returns compiler and linker flags for the installed torch and the imported Rueda."""
    import rueda
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    if not torch.compiled_with_cxx11_abi():
        pytest.skip(f"torch {torch.__version__} has another ABI of C++ than Rueda is built with")
    home, library = Path(torch.__file__).parent, Path(rueda.__file__).parent / "lib"
    system = [home / "include", home / "include/torch/csrc/api/include"]
    names = ["torch", "torch_cpu", "c10"]
    if torch.version.cuda is not None:
        names += ["torch_cuda", "c10_cuda"]
        system += [Path(CUDA_HOME) / "include"] if CUDA_HOME else []
    libraries = [home / "lib", library]
    return [
        *("-std=c++20", "-O1", f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests/libtorch'}"),
        *(flag for path in system for flag in ("-isystem", str(path))),
        *("-o", str(folder / "libtorch_test"), "-Wl,--no-as-needed", "-Wl,--disable-new-dtags"),
        "-Wl,--allow-shlib-undefined",  # dependencies of torch's libraries are found at load time
        *(flag for path in libraries for flag in (f"-L{path}", f"-Wl,-rpath,{path}")),
        *(f"-l{name}" for name in (*names, "rueda")),
    ]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("libtorch")
    source = str(Path(__file__).with_name("libtorch_test.cpp"))
    ended = subprocess.run(
        ["c++", source, *flags(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return folder / "libtorch_test"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_libtorch(program: Path, size: int) -> None:
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "-np", str(size), str(program)]
    variables = {**path(size), **({"RUEDA_TEST_DEVICE": "cpu"} if REHEARSAL else {})}
    ended = run_to_end(line, variables, 240, "the world")
    assert ended.returncode == 0, ended.output
    assert ended.output.count("passed") == size, ended.output
