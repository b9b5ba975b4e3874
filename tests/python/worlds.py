"""Ranks that outlive a test: few are started, yet each check of a script is its own test."""

from __future__ import annotations

import ast
import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from forked import Rank, launched, start
from launching import PARALLEL, command, environment, mpirun_line

LIMIT = 120.0  # seconds per check
MOST_RANKS = 12  # ranks kept alive between checks
END = "(the end)"


@dataclass(frozen=True)
class Run:
    """A script of tests/parallel/python on some ranks."""

    script: str
    size: int
    mpirun: bool = False
    extra: dict[str, str] = field(default_factory=dict, hash=False)
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = [self.script.removeprefix("check_").removesuffix(".py"), str(self.size)]
        told += ["mpirun"] * self.mpirun
        told += [
            f"{name.removeprefix('RUEDA_').lower()}={value}" for name, value in self.extra.items()
        ]
        return "-".join([*told, *self.arguments])

    def checks(self) -> tuple[str, ...]:
        """The script's checks, in order."""
        return checks_in(PARALLEL / self.script)


@cache  # dozens of runs share a script
def checks_in(script: Path) -> tuple[str, ...]:
    """The checks of a script, in order."""
    body = ast.parse(script.read_text()).body
    functions = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    return tuple(name for name in functions if name.startswith("check_"))


def each_check(runs: Sequence[Run], *marks: Any) -> pytest.MarkDecorator:
    """Parametrizes a test over every check of every run and, last, the script's end."""
    together = sorted(runs, key=lambda run: (run.mpirun, run.size))  # runs that share ranks
    return pytest.mark.parametrize(
        ("run", "check"),
        [
            pytest.param(run, check, id=f"{run}-{check.removeprefix('check_')}", marks=marks)
            for run in together
            for check in [*run.checks(), END]
        ],
    )


