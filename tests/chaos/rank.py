"""A rank that does random operations, checks every result, and goes on when others are lost.

It writes a line for each thing that happens to it into a file of its own, with the time of the clock that all
processes of the host share.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import rueda

PAUSES = {"idle": 0.01, "small": 0.0, "large": 0.0, "mixed": 0.002}
SIZES = {
    "idle": (1, 1000),
    "small": (1, 33, 1000),
    "large": (1 << 20, 3 << 20),
    "mixed": (1, 1000, 1 << 18, 1 << 20),
}


class Diary:
    """What has happened, a line each; a line is written at once and whole."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **what: object) -> None:
        """Adds a line."""
        line = json.dumps({"at": time.monotonic(), "event": event, **what})
        os.write(self._file, line.encode() + b"\n")


def values(step: int, rank: int, count: int) -> np.ndarray:
    """Whole numbers, so that every order of sums gives the same."""
    return (np.arange(count) % 7 + rank + step % 11).astype(np.float32)


def allreduce(step: int, count: int) -> None:
    """All ranks' values added up."""
    rank, size = rueda.rank(), rueda.size()
    got = rueda.allreduce(values(step, rank, count), op=rueda.Sum, name=f"sum{count}")
    expected = sum(values(step, other, count) for other in range(size))
    assert np.array_equal(got, expected), f"step {step}: allreduce of {count}"


def group(step: int, count: int) -> None:
    """Several allreduces as one."""
    rank, size = rueda.rank(), rueda.size()
    tensors = [values(step + part, rank, count // 3 + part) for part in range(3)]
    got = rueda.grouped_allreduce(tensors, op=rueda.Sum, name=f"group{count}")
    for part, one in enumerate(got):
        expected = sum(values(step + part, other, count // 3 + part) for other in range(size))
        assert np.array_equal(one, expected), f"step {step}: grouped allreduce of {count}"


def allgather(step: int, count: int) -> None:
    """A part of each rank, of another length each."""
    rank, size = rueda.rank(), rueda.size()
    got = rueda.allgather(values(step, rank, count + rank), name=f"gather{count}")
    expected = np.concatenate([values(step, other, count + other) for other in range(size)])
    assert np.array_equal(got, expected), f"step {step}: allgather of {count}"


def broadcast(step: int, count: int) -> None:
    """What one rank has, each rank's turn in its time."""
    root = step % rueda.size()
    got = rueda.broadcast(values(step, rueda.rank(), count), root, name=f"broadcast{count}")
    assert np.array_equal(got, values(step, root, count)), f"step {step}: broadcast of {count}"


def barrier(step: int, count: int) -> None:
    """Nothing but meeting."""
    rueda.barrier()


OPERATIONS = (allreduce, allreduce, allreduce, group, allgather, broadcast, barrier)


def main() -> None:
    """Runs until the file `end` is there."""
    folder, phase, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rueda.init()
    process = rueda.rank()
    diary = Diary(folder / f"rank{process}")
    diary.note("born", process=process, pid=os.getpid())
    step = 0
    right = True  # an operation has succeeded in this world
    while True:
        try:
            last = bool(step % 8 == 0 and (folder / "end").exists())
            if step % 8 == 0:
                told = rueda.allreduce(np.array([float(last)]), op=rueda.Max, name="end")
                if told[0]:
                    break
            rng = random.Random(seed * 1000003 + step)
            rng.choice(OPERATIONS)(step, rng.choice(SIZES[phase]))
            step += 1
            if not right:
                right = True
                diary.note("right", size=rueda.size(), step=step)
            time.sleep(PAUSES[phase] * rng.random())
        except rueda.RuedaError as error:
            diary.note("broken", why=str(error), step=step)
            try:
                recovery = rueda.recover(timeout=30)
            except rueda.PeerLostError as expelled:
                diary.note("expelled", why=str(expelled))
                sys.exit(3)
            right = False
            diary.note("recovered", size=rueda.size(), lost=recovery.lost, epoch=recovery.epoch)
            step = settle(step, diary)
    diary.note("end", size=rueda.size(), step=step)
    rueda.shutdown()


def settle(step: int, diary: Diary) -> int:
    """The step of whoever is furthest: what others have not finished is not done again."""
    while True:
        try:
            return int(rueda.allreduce(np.array([step]), op=rueda.Max, name="step")[0])
        except rueda.RuedaError as error:
            diary.note("broken again", why=str(error))
            recovery = rueda.recover(timeout=30)
            diary.note("recovered", size=rueda.size(), lost=recovery.lost, epoch=recovery.epoch)


if __name__ == "__main__":
    main()
