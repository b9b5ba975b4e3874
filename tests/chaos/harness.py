"""Runs a job, deals the blows of its schedule, and measures how long the others take to go on."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .schedule import HARMLESS, Blow, World

RANK = Path(__file__).with_name("rank.py")
# Seconds after which a job counts as hung, and within which a job starts on a busy machine.
TIMEOUT = 30.0
STARTING = 120.0
HEARTBEAT = 1.0
# Seconds between two reads of the ranks' diaries, which have timestamps.
LOOK = 0.01


class Hang(AssertionError):
    """A job missed a deadline; the text has the ranks' output."""


@dataclass
class Outcome:
    """The measurements of one world."""

    # Kind of each blow except harmless ones, and the seconds until all survivors and replacements
    # had a correct result; for `launcher`, until nothing of the job was left.
    delays: list[tuple[str, float]] = field(default_factory=list)
    # For each delay except the launcher's: seconds until the last survivor knew that the world was
    # broken, and until the last one was in a new world; nan if no rank reported it.
    moments: list[tuple[float, float]] = field(default_factory=list)
    # For each frozen rank: the seconds until the last of the others was told.
    named: list[float] = field(default_factory=list)
    output: str = ""


def flags_of(world: World) -> list[str]:
    """Returns the launcher flags that replace lost ranks at once, if the world replaces them."""
    if not world.is_replaced:
        return []
    return ["--max-np", str(world.ranks), "--blacklist-cooldown-range", "0", "0"]


def command(ranks: int, arguments: Sequence[str], extra: Sequence[str] = ()) -> list[str]:
    """Returns the command of a job on this host."""
    rueda = str(Path(sys.executable).with_name("rueda"))
    return [
        rueda, "run", "--min-np", "1", "-np", str(ranks), "--oversubscribe", "--no-prefix", *extra,
        sys.executable, str(RANK), *arguments,
    ]  # fmt: skip


