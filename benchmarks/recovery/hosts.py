"""Whole hosts are lost: all ranks of one host of three are killed at once, job after job.

The hosts are a lab (network namespaces on this machine, links of 1 Gbit/s) with two ranks each, which do random
operations over TCP and check every result; of half of the jobs it is the host of the first rank. Takes root.

    python benchmarks/recovery/hosts.py --jobs 50
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.chaos import harness  # noqa: E402
from tests.chaos.schedule import PHASES, Blow, World  # noqa: E402
from tests.net.lab import Lab  # noqa: E402

HOSTS, PER_HOST = 3, 2


@click.command(help=__doc__)
@click.option("--jobs", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--seed", type=int, default=7, show_default=True)
def main(jobs: int, seed: int) -> None:
    """Prints what came of it; ends with an error at the first job that hangs or computes wrongly."""
    chance = random.Random(seed)
    delays: list[float] = []
    with Lab(HOSTS, rate="1gbit") as lab:

        def command(arguments: list[str]) -> list[str]:
            hosts = ",".join(f"{name}:{PER_HOST}" for name in lab.names)
            rueda = str(Path(sys.executable).with_name("rueda"))
            return lab.inside(
                "h0", rueda, "run", "--ssh", str(lab.agent), "-H", hosts, "--min-np", "1", "--no-prefix",
                sys.executable, str(harness.RANK), *arguments,
            )  # fmt: skip

        for number in range(jobs):
            host = 0 if number % 2 == 0 else chance.randint(1, HOSTS - 1)
            victims = tuple(range(host * PER_HOST, (host + 1) * PER_HOST))
            blow = Blow("host", victims, chance.uniform(0.05, 0.3))
            ranks = HOSTS * PER_HOST
            world = World(number, ranks, chance.choice(PHASES), chance.randrange(1 << 30), (blow,))
            outcome = harness.Job(world, command, {}).run()
            delays += [delay for _, delay in outcome.delays]
    ordered = sorted(1e3 * delay for delay in delays)
    click.echo(
        f"{jobs} hosts of {HOSTS} lost, {PER_HOST} ranks each: no hang, no wrong result; the others had a right "
        f"result after {statistics.median(ordered):.0f} ms in the median, {ordered[-1]:.0f} at most"
    )


if __name__ == "__main__":
    main()
