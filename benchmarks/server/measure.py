"""Measures tables that are divided over the ranks: rows, latencies and bandwidth.

    rueda run -np 4 python benchmarks/server/measure.py [--rounds N] [rows|add|dense ...]

``rows``: a table of ``--rows`` rows of ``--width`` float32, of which each rank gets and adds to 0.01% in a step.
Bytes are those of the counters, of all ranks together, by distinct row and direction, beside 8 + 4 * width; so is the
part of the traffic that rank 0 has. Beside it, the same rows over ``torch.distributed.rpc``: each rank sends each owner
one call with the rows' numbers, and with the values in one that adds, on tensors that are cut into a quarter each. The
two take turns, on the same rows, which are there already.

``step``: what an embedding needs of the others in a step of training: the same number of rows, half of which all ranks
have, from the table and their gradients to it. Beside it gloo's sparse all-reduce of the same gradients, after which
each rank still has to add the sums to a table of its own, which it has in full. gloo's bytes are counted as what it
sends by its algorithm: the rows of each rank, with their numbers, to every other rank.

``add``: how long an addition of 64 elements to a rank takes whose script multiplies matrices with NumPy, and one whose
script holds the interpreter's lock.

``dense``: what a table of 64 MB takes to be got and added to, beside a copy of as many bytes within a process.

All times are the median of the rounds, of the slowest rank where all take part.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import rueda
from rueda.server import RowTable, Table

KINDS = ("rows", "step", "add", "dense")
COUNTERS = ("control_bytes_sent", "table_bytes_sent")


def slowest(action: Callable[[], object], rounds: int) -> float:
    """The median over the rounds of what the slowest rank takes."""
    times = []
    for _ in range(rounds):
        rueda.barrier()
        started = time.perf_counter()
        action()
        took = np.array([time.perf_counter() - started])
        times.append(float(rueda.allreduce(took, op=rueda.Max)[0]))
    return statistics.median(times)


def in_turn(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median of each, which take turns, of what the slowest rank takes."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(slowest(action, 1))
    return {name: statistics.median(each) for name, each in times.items()}


def sent() -> int:
    """Bytes that this rank has sent so far."""
    metrics = rueda.metrics()
    return sum(metrics.get(name, 0) for name in COUNTERS)


def say(*what: object) -> None:
    """By one rank."""
    if rueda.rank() == 0:
        print(*what, flush=True)


def draw(step: int, count: int, rows: int) -> np.ndarray:
    """Distinct rows of this rank, in ascending order, half of which all ranks have."""
    common = np.random.default_rng(step).integers(rows, size=count)
    own = np.random.default_rng([step, rueda.rank() + 1]).integers(rows, size=count)
    return np.unique(np.concatenate([common[: count // 2], own[: count - count // 2]]))


class OverRpc:
    """The same table over torch.distributed.rpc."""

    shard = None

    def __init__(self, rows: int, width: int) -> None:
        import torch
        from torch.distributed import rpc

        self.torch, self.rpc = torch, rpc
        OverRpc.shard = torch.zeros(-(-rows // rueda.size()), width)
        folder = rueda.broadcast_object(tempfile.mkdtemp(), 0)
        rpc.init_rpc(
            f"rank{rueda.rank()}",
            rank=rueda.rank(),
            world_size=rueda.size(),
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                init_method=f"file://{folder}/rendezvous", num_worker_threads=4
            ),
        )
        rueda.barrier()

    def divided(self, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The places of the rows of each owner."""
        owners = rows % rueda.size()
        return [(f"rank{owner}", np.flatnonzero(owners == owner)) for owner in range(rueda.size())]

    def get(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Into ``out``."""
        calls = []
        for owner, places in self.divided(rows):
            numbers = self.torch.from_numpy(rows[places] // rueda.size())
            calls.append((places, self.rpc.rpc_async(owner, rpc_get, args=(numbers,))))
        for places, call in calls:
            out[places] = call.wait().numpy()

    def add(self, rows: np.ndarray, delta: np.ndarray) -> None:
        """To the rows."""
        calls = []
        for owner, places in self.divided(rows):
            numbers = self.torch.from_numpy(rows[places] // rueda.size())
            values = self.torch.from_numpy(delta[places])
            calls.append(self.rpc.rpc_async(owner, rpc_add, args=(numbers, values)))
        for call in calls:
            call.wait()


def rpc_get(rows):
    """At the owner."""
    return OverRpc.shard[rows]


def rpc_add(rows, delta) -> None:
    """At the owner."""
    OverRpc.shard.index_add_(0, rows, delta)


def measure_rows(options: argparse.Namespace) -> None:
    """Rows per second and bytes per row."""
    count = max(1, options.rows // 10_000)
    delta = np.ones((count, options.width), np.float32)
    table = RowTable("rows", options.width)
    steps = iter(range(1_000_000))

    def step() -> None:
        rows = draw(next(steps), count, options.rows)
        table.get(rows).result()
        table.add(rows, delta[: rows.size]).result()

    for _ in range(3):
        step()
    out = np.empty((count, options.width), np.float32)
    other = None if options.no_rpc else OverRpc(options.rows, options.width)
    for kind in ("get", "add"):
        rows = draw(next(steps), count, options.rows)
        adds = kind == "add"
        ours = partial(table.add, rows, delta[: rows.size]) if adds else partial(table.get, rows)
        actions: dict[str, Callable[[], object]] = {"Rueda": lambda begin=ours: begin().result()}
        if other is not None:
            values = delta[: rows.size] if adds else out[: rows.size]
            actions["rpc"] = partial(other.add if adds else other.get, rows, values)
        table.add(rows, delta[: rows.size]).result()  # rows that are there
        for action in actions.values():
            action()
        rueda.barrier()
        before, direct = sent(), rueda.metrics()["table_parts_direct"]
        for _ in range(options.rounds):
            actions["Rueda"]()
        bytes_of = rueda.allgather(np.array([sent() - before]))
        done = rueda.metrics()["table_parts_direct"] - direct
        parts = rueda.allreduce(np.array([done]), op=rueda.Sum)[0]
        took = in_turn(actions, options.rounds)
        rueda.barrier()
        total = rows.size * rueda.size()
        say(
            f"rows {kind}: {total / took['Rueda']:,.0f} rows/s of all ranks, "
            f"{bytes_of.sum() / total / options.rounds:.1f} bytes a row in messages "
            f"(8 + {4 * options.width} = {8 + 4 * options.width}), "
            f"rank 0 sends {bytes_of[0] * rueda.size() / max(1, bytes_of.sum()):.3f} of the mean, "
            f"{parts} of {rueda.size() ** 2 * options.rounds} parts without a message"
        )
        if other is not None:
            say(
                f"torch.distributed.rpc {kind}: {total / took['rpc']:,.0f} rows/s, "
                f"{took['rpc'] / took['Rueda']:.1f} times as long as Rueda's"
            )
    table.close()
    rueda.barrier()
    if other is not None:
        other.rpc.shutdown()


def measure_step(options: argparse.Namespace) -> None:
    """Rows of the table, beside sums of sparse gradients."""
    import torch
    import torch.distributed as dist

    count = max(1, options.rows // 10_000)
    rows = draw(0, count, options.rows)
    delta = np.ones((rows.size, options.width), np.float32)
    gradient = torch.sparse_coo_tensor(
        torch.from_numpy(rows)[None],
        torch.from_numpy(delta),
        (options.rows, options.width),
        check_invariants=False,  # which also turns off torch's warning that nothing is checked
    ).coalesce()
    folder = rueda.broadcast_object(tempfile.mkdtemp(), 0)
    store = dist.FileStore(f"{folder}/store", rueda.size())
    dist.init_process_group("gloo", store=store, rank=rueda.rank(), world_size=rueda.size())
    with RowTable("step", options.width) as table:

        def step() -> None:
            table.get(rows).result()
            table.add(rows, delta).result()

        actions: dict[str, Callable[[], object]] = {
            "Rueda": step,
            "gloo": lambda: dist.all_reduce(gradient.clone()),
        }
        for action in (*actions.values(), *actions.values()):  # creates the rows
            action()
        rueda.barrier()
        before = sent()
        for _ in range(options.rounds):
            step()
        bytes_sent = rueda.allreduce(np.array([sent() - before]), op=rueda.Sum)[0] / options.rounds
        took = in_turn(actions, options.rounds)
        distinct = np.unique(rueda.allgather(rows)).size
        by_gloo = (rueda.size() - 1) * rueda.size() * rows.size * (8 + 4 * options.width)
        say(
            f"step: {1e6 * took['Rueda']:,.0f} us, {bytes_sent:,.0f} bytes sent by all ranks, "
            f"{bytes_sent / (distinct * (8 + 4 * options.width)):.2f} x {8 + 4 * options.width} "
            f"for each of {distinct:,} distinct rows"
        )
        say(
            f"gloo's sparse all-reduce: {1e6 * took['gloo']:,.0f} us, {by_gloo:,} bytes, "
            f"{took['gloo'] / took['Rueda']:.1f} times as long as Rueda's step"
        )
        rueda.barrier()
    dist.destroy_process_group()


def measure_add(options: argparse.Namespace) -> None:
    """An addition to rank 0, whose script computes."""
    table = Table("busy", 64, bounds=[0, *[64] * rueda.size()])
    delta = np.ones(64, np.float32)
    for kind in ("multiplies matrices", "holds the interpreter's lock", "sleeps"):
        rueda.barrier()
        times = []
        ends = time.monotonic() + 3
        if rueda.rank() == 0:
            square = np.ones((300, 300), np.float32)
            while time.monotonic() < ends:
                if kind == "sleeps":
                    time.sleep(0.1)
                elif kind == "multiplies matrices":
                    square.dot(square)
                else:
                    sum(range(10_000))
        elif rueda.rank() == 1:
            while time.monotonic() < ends:
                started = time.perf_counter()
                table.add(delta).result()
                times.append(time.perf_counter() - started)
                time.sleep(0.001)
        else:
            time.sleep(3)
        found = rueda.broadcast_object(times, 1)
        low, middle, high = np.percentile(found, [50, 99, 99.9]) * 1e6
        say(
            f"add to a rank that {kind}: p50 {low:.0f} us, p99 {middle:.0f} us, "
            f"p99.9 {high:.0f} us of {len(found)}"
        )
    table.close()


def measure_dense(options: argparse.Namespace) -> None:
    """All ranks at once, and one alone."""
    count = 64_000_000 // 4
    table = Table("dense", count)
    values, out = np.ones(count, np.float32), np.empty(count, np.float32)
    np.copyto(out, values)
    copied = slowest(lambda: np.copyto(out, values), options.rounds)
    say(f"dense copy within a process: {count * 4 / copied / 1e9:.2f} GB/s a rank")
    for name, action in (
        ("get", lambda: table.get(out).result()),
        ("add", lambda: table.add(values).result()),
        ("get, one rank", lambda: rueda.rank() or table.get(out).result()),
        ("add, one rank", lambda: rueda.rank() or table.add(values).result()),
    ):
        took = slowest(action, options.rounds)
        say(f"dense {name}: {count * 4 / took / 1e9:.2f} GB/s a rank, {took / copied:.1f} copies")
    table.close()


def main() -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", default=KINDS, help="what to measure: " + ", ".join(KINDS)
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--no-rpc", action="store_true")
    options = parser.parse_args()
    rueda.init()
    say(f"{rueda.size()} ranks on {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    for kind in options.kinds:
        measure = {
            "rows": measure_rows,
            "step": measure_step,
            "add": measure_add,
            "dense": measure_dense,
        }
        measure[kind](options)
    rueda.shutdown()


if __name__ == "__main__":
    main()
