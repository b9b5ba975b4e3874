"""Trains the digits while ranks are killed at random and others join: the same bits, or the same accuracy?

With leaves (the default) the parameters have to end with the bits of one undisturbed rank. With --plain, each rank has
a part of every batch, and the accuracy is compared with that of an undisturbed job of as many ranks. Each schedule
kills one to three ranks; in every other one the launcher starts others in their places, which join. Exits with 1 where
bits differ.

    python benchmarks/recovery/digits.py --schedules 20
    python benchmarks/recovery/digits.py --schedules 5 --plain
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import click

RANK = Path(__file__).with_name("digits_rank.py")
LIMIT = 600.0  # of a job, seconds


@dataclass
class Outcome:
    """What a job's diary says."""

    hashes: set[str] = field(default_factory=set)
    accuracies: list[float] = field(default_factory=list)
    leaves: int = 0  # computed, by anybody
    sizes: list[int] = field(default_factory=list)  # of the world, in each step
    killed: int = 0

    def joins(self) -> int:
        """How many have joined."""
        return sum(max(0, after - before) for before, after in pairwise(self.sizes))


def read(diary: Path) -> Outcome:
    """What has been written so far; the last line may be incomplete."""
    outcome = Outcome()
    text = diary.read_text() if diary.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        kind, *words = line.split()
        if kind == "leaf":
            outcome.leaves += 1
        elif kind == "step":
            outcome.sizes.append(int(words[1]))
        else:
            outcome.hashes.add(words[0])
            outcome.accuracies.append(float(words[1]))
    return outcome


def living(folder: Path) -> list[int]:
    """Processes that have been ranks and run."""
    found = []
    for file in folder.glob("pid*"):
        with suppress(ProcessLookupError, ValueError):
            process = int(file.read_text())
            os.kill(process, 0)
            found.append(process)
    return sorted(found)


@dataclass
class Job:
    """A training of so many ranks."""

    ranks: int
    epochs: int
    plain: bool

    def run(self, kills: list[int], replaced: bool, chance: random.Random) -> Outcome:
        """Kills a rank when each of these steps is done; ``replaced``: the launcher starts others in their places."""
        folder = Path(tempfile.mkdtemp(prefix="rueda-digits-"))
        line = [str(Path(sys.executable).with_name("rueda")), "run", "--no-mpi", "--oversubscribe"]
        line += ["-np", str(self.ranks)]
        if kills:
            line += ["--min-np", "1"]
        if replaced:
            line += ["--max-np", str(self.ranks), "--blacklist-cooldown-range", "0", "1"]
        told = {
            "FOLDER": str(folder),
            "EPOCHS": str(self.epochs),
            "REPRODUCIBLE": "0" if self.plain else "1",
            "OMP_NUM_THREADS": "1",
        }
        with (folder / "log").open("w") as log:
            job = subprocess.Popen(
                [*line, sys.executable, str(RANK)],
                env=os.environ | told,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                killed = _kill(job, folder, sorted(kills), chance)
            finally:
                job.terminate()
                job.wait(60)
        outcome = read(folder / "diary")
        outcome.killed = killed
        if not outcome.hashes:
            raise click.ClickException(f"a job has ended without a result: {folder}/log")
        shutil.rmtree(folder)
        return outcome


def _kill(
    job: subprocess.Popen[bytes], folder: Path, after: list[int], chance: random.Random
) -> int:
    """Until the job's end; returns how many were killed."""
    killed = 0
    deadline = time.monotonic() + LIMIT
    while job.poll() is None:
        if time.monotonic() > deadline:
            raise click.ClickException(f"a job has not ended within {LIMIT:g} s: {folder}/log")
        if after and len(read(folder / "diary").sizes) > after[0]:
            after.pop(0)
            time.sleep(chance.uniform(0, 0.05))  # wherever in a step
            left = living(folder)
            if len(left) > 1:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(left), signal.SIGKILL)
                    killed += 1
        time.sleep(0.01)
    return killed


@click.command(help=__doc__)
@click.option("--schedules", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--plain", is_flag=True, help="Without leaves: compares accuracies.")
def main(schedules: int, ranks: int, epochs: int, seed: int, plain: bool) -> None:
    """Prints a line for each schedule."""
    chance = random.Random(seed)
    alone = Job(ranks if plain else 1, epochs, plain).run([], False, chance)
    click.echo(f"undisturbed: accuracy {100 * alone.accuracies[0]:.2f} %, {len(alone.sizes)} steps")
    found = []
    for number in range(schedules):
        kills = chance.sample(range(2, len(alone.sizes) + 1), chance.randint(1, 3))
        outcome = Job(ranks, epochs, plain).run(kills, number % 2 == 1, chance)
        found.append(outcome)
        what = (
            f"accuracy {100 * outcome.accuracies[0]:.2f} %"
            if plain
            else f"{'the same bits' if outcome.hashes == alone.hashes else 'OTHER BITS'}, "
            f"{outcome.leaves - alone.leaves} of {alone.leaves} leaves computed again"
        )
        click.echo(
            f"{number}: {outcome.killed} killed after steps {', '.join(map(str, sorted(kills)))}, "
            f"{outcome.joins()} joined, {min(outcome.sizes)} ranks at least: {what}"
        )
    killed = sum(each.killed for each in found)
    joins = sum(each.joins() for each in found)
    click.echo(f"{killed} killed, {joins} joined in {schedules} schedules")
    if plain:
        apart = [100 * abs(each.accuracies[0] - alone.accuracies[0]) for each in found]
        click.echo(f"accuracies differ by {statistics.median(apart):.2f} points in the median")
        click.echo(f"and by {max(apart):.2f} at most")
        return
    equal = sum(each.hashes == alone.hashes for each in found)
    again = sum(each.leaves - alone.leaves for each in found)
    click.echo(f"the same bits in {equal}, {again / max(1, killed):.1f} leaves again for each kill")
    if equal != schedules:
        sys.exit(1)


if __name__ == "__main__":
    main()
