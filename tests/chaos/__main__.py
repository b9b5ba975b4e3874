"""Kills ranks of one job after another, and reports how long the others took to go on.

python -m tests.chaos --kills 200 --transport shm --seed 7
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections import defaultdict

import click

from .harness import Job, command, flags_of
from .schedule import HARMLESS, KINDS, quantile, worlds


@click.command(help=__doc__)
@click.option("--kills", type=click.IntRange(min=1), default=20, show_default=True,
              help="Or pauses and slowed ranks, where nobody is killed.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=3), default=4, show_default=True)
@click.option("--transport", type=click.Choice(["shm", "tcp", "mpi"]), default="shm", show_default=True,
              help="mpi: the ranks are started by mpirun with ULFM.")  # fmt: skip
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--kinds", default="kill,first,two,again", show_default=True,
              help=f"Of {', '.join(KINDS)}.")  # fmt: skip
@click.option("--world", "only", type=int, help="Only the job with this number, again and again.")
@click.option("--slow", type=float, default=math.inf,
              help="Print what the ranks wrote where they took longer, in seconds.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Print each world's schedule.")
def main(
    kills: int,
    ranks: int,
    transport: str,
    seed: int,
    kinds: str,
    only: int | None,
    slow: float,
    verbose: bool,
) -> None:
    """Runs the schedule; ends with an error at the first job that hangs, computes wrongly or leaves a process."""
    chosen = tuple(kinds.split(","))
    if unknown := set(chosen) - set(KINDS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose of {', '.join(KINDS)}")
    if transport == "mpi" and "restart" in chosen:
        raise click.BadParameter("restart: nobody can join a job that mpirun has started")
    extra = ["--bootstrap", "mpi"] if transport == "mpi" else ["--no-mpi"]
    variables = {} if transport == "mpi" else {"RUEDA_TRANSPORT": transport}
    delays: dict[str, list[float]] = defaultdict(list)
    named: list[float] = []
    began = time.monotonic()
    count = 0
    schedule = worlds(kills, ranks, seed, chosen)
    if only is not None:
        everything = worlds(sys.maxsize, ranks, seed, chosen)
        schedule = itertools.repeat(next(itertools.islice(everything, only, None)), kills)
    for world in schedule:
        if verbose:
            blows = "; ".join(map(str, world.blows))
            click.echo(f"world {world.number}, {world.phase}: {blows}")
        flags = [*extra, *flags_of(world)]
        outcome = Job(world, lambda rest: command(ranks, rest, flags), variables).run()  # noqa: B023
        for kind, delay in outcome.delays:
            delays[kind].append(delay)
        if verbose:
            click.echo("  " + ", ".join(f"{delay * 1e3:.1f} ms" for _, delay in outcome.delays))
        if any(delay > slow for _, delay in outcome.delays):
            click.echo(outcome.output)
        named += outcome.named
        count += sum(len(blow.victims) or 1 for blow in world.blows if blow.kind not in HARMLESS)
    click.echo(f"{count} processes killed in {world.number + 1} jobs of {ranks} over {transport}, seed {seed}: "
               f"no hang, no wrong result ({time.monotonic() - began:.0f} s)")  # fmt: skip
    everything = [delay for values in delays.values() for delay in values]
    for kind, values in [*sorted(delays.items()), ("all", everything)]:
        if values:
            click.echo(f"  {kind:7} {_summary(values)}")
    if named:
        click.echo(f"  frozen ranks were named after {_summary(named)}")


def _summary(values: list[float]) -> str:
    ordered = sorted(value * 1e3 for value in values)
    return (
        f"{len(ordered):4} times: median {statistics.median(ordered):.1f} ms, "
        f"p99 {quantile(ordered, 0.99):.1f}, most {ordered[-1]:.1f}"
    )


main()
