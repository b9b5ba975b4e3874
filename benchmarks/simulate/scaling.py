"""The tables of docs/scaling.md, as Markdown.

python benchmarks/simulate/scaling.py [--most RANKS] > tables.md
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
SIMULATE = ROOT / "build/release/benchmarks/simulate/simulate"
RANKS = (2, 8, 64, 512, 2000, 10_000)
# Where the largest world is simulated, too, which takes a minute or more for each line.
ALL_SIZES = 10
MOST_IN_PARTS = 2000  # ranks, where a backward pass makes more batches
# Gbit/s, and a latency that such links have, in microseconds.
LINKS = ((1, 50), (10, 30), (100, 15))
# Tensors with which rings, recursive doubling and halving, and trees are compared, and on how many ranks at most.
SMALL = (("64K", 10_000), ("512K", 512))


@dataclass(frozen=True)
class Case:
    """Arguments of one simulation."""

    ranks: int
    per_host: int
    arguments: tuple[str, ...]


def simulate(case: Case) -> tuple[dict[str, Any], float]:
    """Its result, and the seconds that it took."""
    line = [str(SIMULATE), "--json", "--hosts", str(case.ranks // case.per_host)]
    line += ["--ranks-per-host", str(case.per_host), *case.arguments]
    begin = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result, time.perf_counter() - begin


def span(values: list[int]) -> str:
    """Of all ranks."""
    least, most = values
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def megabytes(count: int) -> str:
    """With as many digits as tell something."""
    return f"{count / 1e6:,.1f}"


def row(name: str, case: Case) -> str:
    """Of the last step."""
    result, seconds = simulate(case)
    step = result["steps"][-1]
    cells = [
        f"{case.ranks:,}",
        name,
        f"{step['seconds'] * 1e3:,.1f}",
        f"{result['link_bound_seconds'] * 1e3:,.1f}",
        megabytes(step["data_bytes_per_rank"][1]),
        megabytes(step["link_bytes_per_host"]),
        span(step["data_messages_per_rank"]),
        span(step["control_messages_per_rank"]),
        f"{step['root_control_sent'] + step['root_control_received']}",
        f"{step['root_control_bytes']:,}",
        f"{result['buffer_bytes_per_rank'] / 1e6:.0f} MB + {result['control_state_bytes_per_rank'] / 1e3:.0f} KB",
        f"{seconds:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| ranks | how | step, ms | link's bound, ms | MB sent by a rank | by a host | data messages of a rank "
    "| control messages of a rank | of the root | bytes | memory of a rank | simulated in, s |"
)


def table(title: str, rows: list[tuple[str, Case]]) -> None:
    """In the order of `rows`."""
    click.echo(f"\n### {title}\n\n{HEAD}\n|{' --- |' * HEAD.count(' |')}")
    for name, case in rows:
        click.echo(row(name, case))


def links(gbit: int, latency: int) -> tuple[str, ...]:
    """As arguments."""
    return ("--bandwidth", str(gbit), "--latency", str(latency))


@click.command(help=__doc__)
@click.option("--most", type=int, default=RANKS[-1], show_default=True, help="Ranks.")
def main(most: int) -> None:
    """The command."""
    sizes = [ranks for ranks in RANKS if ranks <= most]
    for gbit, latency in LINKS:
        rows = []
        for ranks in sizes if gbit == ALL_SIZES else [it for it in sizes if it < RANKS[-1]]:
            per_host = 8 if ranks > 8 else ranks // 2
            ring = (*links(gbit, latency), "--algorithm", "ring")
            rows.append(("one ring, a rank on each host", Case(ranks, 1, ring)))
            if per_host > 1:
                name = f"hierarchy, {per_host} ranks on each host"
                rows.append((name, Case(ranks, per_host, links(gbit, latency))))
            if per_host > 1 and gbit == ALL_SIZES:
                negotiated = (*links(gbit, latency), "--no-replay")
                rows.append(("the same, negotiated", Case(ranks, per_host, negotiated)))
        table(f"ResNet-50, links of {gbit} Gbit/s and {latency} µs", rows)
    rows = []
    for ranks in sizes:
        if 8 < ranks <= MOST_IN_PARTS:
            backward = (*links(10, 30), "--backward", "200")
            rows.append(("replayed", Case(ranks, 8, backward)))
            rows.append(("negotiated", Case(ranks, 8, (*backward, "--no-replay"))))
    table(
        "ResNet-50 with a backward pass of 200 ms, links of 10 Gbit/s, 8 ranks on each host", rows
    )
    for tensor, most_ranks in SMALL:
        rows = []
        for ranks in sizes:
            for algorithm in ("ring", "doubling", "halving", "tree") if ranks <= most_ranks else ():
                small = (*links(10, 30), "--tensors", tensor, "--algorithm", algorithm)
                rows.append((algorithm, Case(ranks, 1, small)))
        table(f"One tensor of {tensor}, links of 10 Gbit/s, a rank on each host", rows)


if __name__ == "__main__":
    main()
