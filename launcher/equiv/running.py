"""Starts the runs with `rueda run`, one after another, each with a deadline."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rueda.equivalence.record_files import RankRecord, RecordError, read_rank, recorded_size
from rueda.equivalence.run_settings import VARIABLE, RunSettings

from ..companion import signals_as_exits, start
from ..errors import LaunchError

__all__ = ["OUTPUT_FILE", "Outcome", "problem_of", "run", "run_again"]

OUTPUT_FILE = "output.txt"
# Only a run that has ended well has it: ranks may fail after they have completed their records.
_SUCCESS_FILE = "succeeded"
# Seconds for ranks to end once they are told to, before they are killed.
_GRACE = 10.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: the records of its ranks, or a sentence that says why there are none."""

    ranks: tuple[RankRecord, ...]
    problem: str = ""
    seconds: float = 0.0


def run(folder: Path, settings: RunSettings, timeout: float) -> Outcome:
    """Starts one run and waits for it at most ``timeout`` seconds. Keeps its output in the folder.

    Raises LaunchError if the folder is not writable.
    """
    output = _begin(folder, settings)
    # Also as flags, because only variables with certain names are forwarded to other hosts.
    given = [word for name, value in settings.variables for word in ("-x", f"{name}={value}")]
    flags = ["-np", str(settings.ranks), *settings.launch, *given]
    environment = {**os.environ, **dict(settings.variables), VARIABLE: str(folder)}
    began = time.monotonic()
    with output, signals_as_exits():
        process = start(
            [*flags, *settings.command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            problem = f"it did not end within {timeout:g} s (--timeout){_last_line(folder)}"
            return Outcome((), problem, time.monotonic() - began)
        except BaseException:
            _end(process)
            raise
    seconds = time.monotonic() - began
    if status:
        return Outcome((), f"it ended with exit code {status}{_last_line(folder)}", seconds)
    found = _read(folder, settings, seconds)
    if not found.problem:
        with contextlib.suppress(OSError):  # without it, this run is as good, but is made again
            (folder / _SUCCESS_FILE).touch()
    return found


def _begin(folder: Path, settings: RunSettings) -> IO[bytes]:
    """Opens the file for the run's output, in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        settings.write(folder)
        return (folder / OUTPUT_FILE).open("wb")
    except OSError as error:
        raise LaunchError(
            f"cannot write '{error.filename or folder}': {error.strerror}: choose another folder with --out"
        ) from error


def run_again(folder: Path, settings: RunSettings) -> Outcome | None:
    """The outcome of an earlier run with the same settings; None unless it ended with exit code 0 and can be judged."""
    if not (folder / _SUCCESS_FILE).exists():
        return None
    try:
        if RunSettings.read(folder) != settings:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    found = _read(folder, settings, 0.0)
    return None if found.problem else found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(folder: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (folder / OUTPUT_FILE).read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"; the last line of its output: {said[-1]}" if said else ""
    return ""


def _read(folder: Path, settings: RunSettings, seconds: float) -> Outcome:
    if not (folder / "rank0.json").exists():
        problem = (
            "it recorded nothing: use rueda.torch.wrap(), or call rueda.torch.equiv.watch(model) and, after each "
            "step, rueda.torch.equiv.record(loss=loss)"
        )
        return Outcome((), problem, seconds)
    # Before the records are read: of ranks that are worlds of their own, all but one seem to have none.
    if problem := _size_problem(folder, settings.ranks):
        return Outcome((), problem, seconds)
    try:
        ranks = tuple(read_rank(folder, rank) for rank in range(settings.ranks))
    except RecordError as error:
        return Outcome((), str(error), seconds)
    problem = problem_of(ranks)
    return Outcome(() if problem else ranks, problem, seconds)


def _size_problem(folder: Path, ranks: int) -> str:
    """A sentence if the run's world did not begin with ``ranks`` ranks; "" if it did, or if no record says."""
    for rank in range(ranks):
        size = recorded_size(folder, rank)
        if size == 1 != ranks:
            return (
                f"its {ranks} ranks did not form one world: rank {rank} recorded a world of 1 rank. Leave out what "
                "keeps them apart, such as RUEDA_BOOTSTRAP=none"
            )
        if size is not None and size != ranks:
            return (
                f"its world had {size} ranks instead of {ranks}: leave out what sets another number of ranks, in "
                "COMMAND, in the script or in --launch"
            )
    if (folder / f"rank{ranks}.json").exists():
        return f"its world grew to more than {ranks} ranks: leave out what lets ranks join, as in --launch"
    return ""


def problem_of(ranks: tuple[RankRecord, ...]) -> str:
    """A sentence that says why the records of a run's ranks cannot be judged; "" if they can."""
    if len(ranks[0].steps) < 2:
        return "it recorded no step: call rueda.torch.equiv.record(loss=loss) after each step, or use wrap()"
    steps = {len(rank.steps) - 1: rank.rank for rank in reversed(ranks)}
    if len(steps) > 1:
        told = ", ".join(f"{count} on rank {rank}" for count, rank in sorted(steps.items()))
        return f"its ranks took different numbers of steps: {told}"
    for rank in ranks[1:]:
        if rank.layout != ranks[0].layout:
            return f"rank {rank.rank} has recorded a different model from rank 0's"
    return ""
