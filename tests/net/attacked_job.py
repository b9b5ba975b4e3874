"""A job of four ranks that is attacked while it works, on two hosts of a lab or on one host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .lab import Lab

HERE = Path(__file__).parent
RANKS = 4
LIMIT = 300.0  # timeout of every wait, in seconds
KINDS = ("garbage", "half-open", "replay", "last job", "wrong secret")


class AttackFailed(Exception):
    """The job did not start or did not survive."""


@dataclass
class Capture:
    """Captures the hellos that the hosts see, from before a job starts until it works."""

    lab: Lab
    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __enter__(self) -> Capture:
        for host in self.lab.names:
            line = [sys.executable, str(HERE / "attack.py"), "capture", str(self.folder / host)]
            process = subprocess.Popen(
                self.lab.inside(host, *line), stdout=subprocess.PIPE, text=True
            )
            self.processes.append(process)
            assert process.stdout is not None
            process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()

    def hellos(self) -> list[str]:
        """Returns the distinct hellos in hexadecimal."""
        lines = [(self.folder / host).read_text().split() for host in self.lab.names]
        return sorted({line for of_host in lines for line in of_host})


class AttackedJob:
    """A job that works until the end of the block. `lab=None` runs it on this machine."""

    def __init__(self, folder: Path, lab: Lab | None, count: int = 1 << 18) -> None:
        """`count`: number of elements to sum."""
        self.folder, self.lab = folder, lab
        folder.mkdir(parents=True, exist_ok=True)
        self._phase("quiet")
        run = [str(Path(sys.executable).with_name("rueda")), "run", "--no-prefix"]
        if lab is None:
            run += ["--no-mpi", "-np", str(RANKS)]  # so that every listener is Rueda's
        else:
            run += ["--ssh", str(lab.agent), "-H", f"h0:{RANKS // 2},h1:{RANKS // 2}"]
        run += [sys.executable, str(HERE / "attacked_rank.py"), str(folder), str(count)]
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            run if lab is None else lab.inside("h0", *run),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RUEDA_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> AttackedJob:
        try:
            self._await(
                lambda: all(self._file("listeners", rank).exists() for rank in range(RANKS))
            )
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)
        self._log.close()

    def rest(self, seconds: float, name: str = "quiet") -> None:
        """Lets the job work undisturbed in a phase of this name."""
        self._phase(name)
        time.sleep(seconds)
        self._look()

    def suffer(
        self, kind: str, count: int, rate: float, hellos: Sequence[str] = ()
    ) -> dict[str, int]:
        """Attacks all listeners, each from a host that reaches it; returns the summed results."""
        if kind in ("replay", "last job") and not hellos:
            raise AttackFailed("no hello was captured")
        told = self.folder / "hellos"
        told.write_text("\n".join(hellos))
        where: dict[str | None, list[str]] = {}
        for rank in range(RANKS):
            host = None if self.lab is None else f"h{rank * 2 // RANKS}"
            for address in json.loads(self._file("listeners", rank).read_text()):
                where.setdefault(host, []).append(address)
        self._phase(kind)
        attackers = []
        for number, (host, targets) in enumerate(where.items()):
            if self.lab is not None:  # TCP from the other host, Unix sockets from this one
                other = [a for h, all_ in where.items() if h != host for a in all_]
                targets = [a for a in targets if a.startswith("unix:")]
                targets += [a for a in other if a.startswith("tcp:")]
            order = {
                "targets": targets,
                "kind": kind,
                "count": count // len(where),
                "rate": rate / len(where),
                "hellos": str(told),
            }
            if kind in ("replay", "last job"):  # only TCP can be overheard
                order["targets"] = [a for a in targets if a.startswith("tcp:")]
            file = self.folder / f"order.{number}"
            file.write_text(json.dumps(order))
            line = [sys.executable, str(HERE / "attack.py"), "strike", str(file)]
            attackers.append(
                subprocess.Popen(
                    line if self.lab is None or host is None else self.lab.inside(host, *line),
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        total: dict[str, int] = {}
        for attacker in attackers:
            out, _ = attacker.communicate(timeout=LIMIT)
            for name, value in json.loads(out).items():
                total[name] = total.get(name, 0) + value
        self._look()
        return total

    def end(self) -> list[dict[str, Any]]:
        """Returns what each rank saw. Raises AttackFailed if a rank fails or saw wrong bits."""
        self._phase("end")
        try:
            code = self._process.wait(LIMIT)
        except subprocess.TimeoutExpired as error:
            raise AttackFailed("the job does not end") from error
        if code != 0:
            raise AttackFailed(self._said())
        return [json.loads(self._file("seen", rank).read_text()) for rank in range(RANKS)]

    # --- Inside

    def _file(self, name: str, rank: int) -> Path:
        return self.folder / f"{name}.{rank}"

    def _phase(self, name: str) -> None:
        with (self.folder / "phase").open("a") as file:
            file.write(name + "\n")

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _look(self) -> None:
        if self._process.poll() is not None:
            raise AttackFailed(self._said())

    def _await(self, condition: Any) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            self._look()
            if time.monotonic() > deadline:
                raise AttackFailed("the job does not begin: " + self._said())
            time.sleep(0.02)
