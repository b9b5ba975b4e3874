"""Shared by the packaging tests: a wheel, and an installation in its own environment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
import pytest

ROOT = Path(__file__).parents[2]


def run(*command, env=None, cwd=None, timeout=1500) -> str:
    """Runs a command and returns its standard output; the test fails with everything it printed."""
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=env,
        cwd=cwd,
        timeout=timeout,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def anew(folder: Path) -> Path:
    """Empties a folder; in build/, so that ccache recognizes what it compiled there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    """Returns the compiler command, through ccache if installed."""
    found = shutil.which(os.environ.get("CXX", "c++"))
    assert found, "a C++ compiler is needed"
    ccache = shutil.which("ccache")
    return [ccache, found] if ccache else [found]


# As in the presets, so that ccache compiles each file once for all builds.
WARNINGS = "RUEDA_WARNINGS_AS_ERRORS=ON"
# The compiler's name as in .ci/setup.sh, for the same reason.
CXX = {"CXX": os.environ.get("CXX", "c++")}
# ccache does not cache nvcc.
ONE_GPU = "RUEDA_CUDA_ARCHITECTURES=90"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises the timeout: the first test builds all of Rueda, perhaps beside other builds."""
    for item in items:
        if {"installation", "prefix", "wheel"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Builds the wheel with the tools of the test environment."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder),
        f"--config-settings=build-dir={ROOT / 'build/wheel'}",
        f"--config-settings=cmake.define.{WARNINGS}",
        ROOT,
        env=os.environ | CXX,
    )
    (wheel,) = folder.glob("rueda-*.whl")
    return wheel


class Installation:
    """A virtual environment in which `pip install .` has installed Rueda, and nothing else."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "bin/python"
        # As on a machine without an active environment: only system tools are on the PATH.
        keep = {
            k: v
            for k, v in os.environ.items()
            if k.startswith(("PIP_", "HOME", "LANG", "CCACHE", "SSL_"))
        }
        system = [
            p for p in ("/usr/local/bin", "/usr/bin", "/bin") if not (Path(p) / "mpicc").exists()
        ]
        # The folder of a system's MPI cannot be hidden, so CMake is told to ignore MPI.
        self.has_mpi_in_sight = len(system) < 3
        self.env = keep | CXX | {"PATH": os.pathsep.join(["/usr/local/bin", "/usr/bin", "/bin"])}

    def run(self, *arguments, **options) -> str:
        return run(self.python, *arguments, env=self.env, **options)


@pytest.fixture(scope="session")
def installation(tmp_path_factory) -> Installation:
    folder = tmp_path_factory.mktemp("installation")
    run(sys.executable, "-m", "venv", folder / "venv")
    made = Installation(folder / "venv")
    options = [
        f"--config-settings=build-dir={anew(ROOT / 'build/test-installation')}",
        f"--config-settings=cmake.define.{WARNINGS}",
        f"--config-settings=cmake.define.{ONE_GPU}",
        # pip would fetch pybind11 into a new folder each time, and all would be recompiled: half a
        # minute.
        f"--config-settings=cmake.define.pybind11_DIR={pybind11.get_cmake_dir()}",
    ]
    if made.has_mpi_in_sight:
        options += ["--config-settings=cmake.define.RUEDA_MPI=OFF"]
    made.run("-m", "pip", "install", "--disable-pip-version-check", *options, ROOT, cwd=folder)
    return made


@pytest.fixture(scope="session")
def prefix() -> Path:
    """The folder into which `cmake --install` installed the library."""
    prefix = anew(ROOT / "build/test-prefix")
    build = anew(ROOT / "build/test-cmake")
    kernels = ROOT / "build/wheel/cuda/kernels.fatbin"  # CMake checks that these sources made it
    run(
        "cmake",
        "-G",
        "Ninja",  # compiles in the same folder as for the wheel: ccache has it all
        "-S",
        ROOT,
        "-B",
        build,
        f"-DRUEDA_CUDA_IMAGE={kernels if kernels.exists() else ''}",
        f"-D{ONE_GPU}",
        "-DRUEDA_TESTS=OFF",
        "-DRUEDA_EXAMPLES=OFF",
        "-DCMAKE_INSTALL_LIBDIR=lib",
    )
    run("cmake", "--build", build, "-j", "2")
    run("cmake", "--install", build, "--prefix", prefix)
    return prefix
