"""What `rueda report` predicts for 8 ranks from a run of 2, beside a run of 8.

Ranks are on hosts of the lab (network namespaces with limited links), one on each, and sleep in the place of computing,
so that a machine with few processors can have eight. Needs root, `ip` and `tc`.

    python benchmarks/report/scaling.py [--rate 500mbit] [--steps 60]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from net.lab import Lab  # noqa: E402

RANK = Path(__file__).with_name("rank.py")
SETTINGS = ("reduced at once", "overlapped", "DistributedOptimizer", "slow now and then")
FEW, MANY = 2, 8
LIMIT = 300.0  # seconds that a run may take
PARTS = ("compute", "communication", "straggler", "input", "other")


def report(lab: Lab, ranks: int, setting: str, steps: int) -> dict[str, Any]:
    """Of a run on so many of the lab's hosts."""
    hosts = ",".join(f"{name}:1" for name in lab.names[:ranks])
    line = [sys.executable, "-m", "rueda.launcher", "report", "-np", str(ranks)]
    line += ["--json", "--predict", str(MANY), "--launch", f"--ssh {lab.agent} -H {hosts}"]
    done = subprocess.run(
        lab.inside(lab.names[0], *line, sys.executable, str(RANK), setting, str(steps)),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode != 0:
        raise click.ClickException(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def largest_gap(found: dict[str, Any]) -> float:
    """Of the parts' sum from the wall time, over ranks, relative."""
    return max(
        abs(sum(each["whole"][part] for part in PARTS) / each["wall"] - 1)
        for each in found["per_rank"]
    )


@click.command(help=__doc__)
@click.option("--rate", default="500mbit", show_default=True, help="Of each link.")
@click.option("--steps", default=60, show_default=True)
def main(rate: str, steps: int) -> None:
    """The table of docs/report.md."""
    click.echo(
        "| setting | step on 2 ranks, ms | exposed | waits | 8 ranks, predicted, ms | measured, ms | difference |"
    )
    click.echo("| --- | --- | --- | --- | --- | --- | --- |")
    gap = 0.0
    with Lab(MANY, rate=rate) as lab:
        for setting in SETTINGS:
            few = report(lab, FEW, setting, steps)
            many = report(lab, MANY, setting, steps)
            gap = max(gap, largest_gap(few), largest_gap(many))
            sums = {part: sum(each["training"][part] for each in few["per_rank"]) for part in PARTS}
            shares = {part: value / sum(sums.values()) for part, value in sums.items()}
            predicted = few["predictions"][0]["step"]
            click.echo(
                f"| {setting} | {1e3 * few['step']:.1f} | {shares['communication']:.1%} | {shares['straggler']:.1%} "
                f"| {1e3 * predicted:.1f} | {1e3 * many['step']:.1f} | {predicted / many['step'] - 1:+.1%} |"
            )
    click.echo(f"\nParts and wall time differ by {gap:.2g} at most.")


if __name__ == "__main__":
    main()
