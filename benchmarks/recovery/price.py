"""What it costs to be ready for failures, while nothing fails.

Two jobs take turns: one without anything of it, and one with everything on: under `rueda run --min-np --max-np`, with
rueda.elastic.steps(), which looks before each step whether the world is to change, with the flight recorder, and with
parameters compared every tenth step. Both train the same model. Of each job the median of ten steps' time: each ten
have one in which parameters are compared.

    python benchmarks/recovery/price.py --rounds 10
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import click

RANK = Path(__file__).with_name("training.py")
SKIPPED = 20  # steps at the beginning, in which ranks agree on buckets
CHECK_EVERY = 10


def start_job(
    folder: Path, ready: bool, ranks: int, steps: int, width: int
) -> subprocess.Popen[str]:
    """A job whose first rank writes a line for each step into the folder's file `diary`."""
    rueda = str(Path(sys.executable).with_name("rueda"))
    extra = (
        ["--min-np", "1", "--max-np", str(ranks), "--flight-recorder", str(folder)] if ready else []
    )
    return subprocess.Popen(
        [
            rueda,
            "run",
            "--no-mpi",
            "-np",
            str(ranks),
            "--oversubscribe",
            *extra,
            sys.executable,
            str(RANK),
        ],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "FOLDER": str(folder),
            "ELASTIC": str(int(ready)),
            "CHECK_EVERY": str(CHECK_EVERY) if ready else "0",
            "STEPS": str(steps),
            "WIDTH": str(width),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def median_step(ready: bool, ranks: int, steps: int, width: int) -> float:
    """Of one job, in seconds."""
    with tempfile.TemporaryDirectory() as name:
        with start_job(Path(name), ready, ranks, steps, width) as job:
            output, _ = job.communicate()
        if job.returncode != 0:
            raise click.ClickException(output)
        times = [float(line.split()[0]) for line in (Path(name) / "diary").read_text().splitlines()]
    tens = pairwise(times[SKIPPED::CHECK_EVERY])
    return statistics.median(end - begin for begin, end in tens) / CHECK_EVERY


@click.command(help=__doc__)
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--steps", type=click.IntRange(min=SKIPPED + 2 * CHECK_EVERY), default=400, show_default=True
)
@click.option("--width", type=int, default=256, show_default=True, help="Of the model's 8 layers.")
def main(ranks: int, rounds: int, steps: int, width: int) -> None:
    """Prints a line for each round, and what follows from all."""
    pairs = []
    for number in range(rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        found = {ready: median_step(ready, ranks, steps, width) for ready in order}
        pairs.append((found[False], found[True]))
        click.echo(f"without {found[False] * 1e3:.3f} ms, with {found[True] * 1e3:.3f} ms")
    ratios = sorted(after / before for before, after in pairs)
    click.echo(
        f"without {statistics.median(a for a, _ in pairs) * 1e3:.3f} ms, with "
        f"{statistics.median(b for _, b in pairs) * 1e3:.3f} ms (medians of {rounds} jobs of {steps} steps each); "
        f"ratio {statistics.median(ratios):.4f} in the median, {ratios[0]:.4f} to {ratios[-1]:.4f}"
    )


if __name__ == "__main__":
    main()
