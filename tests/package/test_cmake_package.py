"""find_package(rueda), from the wheel and from `cmake --install`."""

import shutil
import subprocess
from pathlib import Path

from .conftest import ROOT, run

# What a project's CMakeLists.txt needs, as README.md shows it.
PROJECT = """\
cmake_minimum_required(VERSION 3.22)
project(app LANGUAGES CXX)
find_package(rueda 0.1 REQUIRED)
add_executable(app app.cpp)
target_link_libraries(app PRIVATE rueda::rueda)
"""


def build_and_run(folder: Path, package: Path, env=None) -> str:
    shutil.copy(ROOT / "examples/cpp/allreduce.cpp", folder / "app.cpp")
    (folder / "CMakeLists.txt").write_text(PROJECT)
    run("cmake", "-S", folder, "-B", folder / "build", f"-Drueda_DIR={package}", env=env)
    run("cmake", "--build", folder / "build", env=env)
    return run(folder / "build/app", env=env, timeout=60)


def test_the_wheel_serves_cmake(installation, tmp_path):
    package = Path(installation.run("-m", "rueda", "--cmake-dir").strip())
    assert package.is_relative_to(installation.folder)
    assert "rank 0 of 1: sum 1, as expected" in build_and_run(tmp_path, package)


def test_an_installation_by_cmake_serves_cmake(prefix, tmp_path):
    assert "rank 0 of 1: sum 1, as expected" in build_and_run(tmp_path, prefix / "lib/cmake/rueda")


def test_an_installation_by_cmake_can_be_moved(prefix, tmp_path):
    moved = shutil.copytree(prefix, tmp_path / "elsewhere")
    app = tmp_path / "app"
    app.mkdir()
    build_and_run(app, moved / "lib/cmake/rueda")


def test_another_minor_version_is_refused(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.replace("0.1", "0.99"))
    (tmp_path / "app.cpp").write_text("int main() {}\n")
    package = prefix / "lib/cmake/rueda"
    result = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Drueda_DIR={package}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode != 0
    assert "0.99" in result.stderr


def test_the_old_abi_is_refused(prefix, tmp_path):
    """A LibTorch may ask for the old ABI; without this error the linker would find nothing."""
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "app.cpp").write_text("#include <rueda/rueda.h>\nint main() {}\n")
    package = prefix / "lib/cmake/rueda"
    old = "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0"
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Drueda_DIR={package}", old)
    result = subprocess.run(
        ["cmake", "--build", tmp_path / "build"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode != 0
    assert "librueda has the new ABI of libstdc++" in result.stdout + result.stderr


def test_the_examples_build_by_themselves(prefix, tmp_path):
    run(
        "cmake",
        "-S",
        ROOT / "examples/cpp",
        "-B",
        tmp_path,
        f"-Drueda_DIR={prefix / 'lib/cmake/rueda'}",
    )
    run("cmake", "--build", tmp_path)
    assert "as expected" in run(tmp_path / "allreduce", timeout=60)


def test_the_readme_shows_this_project():
    assert PROJECT.strip() in (ROOT / "README.md").read_text()