class World:
    """Ranks that wait for scripts. Ends them when closed."""

    def __init__(self, size: int, mpirun: bool) -> None:
        self.size, self.mpirun = size, mpirun
        self.run: Run | None = None  # the run whose script has begun
        self._folder = tempfile.TemporaryDirectory(prefix="checks-")
        self._files: list[Any] = []
        self._processes: list[Rank] = []
        self._seen: list[int] = []
        self._ranks: dict[int, socket.socket] = {}
        path = str(Path(self._folder.name) / "test")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            if mpirun:
                line = mpirun_line(size, launched(PARALLEL / "serving.py"))
                self._start(line, {"CHECKS_SOCKET": path})
            else:
                line = command(PARALLEL / "serving.py")
                address = f"unix:@rueda-test-{uuid.uuid4().hex}"
                for rank in range(size):
                    world = {"RUEDA_RANK": str(rank), "RUEDA_SIZE": str(size)}
                    world |= {"RUEDA_RENDEZVOUS": address, "CHECKS_SOCKET": path}
                    self._start(line, world)
            self._accept(listener)

    def _start(self, line: list[str], extra: dict[str, str]) -> None:
        self._files.append(tempfile.TemporaryFile())  # noqa: SIM115 - closed in close()
        self._seen.append(0)
        number = len(self._processes)
        variables = environment(extra)
        self._processes.append(start(line, number, self._files[-1], variables, needs_torch=True))

    def _accept(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + LIMIT
        listener.settimeout(0.5)
        while len(self._ranks) < self.size:
            if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                self.fail("not all ranks have come")
            with suppress(TimeoutError):
                rank, _ = listener.accept()
                self._ranks[self._line(rank, deadline)["rank"]] = rank

    def begin(self, run: Run) -> None:
        """Starts the script on all ranks."""
        self.mark()
        self.run = run
        request = {"script": str(PARALLEL / run.script), "arguments": run.arguments}
        self._send({**request, "environment": run.extra})

    def check(self, name: str) -> None:
        """Runs one check of the current script."""
        self.mark()
        self._send({"check": name})
        self._expect_success(name)

    def end(self) -> None:
        """Lets the script run to its end."""
        self.mark()
        script, self.run = self.run, None
        self._send({"end": True})
        self._expect_success(f"the end of {script}")

    def mark(self) -> None:
        """Marks where the output to report on failure begins."""
        self._seen = [os.fstat(file.fileno()).st_size for file in self._files]

    def output(self) -> str:
        """What the ranks have written since the last request."""
        parts = [
            os.pread(f.fileno(), 1 << 20, at) for f, at in zip(self._files, self._seen, strict=True)
        ]
        return "\n".join(part.decode(errors="replace") for part in parts if part)

    def _send(self, request: dict[str, Any]) -> None:
        for rank in self._ranks.values():
            with suppress(OSError):  # a rank that has died: the missing answer shows it
                rank.sendall(json.dumps(request).encode() + b"\n")

    def _expect_success(self, what: str) -> None:
        deadline = time.monotonic() + LIMIT
        failed = {}
        with selectors.DefaultSelector() as selector:
            for number, rank in self._ranks.items():
                selector.register(rank, selectors.EVENT_READ, number)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    break
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    error = self._line(key.fileobj, deadline)["error"]
                    if error:
                        failed[key.data] = error
                        deadline = min(
                            deadline, time.monotonic() + 10
                        )  # the others may wait for it
            silent = [key.data for key in selector.get_map().values()]
        if failed or silent:
            told = [f"--- rank {rank} ---\n{error}" for rank, error in failed.items()]
            told += [f"ranks {silent} have not answered"] if silent else []
            self.fail(f"{what} failed\n" + "\n".join(told))

    def _line(self, rank: Any, deadline: float) -> dict[str, Any]:
        rank.settimeout(max(0.1, deadline - time.monotonic()))
        read = b""
        try:
            while not read.endswith(b"\n"):
                part = rank.recv(1 << 16)
                if not part:
                    return {"error": "the rank has ended", "rank": -1}
                read += part
        except OSError as error:
            return {"error": f"no answer: {error}", "rank": -1}
        return json.loads(read)

    def fail(self, why: str) -> None:
        """Ends the ranks and fails the test."""
        written = self.output()
        self.close()
        raise AssertionError(f"{why}\n--- written ---\n{written}")

    def dismiss(self) -> None:
        """Tells the ranks that there are no more requests."""
        for rank in self._ranks.values():
            rank.close()
        self._ranks = {}

    def finish(self) -> None:
        """Waits for the ranks to end; all must succeed."""
        if self.run and self.is_open:
            self.end()
        self.mark()
        self.dismiss()
        deadline = time.monotonic() + LIMIT
        with suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        if any(process.poll() != 0 for process in self._processes):
            self.fail(
                f"the ranks have ended with {[process.poll() for process in self._processes]}"
            )
        self.close()

    def close(self) -> None:
        """Ends the ranks that still run."""
        self.dismiss()
        for process in self._processes:
            if process.poll() is None:
                # mpirun ends its ranks on SIGTERM.
                os.killpg(process.pid, signal.SIGTERM if self.mpirun else signal.SIGKILL)
                process.wait(30)
        self._processes = []
        for file in self._files:
            file.close()
        self._files, self._seen = [], []
        self._folder.cleanup()

    @property
    def is_open(self) -> bool:
        """Whether there are ranks that can run checks."""
        return bool(self._ranks)


class Worlds:
    """The worlds of a test session, each started when first needed."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[int, bool, bool], World] = {}

    def check(self, run: Run, name: str) -> str:
        """Runs a check or a script's end. Returns the output since its start."""
        world = self._world(run)
        if name == END:
            world.end()
        else:
            world.check(name)
        return world.output()

    def _world(self, run: Run) -> World:
        # Ranks started by torch.distributed's backend stay a world until they end.
        key = run.size, run.mpirun, "c10d" in run.script
        world = self._worlds.pop(key, None)
        if world and world.is_open and world.run not in (None, run):
            world.end()
        if not world or not world.is_open:
            self._make_room(run.size)
            world = World(run.size, run.mpirun)
        self._worlds[key] = world  # in order of last use
        if world.run is None:
            world.begin(run)
        return world

    def _make_room(self, size: int) -> None:
        while self._worlds and sum(ranks for ranks, _, _ in self._worlds) + size > MOST_RANKS:
            oldest = next(iter(self._worlds))
            self._worlds.pop(oldest).finish()

    def finish(self) -> None:
        """Ends all worlds; all ranks must succeed."""
        while self._worlds:
            self._worlds.popitem()[1].finish()


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """Runs checks on ranks that are kept for the next test."""
    made = Worlds()
    yield made
    made.finish()
