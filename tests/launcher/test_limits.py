"""What cannot be started is reported in one sentence, without a traceback and without waiting."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rueda.launcher.builtin import why_not_started
from rueda.launcher.errors import LaunchError
from rueda.launcher.temporary import temporary_folder
from rueda.launcher.writer import Writer
from rueda_command import LAUNCHER, launcher_environment

from .conftest import Rueda

Script = Callable[[str], str]


@pytest.mark.parametrize("ranks", [10**20, 2**31, 10**9])
def test_more_ranks_than_can_exist(rueda: Rueda, launch: list[str], ranks: int) -> None:
    ran = rueda(*launch, "-np", str(ranks), "true")
    assert ran.code == 2
    assert ran.last_line.startswith(f"rueda: -np {ranks}: ")
    assert " at most " in ran.last_line


def test_signals_are_obeyed_while_ranks_are_started(rueda: Rueda, tmp_path: Path) -> None:
    # Rank 0 tells the launcher to end, which must happen long before all ranks have started.
    program = """
        touch started.$RUEDA_RANK
        if [ $RUEDA_RANK = 0 ]; then kill -TERM $PPID; fi
        exec sleep 100
    """
    ran = rueda("run", "--no-mpi", "--grace", "0.5", "-np", "1000", "sh", "-c", program)
    assert ran.code == 128 + signal.SIGTERM, ran.err
    assert ran.last_line == "rueda: ended by SIGTERM; all ranks are gone"
    assert 0 < len(list(tmp_path.glob("started.*"))) < 500


def test_a_script_without_interpreter(rueda: Rueda, tmp_path: Path) -> None:
    program = tmp_path / "job"
    program.write_text("echo hello\n")
    program.chmod(0o755)
    ran = rueda("run", "--no-mpi", "-np", "2", "./job")
    assert ran.code == 2
    assert ran.last_line == (
        "rueda: './job' is neither a program nor a script that begins with '#!': name its "
        "interpreter, as in 'rueda run … bash ./job', or add '#!/bin/bash' as its first line"
    )
    assert "Traceback" not in ran.err


def test_a_script_whose_interpreter_is_missing(rueda: Rueda, tmp_path: Path) -> None:
    program = tmp_path / "job"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    ran = rueda("run", "--no-mpi", "-np", "2", "./job")
    assert ran.code == 2
    assert ran.last_line == (
        "rueda: cannot run './job': the interpreter that it names after '#!' is missing"
    )


def test_too_few_processes_are_said_with_how_many_could_be_started() -> None:
    error = BlockingIOError(11, "Resource temporarily unavailable")
    assert why_not_started("true", 5, 8, error) == (
        "only 5 of 8 ranks could be started on this host: Resource temporarily unavailable; start "
        "fewer ranks or raise the limits (ulimit -a)"
    )


def test_a_launcher_without_a_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    writer, written = Writer(), []
    writer.put(1, lambda: written.append("word"))
    with pytest.raises(LaunchError, match=r"a thread; .* pids limit\) or .*\(ulimit -v\)"):
        writer.start(lambda: None)
    writer.write_here()
    assert written == ["word"]
    assert writer.is_done


def test_a_launcher_that_cannot_be_split_says_so(rueda: Rueda, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\ndef fork(): raise BlockingIOError(11, os.strerror(11))\nos.fork = fork\n"
    )
    path = os.pathsep.join([str(tmp_path), launcher_environment().get("PYTHONPATH", "")])
    ran = rueda("run", "--no-mpi", "-np", "2", "true", PYTHONPATH=path)
    assert ran.code == 2
    assert ran.last_line == (
        "rueda: the launcher cannot start a process: Resource temporarily unavailable; raise the "
        "limit on processes (ulimit -u, or the container's pids limit) or on virtual memory (ulimit -v)"
    )


def with_open_files(soft: int, hard: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run_limited(soft: int, hard: int, folder: Path, *arguments: str) -> tuple[int, str, str]:
    if hard > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        pytest.skip(f"fewer than {hard} open files are allowed here")
    done = subprocess.run(
        [*LAUNCHER, *arguments],
        env=launcher_environment(),
        cwd=folder,
        preexec_fn=with_open_files(soft, hard),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_soft_limit_of_open_files_is_raised_for_the_launcher_and_its_ranks(
    tmp_path: Path, launch: list[str]
) -> None:
    show = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    code, out, err = run_limited(
        64, 1024, tmp_path, *launch, "--no-prefix", "-np", "24", "python3", "-S", "-c", show
    )
    assert code == 0, err
    assert len(out.split()) == 24
    assert set(map(int, out.split())) == {24 * 6 + 256}


def test_a_soft_limit_that_suffices_is_left_alone(tmp_path: Path) -> None:
    code, out, err = run_limited(
        500, 1024, tmp_path, "run", "--no-mpi", "--no-prefix", "-np", "2", "sh", "-c", "ulimit -n"
    )
    assert (code, out) == (0, "500\n500\n"), err


def test_too_low_a_hard_limit_for_the_launcher(tmp_path: Path) -> None:
    code, _, err = run_limited(40, 40, tmp_path, "run", "--no-mpi", "-np", "8", "true")
    assert code == 2
    assert err.splitlines()[-1] == (
        "rueda: starting 8 ranks on this host takes 56 open files, and the limit is 40; raise it "
        "(ulimit -Hn 56, as root) or start fewer ranks"
    )
    assert "Traceback" not in err


def test_too_low_a_hard_limit_for_the_library_fails_at_once(
    tmp_path: Path, launch: list[str]
) -> None:
    pytest.importorskip("rueda._native")
    program = (
        "import resource, rueda; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); rueda.init()"
    )
    started = time.monotonic()
    code, _, err = run_limited(512, 1024, tmp_path, *launch, "-np", "4", "python3", "-c", program)
    assert time.monotonic() - started < 100  # the timeout of init() is 120
    assert code == 1
    assert "4 ranks on this host need " in err
    assert " open files in each process, and the limit is 40: raise it (ulimit -Hn " in err


def without_override(*command: str) -> list[str]:
    """Returns a command that, even as root, may not read what file modes forbid."""
    if os.geteuid() != 0:
        return list(command)
    if shutil.which("setpriv") is None:
        pytest.skip("root reads everything, and there is no setpriv")
    drop = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}", *command]


CLOSED = "cannot be reached: folder 'closed' may not be entered"


@pytest.mark.parametrize(
    ("mode", "program", "sentence"),
    [
        (0o000, ["closed/sub/train.py"], f"'closed/sub/train.py' {CLOSED}"),
        (0o000, ["python3", "closed/train.py"], f"'closed/train.py' {CLOSED}"),
        (0o300, ["closed/trian.sh"], "there is no program 'closed/trian.sh'"),
        (0o000, ["no-such-program"], "there is no program 'no-such-program' on the PATH"),
    ],
)  # fmt: skip
def test_folders_that_may_not_be_read(
    tmp_path: Path, mode: int, program: list[str], sentence: str
) -> None:
    closed = tmp_path / "closed"
    (closed / "sub").mkdir(parents=True)
    (closed / "train.py").touch()
    closed.chmod(mode)
    environment = launcher_environment()
    environment["PATH"] = f"{closed}:{environment['PATH']}"
    try:
        done = subprocess.run(
            without_override(*LAUNCHER, "run", "--no-mpi", "-np", "2", *program),
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        closed.chmod(0o700)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"rueda: {sentence}"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("plain", "this user may not execute it"),
        ("linked", "this user may not execute '{0}/tools/plain', to which it leads"),
        ("hidden", "folder '{0}/closed' may not be entered"),
        ("dangling", "'{0}/nothing', to which it leads, does not exist"),
    ],
)
def test_a_program_on_the_path_that_cannot_be_executed(
    tmp_path: Path, program: str, reason: str
) -> None:
    """As the Python of an environment that belongs to another user."""
    here = tmp_path.resolve()
    tools, closed = here / "tools", here / "closed"
    for folder in (tools, closed):
        folder.mkdir()
    for file in (tools / "plain", closed / "program"):
        file.touch(0o755 if file.parent == closed else 0o644)
    for name, target in (
        ("linked", tools / "plain"),
        ("hidden", closed / "program"),
        ("dangling", here / "nothing"),
    ):
        (tools / name).symlink_to(target)
    closed.chmod(0o000)
    environment = launcher_environment()
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    try:
        done = subprocess.run(
            without_override(*LAUNCHER, "run", "--no-mpi", "-np", "2", program),
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        closed.chmod(0o700)
    assert done.returncode == 2
    path = f"'{tools}/{program}' is on the PATH, but {reason.format(here)}"
    assert done.stderr.splitlines() == [f"rueda: {path}"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_for_what_a_command_prints() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*LAUNCHER, "run", "--no-mpi", "-np", "2", "--dry-run", "true"],
            env=launcher_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 74
    last = done.stderr.splitlines()[-1]
    assert last == "rueda: cannot write to standard output: No space left on device"
    assert "Traceback" not in done.stderr


def test_a_pipe_as_a_ranks_file_that_nobody_reads_is_refused(
    rueda: Rueda, launch: list[str], tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "rank.1")
    ran = rueda(*launch, "-np", "2", "--output-filename", "logs", "touch", "started")
    assert ran.code == 2
    assert "cannot write to 'logs/rank.1': it is a pipe that nobody reads" in ran.err
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("command", ["check", "report --help", "equiv --help", "run --help"])
def test_characters_that_the_users_have_not_are_no_error(rueda: Rueda, command: str) -> None:
    ran = rueda(*command.split(), PYTHONIOENCODING="latin-1")
    assert ran.code in (0, 1)
    assert "Traceback" not in ran.err, ran.err


@pytest.mark.parametrize(
    "flags",
    [["-H", "localhost:1,other:1"], ["--nodes", "2", "--node-rank", "0"], ["--mpirun"]],
    ids=str,
)
def test_a_folder_that_is_gone_is_said(tmp_path: Path, flags: list[str]) -> None:
    if "--mpirun" in flags:
        mpirun = tmp_path / "mpirun"
        mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
        mpirun.chmod(0o755)
        flags = [*flags, str(mpirun)]
    if "--nodes" in flags:
        flags = [*flags, "--rendezvous", "tcp:127.0.0.1:1"]
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        [
            "sh",
            "-c",
            'rmdir "$PWD" && exec "$@"',
            "sh",
            *LAUNCHER,
            "run",
            *flags,
            "-np",
            "2",
            "true",
        ],
        env={**launcher_environment(), "RUEDA_SECRET": "s" * 32},
        cwd=gone,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "rueda: the current folder, in which the job is to run, is gone: No such file or directory"
    )


@pytest.mark.parametrize("text", ["inf", "nan", "1e400", "-5", "1e10"])
def test_a_timeout_that_the_library_does_not_take_is_refused(rueda: Rueda, text: str) -> None:
    ran = rueda("run", "-H", "a:1,b:1", "true", RUEDA_INIT_TIMEOUT=text)
    assert ran.code == 2
    assert ran.last_line == f"rueda: RUEDA_INIT_TIMEOUT={text}: give from 0 to 1e+09 seconds"


def test_no_folder_for_temporary_files_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    with pytest.raises(LaunchError, match="TMPDIR, or --out"), temporary_folder("x", ", or --out"):
        pass
