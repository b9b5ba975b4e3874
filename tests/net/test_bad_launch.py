"""Hosts that cannot take part: one sentence names the host, and no process is left anywhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .lab import Lab
from .lab.fixture import or_skip
from .launching import Launcher

TWO = ["-H", "h0:1,h1:1", "--init-timeout", "20"]


@pytest.fixture
def launcher(lab: Lab, tmp_path: Path) -> Iterator[Launcher]:
    """Launches over ssh; skips if there is no sshd."""
    with or_skip():
        launcher = Launcher(lab, tmp_path, lab.ssh())
    yield launcher
    launcher.wait_until_gone()


@pytest.fixture
def through(lab: Lab, tmp_path: Path) -> Iterator[Launcher]:
    """Launches over an agent that the test writes; it has `host` and `command`."""
    launcher = Launcher(lab, tmp_path, [str(tmp_path / "agent")])
    yield launcher
    launcher.wait_until_gone()


def write_agent(launcher: Launcher, text: str) -> None:
    agent = launcher.folder / "agent"
    agent.write_text(f"#!/bin/bash\nhost=$1; command=$2; agent={launcher.lab.agent}\n{text}\n")
    agent.chmod(0o755)


def refused(launcher: Launcher, *arguments: str, **variables: str) -> str:
    """Runs a job that must be refused; returns its only line of output."""
    marks = launcher.program("mark('ran')")
    ran = launcher.run(*arguments, *marks, **variables)
    assert ran.code == 2, ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert not list(launcher.folder.glob("started.*")), "a rank was started"
    return ran.err.removeprefix("rueda: ").rstrip()


def test_a_name_that_does_not_resolve(launcher: Launcher) -> None:
    said = refused(launcher, "-H", "h0:1,far-away:1")
    assert said.startswith("host 'far-away' cannot be reached: ")
    assert "resolve" in said


def test_a_host_that_is_not_there(launcher: Launcher) -> None:
    nobody = launcher.lab.ipv4("h0").rpartition(".")[0] + ".99"
    said = refused(launcher, "-H", f"h0:1,{nobody}:1", "--init-timeout", "20")
    assert said.startswith(f"host '{nobody}' cannot be reached: ")


def test_a_host_that_does_not_answer(launcher: Launcher) -> None:
    link = launcher.lab.link("h1")
    link.silence()
    try:
        said = refused(launcher, "-H", "h0:1,h2:1,h1:1", "--init-timeout", "3")
    finally:
        link.end_silence()
    assert said.startswith("host 'h1' ")


def test_ssh_is_refused(launcher: Launcher) -> None:
    launcher.lab.daemons.stop("h2")
    said = refused(launcher, "-H", "h0:1,h1:1,h2:1")
    assert said.startswith("host 'h2' cannot be reached: ")
    assert "refused" in said
    launcher.lab.daemons.restart("h2")


def test_the_key_is_not_accepted(launcher: Launcher) -> None:
    with launcher.lab.daemons.without_keys():
        said = refused(launcher, *TWO)
    assert said.startswith("host 'h1' cannot be reached: ")
    assert "Permission denied" in said


def test_the_host_is_not_known(launcher: Launcher) -> None:
    with launcher.lab.daemons.without_known_hosts():
        said = refused(launcher, *TWO)
    assert said == (
        "host 'h1' cannot be reached: Host key verification failed. (ssh: exit code 255)"
    )


def test_there_is_no_such_agent(through: Launcher) -> None:
    said = refused(through, *TWO)
    assert said.startswith(f"host 'h1': cannot run '{through.agent}': No such file or directory")


def test_the_python_is_missing_there(through: Launcher) -> None:
    write_agent(
        through, f'exec $agent $host "${{command//{_escaped(sys.executable)}//no/such/python}}"'
    )
    said = refused(through, *TWO)
    assert said.startswith(f"host 'h1' has no {sys.executable}: ")
    assert said.endswith("every host needs the same Python environment at the same place")


def _escaped(path: str) -> str:
    return path.replace("/", "\\/")


def test_rueda_is_missing_there(through: Launcher) -> None:
    write_agent(through, 'exec $agent $host "${command//rueda.launcher/rueda_is_not_here}"')
    said = refused(through, *TWO)
    assert said.startswith(f"host 'h1' could not run Rueda with {sys.executable}: ")
    assert "No module named" in said


def test_another_version_is_there(through: Launcher) -> None:
    write_agent(
        through, """echo 'Welcome!'; echo 'rueda-host {"version": "0.0.7"}'; exec cat >/dev/null"""
    )
    said = refused(through, *TWO)
    assert said.startswith("host 'h1' has Rueda 0.0.7, but the launcher is ")


def test_something_else_answers(through: Launcher) -> None:
    write_agent(through, "while read -r line; do :; done; echo 'no shell for you'; exit 1")
    # The error names the first late host; on a busy machine the launcher's own host may be late
    # too.
    said = refused(through, "-H", "h1:1,h0:1", "--init-timeout", "2")
    assert said.startswith("host 'h1' was not ready within 2 s")


@pytest.mark.parametrize(
    "garbage", ["head -c 100000 /dev/urandom", "yes", "printf 'rueda-host []\\n'"]
)
def test_garbage_answers(through: Launcher, garbage: str) -> None:
    write_agent(through, f"{garbage} | head -c 1000000; sleep 60")
    said = refused(through, "-H", "h1:1,h0:1", "--init-timeout", "2")  # h1 first, as above
    assert said.startswith("host 'h1' ")


def test_what_a_login_script_prints_does_no_harm(through: Launcher) -> None:
    write_agent(
        through, "echo 'Welcome to this host!'; printf 'no end: '; exec $agent $host \"$command\""
    )
    ran = through.run(*TWO, *through.program("print(rank)"))
    assert (ran.code, sorted(ran.out.split("\n"))) == (0, ["", "[0]<stdout>: 0", "[1]<stdout>: 1"])


def test_the_interface_is_not_there(through: Launcher) -> None:
    write_agent(through, 'exec $agent $host "$command"')
    said = refused(through, *TWO, "--interface", "eth7")
    assert said in {  # whichever answers first
        f"host '{host}': 'eth7' (--interface) is neither a network interface nor an address of that"
        " host"
        for host in ("h0", "h1")
    }
    own = through.lab.ipv4("h0")
    assert refused(through, *TWO, "--interface", own).startswith(
        f"host 'h1': '{own}' (--interface)"
    )


def test_the_folder_is_not_there(through: Launcher) -> None:
    write_agent(
        through, f'exec $agent $host "mount -t tmpfs none {through.folder.parent}; $command"'
    )
    said = refused(through, *TWO)
    assert said.startswith(f"host 'h1': cannot enter folder '{through.folder}': ")


def test_the_program_is_not_there(launcher: Launcher) -> None:
    ran = launcher.run(*TWO, "no-such-program")
    words = "there is no program 'no-such-program' on the PATH\n"
    assert ran.err in {f"rueda: host '{host}': {words}" for host in ("h0", "h1")}


def test_the_program_cannot_be_started_there(through: Launcher) -> None:
    """Only one host finds out, after the others have started."""
    program = through.folder / "program"
    program.write_text("#!/bin/sh\nsleep 100\n")
    program.chmod(0o755)
    (through.folder / "broken").write_text("#!/no/such/interpreter\n")
    (through.folder / "broken").chmod(0o755)
    bind = f"mount --bind {through.folder}/broken {program}"
    write_agent(through, f'exec $agent $host "{bind}; $command"')
    ran = through.run(*TWO, "./program")
    assert ran.code == 2
    assert ran.last_line == (
        "rueda: host 'h1': cannot run './program': the interpreter that it names after '#!' is missing"
    )


def test_a_signal_while_hosts_are_reached(through: Launcher) -> None:
    write_agent(through, f"touch {through.folder}/asked.1; sleep 100")
    with subprocess.Popen(
        through.line(*TWO, "true"), cwd=through.folder, stderr=subprocess.PIPE, text=True
    ) as process:
        through.wait_for("asked", 1, process)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - begin < 20
    assert process.returncode == 130
    assert err.rstrip().endswith("rueda: ended by SIGINT; all ranks are gone")
