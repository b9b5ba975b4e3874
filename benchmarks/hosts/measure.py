"""Allreduce across hosts: network namespaces on this machine, each with a link of its own.

Every host's link carries `--rate` at most, in each direction of its own (tc tbf on what it sends). The contenders are
started in turn, `--starts` times each. The table gives the median over all starts of rank 0's median time of a call, the
bytes that its host's interface has sent for each call, with all headers, and for Rueda's hierarchy the bound: 2(H-1)/H of
the bytes over one link.

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

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
from hosts import Hosts

RANK = Path(__file__).with_name("rank.py")
PORT = 29517
CONTENDERS = {
    "rueda": ("rueda", {}),
    "rueda-ring": ("rueda", {"RUEDA_ALGORITHM": "ring"}),
    "gloo": ("gloo", {}),
    "mpi": ("mpi", {}),
}


def shape(hosts: Hosts, rate: str) -> None:
    for name in hosts.names:
        line = ["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf"]
        # Bursts beyond what the kernel hands over in one piece, 64 KiB, or that is dropped.
        subprocess.run([*line, "rate", rate, "burst", "256kb", "latency", "50ms"], check=True)


def mpi_library() -> str:
    """That of this Python's environment, or else the system's."""
    beside = sorted(Path(sys.prefix, "lib").glob("libmpi.so.*"))
    return str(beside[0]) if beside else "libmpi.so"


def start(hosts: Hosts, ranks: int, contender: str, sizes: list[int], calls: list[int]) -> dict:
    program, extra = CONTENDERS[contender]
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
@click.option("--contenders", default="rueda,rueda-ring", show_default=True,
              help=f"Of {', '.join(CONTENDERS)}.")  # fmt: skip
def main(
    count: int, ranks: int, rate: str, sizes: str, calls: str, starts: int, contenders: str
) -> None:
    lengths = [int(size) for size in sizes.split(",")]
    repeats = [int(number) for number in calls.split(",")]
    names = contenders.split(",")
    measured: dict[str, list[dict]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, Hosts(count, Path(folder)) as hosts:
        shape(hosts, rate)
        for _ in range(starts):
            for name in names:
                measured[name].append(start(hosts, ranks, name, lengths, repeats))
    click.echo(f"{count} hosts × {ranks} ranks, links of {rate}, {starts} starts")
    for name in names:
        choice = measured[name][0]["choice"]
        for length in map(str, lengths):
            results = [one["results"][length] for one in measured[name]]
            times = sorted(result["ms"] for result in results)
            sent = statistics.median(result["sent"] for result in results)
            click.echo(
                f"{name:12} {length:>9} B  {statistics.median(times):9.3f} ms "
                f"({times[0]:.3f} to {times[-1]:.3f})  {sent / int(length):6.3f} × sent  {choice}"
            )


if __name__ == "__main__":
    main()
