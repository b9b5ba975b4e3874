"""Allreduce and all-to-all across hosts: network namespaces on this machine, each with a link of its own.

What each host sends is limited to `--rate`, and takes `--delay` from host to host; with `--flows` each TCP flow is
limited to the rate of its class, of which there are as many as rates are given: the low bits of the port that sends
choose it. The contenders are started in turn, `--starts` times each. The table gives the median over all starts of rank
0's median time of a call, and its least and greatest; the bytes that the first host's interface has sent for each call,
with all headers, by those of the tensor; and the processor time of rank 0 by the bytes of its tensors. Of an all-to-all
these are what a rank sends altogether, itself included. `--baseline` is a folder with another build of Rueda.

    python benchmarks/hosts/measure.py --hosts 2 --ranks 2 --contenders rueda,gloo,mpi

Needs root, `ip` and `tc`, and for `mpi` and `rueda-mpi` an Open MPI.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "python")]
from hosts import run_on_hosts  # noqa: E402
from net.lab import Lab  # noqa: E402

RANK = Path(__file__).with_name("rank.py")
PORT = 29517
LIMIT = 600.0  # seconds that a start may take
# The program of a rank, whether mpirun starts it, and its variables.
CONTENDERS: dict[str, tuple[str, bool, dict[str, str]]] = {
    "rueda": ("rueda", False, {}),
    **{
        f"rueda-{algorithm}": ("rueda", False, {"RUEDA_ALGORITHM": algorithm})
        for algorithm in ("ring", "hierarchical", "doubling", "halving", "tree")
    },
    "rueda-int8": ("rueda-int8", False, {}),
    "rueda-fp16": ("rueda-fp16", False, {}),
    "rueda-torch": ("rueda-torch", False, {}),
    "rueda-torch-fp16": ("rueda-torch-fp16", False, {}),
    "rueda-torch-wire": ("rueda-torch-wire", False, {}),
    "rueda-horovod": ("rueda-horovod", False, {}),
    "rueda-mpi": ("rueda", True, {}),
    "gloo": ("gloo", False, {}),
    "mpi": ("mpi", True, {}),
    "rueda-alltoall": ("rueda-alltoall", False, {}),
    "rueda-gathered": ("rueda-alltoall", False, {"RUEDA_ALGORITHM": "gathered"}),
    "rueda-pairwise": ("rueda-alltoall", False, {"RUEDA_ALGORITHM": "pairwise"}),
    "gloo-alltoall": ("gloo-alltoall", False, {}),
    "mpi-alltoall": ("mpi-alltoall", True, {}),
    "mpi-tuned": (
        "mpi",
        True,
        {
            "OMPI_MCA_btl_tcp_eager_limit": "1048576",
            "OMPI_MCA_btl_tcp_max_send_size": "1048576",
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_allreduce_algorithm": "5",  # the segmented ring
        },
    ),
}


def mpi_library() -> str:
    """That of this Python's environment, or else the system's."""
    beside = sorted(Path(sys.prefix, "lib").glob("libmpi.so.*"))
    return str(beside[0]) if beside else "libmpi.so"


def launch(lab: Lab, ranks: int, arguments: list[str], extra: dict[str, str]) -> str:
    """What ranks have written that `rueda run` has started on all hosts."""
    everywhere = ",".join(f"{name}:{ranks}" for name in lab.names)
    line = [str(Path(sys.executable).with_name("rueda")), "run", "--ssh", str(lab.agent)]
    line += ["-H", everywhere, "--no-prefix", sys.executable, str(RANK), *arguments]
    done = subprocess.run(
        lab.inside(lab.names[0], *line),
        env={**os.environ, **extra},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.stdout + done.stderr


def start(
    lab: Lab,
    ranks: int,
    contender: tuple[str, bool, dict[str, str]],
    sizes: list[int],
    calls: list[int],
) -> dict[str, Any]:
    """What rank 0 has measured in one start."""
    program, under_mpirun, variables = contender
    extra = {"OMP_NUM_THREADS": "1", **variables}
    library = program.partition("-")[0]
    place = {"gloo": f"tcp://{lab.address('h0')}:{PORT}", "mpi": mpi_library()}.get(library, "")
    arguments = [program, json.dumps(sizes), json.dumps(calls), place]
    if under_mpirun:
        output = run_on_hosts(lab, RANK, ranks, arguments, extra, LIMIT).output
    else:
        output = launch(lab, ranks, arguments, extra)
    for line in output.splitlines():
        if line.startswith("measured "):
            return json.loads(line.removeprefix("measured "))
    raise click.ClickException(output)


def report(name: str, starts: list[dict[str, Any]], length: int) -> None:
    """One line of the table."""
    results = [one["results"][str(length)] for one in starts]
    times = sorted(result["ms"] for result in results)
    sent = statistics.median(result["sent"] for result in results) / length
    processor = statistics.median(result["cpu"] for result in results) / length * 1e9
    click.echo(
        f"{name:14} {length:>9} B {statistics.median(times):10.3f} ms "
        f"({times[0]:.3f} to {times[-1]:.3f})  sends {sent:.3f}  {processor:8.2f} s/GB"
    )


@click.command(help=__doc__)
@click.option("--hosts", "count", type=click.IntRange(min=2), default=2, show_default=True)
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="On each.")
@click.option("--rate", default="1gbit", show_default=True, help="As tc reads it; '' for none.")
@click.option("--flows", default="", help="Rates of classes of flows: 31mbit,125mbit,...")
@click.option("--delay", type=click.FloatRange(min=0), default=0.0, help="Milliseconds, one way.")
@click.option("--congestion", type=click.Choice(["reno", "cubic", "bbr"]), default="cubic",
              show_default=True)  # fmt: skip
@click.option("--sizes", default="1024,67108864", show_default=True, help="Bytes.")
@click.option("--calls", default="200,5", show_default=True, help="For each size.")
@click.option("--starts", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--contenders", default="rueda,gloo", show_default=True,
              help=f"Of {', '.join(CONTENDERS)}.")  # fmt: skip
@click.option("--baseline", type=click.Path(exists=True, path_type=Path),
              help="Takes turns as `before`, started as the first contender is.")  # fmt: skip
def main(
    count: int,
    ranks: int,
    rate: str,
    flows: str,
    delay: float,
    congestion: str,
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
        program, under_mpirun, variables = next(iter(entries.values()))
        older = {**variables, "PYTHONPATH": str(baseline)}
        entries = {"before": (program, under_mpirun, older), **entries}
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in entries}
    with Lab(count, rate=rate or None, congestion=congestion) as lab:
        if delay:
            lab.delay(delay / 1e3)
        if flows:
            lab.cap_flows(flows.split(","), port="sport")
        for _ in range(starts):
            for name, entry in entries.items():
                measured[name].append(start(lab, ranks, entry, lengths, repeats))
    told = f", flows of {flows}" if flows else ""
    told += f", {delay:g} ms from host to host" if delay else ""
    click.echo(
        f"{count} hosts with {ranks} ranks each, links of {rate or 'no limit'}{told}, "
        f"{congestion}, {starts} starts"
    )
    for length in lengths:
        for name, all_starts in measured.items():
            report(name, all_starts, length)


if __name__ == "__main__":
    main()