class Job:
    """A running job."""

    def __init__(
        self,
        world: World,
        make_command: Callable[[Sequence[str]], Sequence[str]],
        variables: Mapping[str, str],
        timeout: float = TIMEOUT,
    ) -> None:
        """`make_command`: gives the job's command for a rank's arguments. `timeout`: seconds."""
        self._world = world
        self._timeout = timeout
        self._folder = Path(tempfile.mkdtemp(prefix="rueda-chaos-"))
        self._alive = set(range(world.ranks))
        # Not a pipe: nobody reads while the job runs, and a full pipe would stop it.
        self._output = self._folder / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                make_command([str(self._folder), world.phase, str(world.seed)]),
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "RUEDA_HEARTBEAT": str(HEARTBEAT),
                    **variables,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self._pids: dict[int, int] = {}

    def run(self, outcome: Outcome | None = None) -> Outcome:
        """Deals all blows. Raises Hang if the others stop, AssertionError for wrong results.

        `outcome` receives the measurements, even if an error follows.
        """
        outcome = outcome or Outcome()
        try:
            self._pids = {
                process: self._await_event(process, "born", "start", STARTING)["pid"]
                for process in sorted(self._alive)
            }
            time.sleep(0.05)
            for blow in self._world.blows:
                self._deal(blow, outcome)
            if self._alive:
                (self._folder / "end").touch()
                outcome.output = self._finish()
        except BaseException:
            self._kill_all()
            raise
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return outcome

    def _deal(self, blow: Blow, outcome: Outcome) -> None:
        time.sleep(blow.delay)
        if blow.kind in HARMLESS:
            self._disturb(blow)
            return
        if blow.kind == "launcher":
            outcome.delays.append((blow.kind, self._end_launcher(outcome)))
            return
        seen = {process: len(self._diary(process)) for process in self._alive}
        began = self._strike(blow)
        self._alive -= set(blow.victims)
        self._await_right(seen)
        moments = (self._last("broken", seen, began), self._last("recovered", seen, began))
        if blow.kind == "restart":
            self._await_newcomer(seen)
        outcome.delays.append((blow.kind, self._await_right(seen) - began))
        outcome.moments.append(moments)
        if blow.kind == "freeze":
            told = [self._first(process, seen[process], "broken") for process in self._alive]
            outcome.named.append(max(told) - began)
            # It must not touch its host's shared memory again, so it is killed.
            self._await_end(self._pids[blow.victims[0]], "was frozen, and lives on")

    def _strike(self, blow: Blow) -> float:
        """Deals the blow; returns the time at which the last victim was hit."""
        number = signal.SIGSTOP if blow.kind == "freeze" else signal.SIGKILL
        for position, victim in enumerate(blow.victims):
            if position > 0 and blow.gap:
                time.sleep(blow.gap)
            began = time.monotonic()
            os.kill(self._pids[victim], number)
        return began

    def _end_launcher(self, outcome: Outcome) -> float:
        """Kills one of the launcher's processes; returns the seconds until the job is gone."""
        line = [self._process.pid]  # the guardian, the keeper, and the supervisor
        while len(line) < 3:
            children = Path(f"/proc/{line[-1]}/task/{line[-1]}/children").read_text().split()
            line.append(int(children[0]))
        victim = self._world.seed % len(line)
        began = time.monotonic()
        os.kill(line[victim], signal.SIGKILL)
        try:
            self._process.wait(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            raise Hang(f"the job does not end with its launcher\n{self._describe()}") from None
        for process in [*line, *self._pids.values()]:
            self._await_end(process, "outlives the launcher")
        outcome.output = self._read_output()
        self._alive.clear()
        if victim > 0:  # the guardian is alive to say so
            assert "the launcher was killed by SIGKILL; all ranks are gone" in outcome.output, (
                outcome.output
            )
            assert self._process.returncode == 128 + signal.SIGKILL, self._process.returncode
        return time.monotonic() - began

    def _await_end(self, pid: int, complaint: str) -> None:
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
        raise Hang(f"process {pid} {complaint}\n{self._describe()}")

    def _disturb(self, blow: Blow) -> None:
        """Stops a rank for half a heartbeat, or repeatedly for less: it must not be lost."""
        seen = {process: len(self._diary(process)) for process in self._alive}
        (victim,) = blow.victims
        if blow.kind == "pause":
            self._stop(victim, HEARTBEAT / 2)
        for share in blow.bursts:
            self._stop(victim, share * HEARTBEAT)
            ran = self._time_run(victim)
            time.sleep(share * HEARTBEAT)
            self._await_more_run(victim, ran)
        time.sleep(HEARTBEAT / 4)
        for process in self._alive:
            news = self._diary(process)[seen[process] :]
            assert not news, f"rank {process} after a {blow.kind} of {victim}: {news}"

    def _stop(self, victim: int, seconds: float) -> None:
        os.kill(self._pids[victim], signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._pids[victim], signal.SIGCONT)

    def _time_run(self, process: int) -> int:
        """Returns the CPU time of the rank's threads in ns."""
        try:
            threads = Path(f"/proc/{self._pids[process]}/task").iterdir()
            return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
        except OSError as error:
            raise AssertionError(f"rank {process} is gone\n{self._describe()}") from error

    def _await_more_run(self, process: int, before: int) -> None:
        """Waits until the rank has run again, even on an overloaded machine."""
        deadline = time.monotonic() + self._timeout
        while self._time_run(process) <= before:
            if time.monotonic() > deadline:
                raise Hang(f"rank {process} does not run any more\n{self._describe()}")
            time.sleep(LOOK)

    def _await_newcomer(self, seen: dict[int, int]) -> None:
        """Waits for the replacement of the killed process: the next process that starts."""
        newcomer = max(self._pids) + 1
        self._pids[newcomer] = self._await_event(newcomer, "born", "start", STARTING)["pid"]
        self._alive.add(newcomer)
        seen[newcomer] = 0

    def _await_right(self, seen: Mapping[int, int]) -> float:
        """Returns when the last survivor first had a correct result in a world of all survivors."""
        return max(self._when_right(process, seen[process]) for process in sorted(self._alive))

    def _when_right(self, process: int, seen: int) -> float:
        """Returns when the rank first had a correct result in a world of all survivors."""

        def look(lines: list[dict]) -> dict | None:
            right = [line for line in lines[seen:] if line["event"] == "right"]
            fitting = [line for line in right if line["size"] == len(self._alive)]
            return fitting[0] if fitting else None

        return float(self._await(process, look, f"go on as one of {len(self._alive)}")["at"])

    def _last(self, event: str, seen: Mapping[int, int], began: float) -> float:
        """Returns the seconds until the last survivor first noted `event`; nan if none did."""
        return max(
            (
                float(line["at"]) - began
                for process in self._alive
                if (line := _find(self._diary(process)[seen[process] :], event))
            ),
            default=math.nan,
        )

    def _first(self, process: int, seen: int, event: str) -> float:
        return float(_find(self._diary(process)[seen:], event)["at"])

    def _await_event(
        self, process: int, event: str, what: str, within: float | None = None
    ) -> dict:
        """Waits for the rank's first `event` line; `what` describes a failure to write it."""
        return self._await(process, lambda lines: _find(lines, event), what, within)

    def _await(
        self,
        process: int,
        look: Callable[[list[dict]], dict | None],
        what: str,
        within: float | None = None,
    ) -> dict:
        deadline = time.monotonic() + (self._timeout if within is None else within)
        while time.monotonic() < deadline:
            if (found := look(self._diary(process))) is not None:
                return found
            if self._process.poll() is not None:
                break
            time.sleep(LOOK)
        raise Hang(f"rank {process} did not {what}\n{self._describe()}")

    def _diary(self, process: int) -> list[dict]:
        try:
            text = (self._folder / f"rank{process}").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _finish(self) -> str:
        try:
            self._process.wait(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            raise Hang(f"the job did not end\n{self._describe()}") from None
        output = self._read_output()
        assert self._process.returncode == 0, f"{output}\n{self._describe()}"
        for process in self._alive:
            last = self._diary(process)[-1]
            assert last["event"] == "end", (process, last)
            assert last["size"] == len(self._alive), (process, last)
        return output

    def _describe(self) -> str:
        """Dumps the living ranks' tracebacks, kills the job, and returns diaries and output."""
        started = _descendants(self._process.pid)
        for pid in {*started, *(self._pids[process] for process in self._alive & set(self._pids))}:
            with suppress(OSError, IndexError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if arguments[1].endswith(RANK.name.encode()):  # not the launcher's
                    os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        self._kill_all()
        self._process.wait()
        diaries = [
            f"rank {process}: {line}"
            for process in range(self._world.ranks)
            for line in self._diary(process)[-6:]
        ]
        blows = [str(blow) for blow in self._world.blows]
        return "\n".join([f"{self._world}", *blows, *diaries, self._read_output()])

    def _read_output(self) -> str:
        return self._output.read_text(errors="replace")

    def _kill_all(self) -> None:
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()


def _descendants(pid: int) -> list[int]:
    """Returns all descendants, including ranks that have not reported yet."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


def _find(lines: list[dict], event: str) -> dict | None:
    return next((line for line in lines if line["event"] == event), None)
