"""Launchers of `rueda run --nodes N` on the hosts of a lab, as in the pods of a Kubernetes job."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rueda_command import LAUNCHER, launcher_environment

from .lab import Lab
from .launching import Launcher

PORT = 29400
Process = subprocess.Popen[str]
SHOWS = """
import json, os, rueda, socket
rueda.init(init_timeout=60)
names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "SECRET"]
own = {name: os.environ[f"RUEDA_{name}"] for name in names}
found = rueda.allgather_object(socket.gethostname())
print(json.dumps({**own, "hosts": found, "own": os.environ.get("OWN")}))
"""


class Pods:
    """Starts the launchers of nodes on hosts of a lab."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.secret = secrets.token_hex(32)
        self.looks = Launcher(lab, folder, [])
        self._started: list[Process] = []

    def start(
        self, host: str, *arguments: str, program: str | Sequence[str] = SHOWS, **variables: str
    ) -> Process:
        """Starts one launcher; `arguments` extend or override the common ones."""
        given = ["--rendezvous", f"tcp:h0:{PORT}", "-np", "2", "--grace", "1", *arguments]
        command = [sys.executable, "-c", program] if isinstance(program, str) else program
        base = {"RUEDA_SECRET": self.secret, "OMP_NUM_THREADS": "1"}
        process = self.lab.start(
            host,
            *LAUNCHER,
            "run",
            *given,
            *command,
            env={**launcher_environment(), **base, **variables},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def all(
        self, count: int, *arguments: str, program: str = SHOWS, **variables: str
    ) -> list[Process]:
        """Starts one launcher on each host, the last host first."""
        numbers = reversed(range(count))
        given = ["--nodes", str(count), *arguments]
        started = [
            self.start(f"h{n}", *given, "--node-rank", str(n), program=program, **variables)
            for n in numbers
        ]
        return started[::-1]

    def first_to_end(self, processes: Sequence[Process]) -> Process:
        """Returns the launcher that ends first."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            for process in processes:
                if process.poll() is not None:
                    return process
            time.sleep(0.01)
        raise AssertionError("none of them has ended")

    def written(self) -> str:
        """Kills the launchers that still run and returns what they wrote."""
        parts = []
        for process in self._started:
            if process.poll() is None:
                process.kill()
                parts += process.communicate()
        return "\n".join(parts)

    def close(self) -> None:
        """Kills the launchers that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
