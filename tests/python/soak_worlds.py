"""Forms and ends worlds, one by one, in the same four processes: resources must not grow.

    python tests/python/soak_worlds.py --minutes 60

Each rank counts its descriptors, threads, shared mappings and files in /dev/shm, and measures its
memory. The first worlds warm up the caches of the allocator and of libraries. After them, counts
must not grow, and memory by no more than 8 MiB. Each rank prints a line, and fails if anything has
grown.
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
    """Counts this process's resources."""
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
    """Forms a world, uses a bit of everything in it, and ends it."""
    import rueda

    rueda.init()
    half = rueda.ProcessSet(range(rueda.size() // 2))
    do_some_of_everything(number, half)
    rueda.shutdown()


def do_some_of_everything(number: int, half: ProcessSet) -> None:
    """Checks the results. ``half``: the lower half of the ranks, which is added and removed."""
    import numpy as np
    import rueda

    rank, size = rueda.rank(), rueda.size()
    for elements in (1, 1000, 300_000):
        for _ in range(3):  # replayed from the second time on
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
    """Forms worlds until time is up; rank 0 writes the number of the last one to a file."""
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
            partial.write_text(str(number + 1))  # the others have not begun that world yet
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
