"""Worlds that are formed, used and ended, one after the other, in the same four processes: nothing may grow.

    python tests/python/soak_worlds.py --minutes 60

Each rank looks how many descriptors, threads, shared mappings and files of /dev/shm it has, and how much memory. The
first worlds warm up: caches of the allocator and of libraries fill. After them, counts may not be higher at the end
than they were then, and memory by no more than 8 MiB. Each rank prints a line, and fails where something has grown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rueda import ProcessSet

RANKS = 4
WARM_UP = 10  # worlds
MAX_MEMORY_GROWTH = 8 << 10  # KiB


def held() -> dict[str, int]:
    """What this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "shared mappings": sum("rueda" in line and line.split()[1].endswith("s") for line in maps),
        "memory": int(fields["VmRSS"].split()[0]),
        "files of /dev/shm": sum("/dev/shm/" in line for line in maps),
    }


def use_world(number: int) -> None:
    """A world, and some of everything in it."""
    import rueda

    rueda.init()
    half = rueda.ProcessSet(range(rueda.size() // 2))
    do_some_of_everything(number, half)
    rueda.shutdown()


def do_some_of_everything(number: int, half: ProcessSet) -> None:
    """With right results. ``half``: a set of the lower half of the ranks, which is added and removed."""
    import numpy as np
    import rueda

    rank, size = rueda.rank(), rueda.size()
    for elements in (1, 1000, 300_000):
        for _ in range(3):  # the second time it is replayed
            total = rueda.allreduce(
                np.full(elements, rank + 1.0, np.float32), op=rueda.Sum, name=f"x{elements}"
            )
            assert np.all(total == size * (size + 1) / 2)
    gathered = rueda.allgather(np.full((rank + 1, 2), rank, np.int64))
    assert len(gathered) == size * (size + 1) // 2
    assert rueda.broadcast(np.array([number if rank == 1 else -1]), root_rank=1)[0] == number
    memory = rueda.empty(50_000, np.float32)
    memory[:] = 1
    rueda.allreduce_(memory, op=rueda.Sum, name="registered")
    assert np.all(memory == size)
    rueda.add_process_set(half)
    if rank < size // 2:
        assert rueda.allreduce(np.ones(10), op=rueda.Sum, process_set=half)[0] == size // 2
    rueda.remove_process_set(half)
    rueda.barrier()


def rank_main(seconds: float) -> None:
    """Worlds until the time is over; all ranks end after the same one, which rank 0 tells with a file."""
    end = time.monotonic() + seconds
    last = Path(os.environ["SOAK_FOLDER"]) / "last"
    first: dict[str, int] = {}
    number = 0
    while not last.exists() or number <= int(last.read_text()):
        use_world(number)
        number += 1
        if number == WARM_UP:
            first = held()
        tells = os.environ["RUEDA_RANK"] == "0" and number > WARM_UP and not last.exists()
        if tells and time.monotonic() > end:
            partial = last.with_name("last~")
            partial.write_text(str(number + 1))  # the others have not begun that one
            partial.rename(last)
    now = held()
    changes = ", ".join(f"{name} {first[name]} -> {now[name]}" for name in now)
    print(f"rank {os.environ['RUEDA_RANK']}: {number} worlds: {changes}")
    for name in now:
        slack = MAX_MEMORY_GROWTH if name == "memory" else 0
        assert now[name] <= first[name] + slack, f"{name} grew"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank_main(given.minutes * 60)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        line = [
            str(Path(sys.executable).with_name("rueda")),
            "run",
            "--no-mpi",
            "-np",
            str(RANKS),
            "--no-prefix",
        ]
        line += [sys.executable, __file__, "--rank", "--minutes", str(given.minutes)]
        return subprocess.run(
            line, env={**os.environ, "SOAK_FOLDER": folder}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
