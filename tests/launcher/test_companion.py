"""Commands that start `rueda run` end it and remove its files if they are ended themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from rueda_command import LAUNCHER, launcher_environment

from .conftest import has_ended

# Marks that it runs, then waits for SIGTERM or SIGINT, marks that it got it, and exits.
WAITS = """
import os, pathlib, signal, sys, time
def end(*_):
    pathlib.Path("told").touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["report", "equiv", "check"])
def test_what_a_command_has_started_ends_with_it(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    if command != "check":
        pytest.importorskip("scipy")
    (tmp_path / "waits.py").write_text(WAITS)
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nexec python3 waits.py\n")
    agent.chmod(0o755)
    (tmp_path / "temporary").mkdir()
    arguments = {
        "report": ["report", "-np", "1", "--launch", "--no-mpi", "python3", "waits.py"],
        "equiv": ["equiv", "--np", "2", "--launch", "--no-mpi", "python3", "waits.py"],
        "check": ["check", "-H", "other:1,another:1", "--ssh", str(agent)],
    }[command]
    process = subprocess.Popen(
        [*LAUNCHER, *arguments],
        env={**launcher_environment(), "TMPDIR": str(tmp_path / "temporary")},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "it does not run"
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert has_ended(int((tmp_path / "pid").read_text()))
    assert (tmp_path / "told").exists() or command == "check"
    assert not os.listdir(tmp_path / "temporary")
