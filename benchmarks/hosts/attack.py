"""What strangers cost a running job: four ranks that sum arrays, on two hosts of a lab and on one.

Phases of rest and of attack take turns. The attacks are 10,000 connections that say garbage, 1,000 that say nothing and
stay, 1,000 that repeat hellos which were heard on the network when this job began, 1,000 with those of the job before,
and 1,000 that know another secret. The table gives the median time of a step at rest and under attack, over all ranks;
each rank has looked at every bit of every result. The last column is what the process that holds most held at the end,
against the first rest.

    python benchmarks/hosts/attack.py --rounds 3

The lab needs root and `ip`. A Unix socket cannot be listened to on a network: on one host nothing is repeated.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS)]
from net.attacked_job import KINDS, AttackedJob, Capture  # noqa: E402
from net.lab import Lab  # noqa: E402

Came = dict[str, dict[str, int]]


def attack(
    job: AttackedJob, rounds: int, rate: float, rest: float, hellos: list[str], last: list[str]
) -> Came:
    """Rests and attacks in turn; what came of each kind of attack in all rounds."""
    came: Came = {}
    job.rest(rest, "first rest")
    for _ in range(rounds):
        for kind in KINDS:
            heard = last if kind == "last job" else hellos
            if kind in ("replay", "last job") and not heard:
                continue
            count = 10_000 if kind == "garbage" else 1_000
            job.rest(rest, f"before {kind}")
            result = job.suffer(kind, count // rounds, rate, heard)
            total = came.setdefault(kind, dict.fromkeys(result, 0))
            for name, value in result.items():
                total[name] += value
    job.rest(rest, "last rest")
    return came


def milliseconds(seen: list[dict[str, Any]], phase: str) -> float:
    """The median time of a step in a phase, over all ranks."""
    return statistics.median(time for rank in seen for time in rank[phase]["times"]) * 1e3


def report(title: str, seen: list[dict[str, Any]], came: Came) -> None:
    """The table of one job."""
    click.echo(title)
    for kind, result in came.items():
        before, under = milliseconds(seen, f"before {kind}"), milliseconds(seen, kind)
        steps = sum(len(rank[kind]["times"]) for rank in seen)
        click.echo(
            f"  {kind:13} {result['connected']:>6} of {result['tried']} connected, {result['welcomed']} welcomed, "
            f"{result['confirmed']} believed  {before:8.3f} ms -> {under:8.3f} ms ({under / before - 1:+.1%}), "
            f"{steps} steps"
        )
    for name in ("descriptors", "threads", "memory"):
        pairs = [
            (rank["first rest"]["held"][name], rank["last rest"]["held"][name]) for rank in seen
        ]
        first, last = max(pairs, key=lambda pair: pair[1] - pair[0])
        click.echo(f"  {name:13} {first} -> {last}{' KiB' if name == 'memory' else ''}")


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--rate", default=500.0, show_default=True, help="Connections a second.")
@click.option("--rest", default=3.0, show_default=True, help="Seconds between attacks.")
@click.option("--count", default=1 << 18, show_default=True, help="Elements of an array.")
@click.option("--link", default="1gbit", show_default=True, help="Rate of the hosts' links.")
@click.option("--only", type=click.Choice(["hosts", "one"]), help="Two hosts, or one.")
def main(rounds: int, rate: float, rest: float, count: int, link: str, only: str | None) -> None:
    """On hosts of a lab, on this one, or both."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if only != "one":
            with Lab(2, rate=link) as lab:
                last = folder / "last"
                last.mkdir()
                with Capture(lab, last) as heard, AttackedJob(last / "job", lab, 1024) as job:
                    job.end()
                with (
                    Capture(lab, folder) as capture,
                    AttackedJob(folder / "job", lab, count) as job,
                ):
                    hellos = capture.hellos()
                    came = attack(job, rounds, rate, rest, hellos, heard.hellos())
                    report("4 ranks on 2 hosts", job.end(), came)
        if only != "hosts":
            with AttackedJob(folder / "one", None, count) as job:
                came = attack(job, rounds, rate, rest, [], [])
                report("4 ranks on 1 host", job.end(), came)


if __name__ == "__main__":
    main()
