"""Builds the tests and example of rueda/torch.h against an installed Rueda and LibTorch."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .conftest import ROOT, anew, run

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed: there is no LibTorch", allow_module_level=True)

# The first test builds the library too; LibTorch's headers take a minute per file.
pytestmark = pytest.mark.timeout(900)

EXAMPLE = ROOT / "examples/cpp/torch"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np"]
RUEDA_RUN = [sys.executable, "-m", "rueda.launcher", "run", "-np"]
# Variables of another launcher must not decide how the ranks find each other.
LAUNCHERS = ("RUEDA_", "OMPI_", "PMIX_", "PRTE_")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)} | {
    "OMP_NUM_THREADS": "1"
}
PARAMETER_TOLERANCE = 1e-4  # for another summation order, as in examples/python/demo.py


def start(launcher: list[str], ranks: int, *command, **options) -> str:
    return run(*launcher, ranks, *command, env=ENVIRONMENT, timeout=180, **options)


def launchers() -> list[list[str]]:
    return [RUEDA_RUN, MPIRUN] if shutil.which("mpirun") else [RUEDA_RUN]


def build(source: Path, folder: Path, prefix: Path) -> Path:
    """Builds as the example's instructions say."""
    prefix_path = run(sys.executable, "-c", "import torch; print(torch.utils.cmake_prefix_path)")
    environment = os.environ | {
        "rueda_DIR": str(prefix / "lib/cmake/rueda"),
        "CMAKE_PREFIX_PATH": prefix_path.strip(),
    }
    if shutil.which("ccache"):
        environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    run("cmake", "-S", source, "-B", folder, env=environment)
    run("cmake", "--build", folder, "-j", "2", env=environment)
    return folder


@pytest.fixture(scope="module")
def tests(prefix) -> Path:
    folder = anew(ROOT / "build/test-libtorch")
    return build(ROOT / "tests/libtorch", folder, prefix) / "libtorch_test"


@pytest.fixture(scope="module")
def digits(prefix) -> Path:
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    folder = anew(ROOT / "build/test-digits")
    run(sys.executable, EXAMPLE / "export_digits.py", folder / "digits.bin")
    return build(EXAMPLE, folder, prefix) / "digits"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives_and_the_optimizer(tests, ranks):
    launcher = launchers()[
        ranks % len(launchers())
    ]  # both launchers get an odd and an even number of ranks
    assert start(launcher, ranks, tests).count("passed") == ranks


def test_several_files_can_include_the_header(tests):
    """Its definitions are inline, so nothing is defined twice."""
    (compiled,) = tests.parent.rglob("unity_0_cxx.cxx.o")
    defined = run("nm", "--defined-only", "--extern-only", "--demangle", compiled)
    assert " W rueda::libtorch::" in defined
    assert not re.findall(r"^\w+ [A-V] rueda::.*", defined, re.MULTILINE)


def test_the_order_of_streams(tests):
    assert "passed" in run(tests.with_name("streams_test"), env=ENVIRONMENT, timeout=60)


def parameters(path: Path) -> np.ndarray:
    return np.fromfile(path, np.float32)


def accuracy(output: str) -> float:
    return float(output.partition("test accuracy ")[2].partition(" %")[0])


@pytest.mark.parametrize("launcher", launchers(), ids=["rueda", "mpirun"][: len(launchers())])
def test_four_ranks_train_the_digits_like_one(digits, tmp_path, launcher):
    alone = run(digits, "digits.bin", tmp_path / "one", cwd=digits.parent, env=ENVIRONMENT)
    together = start(launcher, 4, digits, "digits.bin", tmp_path / "four", cwd=digits.parent)
    assert accuracy(alone) > 90
    assert abs(accuracy(together) - accuracy(alone)) <= 0.5
    expected = parameters(tmp_path / "one.0")
    found = [parameters(tmp_path / f"four.{rank}") for rank in range(4)]
    assert all(np.array_equal(found[0], other) for other in found), "the same bits on every rank"
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=PARAMETER_TOLERANCE)


def test_the_digits_say_what_is_missing(digits, tmp_path):
    result = subprocess.run(
        [digits], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert "digits.bin is not what export_digits.py writes" in result.stderr


def test_compiles_with_the_headers_of_cuda():
    sys.path.append(str(ROOT / "tests/libtorch"))
    import check_versions
    import torch

    if check_versions.cuda_headers() is None:
        pytest.skip("there are no headers of CUDA's runtime")
    headers = Path(torch.__file__).parent / "include"
    if not (headers / "c10/cuda/CUDAStream.h").exists():
        pytest.skip("this torch comes without its headers for CUDA")
    assert check_versions.check_with_cuda(headers, "c++") == ""


def test_the_example_is_built_by_six_lines():
    assert len((EXAMPLE / "CMakeLists.txt").read_text().splitlines()) == 6
