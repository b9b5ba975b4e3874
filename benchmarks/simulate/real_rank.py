"""One rank of benchmarks/simulate/compare.py: measures what the simulator is told, or what it predicts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import rueda

MIB = 1 << 20
WARM_UP = 1
SHORT, LONG = 8 * MIB, 40 * MIB  # messages


def quiet_time(call: Callable[[], object], calls: int) -> float:
    """Seconds of one call: the lower quartile, since disturbances only add."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 4]


def probe_link() -> dict[str, float]:
    """Of two hosts with a rank each: the latency that Rueda has found, and seconds of a message of two lengths."""
    answer = np.zeros(1, np.uint8)

    def one_way(length: int) -> float:
        data = np.zeros(length, np.uint8)

        def exchange() -> None:
            if rueda.rank() == 0:
                rueda.send(data, 1)
                rueda.recv(answer, 1)
            else:
                rueda.recv(data, 0)
                rueda.send(answer, 0)

        exchange()
        return quiet_time(exchange, 7)

    # As a rank adds and copies while others of this machine are idle.
    chunk, tensor = np.ones(MIB // 16, np.float32), np.ones(16 * MIB, np.float32)
    sums, copied = chunk.copy(), tensor.copy()
    return {
        "latency": rueda.choose_algorithm(0).predicted_us,
        "short": one_way(SHORT),
        "long": one_way(LONG),
        "reduce": chunk.nbytes * 1e-9 / quiet_time(lambda: np.add(sums, chunk, out=sums), 200),
        "copy": tensor.nbytes * 1e-9 / quiet_time(lambda: np.copyto(copied, tensor), 5),
    }


def probe_host() -> dict[str, float]:
    """What a byte takes in a host's memory, of reducing a tensor and gathering it, on all hosts at once."""
    size = rueda.local_size()
    sets = [
        rueda.add_process_set(range(first, first + size)) for first in range(0, rueda.size(), size)
    ]
    own = sets[rueda.rank() // size]

    def allreduce(length: int) -> float:
        data = np.zeros(length // 4, np.float32)
        name = f"x{length}"
        call = lambda: rueda.allreduce_(data, op=rueda.Sum, name=name, process_set=own)  # noqa: E731
        for _ in range(WARM_UP):
            call()
        rueda.barrier()
        return quiet_time(call, 7)

    short, long = MIB, 16 * MIB
    brief, slow = allreduce(short), allreduce(long)
    stage = (slow - brief) / (long - short) / 2  # reducing is one, gathering the other
    return {"memory": 1e-9 / stage, "memory_latency": allreduce(1024) * 1e6 / 2}


def measure(lengths: list[int]) -> dict[str, float]:
    """Milliseconds of an allreduce of each length."""
    results = {}
    for length in lengths:
        data = np.zeros(length // 4, np.float32)
        name = f"x{length}"
        for _ in range(WARM_UP):
            rueda.allreduce_(data, op=rueda.Sum, name=name)
        rueda.barrier()
        call = lambda: rueda.allreduce_(data, op=rueda.Sum, name=name)  # noqa: B023, E731
        results[str(length)] = quiet_time(call, 5) * 1e3
    return results


def main() -> None:
    """What the first argument says."""
    rueda.init()
    what = sys.argv[1]
    if what == "link":
        found = probe_link()
    elif what == "host":
        found = probe_host()
    else:
        found = measure(json.loads(sys.argv[2]))
    if rueda.rank() == 0:
        print("measured", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
