from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from rueda.launcher.check.report import Report, make_report
from rueda.launcher.check.row import Row
from rueda.launcher.check.shared_object import probe
from rueda.launcher.cli import build
from rueda.launcher.native import Native
from rueda_command import LAUNCHER, launcher_environment, run_rueda

from .conftest import Rueda

NAMES = [
    "rueda", "native extension", "librueda", "MPI plug-in", "MPI library", "MPI threads", "ULFM",
    "mpirun", "transport inproc", "transport shm", "transport mpi", "GPU support", "NCCL",
    "CUDA driver", "CUDA toolkit", "torch", "numpy", "Python", "CPU cores", "instruction sets",
    "/dev/shm", "process_vm_readv", "memfd",
]  # fmt: skip


def test_json_has_the_documented_shape(rueda: Rueda) -> None:
    ran = rueda("check", "--json")
    report = json.loads(ran.out)
    assert report["schema"] == 1
    assert ran.code == (0 if report["ready"] else 1)
    assert list(report["components"]) == NAMES
    for name, row in report["components"].items():
        assert set(row) == {"found", "version", "path", "note", "why_not", "what_to_do"}, name
        assert row["found"] or row["why_not"], name
        assert row["path"] is None or row["path"].startswith("/"), name
    assert report["components"]["Python"]["version"] == sys.version.split()[0]


def test_the_names_are_in_the_help(rueda: Rueda) -> None:
    text = " ".join(rueda("check", "--help").out.split())
    assert "Names: " + ", ".join(NAMES) + "." in text


def test_plain_text_names_every_component_on_a_line(rueda: Rueda) -> None:
    lines = rueda("check").out.splitlines()
    assert [line.partition(":")[0] for line in lines] == NAMES


def test_a_closed_output_is_as_one_that_is_discarded(tmp_path: Path) -> None:
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        ran = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *LAUNCHER, "check"],
            env=launcher_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ran.returncode == run_rueda(tmp_path, ["check"], {}, 60).code
        assert "Traceback" not in ran.stderr


def test_a_pipe_that_nobody_reads_is_told_by_the_exit_code(tmp_path: Path) -> None:
    for arguments in (["check"], ["check", "--help"], ["--help"], ["--version"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        ran = subprocess.run(
            [*LAUNCHER, *arguments], env=launcher_environment(), cwd=tmp_path,
            stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
        os.close(write_end)
        assert ran.returncode == 141, arguments
        assert ran.stderr == ""


def test_another_pipe_that_breaks_is_none_of_those(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Native) -> Report:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("rueda.launcher.check.report.make_report", breaks)
    assert CliRunner().invoke(build(Native()), ["check"]).exit_code == 1


def test_an_interruption_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_interrupted(_: Native) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("rueda.launcher.check.report.make_report", is_interrupted)
    ran = CliRunner().invoke(build(Native()), ["check"])
    assert ran.exit_code == 130
    assert ran.stderr == "rueda: ended by SIGINT\n"


def test_a_missing_extension_is_reported_and_no_world_can_be_formed() -> None:
    report = make_report(Native(why_not="librueda.so: cannot open shared object file"))
    row = next(row for row in report.rows if row.name == "native extension")
    assert not row.found
    assert row.why_not == "librueda.so: cannot open shared object file"
    assert "pip install" in row.what_to_do
    assert not report.ready


@pytest.mark.parametrize(
    ("lacking", "ready"),
    [
        ([], True),
        (["NCCL", "torch", "ULFM"], True),
        (["transport mpi", "mpirun"], True),
        (["transport shm"], True),
        (["transport shm", "mpirun"], False),
        (["native extension"], False),
    ],
)
def test_when_a_world_can_be_formed(lacking: list[str], ready: bool) -> None:
    rows = [Row(name, found=name not in lacking) for name in NAMES]
    assert Report(rows).ready == ready


def test_a_named_mpi_library_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "libmpi.so"
    broken.write_text("not a library")
    monkeypatch.setenv("RUEDA_MPI_LIBRARY", str(broken))
    module = ModuleType("_native")
    module.gpu_support = lambda: (False, "", "")
    report = make_report(Native(module))
    rows = {row.name: row for row in report.rows}
    assert not rows["MPI library"].found
    assert rows["MPI library"].path == str(broken)
    assert rows["MPI library"].what_to_do == "correct RUEDA_MPI_LIBRARY"
    assert rows["MPI threads"] == replace(rows["ULFM"], name="MPI threads")
    assert "MPI library" in rows["transport mpi"].why_not


def test_the_network_between_hosts_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        "rueda.launcher.check.command.run_to_end", lambda words: started.append(words) or 0
    )
    flags = ["check", "-H", "a:1,b:1", "--interface", "eth0,eth1"]
    result = CliRunner().invoke(build(Native(ModuleType("_native"))), flags)
    assert result.exit_code == 0, result.output
    assert "--interface eth0,eth1" in " ".join(started[0])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--mpi"], "--mpi needs -H"),
        (["--ssh", "x"], "--ssh needs -H"),
        (["--interface", "x"], "--interface needs -H"),
        (["-H", "a:1,b:1", "--mpi-args", "x"], "--mpi-args needs --mpi"),
        (["-H", "a:1,b:1", "--mpi", "--ssh", "x"], "--mpi-args '--prtemca plm_ssh_agent COMMAND'"),
    ],
)
def test_flags_that_mean_nothing_together(rueda: Rueda, flags: list[str], words: str) -> None:
    ran = rueda("check", *flags)
    assert ran.code == 2
    assert words in ran.err


