"""The environment in which MPI starts: its user's files, and a component that would make it sleep."""

import os
import re
import shutil
import subprocess
import sys
from getpass import getuser
from pathlib import Path

import pytest
import rueda
from launching import environment
from rueda.launcher.check.shared_object import ldconfig
from rueda.launcher.native import mpi_plugin

PROGRAM = """
import ctypes, rueda
rueda.init(bootstrap="mpi")
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print((getenv(b"HOME") or b"none").decode(), rueda.size())
"""


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no MPI")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_nobodys_files_in_tmp_are_obeyed(tmp_path: Path) -> None:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if os.geteuid() != 0 or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a /tmp and an /etc/passwd of its own")
    if Path(sys.executable).is_relative_to("/tmp"):
        pytest.skip("Python lies in /tmp, for which this test puts another one")
    obeyed = tmp_path / "obeyed"
    # In a private /tmp, for a user unknown to the system.
    prepare = f"""
        mount --bind /dev/null /etc/passwd
        mount --bind {tmp_path} /mnt
        mount -t tmpfs none /tmp
        chmod $mode /tmp
        for folder in .openmpi .prte .pmix; do
          mkdir /tmp/$folder
          printf 'mpi_show_mca_params = all\\nmpi_show_mca_params_file = /mnt/obeyed\\n' > /tmp/$folder/mca-params.conf
        done
        cp /tmp/.openmpi/mca-params.conf /tmp/.openmpi/openmpi-mca-params.conf
        exec env -u HOME "$@"
    """
    environment = {name: v for name, v in os.environ.items() if name not in ("HOME", "TMPDIR")}
    command = ["unshare", "--mount", "sh", "-c", prepare, "sh"]
    program = [sys.executable, "-c", PROGRAM]
    rueda_run = [Path(sys.executable).with_name("rueda"), "run", "--mpi", "--no-prefix", "-np", "1"]

    def run(mode: str, *words: str | Path) -> str:
        done = subprocess.run(
            [*command, *words, *program],
            env={**environment, "mode": mode}, cwd="/", capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    # In a home of the user's own, MPI obeys the file: otherwise this test could not fail.
    assert run("0700", "env", "HOME=/tmp").split()[-2:] == ["/tmp", "1"]
    assert obeyed.exists()
    obeyed.unlink()
    assert run("1777").split()[-2:] == ["none", "1"]
    assert run("1777", "env", "HOME=/tmp").split()[-2:] == ["/tmp", "1"]
    assert run("1777", "env", "HOME=/tmp", *rueda_run).split()[-2:] == ["/tmp", "1"]
    assert not obeyed.exists()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no MPI")
def test_the_launcher_starts_mpirun_without_home() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    command = [Path(sys.executable).with_name("rueda"), "run", "-np", "1", "--mpi", "--no-prefix"]
    done = subprocess.run(
        [*command, sys.executable, "-c", "import os; print(os.environ['HOME'])"],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, os.path.expanduser(f"~{getuser()}")), (
        done.stderr
    )


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no MPI")
def test_a_home_open_to_all_is_hidden_from_mpirun_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    line = [Path(sys.executable).with_name("rueda"), "run", "--dry-run", "--mpi", "-np", "2"]

    def shown(*flags: str, **given: str) -> str:
        variables = {**os.environ, "HOME": os.fspath(tmp_path), **given}
        done = subprocess.run(
            [*line, *flags, "true"],
            env=variables, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    assert shown().startswith("env HOME=/dev/null ")
    assert f" -x HOME={tmp_path} " in shown()
    assert "-x HOME=/else " in shown("-x", "HOME=/else")
    assert shown("-x", "HOME").count("HOME=") == 2
    # There, ranks on other hosts would get it.
    assert "HOME=" not in shown("-H", "localhost:1,127.0.0.2:1")
    assert "HOME=" not in shown(PBS_JOBID="1")


# Open MPI tells which components it has asked to transfer data.
ASKED = r"select: initializing btl component (\w+)"


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no MPI")
@pytest.mark.parametrize(
    ("chosen", "in_file", "expected"),
    [
        ("", "", False),
        ("self,sm,ofi", "", True),
        ("", "\t btl=self,sm,ofi", True),
        ("", "# btl = self", False),
    ],
)
def test_a_component_that_makes_mpi_sleep_is_left_out(
    chosen: str, in_file: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi" / "mca-params.conf").write_text(f"btl_base_verbose = 100\n{in_file}\n")
    program = PROGRAM + "import ctypes\nprint(ctypes.CDLL(None).getenv(b'OMPI_MCA_btl') != 0)\n"
    environment = {name: value for name, value in os.environ.items() if name != "OMPI_MCA_btl"}
    environment |= {"HOME": str(tmp_path)} | ({"OMPI_MCA_btl": chosen} if chosen else {})
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    asked = re.findall(ASKED, done.stderr)
    assert "self" in asked, done.stderr
    assert ("ofi" in asked) == expected, done.stderr
    assert done.stdout.split()[-1] == str(bool(chosen))


# Of an Open MPI, as far as can be seen without loading it.
FAKE = b"\x7fELF"
# With sys.prefix as of an environment that is not activated.
SEARCH = """
import os, sys
sys.prefix = os.environ["PREFIX"]
import rueda
from rueda.launcher.check.mpi import find_library
try:
    rueda.init(bootstrap="mpi")
except rueda.InitializationError as error:
    print(*str(error).partition("Tried:")[2].splitlines(), sep="\\n")
print("found", find_library())
"""


def _outside(folder: Path) -> dict[str, str]:
    """Variables of a process that has Rueda from a copy in `folder`, and whose environment is not activated."""
    package = Path(rueda.__file__).parent
    leave_out = shutil.ignore_patterns("__pycache__", "bin", "include")
    shutil.copytree(package, folder / "outside" / "rueda", ignore=leave_out)
    unset = ("OPAL_PREFIX", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "RUEDA_MPI_LIBRARY")
    kept = {name: value for name, value in environment().items() if name not in unset}
    return {**kept, "PYTHONPATH": str(folder / "outside")}


def _printed(program: str, variables: dict[str, str], folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables, cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(
    not Path(sys.prefix, "lib/libmpi.so.40").exists(), reason="MPI is not in Python's environment"
)
def test_mpi_of_an_environment_that_is_not_activated_is_found(tmp_path: Path) -> None:
    assert _printed(PROGRAM, _outside(tmp_path), tmp_path)[-1].split()[1] == "1"


@pytest.mark.skipif(not mpi_plugin().exists(), reason="built without MPI")
@pytest.mark.skipif(bool(ldconfig("libmpi.so")), reason="the system has an MPI library")
def test_mpi_is_searched_for_where_rueda_check_finds_it(tmp_path: Path) -> None:
    variables = _outside(tmp_path)
    names = ["OPAL_PREFIX", "PREFIX", "VIRTUAL_ENV", "CONDA_PREFIX"]
    variables |= {name: str(tmp_path / name) for name in names}
    libraries = [tmp_path / name / "lib/libmpi.so.40" for name in names]
    libraries.append(tmp_path / "outside/lib/libmpi.so.40")
    for library in libraries:
        library.parent.mkdir(parents=True)
        library.write_bytes(FAKE)
    whys = ["OPAL_PREFIX", "sys.prefix", "VIRTUAL_ENV", "CONDA_PREFIX", "near librueda.so"]
    expected = [[f"  {why}", str(path)] for why, path in zip(whys, libraries, strict=True)]
    for library in libraries:
        _, *tried, system, found = _printed(SEARCH, variables, tmp_path)
        assert system.startswith("  the system: ")
        assert [line.split(": ")[:2] for line in tried] == expected
        assert found == f"found {library}"
        library.unlink()
    expected.pop()  # of the folders above librueda.so only what is there
    _, *tried, system, found = _printed(SEARCH, variables, tmp_path)
    assert system.startswith("  the system: ")
    assert [line.split(": ")[:2] for line in tried] == expected
    assert found == "found None"
