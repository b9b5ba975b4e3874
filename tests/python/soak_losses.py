"""Kills and replaces ranks of one job, one by one: a survivor's resources must not grow.

    python tests/python/soak_losses.py --minutes 60

In a world of all ranks, one kills itself at a random moment. The others recover, work as a smaller
world, and let in the process that the launcher starts as a replacement. One process is never
killed. It counts its resources (see soak_worlds.py) after enough losses to fill the caches, and
again at the end, each time in a world of all ranks. Counts must not grow. Allocated memory may grow
by 4 MiB, since results of 1 MiB may be alive or not. Resident memory may grow by 24 MiB: over TCP,
free memory between allocations accumulates.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

from soak_worlds import MAX_MEMORY_GROWTH, do_some_of_everything, held

RANKS = 3
SURVIVOR = 1  # not the first coordinator
MIN_LOSSES = 4  # after the warm-up
# Seconds within which ended threads and mappings are cleaned up.
SETTLING = 10.0


class _Allocator(ctypes.Structure):
    """The result of glibc's mallinfo2()."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def held_now() -> dict[str, int]:
    """Counts this process's resources; memory in KiB."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:  # another C library, or glibc before 2.33 (2021)
        return held()
    ask.restype = _Allocator
    found = ask()
    return {**held(), "allocated": (found.uordblks + found.hblkhd) >> 10}


class Survivor:
    """What the surviving process has seen and holds."""

    def __init__(self, seconds: float, warm_up: int) -> None:
        """`warm_up`: number of losses before the first measurement."""
        self._end = time.monotonic() + seconds
        self._first: dict[str, int] = {}
        self._warm_up = warm_up
        self.lost = 0

    def look(self) -> bool:
        """Measures after the warm-up, in a world of all ranks. Returns whether the run is over."""
        if not self._first and self.lost >= self._warm_up:
            self._first, self._warm_up = held_now(), self.lost
        is_over = time.monotonic() > self._end
        return is_over and self.lost >= self._warm_up + MIN_LOSSES and bool(self._first)

    def compare(self) -> None:
        """Fails if any resource has grown."""
        deadline = time.monotonic() + SETTLING
        while True:
            now = held_now()
            slack = {"memory": 3 * MAX_MEMORY_GROWTH, "allocated": MAX_MEMORY_GROWTH // 2}
            grown = [name for name in now if now[name] > self._first[name] + slack.get(name, 0)]
            if not grown or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        changes = ", ".join(f"{name} {self._first[name]} -> {now[name]}" for name in now)
        print(f"{self.lost} losses, looked at after {self._warm_up}: {changes}", flush=True)
        assert not grown, f"{', '.join(grown)} grew"


def rank_main(seconds: float, warm_up: int) -> None:
    """Runs until the survivor has seen enough."""
    import numpy as np
    import rueda
    import rueda.elastic
    from rueda.attendance import attendance

    joiner = os.environ.get("RUEDA_JOINER")
    rueda.init()
    own = int(joiner or rueda.rank())
    survivor = Survivor(seconds, warm_up) if own == SURVIVOR else None
    half = rueda.ProcessSet([0])
    is_new = joiner is not None
    is_dying = has_lost = False

    def biggest(value: int) -> int:
        return int(rueda.allreduce(np.array([value]), "biggest", rueda.Max)[0])

    while True:
        try:
            if has_lost:  # all survivors have the set that was in use, or none has
                has_half = half.process_set_id is not None
                assert biggest(has_half) == has_half
                if has_half:
                    rueda.remove_process_set(half)
                has_lost = False
            if not is_new:  # a newcomer starts where the others are after update()
                rueda.elastic.update()
            is_new = False
            losses = biggest(survivor.lost if survivor else 0)
            half = rueda.ProcessSet(range(max(1, rueda.size() // 2)))
            do_some_of_everything(losses, half)
            if rueda.size() < RANKS:
                time.sleep(0.02)
                continue
            is_over = bool(survivor and survivor.look())
            if biggest(is_over):
                break
            members = attendance().members or list(range(RANKS))
            mortal = [member for member in members if member != SURVIVOR]
            if not is_dying and own == mortal[losses % len(mortal)]:
                is_dying = True
                moment = random.Random(losses).uniform(0.0, 0.05)
                kill = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL))
                kill.start()
        except rueda.PeerLostError:
            lost = rueda.recover().lost
            has_lost = True
            if survivor:
                survivor.lost += len(lost)
    if survivor:
        survivor.compare()
    rueda.barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--warm-up", type=int, default=10, help="losses")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank_main(given.minutes * 60, given.warm_up)
        return 0
    line = [str(Path(sys.executable).with_name("rueda")), "run", "--no-mpi", "--no-prefix"]
    line += ["-np", str(RANKS), "--min-np", "1", "--max-np", str(RANKS), "--oversubscribe"]
    line += ["--blacklist-cooldown-range", "0", "0"]
    line += [sys.executable, __file__, "--rank", *sys.argv[1:]]
    return subprocess.run(line, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
