"""Sums the gradient of a table over the ranks: by Rueda's sparse allreduce, by its algorithms, and by gloo's.

    rueda run -np 4 python benchmarks/sparse/measure.py [--rounds N] [--rows N] [--width N] [CASE ...]

A case is ``TOUCHED[,OVERLAP]``: the part of the table's rows that each rank has a gradient for, in percent, and the
part of these that all ranks have, in percent (50); the others are drawn by each rank for itself. Values are float32,
and tensors are coalesced, as gloo makes them first. In each round the contenders take turns, each between barriers;
what counts is the slowest rank, and of all rounds the median. Sums are compared with gloo's in the first round.

Bytes are those that the busiest rank receives and sends of tensors. Rueda's are its counters': ranks of one host read
each other's memory, so that what they read counts as received and nothing as sent, and an allreduce's are not told.
With ``RUEDA_TRANSPORT=tcp`` and ``--links`` they send what hosts would; gloo is left out then. gloo has no counters:
its bytes are those of all other ranks' indices and values, which it gathers.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rueda.torch as rueda
import torch
import torch.distributed as dist

CASES = ["0.0001", "0.001", "0.01", "0.1", "1", "0.01,0", "0.01,100"]
COLLECTIVES = ("allgather", "alltoall", "allreduce", "reduce_scatter")
RECEIVED = ("payload_bytes_received", "bytes_taken")
SENT = ("payload_bytes_sent",)
DENSE_LIMIT = 0.3  # of the bytes of the table, below which "dense" is not measured


def counted(kinds: tuple[str, ...]) -> int:
    """Bytes of tensors so far."""
    metrics = rueda.metrics()
    return sum(metrics.get(f"{what}_{kind}", 0) for what in COLLECTIVES for kind in kinds)


def gradient(case: str, step: int, rows: int, width: int) -> torch.Tensor:
    """Of this rank; some rows are the same on all ranks."""
    touched, _, overlap = case.partition(",")
    count = max(1, round(rows * float(touched) / 100))
    common = round(count * float(overlap or 50) / 100)
    shared = np.random.default_rng(step).permutation(rows) if rows <= 1 << 16 else None
    drawn = np.random.default_rng(step)
    everybodys = (
        shared[:common] if shared is not None else np.unique(drawn.integers(rows, size=common))
    )
    own = np.random.default_rng([step, rueda.rank() + 1]).integers(rows, size=3 * count)
    own = own[~np.isin(own, everybodys)]
    _, first = np.unique(own, return_index=True)
    own = own[np.sort(first)][: count - len(everybodys)]
    indices = torch.from_numpy(np.sort(np.concatenate([everybodys, own])))
    values = torch.randn(len(indices), width, generator=torch.Generator().manual_seed(step))
    return torch.sparse_coo_tensor(
        indices.unsqueeze(0), values, (rows, width), is_coalesced=True, check_invariants=False
    )


def slowest(call: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Seconds of the rank that took longest, from a barrier on."""
    rueda.barrier()
    begin = time.perf_counter()
    result = call()
    own = time.perf_counter() - begin
    return max(rueda.allgather_object(own)), result


def gloo(tensor: torch.Tensor) -> torch.Tensor:
    """Its sparse allreduce, which works in place."""
    dist.all_reduce(tensor)
    return tensor


def measure(case: str, rounds: int, rows: int, width: int, links: bool) -> list[str]:
    """Lines of the table."""
    sample = gradient(case, 0, rows, width)
    union = rueda.sparse_allreduce(sample, op=rueda.Sum)._nnz()
    bound = union * (8 + 4 * width)
    contenders: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "auto": lambda tensor: rueda.sparse_allreduce(tensor, "auto", rueda.Sum),
    }
    algorithms = ["gather", "split"]
    if union > DENSE_LIMIT * rows:
        algorithms.append("dense")
    for algorithm in algorithms:
        contenders[algorithm] = lambda tensor, algorithm=algorithm: rueda.sparse_allreduce(
            tensor, algorithm, rueda.Sum, algorithm=algorithm
        )
    if not links:
        contenders["gloo"] = gloo
    handle = rueda.sparse_allreduce_async(sample, "asked", rueda.Sum)
    handle.wait()
    chosen = handle.choice.algorithm  # type: ignore[attr-defined]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    received = dict.fromkeys(contenders, 0)
    sent = dict.fromkeys(contenders, 0)
    for step in range(rounds + 2):
        tensor = gradient(case, step, rows, width)
        results = []
        order = [*contenders.items()]
        for name, call in order[step % len(order) :] + order[: step % len(order)]:
            mine = tensor.clone()
            rueda.barrier()
            before = counted(RECEIVED), counted(SENT)
            took, result = slowest(lambda call=call, mine=mine: call(mine))
            if step == 0:
                results.append((name, result.coalesce()))
                continue
            if step == 1:
                objects = rueda.allgather_object(
                    (counted(RECEIVED) - before[0], counted(SENT) - before[1])
                )
                received[name] = max(each[0] for each in objects)
                sent[name] = max(each[1] for each in objects)
                continue
            seconds[name].append(took)
        for name, result in results[1:]:
            assert torch.equal(result.indices(), results[0][1].indices()), name
            torch.testing.assert_close(result.values(), results[0][1].values())
    nnz = rueda.allgather_object(sample._nnz())
    lines = []
    for name in contenders:
        median = statistics.median(seconds[name])
        if name == "gloo":
            received[name] = sent[name] = (sum(nnz) - min(nnz)) * (8 + 4 * width)
        label = f"auto ({chosen})" if name == "auto" else name
        factor = statistics.median(seconds["gloo"]) / median if "gloo" in seconds else 0
        told = f"{factor:.1f}" if factor else ""
        both = f"{received[name]:,} | {sent[name]:,}" if links else f"{received[name]:,} |"
        ratio = f"{received[name] / bound:.2f}"
        if (
            "dense" in label and not links
        ):  # ranks reduce where the others' tensors lie, which is not counted
            both, ratio = " |", ""
        lines.append(
            f"| {case} | {max(nnz):,} | {union:,} | {label} | {1e6 * median:,.0f} | {told} | {both} "
            f"| {ratio} |"
        )
    return lines


def main() -> None:
    """Prints the table on rank 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--links", action="store_true", help="counts what is sent, without gloo")
    arguments = parser.parse_args()
    rueda.init()
    if not arguments.links:
        folder = rueda.broadcast_object(tempfile.mkdtemp() if rueda.rank() == 0 else None, 0)
        store = dist.FileStore(str(Path(folder) / "store"), rueda.size())
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rueda.rank(),
            world_size=rueda.size(),
            timeout=datetime.timedelta(seconds=300),
        )
    if rueda.rank() == 0:
        print(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors, ", end=""
        )
        print(f"Python {platform.python_version()}, torch {torch.__version__}, ", end="")
        print(f"numpy {np.__version__}, {rueda.size()} ranks, load {os.getloadavg()}")
        print(
            "| case | rows of a rank | union | by | µs | gloo ÷ it | received | sent | received ÷ 72 · union |"
        )
    for case in arguments.cases:
        lines = measure(case, arguments.rounds, arguments.rows, arguments.width, arguments.links)
        if rueda.rank() == 0:
            print("\n".join(lines), flush=True)
    if not arguments.links:
        dist.destroy_process_group()
    rueda.shutdown()


if __name__ == "__main__":
    main()
