"""Allreduce across hosts: network namespaces on this machine, each with a link of its own.

What each host sends is limited to `--rate` (tc tbf). The contenders are started in turn, `--starts` times each. The
table gives the median over all starts of rank 0's median time of a call, and the bytes that its host's interface has
sent for each call, with all headers, by those of the tensor. `--baseline` is a folder with another build of Rueda.

    python benchmarks/hosts/measure.py --hosts 2 --ranks 2

Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
from hosts import Hosts

RANK = Path(__file__).with_name("rank.py")
PORT = 29517
CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    "rueda": ("rueda", {}),
    "rueda-ring": ("rueda", {"RUEDA_ALGORITHM": "ring"}),
    "gloo": ("gloo", {}),
    "mpi": ("mpi", {}),
}


def shape(hosts: Hosts, rate: str) -> None:
    """Limits what each host sends."""
    for name in hosts.names:
        line = ["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf"]
        # Bursts beyond what the kernel hands over in one piece, 64 KiB, or that is dropped.
        subprocess.run([*line, "rate", rate, "burst", "256kb", "latency", "50ms"], check=True)


def mpi_library() -> str:
    """That of this Python's environment, or else the system's."""
    beside = sorted(Path(sys.prefix, "lib").glob("libmpi.so.*"))
    return str(beside[0]) if beside else "libmpi.so"


def start(
    hosts: Hosts,
    ranks: int,
    contender: tuple[str, dict[str, str]],
    sizes: list[int],
    calls: list[int],
) -> dict[str, Any]:
    """What rank 0 has measured in one start."""
    program, extra = contender
    place = {"gloo": f"tcp://{hosts.addresses[0]}:{PORT}", "mpi": mpi_library()}.get(program, "")
    arguments = [program, json.dumps(sizes), json.dumps(calls), place]
    ended = hosts.run(RANK, ranks, arguments, extra, limit=600)
    for line in ended.output.splitlines():
        if line.startswith("measured "):
            return json.loads(line.removeprefix("measured "))
    raise click.ClickException(ended.output)


@click.command(help=__doc__)
@click.option("--hosts", "count", type=click.IntRange(min=2), default=2, show_default=True)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="On each.")
@click.option("--rate", default="1gbit", show_default=True, help="As tc reads it.")
@click.option("--sizes", default="1024,67108864", show_default=True, help="Bytes.")
@click.option("--calls", default="200,5", show_default=True, help="For each size.")
@click.option("--starts", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--contenders", default="rueda", show_default=True,
              help=f"Of {', '.join(CONTENDERS)}.")  # fmt: skip
@click.option("--baseline", type=click.Path(exists=True, path_type=Path),
              help="Takes turns as `before`.")  # fmt: skip
def main(
    count: int,
    ranks: int,
    rate: str,
    sizes: str,
    calls: str,
    starts: int,
    contenders: str,
    baseline: Path | None,
) -> None:
    """The command."""
    lengths = [int(size) for size in sizes.split(",")]
    repeats = [int(number) for number in calls.split(",")]
    entries = {name: CONTENDERS[name] for name in contenders.split(",")}
    if baseline is not None:
        entries = {"before": ("rueda", {"PYTHONPATH": str(baseline)}), **entries}
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in entries}
    with tempfile.TemporaryDirectory() as folder, Hosts(count, Path(folder)) as hosts:
        shape(hosts, rate)
        for _ in range(starts):
            for name, entry in entries.items():
                measured[name].append(start(hosts, ranks, entry, lengths, repeats))
    click.echo(f"{count} hosts with {ranks} ranks each, links of {rate}, {starts} starts")
    for name, all_starts in measured.items():
        for length in map(str, lengths):
            results = [one["results"][length] for one in all_starts]
            times = sorted(result["ms"] for result in results)
            sent = statistics.median(result["sent"] for result in results) / int(length)
            click.echo(
                f"{name:10} {length:>9} B {statistics.median(times):10.3f} ms "
                f"({times[0]:.3f} to {times[-1]:.3f})  sends {sent:.3f}  {all_starts[0]['choice']}"
            )


if __name__ == "__main__":
    main()
