"""How much training gets done while ranks are killed and others join, beside the same job undisturbed.

A job of `rueda run --max-np` whose steps have a fixed global batch and take a fixed time, as if a GPU computed; every
so many seconds one of its processes is killed, and the launcher starts another in its place, which joins. Goodput is
steps that have taken effect per second, beside those of the same job left alone before. That ranks are fewer until the
next one has joined does not make the steps longer here: what is lost is what recovery and joining take, and what the
machine's processors do for the processes that start.

    python benchmarks/recovery/goodput.py --seconds 180 --every 5
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click

RANK = Path(__file__).with_name("training.py")


@dataclass
class Line:
    """The end of a step."""

    at: float
    step: int
    ranks: int


class Job:
    """A job under way. Use as a context manager."""

    def __init__(self, ranks: int, pause: float, width: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rueda-goodput-"))
        self._log = (self._folder / "log").open("w")
        rueda = str(Path(sys.executable).with_name("rueda"))
        self.process = subprocess.Popen(
            [
                rueda, "run", "-np", str(ranks), "--min-np", "1", "--max-np", str(ranks), "--oversubscribe",
                "--blacklist-cooldown-range", "0", "1", sys.executable, str(RANK),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "FOLDER": str(self._folder),
                "ELASTIC": "1",
                "PAUSE": str(pause),
                "WIDTH": str(width),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._log.close()

    def lines(self) -> list[Line]:
        """All steps that have taken effect, in their order."""
        try:
            text = (self._folder / "diary").read_text()
        except FileNotFoundError:
            return []
        fields = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        newest = {int(step): Line(float(at), int(step), int(ranks)) for at, step, ranks in fields}
        return [newest[step] for step in sorted(newest)]

    def living(self) -> list[int]:
        """Processes that have been ranks and run."""
        found = []
        for file in self._folder.glob("pid*"):
            with suppress(ProcessLookupError, ValueError):
                process = int(file.read_text())
                os.kill(process, 0)
                found.append(process)
        return sorted(found)

    def wait(self, seconds: float) -> None:
        """Lets it go on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise click.ClickException(
                    f"the job has ended\n{(self._folder / 'log').read_text()[-5000:]}"
                )
            time.sleep(0.05)


def rate(lines: list[Line], begin: float, end: float) -> float:
    """Steps per second."""
    return sum(begin <= line.at < end for line in lines) / (end - begin)


@click.command(help=__doc__)
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--seconds", type=float, default=180.0, show_default=True, help="Of kills and joins.")
@click.option("--every", type=float, default=5.0, show_default=True, help="Between kills, seconds.")
@click.option(
    "--quiet", type=float, default=60.0, show_default=True, help="Undisturbed before, seconds."
)
@click.option("--pause", type=float, default=0.1, show_default=True, help="In each step, seconds.")
@click.option("--width", type=int, default=256, show_default=True, help="Of the model's 8 layers.")
@click.option("--seed", type=int, default=7, show_default=True)
def main(
    ranks: int, seconds: float, every: float, quiet: float, pause: float, width: int, seed: int
) -> None:
    """Prints what came of it."""
    chance = random.Random(seed)
    with Job(ranks, pause, width) as job:
        while len(job.lines()) < 20:
            job.wait(0.5)
        begin = time.monotonic()
        job.wait(quiet)
        middle = time.monotonic()
        kills = 0
        while time.monotonic() - middle < seconds:
            living = job.living()
            if len(living) > 1:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(living), signal.SIGKILL)
                    kills += 1
            job.wait(every)
        end = time.monotonic()
        lines = job.lines()
    undisturbed, disturbed = rate(lines, begin, middle), rate(lines, middle, end)
    during = [line for line in lines if middle <= line.at < end]
    joins = sum(b.ranks > a.ranks for a, b in pairwise(during))
    lengths = [b.at - a.at for a, b in pairwise(during)]
    click.echo(
        f"{kills} kills, {joins} joins in {end - middle:.0f} s: {disturbed:.2f} steps/s, undisturbed "
        f"{undisturbed:.2f} in {middle - begin:.0f} s: goodput {100 * disturbed / undisturbed:.1f}%"
    )
    click.echo(
        f"steps {statistics.median(lengths):.3f} s in the median, {max(lengths):.3f} the longest; "
        f"{statistics.mean(line.ranks for line in during):.2f} of {ranks} ranks on average"
    )


if __name__ == "__main__":
    main()
