"""Every rank: Horovod timelines are well formed under overlap: batches, sets, errors, joins."""

from __future__ import annotations

import collections
import json
import os
import tempfile

import parallel
import rueda.horovod.torch as hvd
import torch

NEGOTIATION, OPERATIONS = "NEGOTIATE_", {"ALLREDUCE", "ALLGATHER", "BROADCAST"}
STEPS = 12


def work() -> None:
    everyone_but_rank_1 = [rank for rank in range(hvd.size()) if rank != 1]
    part = hvd.add_process_set(everyone_but_rank_1)
    for step in range(STEPS):
        handles = [hvd.allreduce_async(torch.ones(50 * n), name=f"t{n}") for n in range(1, 6)]
        if part.included():
            handles.append(hvd.allreduce_async(torch.ones(3), name="t1", process_set=part))
        for handle in handles:
            hvd.synchronize(handle)
        hvd.allgather(torch.ones(hvd.rank() + 1), name="rows")
        hvd.broadcast(torch.ones(2), 0, name="weights")
        if step == STEPS // 2:
            with parallel.raises(hvd.HorovodInternalError, "Mismatched tensor shapes"):
                hvd.allreduce(torch.ones(2 + (hvd.rank() == 1)), name="t1")
    for _ in range(hvd.rank()):
        hvd.allreduce(torch.ones(2), name="after others have joined")
    hvd.join()
    hvd.remove_process_set(part)


def check_bars_are_nested() -> None:
    path = hvd.broadcast_object(tempfile.mktemp(suffix="-%r.json"))
    hvd.start_timeline(path)
    hvd.barrier()
    work()
    hvd.barrier()
    hvd.stop_timeline()
    file = path.replace("%r", str(hvd.rank()))
    with open(file) as trace:
        events = json.load(trace)
    os.remove(file)
    bars: dict[int, list[str]] = collections.defaultdict(list)
    last: dict[int, float] = collections.defaultdict(float)
    begun: collections.Counter[str] = collections.Counter()
    for event in (each for each in events if each["ph"] in "BEX"):
        lane = event["pid"]
        assert event["ts"] >= last[lane], event
        last[lane] = event["ts"]
        if event["ph"] == "E":
            bars[lane].pop()
        elif event["ph"] == "X":
            assert "".join(bars[lane]).startswith(NEGOTIATION), (event, bars[lane])
        else:
            name = event["name"]
            is_outer = name.startswith(NEGOTIATION) or name in OPERATIONS
            assert len(bars[lane]) == (0 if is_outer else 1), (event, bars[lane])
            bars[lane].append(name)
            begun[name] += 1
    joined = hvd.size() - 1  # allreduces of the last rank without the others
    part = STEPS if hvd.rank() != 1 else 0
    assert begun["ALLREDUCE"] == begun["MPI_ALLREDUCE"] == 5 * STEPS + part + joined, begun
    assert begun["NEGOTIATE_ALLREDUCE"] >= begun["ALLREDUCE"] + 1, begun  # and the failed one's
    assert begun["MPI_ALLGATHER"] == begun["MPI_BCAST"] == STEPS, begun


if __name__ == "__main__":
    parallel.run(globals())
