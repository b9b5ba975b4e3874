"""Which system calls each rank makes in a step, with everything on against failures and without.

As price.py, but counts instead of times, which other work on the machine does not change much. strace is attached to
ranks that train already: forming a world takes many thousand calls, in another number each time.

    python benchmarks/recovery/calls.py --ranks 2
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
import price


def lines_of(path: Path) -> int:
    """How many there are, if any."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def await_step(job: subprocess.Popen[str], diary: Path, number: int) -> None:
    """Returns once so many steps are done."""
    while lines_of(diary) < number:
        if job.poll() is not None:
            raise click.ClickException("the job has ended too early")
        time.sleep(0.01)


def calls_per_step(ready: bool, ranks: int, steps: int, width: int) -> list[Counter[str]]:
    """Of each rank, in hundredths."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        diary = folder / "diary"
        with price.start_job(folder, ready, ranks, 1_000_000, width) as job:
            await_step(job, diary, price.SKIPPED)
            traces = [
                subprocess.Popen(
                    ["strace", "-f", "-c", "-U", "calls,name", "-o", str(folder / f"calls{rank}")]
                    + ["-p", (folder / f"pid{rank}").read_text()],
                    stderr=subprocess.DEVNULL,
                )
                for rank in range(ranks)
            ]
            time.sleep(1.0)  # until they are attached
            await_step(job, diary, lines_of(diary) + steps)
            for trace in traces:
                trace.send_signal(signal.SIGINT)
            for trace in traces:
                trace.wait()
            job.terminate()
            job.communicate()
        return [read_calls(folder / f"calls{rank}") for rank in range(ranks)]


def read_calls(path: Path) -> Counter[str]:
    """What strace has counted, per step, in hundredths. Each step of training.py sleeps once, for no time."""
    found = re.findall(r"^\s*(\d+)\s+(\w+)$", path.read_text(), re.M)
    counts = {name: int(count) for count, name in found if name != "total"}
    steps = counts.pop("clock_nanosleep")
    return Counter({name: round(100 * count / steps) for name, count in counts.items()})


@click.command(help=__doc__)
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--width", type=int, default=256, show_default=True, help="Of the model's 8 layers.")
def main(ranks: int, steps: int, width: int) -> None:
    """Prints a line for each rank."""
    if shutil.which("strace") is None:
        raise click.ClickException("there is no strace")
    for ready in (False, True):
        for rank, calls in enumerate(calls_per_step(ready, ranks, steps, width)):
            most = ", ".join(f"{name} {count / 100:.2f}" for name, count in calls.most_common(8))
            click.echo(
                f"{'with' if ready else 'without'}, rank {rank}: {calls.total() / 100:.2f} per step; {most}"
            )


if __name__ == "__main__":
    main()
