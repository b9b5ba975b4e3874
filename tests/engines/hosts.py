"""Clusters of engines on two hosts of a lab (tests/net/lab), h0 and h1, with two ranks on each.

Each host has two links. Its name resolves to the first, over which the hosts cannot reach each
other: engines must use the addresses of the second.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from launching import environment
from net.lab import Lab
from net.lab.fixture import or_skip
from one_run import OneRun

from engines.environments import STALLS, Engine, variables_of

_CONNECTS = """
import socket, sys, time
deadline = time.monotonic() + 90
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
        break
    except OSError:
        assert time.monotonic() < deadline, "nothing listens"
        time.sleep(0.05)
"""


class Hosts:
    """Runs an engine's daemons, and the program that uses them."""

    def __init__(self, lab: Lab, engine: Engine, folder: Path, extra: dict[str, str]) -> None:
        """``extra``: variables of everything that runs there."""
        self.python = str(engine.python)
        self.place = lab.folder  # for sockets and the like: a short path that ends with the lab
        self._lab = lab
        self._folder = folder
        self._variables = environment(variables_of({**STALLS, **extra}))
        self._daemons: list[subprocess.Popen[bytes]] = []

    def address(self, host: str) -> str:
        """Returns the host's address on the network that connects the hosts."""
        return self._lab.ipv4(host, 1)

    def start(self, host: str, *command: str) -> None:
        """Starts a daemon, which ends with the lab."""
        log = self._folder / f"{host}-{len(self._daemons)}.log"
        with log.open("wb") as file:
            self._daemons.append(
                self._lab.start(
                    host,
                    *command,
                    env=self._variables,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def wait_for(self, host: str, port: int) -> None:
        """Waits until something listens there."""
        line = [self.python, "-c", _CONNECTS, self.address(host), str(port)]
        done = self._lab.run(host, *line, timeout=120)
        assert done.returncode == 0, f"{done.stderr}\n{self._logs()}"

    def module(self, name: str) -> list[str]:
        """Returns the command line of a module of the engine's Python."""
        return [self.python, "-m", name]

    def run(self, script: Path, *arguments: str, limit: float = 240) -> OneRun:
        """Runs a script with checks on h0."""
        folder = self._folder / "checks"
        folder.mkdir()
        output = self._folder / "checks.log"
        with output.open("wb") as file:
            line = self._lab.inside("h0", self.python, str(script), *arguments)
            process = subprocess.Popen(
                line,
                env=self._variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                process.kill()  # its children end with the lab
                process.wait()
        written = output.read_text(errors="replace")
        if process.returncode:
            written += self._logs()
        return OneRun(process.returncode == 0, [written])

    def close(self) -> None:
        """Waits for the daemons, which have ended with the lab."""
        for daemon in self._daemons:
            daemon.wait(30)

    def _logs(self) -> str:
        """Returns the last output of the daemons."""
        paths = sorted(self._folder.glob("h*.log"))
        ends = [f"--- {p.name}\n{p.read_text(errors='replace')[-4000:]}" for p in paths]
        return "\n" + "\n".join(ends)


@contextmanager
def two_hosts(engine: Engine, folder: Path, **extra: str) -> Iterator[Hosts]:
    """Yields two hosts, which end with all that runs on them; skips the test without a lab."""
    with ExitStack() as stack:
        with or_skip():
            lab = stack.enter_context(Lab(2, links=2))
            lab.part(["h0"], ["h1"])
        hosts = Hosts(lab, engine, folder, extra)
        try:
            yield hosts
        finally:
            lab.down()
            hosts.close()
