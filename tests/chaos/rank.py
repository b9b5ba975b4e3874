"""A rank that does random operations, checks every result, and goes on when others are lost.

It appends a line per event to its own file, with the time of the clock that all processes of the
host share.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import rueda
import rueda.elastic
from rueda.elastic.question import Question

PAUSES = {"idle": 0.01, "small": 0.0, "large": 0.0, "mixed": 0.002}
SIZES = {
    "idle": (1, 1000),
    "small": (1, 33, 1000),
    "large": (1 << 20, 3 << 20),
    "mixed": (1, 1000, 1 << 18, 1 << 20),
}


class Diary:
    """Records events, one line each; each line is written at once and atomically."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **what: object) -> None:
        """Appends a line."""
        line = json.dumps({"at": time.monotonic(), "event": event, **what})
        os.write(self._file, line.encode() + b"\n")


@cache
def pattern(count: int) -> np.ndarray:
    """Returns the part that all ranks' values have in common."""
    return (np.arange(count) % 7).astype(np.float32)


def values(step: int, rank: int, count: int) -> np.ndarray:
    """Returns whole numbers, so every summation order gives the same result."""
    return pattern(count) + np.float32(rank + step % 11)


def total(step: int, part: np.ndarray) -> np.ndarray:
    """Returns the sum of all ranks' values for the pattern `part`."""
    size = rueda.size()
    return part * np.float32(size) + np.float32(size * (size - 1) // 2 + size * (step % 11))


def allreduce(step: int, count: int) -> None:
    """Sums all ranks' values."""
    got = rueda.allreduce(values(step, rueda.rank(), count), op=rueda.Sum, name=f"sum{count}")
    part = slice(None, None, max(1, count // 1009) if IS_MEASURED else 1)
    expected = total(step, pattern(count)[part])
    assert np.array_equal(got[part], expected), f"step {step}: allreduce of {count}"


def group(step: int, count: int) -> None:
    """Runs several allreduces as one group."""
    tensors = [values(step + part, rueda.rank(), count // 3 + part) for part in range(3)]
    got = rueda.grouped_allreduce(tensors, op=rueda.Sum, name=f"group{count}")
    for part, one in enumerate(got):
        expected = total(step + part, pattern(count // 3 + part))
        assert np.array_equal(one, expected), f"step {step}: grouped allreduce of {count}"


def allgather(step: int, count: int) -> None:
    """Gathers a part of a different length from each rank."""
    rank, size = rueda.rank(), rueda.size()
    got = rueda.allgather(values(step, rank, count + rank), name=f"gather{count}")
    expected = np.concatenate([values(step, other, count + other) for other in range(size)])
    assert np.array_equal(got, expected), f"step {step}: allgather of {count}"


def broadcast(step: int, count: int) -> None:
    """Broadcasts from each rank in turn."""
    root = step % rueda.size()
    got = rueda.broadcast(values(step, rueda.rank(), count), root, name=f"broadcast{count}")
    assert np.array_equal(got, values(step, root, count)), f"step {step}: broadcast of {count}"


def barrier(step: int, count: int) -> None:
    """Meets, without data."""
    rueda.barrier()


QUESTION = Question(2)


def question(step: int, count: int) -> None:
    """Runs a persistent operation, in which the ranks of one host wait in their own threads."""
    QUESTION.ask(rueda.rank() == step % rueda.size(), False)
    told = QUESTION.answer()
    assert told == [True, False], f"step {step}: a question answered by {told}"


OPERATIONS = (allreduce, allreduce, allreduce, group, allgather, broadcast, barrier, question)
# A measured rank only does allreduces, and checks only a sample of large results.
IS_MEASURED = os.environ.get("CHAOS_MEASURED") == "1"


def main() -> None:
    """Runs until the file `end` exists."""
    folder, phase, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Computed before init: a large pattern takes 0.1 s, in which the rank hears nothing.
    for count in SIZES[phase]:
        pattern(count)
    newcomer = os.environ.get("RUEDA_JOINER")
    rueda.init()
    process = int(newcomer or rueda.rank())
    diary = Diary(folder / f"rank{process}")
    diary.note("born", process=process, pid=os.getpid())
    step = 0
    if newcomer:
        step = settle(step, diary)
        diary.note("right", size=rueda.size(), step=step)
    while True:
        try:
            last = bool(step % 8 == 0 and (folder / "end").exists())
            if step % 8 == 0:
                told = rueda.allreduce(np.array([float(last)]), op=rueda.Max, name="end")
                if told[0]:
                    break
                if rueda.elastic.update() is not None:  # the newcomer settles too
                    step = settle(step, diary)
                    diary.note("right", size=rueda.size(), step=step)
                    continue
            rng = random.Random(seed * 1000003 + step)
            operation = allreduce if IS_MEASURED else rng.choice(OPERATIONS)
            operation(step, rng.choice(SIZES[phase]))
            step += 1
            time.sleep(PAUSES[phase] * rng.random())
        except rueda.RuedaError as error:
            diary.note("broken", why=str(error), step=step)
            try:
                recovery = rueda.recover(timeout=30)
            except rueda.PeerLostError as expelled:
                diary.note("expelled", why=str(expelled))
                sys.exit(3)
            diary.note("recovered", size=rueda.size(), lost=recovery.lost, epoch=recovery.epoch)
            step = settle(step, diary)
            diary.note("right", size=rueda.size(), step=step)
    diary.note("end", size=rueda.size(), step=step)
    rueda.shutdown()


def settle(step: int, diary: Diary) -> int:
    """Returns the step of the rank furthest ahead, after a first checked sum.

    Steps that some ranks have not finished are not repeated.
    """
    while True:
        try:
            furthest = int(rueda.allreduce(np.array([step]), op=rueda.Max, name="step")[0])
            allreduce(furthest, 1000)
            return furthest
        except rueda.RuedaError as error:
            diary.note("broken again", why=str(error))
            recovery = rueda.recover(timeout=30)
            diary.note("recovered", size=rueda.size(), lost=recovery.lost, epoch=recovery.epoch)


if __name__ == "__main__":
    main()
