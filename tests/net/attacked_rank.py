"""A rank of an attacked job: sums arrays step by step and checks every bit of the results.

Works in phases. Rank 0 reads their names from the file `phase` in the job's folder until the name
is `end`. Each rank writes its listeners to `listeners.RANK` and, at the end, what it saw to
`seen.RANK`: for each phase the step times and the resources that the process held when the phase
ended.

    python attacked_rank.py FOLDER COUNT
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import attack
import numpy as np
import rueda

STEPS = 20  # between two reads of the phase


def held() -> dict[str, int]:
    """Returns this process's open descriptors, threads and resident memory in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "memory": int(fields["VmRSS"].split()[0]),
    }


def phase_now(folder: Path) -> int:
    """Returns the number of lines in the file: each phase appends one."""
    return len((folder / "phase").read_text().split("\n")) - 1


def write(path: Path, value: object) -> None:
    partial = path.with_name(path.name + "~")
    partial.write_text(json.dumps(value))
    partial.rename(path)


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    rueda.init()
    rank, size = rueda.rank(), rueda.size()
    values = [np.arange(count, dtype=np.float32) % 251 + step for step in range(4)]
    inputs = [value * (rank + 1) for value in values]
    expected = [value * (size * (size + 1) // 2) for value in values]
    phases: list[str] = []
    seen: dict[str, dict[str, object]] = {}
    number = 0
    while True:
        told = np.array([phase_now(folder) if rank == 0 else 0], np.int64)
        number = int(rueda.allreduce(told, op=rueda.Max, name="phase")[0])
        phases = (folder / "phase").read_text().split("\n")[:-1]
        name = phases[number - 1]
        if name == "end":
            break
        times = []
        for step in range(STEPS):
            begin = time.perf_counter()
            total = rueda.allreduce(inputs[step % 4], op=rueda.Sum, name="x")
            times.append(time.perf_counter() - begin)
            assert total.tobytes() == expected[step % 4].tobytes(), "other bits"
            assert rueda.size() == size
        # The links open some listeners late: after the first steps all are there.
        if not (folder / f"listeners.{rank}").exists():
            write(folder / f"listeners.{rank}", attack.listeners())
        one = seen.setdefault(name, {"times": [], "held": {}})
        one["times"] += times  # type: ignore[operator]
        one["held"] = held()
    write(folder / f"seen.{rank}", seen)
    rueda.shutdown()


if __name__ == "__main__":
    main()
