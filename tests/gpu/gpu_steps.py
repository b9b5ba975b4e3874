"""Runs steps one after another within a deadline, and saves each step's results as it goes.

A step is a command. Exit status 0 is success; 77 means skipped, with the reason in the last line of
its output. JSON lines that it appends to the file ``RUEDA_TEST_RECORD`` are kept with it. Two files
hold everything and are complete at each moment: NAME.json, a summary rewritten every second, and
NAME.log, the output of all steps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SKIPPED = 77
TAIL_LINES = 40  # shown on the terminal if a step fails


@dataclass(frozen=True)
class Step:
    """``limit``: seconds, less if the deadline is nearer. ``required``: the other steps need it.

    ``skip_mark``: prefix of the line by which a successful program reports that it did nothing.
    """

    name: str
    command: Sequence[str]
    limit: float
    required: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    skip_mark: str = ""


@dataclass
class Outcome:
    """How a step ended: passed, failed, skipped or not reached, and what it recorded."""

    name: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""
    records: list[Any] = field(default_factory=list)

    def line(self) -> str:
        """Formats the outcome for the summary."""
        counts = Counter(r["outcome"] for r in self.records if "test" in r)
        tests = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        detail = "; ".join(text for text in (tests, self.reason) if text)
        return f"{self.outcome:<11}  {self.seconds:6.1f} s  {self.name}" + (
            f" ({detail})" if detail else ""
        )


class Steps:
    """``name``: of the files; ``seconds``: until the deadline, from now.

    ``grace``: seconds between asking a step to end and killing it.
    """

    def __init__(self, name: str, out: Path, seconds: float, grace: float = 8.0) -> None:
        self._grace = grace
        self._name = name
        self._out = out
        self._end = time.monotonic() + seconds
        self._began = time.monotonic()
        self._outcomes: list[Outcome] = []
        self._still_to_come: list[str] = []
        out.mkdir(parents=True, exist_ok=True)
        self._log_path = out / f"{name}.log"
        self._log_path.write_text("")

    def run(self, steps: Sequence[Step]) -> bool:
        """Returns whether all steps passed or were skipped."""
        why_not = ""
        for number, step in enumerate(steps):
            self._still_to_come = [later.name for later in steps[number + 1 :]]
            left = self._end - time.monotonic() - self._grace
            if why_not or left < 1:
                outcome = Outcome(step.name, "not reached", reason=why_not or "the time was over")
                self._outcomes.append(outcome)
            else:
                outcome = self._run(step, min(step.limit, left))
                if step.required and outcome.outcome != "passed":
                    why_not = f"'{step.name}' has not passed"
            self._write()
            print(outcome.line(), flush=True)
            if outcome.outcome == "failed":
                self._print_tail()
        return all(each.outcome in {"passed", "skipped"} for each in self._outcomes)

    def summary(self) -> str:
        """Returns a line for each step, and the totals."""
        counts = Counter(each.outcome for each in self._outcomes)
        total = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        lines = [each.line() for each in self._outcomes]
        taken = time.monotonic() - self._began
        return "\n".join([f"{self._name}:", *lines, f"{total}; {taken:.0f} s"])

    def _run(self, step: Step, limit: float) -> Outcome:
        outcome = Outcome(step.name, "running")
        self._outcomes.append(outcome)
        record = self._out / f".{self._name}.records"
        record.write_text("")
        began = time.monotonic()
        with self._log_path.open("ab") as log:
            log.write(f"\n=== {step.name}: {' '.join(step.command)}\n".encode())
            log.flush()
            start = log.tell()
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    **step.variables,
                    "RUEDA_TEST_RECORD": str(record),
                },
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() - began < limit:
                    outcome.seconds = time.monotonic() - began
                    outcome.records = _read(record)
                    self._write()
                    try:
                        process.wait(1.0)
                    except subprocess.TimeoutExpired:
                        continue
                timed_out = process.poll() is None
            finally:
                _end(process, self._grace)
        outcome.seconds = time.monotonic() - began
        outcome.records = _read(record)
        record.unlink(missing_ok=True)
        last = self._last_line(start)
        if timed_out:
            outcome.outcome, outcome.reason = "failed", f"not over after {limit:.0f} s"
        elif process.returncode == SKIPPED:
            outcome.outcome, outcome.reason = "skipped", last
        elif process.returncode != 0:
            outcome.outcome, outcome.reason = "failed", f"exit status {process.returncode}: {last}"
        elif marked := self._marked_line(start, step.skip_mark):
            outcome.outcome, outcome.reason = "skipped", marked
        else:
            tests = [each for each in outcome.records if "test" in each]
            skipped = [each for each in tests if each["outcome"] == "skipped"]
            outcome.outcome = "skipped" if tests and len(skipped) == len(tests) else "passed"
            outcome.reason = skipped[0]["reason"] if outcome.outcome == "skipped" else ""
        return outcome

    def _last_line(self, start: int) -> str:
        with self._log_path.open("rb") as log:
            log.seek(max(start, log.seek(0, os.SEEK_END) - 4000))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]

    def _marked_line(self, start: int, mark: str) -> str:
        if not mark:
            return ""
        with self._log_path.open("rb") as log:
            log.seek(start)
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in lines if line.startswith(mark)), "")

    def _print_tail(self) -> None:
        with self._log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 20_000))
            lines = log.read().decode(errors="replace").split("\n")[-TAIL_LINES:]
        print("".join(f"    {line[:200]}\n" for line in lines), end="", flush=True)

    def _write(self) -> None:
        content = {
            "name": self._name,
            "seconds": round(time.monotonic() - self._began, 1),
            "steps": [each.__dict__ for each in self._outcomes],
            "still to come": self._still_to_come,
        }
        path = self._out / f"{self._name}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=1))
        new.replace(path)


def _read(record: Path) -> list[Any]:
    """Parses the complete lines."""
    lines = record.read_text().split("\n")[:-1] if record.exists() else []
    return [json.loads(line) for line in lines if line]


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ends a step and all its descendants: worlds of ranks lead their own sessions."""
    # SIGINT first, so that pytest and the launcher clean up.
    if process.poll() is None:
        family = _descendants(process.pid)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            family |= _descendants(process.pid)
        for pid in {process.pid, *family}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()


def _descendants(ancestor: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    ahead = [ancestor]
    while ahead:
        for child in children.get(ahead.pop(), []):
            if child not in found:
                found.add(child)
                ahead.append(child)
    return found
