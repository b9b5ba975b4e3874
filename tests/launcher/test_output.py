"""What happens to output that cannot be written."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rueda_command import LAUNCHER, launcher_environment

Script = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("no_survivors")

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")


def start(arguments: list[str], folder: Path, **streams: object) -> subprocess.Popen[bytes]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [*LAUNCHER, *arguments, "python3", "program.py"],
        env=launcher_environment(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        **streams,
    )


@needs_full
def test_full_standard_output_is_reported_once_and_makes_the_exit_code(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script("""
        for n in range(1000):
            print("line", n, flush=True)
        pathlib.Path(f"went_on.{rank}").touch()
    """)
    with open("/dev/full", "wb") as full:
        process = start([*launch, "-np", "2"], tmp_path, stdout=full)
        _, err = process.communicate(timeout=60)
    words = err.decode()
    assert process.returncode == 74, words
    said = [line for line in words.splitlines() if "No space left on device" in line]
    assert said == [
        "rueda: cannot write to standard output: No space left on device; the job goes on, but its "
        "output there is incomplete",
        "rueda: all ranks exited with 0, but output was lost: cannot write to standard output: "
        "No space left on device",
    ]
    assert "Traceback" not in words
    assert len(list(tmp_path.glob("went_on.*"))) == 2


@needs_full
def test_a_failed_rank_counts_more_than_lost_output(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script("""
        print("line", flush=True)
        sys.exit(5)
    """)
    with open("/dev/full", "wb") as full:
        process = start([*launch, "-np", "1"], tmp_path, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert b"exit code 5" in err.splitlines()[-1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_for_the_ranks_files_is_reported_once(
    tmp_path: Path, launch: list[str], script: Script, small_disk: Path
) -> None:
    script("""
        for n in range(2000):
            print("x" * 99, flush=True)
    """)
    process = start([*launch, "-np", "2", "--output-filename", str(small_disk)], tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 74, err
    assert len(out.splitlines()) == 4000  # the terminal gets all lines
    assert err.decode().count("; the job goes on") == 1, err
    assert f"'{small_disk}/rank." in err.decode()
    assert b"Traceback" not in err


def test_nothing_is_lost_on_a_non_blocking_pipe(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script("""
        for n in range(10000):
            print("line", n)
    """)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    process = start([*launch, "-np", "2"], tmp_path, stdout=write_end)
    deadline = time.monotonic() + 60
    while select.select([], [write_end], [], 0)[1]:  # until the pipe is full
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        lines = pipe.read().splitlines()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len(lines) == 20000
    for rank in range(2):
        own = [line for line in lines if line.startswith(b"[%d]" % rank)]
        assert own == [b"[%d]<stdout>: line %d" % (rank, n) for n in range(10000)]


def test_a_closed_pipe_ends_the_job_quietly(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script("""
        while True:
            print("line", flush=True)
            time.sleep(0.001)
    """)
    process = start([*launch, "-np", "2"], tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(timeout=30) == 141
    assert [line for line in err.splitlines() if "OMP_NUM_THREADS" not in line] == []


def test_closed_standard_streams(tmp_path: Path, launch: list[str], script: Script) -> None:
    script("print('line', repr(sys.stdin.read()))")
    command = [*LAUNCHER, *launch, "-np", "2", "--output-filename", "logs", "python3", "program.py"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command],
        env=launcher_environment(),
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    texts = [(tmp_path / "logs" / f"rank.{rank}").read_text() for rank in (0, 1)]
    assert texts == ["line ''\n"] * 2


@pytest.fixture
def job(tmp_path: Path) -> str:
    """A process that opens its missing streams, and starts another that inherits them."""
    (tmp_path / "pid.0").write_text("0")  # for no_survivors
    child = """
import os
with open("streams", "w") as file:
    file.write(" ".join(os.readlink(f"/proc/self/fd/{n}") for n in range(3)))
"""
    return f"""
import subprocess, sys
from rueda.launcher.sink import open_missing_streams
open_missing_streams()
subprocess.run([sys.executable, "-c", {child!r}], check=True)
"""


def test_processes_inherit_streams_that_were_closed(tmp_path: Path, job: str) -> None:
    subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", job],
        env=launcher_environment(),
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    assert (tmp_path / "streams").read_text().split() == [os.devnull] * 3
