"""Allreduce and all-to-all across hosts: network namespaces on this machine, each with a link of its own.

What each host sends is limited to `--rate`, and takes `--delay` from host to host; with `--flows` each TCP flow is
limited to the rate of its class, of which there are as many as rates are given: the low bits of the port that sends
choose it. The contenders are started in turn, `--starts` times each. The table gives the median over all starts of rank
0's median time of a call, and its least and greatest; the bytes that the first host's interface has sent for each call,
with all headers, by those of the tensor; and the processor time of rank 0 by the bytes of its tensors. Of an all-to-all
these are what a rank sends altogether, itself included. `--baseline` is a folder with another build of Rueda.

Where sums are formed in place, they are compared with exact ones of `--data`, and the table has the mean squared error
by the mean square (NMSE). A start that fails, computes wrongly or goes on beyond `--limit` counts as one that failed.

PCCL's peers have one connection to the next one and one operation for a tensor, or 16 connections (`pccl-pool16`) and
4 or 16 operations at once. With uint8 on the wire one operation is the fastest. Its master runs on the first host; its
bytes there count, its processor time does not.

    python benchmarks/hosts/measure.py --hosts 2 --ranks 2 --contenders rueda,gloo,mpi
    python benchmarks/hosts/measure.py --hosts 4 --contenders rueda,pccl,pccl-pool16,rueda-int8,pccl-uint8

Needs root, `ip` and `tc`, for `mpi` and `rueda-mpi` an Open MPI, and for PCCL what pccl/environment.py makes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

TESTS = Path(__file__).resolve().parents[2] / "tests"
PCCL = Path(__file__).resolve().parents[1] / "pccl"
sys.path[:0] = [str(TESTS), str(TESTS / "python"), str(PCCL)]
import environment  # noqa: E402
from hosts import run_on_hosts  # noqa: E402
from net.lab import Lab  # noqa: E402

RANK = Path(__file__).with_name("rank.py")
PORT = 29517
OUTPUT = 4000  # characters of a failure that are shown
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
    **{
        name: (name, False, {})
        for name in (
            "pccl",
            "pccl-pool16",
            "pccl-pool16-ops16",
            "pccl-uint8",
            "pccl-uint8-zero-point",
        )
    },
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


class Failed(Exception):
    """A start without a result; the text has what the ranks have written."""


@contextmanager
def pccl_master(lab: Lab) -> Iterator[None]:
    """What all peers of PCCL connect to, on the first host."""
    where = f"{lab.address('h0')}:{PORT}"
    line = [*environment.command(), str(PCCL / "master.py"), where]
    process = lab.start("h0", *line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            if process.stdout.readline() != "ready\n":
                raise Failed("PCCL's master does not start")
            yield
        finally:
            process.kill()
            process.wait()


def launch(lab: Lab, ranks: int, program: list[str], extra: dict[str, str], limit: float) -> str:
    """What ranks have written that `rueda run` has started on all hosts."""
    everywhere = ",".join(f"{name}:{ranks}" for name in lab.names)
    line = [str(Path(sys.executable).with_name("rueda")), "run", "--ssh", str(lab.agent)]
    line += ["-H", everywhere, "--no-prefix", *program]
    with tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(
                lab.inside(lab.names[0], *line),
                env={**os.environ, **extra},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=limit,
                check=False,
            )
            written = done.stdout
        except subprocess.TimeoutExpired:
            written = f"not done after {limit:g} seconds\n"
        errors.seek(0)
        return written + errors.read()


def start(
    lab: Lab,
    ranks: int,
    contender: tuple[str, bool, dict[str, str]],
    given: list[str],
    limit: float,
) -> dict[str, Any]:
    """What rank 0 has measured in one start. `given`: sizes, calls and data."""
    program, under_mpirun, variables = contender
    extra = {"OMP_NUM_THREADS": "1", **variables}
    library = program.partition("-")[0]
    place = {
        "gloo": f"tcp://{lab.address('h0')}:{PORT}",
        "pccl": f"{lab.address('h0')}:{PORT}",
        "mpi": mpi_library(),
    }.get(library, "")
    arguments = [program, *given[:2], place, given[2]]
    if under_mpirun:
        output = run_on_hosts(lab, RANK, ranks, arguments, extra, limit).output
    elif library == "pccl":
        with pccl_master(lab):
            line = [*environment.command(), str(RANK), *arguments]
            output = launch(lab, ranks, line, extra, limit)
    else:
        output = launch(lab, ranks, [sys.executable, str(RANK), *arguments], extra, limit)
    return read_output(output, ranks * len(lab.names))


def read_output(output: str, ranks: int) -> dict[str, Any]:
    """What rank 0 has measured, and whether all ranks have had the same bits."""
    lines = output.splitlines()
    for line in lines:
        if line.startswith("measured "):
            measured: dict[str, Any] = json.loads(line.removeprefix("measured "))
            for size, result in measured["results"].items():
                bits = [each for each in lines if each.startswith(f"bits {size} ")]
                result["alike"] = len(set(bits)) == 1 and len(bits) == ranks
            return measured
    raise Failed(output)


def report(name: str, starts: list[dict[str, Any]], length: int) -> None:
    """One line of the table."""
    results = [one["results"][str(length)] for one in starts]
    times = sorted(result["ms"] for result in results)
    sent = statistics.median(result["sent"] for result in results) / length
    processor = statistics.median(result["cpu"] for result in results) / length * 1e9
    told = ""
    if "error" in results[0]:
        told = f"  NMSE {max(result['error'] for result in results):.1e}"
        told += "" if all(result["alike"] for result in results) else ", ranks differ in bits"
    click.echo(
        f"{name:14} {length:>9} B {statistics.median(times):10.3f} ms "
        f"({times[0]:.3f} to {times[-1]:.3f})  sends {sent:.3f}  {processor:8.2f} s/GB{told}"
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
@click.option(
    "--data",
    default="t3",
    show_default=True,
    help="For errors: t3 or normal noise, or a folder with the rank0.npz, ... of train_transformer.py --save.",
)
@click.option("--limit", type=float, default=600.0, show_default=True, help="Seconds of a start.")
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
    data: str,
    limit: float,
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
    given = [json.dumps(lengths), json.dumps(repeats), data]
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in entries}
    failed: dict[str, int] = dict.fromkeys(entries, 0)
    with Lab(count, rate=rate or None, congestion=congestion) as lab:
        if delay:
            lab.delay(delay / 1e3)
        if flows:
            lab.cap_flows(flows.split(","), port="sport")
        for _ in range(starts):
            for name, entry in entries.items():
                try:
                    measured[name].append(start(lab, ranks, entry, given, limit))
                except (Failed, AssertionError) as error:  # the latter of mpirun
                    failed[name] += 1
                    click.echo(f"{name} has failed:\n{str(error)[-OUTPUT:]}", err=True)
    told = f", flows of {flows}" if flows else ""
    told += f", {delay:g} ms from host to host" if delay else ""
    click.echo(
        f"{count} hosts with {ranks} ranks each, links of {rate or 'no limit'}{told}, "
        f"{congestion}, {starts} starts"
    )
    for length in lengths:
        for name, all_starts in measured.items():
            if all_starts:
                report(name, all_starts, length)
    for name, number in failed.items():
        if number:
            click.echo(f"{name}: {number} of {starts} starts have failed")
    sys.exit(any(failed.values()))


if __name__ == "__main__":
    main()
