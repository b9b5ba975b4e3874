"""How long the survivors take to go on when a rank is killed: Rueda, ULFM, torchft and PCCL, all in one run.

From just before SIGKILL is sent until the last of those that are left holds the checked result of its next allreduce,
all processes by the same clock. Four ranks of this host do allreduces of random sizes; a rank is killed at a random
moment (idle, while others wait for each other, in the middle of a large one), then another, until two are left; then
the next job. Contenders take turns, a job each, with the same schedules:

- `shm`, `tcp`, `mpi`: Rueda under `rueda run --min-np`, over shared memory, over TCP, and started by mpirun with ULFM;
- `ulfm`: MPI_Allreduce of the mpirun on the PATH with --with-ft ulfm: revoke, shrink, and the next one;
- `torchft`: its Manager over gloo, with the lighthouse's timeouts tuned; `torchft-defaults`: with the defaults of the
  program `torchft_lighthouse`; `torchft-rueda`: tuned, over ProcessGroupRueda;
- `pccl`: the operation that has failed again, as its documentation says; `pccl-quickack`: with a loopback interface of
  its own that acknowledges at once, else its master waits for acknowledgements (40 ms each) since it has Nagle's
  algorithm on. Both need what pccl/environment.py makes, the latter also root.

    python benchmarks/recovery/measure.py --kills 200 --contenders shm,tcp,mpi,ulfm
    python benchmarks/recovery/measure.py --kills 20 --contenders shm,torchft,torchft-rueda,torchft-defaults
    python benchmarks/recovery/measure.py --kills 40 --contenders shm,tcp,pccl
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(ROOT))
from tests.chaos import harness  # noqa: E402
from tests.chaos.schedule import quantile, worlds  # noqa: E402

RANKS = 4
SLOWEST = 8  # of which it is told where they spent their time


@dataclass
class Contender:
    """One of those that take turns."""

    name: str
    delays: list[float] = field(default_factory=list)
    moments: list[tuple[float, float]] = field(
        default_factory=list
    )  # of each delay, as Outcome has them
    failures: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def command(self, folder: Path, arguments: Sequence[str]) -> list[str]:
        """How a job is started."""
        if self.name in ("shm", "tcp", "mpi"):
            extra = ["--bootstrap", "mpi"] if self.name == "mpi" else ["--no-mpi"]
            return harness.command(RANKS, arguments, extra)
        if self.name in TORCHFT:
            return [sys.executable, str(HERE / "torchft_job.py"), str(RANKS), self.name, *arguments]
        if self.name in PCCL:
            job = [sys.executable, str(HERE / "pccl_job.py"), str(RANKS), *arguments]
            return [*QUICK_ACKS, *job] if self.name == "pccl-quickack" else job
        return [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
            "--with-ft", "ulfm", "--runtime-options", "error-nonzero-status=false",
            "--mca", "coll", "^han", "-np", str(RANKS), str(folder / "ulfm_rank"), *arguments,
        ]  # fmt: skip

    @property
    def timeout(self) -> float:
        """Seconds within which a job goes on: torchft's defaults wait for a minute in places."""
        return 150.0 if self.name in TORCHFT else harness.TIMEOUT


TORCHFT = ("torchft", "torchft-rueda", "torchft-defaults")
PCCL = ("pccl", "pccl-quickack")
NAMES = ("shm", "tcp", "mpi", "ulfm", *TORCHFT, *PCCL)
# Starts a program with a network of its own.
QUICK_ACKS = (
    "unshare", "--net", "sh", "-c",
    "ip link set lo up && "
    "ip route replace table local local 127.0.0.1 dev lo src 127.0.0.1 quickack 1 && "
    'exec "$0" "$@"',
)  # fmt: skip


@click.command(help=__doc__)
@click.option("--kills", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--contenders", default="shm,tcp,mpi,ulfm", show_default=True)
@click.option("--seed", type=int, default=7, show_default=True)
def main(kills: int, contenders: str, seed: int) -> None:
    """Runs the schedule and prints a table."""
    names = contenders.split(",")
    if unknown := set(names) - set(NAMES):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose of {', '.join(NAMES)}")
    rivals = [Contender(each) for each in names]
    for rival in rivals:
        rival.variables["CHAOS_MEASURED"] = "1"
        if rival.name in ("shm", "tcp"):
            rival.variables["RUEDA_TRANSPORT"] = rival.name
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "ulfm" in names:
            compiled = ["mpicc", "-O2", "-o", str(folder / "ulfm_rank"), str(HERE / "ulfm_rank.c")]
            subprocess.run(compiled, check=True)
        for world, rival in itertools.product(worlds(kills, RANKS, seed, ("kill",)), rivals):
            outcome = harness.Outcome()
            try:
                job = harness.Job(
                    world,
                    lambda rest: rival.command(folder, rest),  # noqa: B023
                    rival.variables,
                    rival.timeout,
                )
                job.run(outcome)
            except AssertionError as error:
                rival.failures.append(str(error))
                click.echo(f"{rival.name}, job {world.number}: {shortened(str(error))}", err=True)
            rival.delays += [delay for _, delay in outcome.delays]
            rival.moments += outcome.moments
    print_table(rivals)
    for rival in rivals:
        print_slowest(rival)
    if any(rival.failures for rival in rivals):
        sys.exit(1)


def shortened(text: str) -> str:
    """The diaries and the tracebacks, without torchft's lines on every step."""
    lines = [line[:300] for line in text.splitlines() if "[INFO]" not in line]
    return "\n".join(lines[:100])


def print_table(rivals: list[Contender]) -> None:
    """In Markdown."""
    click.echo("| | kills | median ms | p99 | most | jobs that hung or went wrong |")
    click.echo("| --- | --- | --- | --- | --- | --- |")
    for rival in rivals:
        ordered = sorted(1e3 * delay for delay in rival.delays)
        if not ordered:
            click.echo(f"| {rival.name} | 0 | | | | {len(rival.failures)} |")
            continue
        late = quantile(ordered, 0.99)
        click.echo(
            f"| {rival.name} | {len(ordered)} | {statistics.median(ordered):.1f} | {late:.1f} "
            f"| {ordered[-1]:.1f} | {len(rival.failures)} |"
        )


def print_slowest(rival: Contender) -> None:
    """Where the slowest kills spent their time."""
    ordered = sorted(zip(rival.delays, rival.moments, strict=False), reverse=True)
    for delay, (broken, recovered) in ordered[:SLOWEST]:
        entered = (
            "" if math.isnan(recovered) else f", was in a new world after {1e3 * recovered:.1f}"
        )
        click.echo(
            f"{rival.name}, {1e3 * delay:.1f} ms: the last rank knew after {1e3 * broken:.1f}{entered}"
        )


if __name__ == "__main__":
    main()
