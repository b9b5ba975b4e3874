"""What the packaging tests share: a wheel, and an installation in an environment of its own."""

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
    """An empty folder. In build/, so that ccache knows the next time what it has compiled there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    """The command, through ccache where there is one."""
    found = shutil.which(os.environ.get("CXX", "c++"))
    assert found, "a C++ compiler is needed"
    ccache = shutil.which("ccache")
    return [ccache, found] if ccache else [found]


# As in the presets, so that ccache compiles each file once for all builds.
WARNINGS = "RUEDA_WARNINGS_AS_ERRORS=ON"
# The compiler by the name that .ci/setup.sh gives it, for the same reason.
CXX = {"CXX": os.environ.get("CXX", "c++")}
# nvcc's work is not cached.
ONE_GPU = "RUEDA_CUDA_ARCHITECTURES=90"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first builds all of Rueda, perhaps from nothing and beside other builds."""
    for item in items:
        if {"installation", "prefix", "wheel"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Built with the tools of the environment that runs the tests."""
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
    """A virtual environment into which `pip install .` has put Rueda, and nothing else."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "bin/python"
        # As on a machine where no environment is active: only the system's tools are on the path.
        keep = {
            k: v
            for k, v in os.environ.items()
            if k.startswith(("PIP_", "HOME", "LANG", "CCACHE", "SSL_"))
        }
        system = [
            p for p in ("/usr/local/bin", "/usr/bin", "/bin") if not (Path(p) / "mpicc").exists()
        ]
        # Where the system has an MPI, its folder cannot be hidden, so CMake is told.
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
        # As another folder each time, what pip has fetched would be compiled anew: half a minute.
        f"--config-settings=cmake.define.pybind11_DIR={pybind11.get_cmake_dir()}",
    ]
    if made.has_mpi_in_sight:
        options += ["--config-settings=cmake.define.RUEDA_MPI=OFF"]
    made.run("-m", "pip", "install", "--disable-pip-version-check", *options, ROOT, cwd=folder)
    return made


@pytest.fixture(scope="session")
def prefix() -> Path:
    """Where `cmake --install` has put the library."""
    prefix = anew(ROOT / "build/test-prefix")
    build = anew(ROOT / "build/test-cmake")
    kernels = ROOT / "build/wheel/cuda/kernels.fatbin"  # CMake sees whether it is of these sources
    run(
        "cmake",
        "-G",
        "Ninja",  # which compiles in the same folder as for the wheel: ccache has it all
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
