"""A peer of PCCL that does what tests/chaos/rank.py does with Rueda: checked allreduces in a loop.

It does again what has failed, as PCCL's documentation says, but without its pause of 0.2 s; all peers are told alike
whether an operation has failed. It writes the same diary, and ends once nothing has succeeded for 10 s.

    pccl_rank.py FOLDER PHASE SEED PROCESS RANKS MASTER
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pccl"))
import pccl
import peer

SIZES = {
    "idle": (1, 1000),
    "small": (1, 33, 1000),
    "large": (1 << 20, 3 << 20),
    "mixed": (1, 1000, 1 << 18, 1 << 20),
}
GIVE_UP = 10.0  # seconds
PAUSES = {"idle": 0.01, "small": 0.0, "large": 0.0, "mixed": 0.002}
# What an element has on top of the pattern: which process it is from, and whether that has been told to end.
PROCESS, END = 100.0, 100_000.0


class Peer:
    """One of the job's processes."""

    def __init__(self, process: int, ranks: int, master: str, counts: tuple[int, ...]) -> None:
        self._process = process
        self._patterns = {n: (np.arange(n) % 7).astype(np.float32) for n in {*counts, 1000}}
        self._world = peer.join(master, ranks)

    def sum(self, step: int, count: int, last: bool) -> tuple[int, bool]:
        """A checked allreduce; returns how many took part, and whether one of them was told to end."""
        pattern = self._patterns[count]
        own = np.float32(step % 11 + PROCESS * 2**self._process + END * last)
        got = pattern + own
        info = self._world.all_reduce(got, got, op=pccl.ReduceOp.SUM)
        size = int(info.local_world_size)
        told, rest = divmod(float(got[0]), END)
        members = (rest - size * (step % 11)) / PROCESS
        assert members.is_integer(), f"step {step}: a sum of {got[0]} of {size}"
        assert int(members).bit_count() == size, f"step {step}: {members} are not {size}"
        assert int(members) >> self._process & 1, f"step {step}: {members} without {self._process}"
        part = slice(None, None, max(1, count // 1009))
        expected = pattern[part] * np.float32(size) + got[0]
        assert np.array_equal(got[part], expected), f"step {step}: the elements differ"
        return size, told > 0


def main() -> None:
    """Runs until the file `end` is there."""
    folder, phase, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    process, ranks, master = int(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
    diary = os.open(folder / f"rank{process}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(event: str, **what: object) -> None:
        line = json.dumps({"at": time.monotonic(), "event": event, **what})
        os.write(diary, line.encode() + b"\n")

    own = Peer(process, ranks, master, SIZES[phase])
    size, step, broken = ranks, 0, False
    own.sum(step, 1000, False)
    note("born", process=process, pid=os.getpid())
    while True:
        step += 1
        rng = random.Random(seed * 1000003 + step)
        count = rng.choice(SIZES[phase])
        last = (folder / "end").exists()
        while True:
            try:
                size, ended = own.sum(step, 1000 if broken else count, last)
                break
            except pccl.PCCLError as error:
                if not broken:
                    note("broken", why=error.result.name, step=step)
                    broken, since = True, time.monotonic()
                if time.monotonic() - since > GIVE_UP:
                    note("gave up", why=error.result.name, step=step)
                    os._exit(1)
        if broken:
            note("right", size=size, step=step)
            broken = False
        if ended:
            break
        time.sleep(PAUSES[phase] * rng.random())
    note("end", size=size, step=step)
    os._exit(0)


if __name__ == "__main__":
    main()
