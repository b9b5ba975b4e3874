"""Whether a build of Rueda is slower than another one: starts `rueda bench --baseline` several times.

What Rueda measures when it starts decides which algorithm it takes at which size, so that two starts of one build
differ more than most changes do. The table gives, for each size and way to call, the median time of each build over
all starts, and the median of the ratios of those that took turns in one start, with their quartiles.

    pip install --no-deps --target OTHER SOURCES_OF_THE_OTHER_BUILD
    python benchmarks/compare_builds.py OTHER -np 2 --starts 8
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

WAYS = {"": "direct", "-named": "named", "-python": "named from Python"}
MEMORIES = ("private", "registered")


def measure(baseline: Path, ranks: int, last: str) -> list[dict[str, Any]]:
    """One start: the sizes of the report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "rueda.launcher",
                    "bench",
                    "-np",
                    str(ranks),
                    "-b",
                    "4",
                    "-e",
                    last,
                    "-f",
                    "8",
                ),
                *(
                    "--baseline",
                    str(baseline),
                    "--paths",
                    "direct,named,python",
                    "--peers",
                    "none",
                    "--no-limits",
                ),
                *("--rounds", "4", "--json", str(report)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(report.read_text())["sizes"]


def row(starts: list[dict[str, Any]], way: str, memory: str) -> str:
    """Before, after, ratio (quartiles) of one size."""
    pairs = [
        (
            start["results"][f"baseline{way} {memory}"]["time_us"],
            start["results"][f"rueda{way} {memory}"]["time_us"],
        )
        for start in starts
    ]
    before, after = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = [new / old for old, new in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{before:.3g} → {after:.3g}, {middle:.2f} ({low:.2f} to {high:.2f})"


@click.command(help=__doc__)
@click.argument("baseline", type=click.Path(exists=True, path_type=Path))
@click.option("-np", "ranks", default=2, show_default=True)
@click.option("--starts", default=8, show_default=True)
@click.option("-e", "last", default="64M", show_default=True)
def main(baseline: Path, ranks: int, starts: int, last: str) -> None:
    """The command line."""
    runs = [measure(baseline, ranks, last) for _ in range(starts)]
    titles = [f"{title}, {memory}" for title in WAYS.values() for memory in MEMORIES]
    click.echo(f"{ranks} ranks, {starts} starts: µs before → after, ratio (quartiles)\n")
    click.echo("| bytes | " + " | ".join(titles) + " |")
    click.echo("| ---: |" + " --- |" * len(titles))
    for sizes in zip(*runs, strict=True):
        cells = [row(list(sizes), way, memory) for way in WAYS for memory in MEMORIES]
        click.echo(f"| {sizes[0]['size']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