def test_what_a_loaded_library_prints_is_no_part_of_the_answer() -> None:
    chatter = "import os; os.write(1, b'[1700] UCX WARN \\xff\\n'); os.write(2, b'\\xff\\n')\n"
    assert probe(f"{chatter}answer([5, 'a'])\nprint('bye')") == [5, "a"]
    with pytest.raises(OSError, match=r"^the last line$"):
        probe(f"{chatter}raise SystemExit('the last line')")


RULER = "-" * 74
GIVES_UP = """*** An error occurred in MPI_Init_thread
*** on a NULL communicator
*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
***    and MPI will try to terminate your MPI job as well)
[vm:5] Local abort before MPI_INIT completed completed successfully, but am not able to aggregate error messages"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            f"[vm:5] Error: Unable to get the user home directory\n{RULER}\nSorry!\n{RULER}\n{GIVES_UP}",
            "Error: Unable to get the user home directory",
        ),
        (f"{RULER}\n  PML add procs failed\n{RULER}\n{GIVES_UP}", "PML add procs failed"),
        ("[vm:5] a warning\nthe last line", "the last line"),
    ],
)
def test_the_reason_is_not_that_open_mpi_has_given_up(said: str, reason: str) -> None:
    with pytest.raises(OSError, match=rf"^ *{reason}$"):
        probe(f"raise SystemExit({said!r})")


def test_mpi_is_found_as_well_without_home() -> None:
    with_home = launcher_environment()
    without = {name: value for name, value in with_home.items() if name != "HOME"}
    components = []
    for environment in (with_home, without):
        ran = subprocess.run(
            [*LAUNCHER, "check", "--json"],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        components.append(json.loads(ran.stdout)["components"])
    for name in ("MPI library", "MPI threads", "mpirun", "transport mpi"):
        assert components[0][name] == components[1][name]


def test_a_library_that_ends_the_process_gives_no_answer() -> None:
    with pytest.raises(OSError, match=r"^loading it ended the process early$"):
        probe("os._exit(0)")


def test_a_process_that_a_loaded_library_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    left = tmp_path / "left"
    # It keeps the pipe of the answer, as a fork without exec does, and none of the standard streams.
    script = f"""
import signal
if os.fork() == 0:
    os.closerange(0, 3)
    with open({str(left)!r}, "w") as file:
        file.write(str(os.getpid()))
    signal.pause()
while not os.path.exists({str(left)!r}) or not open({str(left)!r}).read():
    pass
answer(1)
"""
    try:
        assert probe(script) == 1
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)
