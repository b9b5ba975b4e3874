"""What becomes of PCCL's peers when their master is killed, beside measure.py: whether they go on without it.

    python benchmarks/recovery/pccl_control.py --phases idle,large

Needs what pccl/environment.py makes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(ROOT))
from tests.chaos import harness  # noqa: E402
from tests.chaos.schedule import PHASES, Blow, World  # noqa: E402

RANKS = 4


class Job(harness.Job):
    """One whose master is killed."""

    def _deal(self, blow: Blow, outcome: harness.Outcome) -> None:
        time.sleep(blow.delay)
        began = time.monotonic()
        os.kill(int((self._folder / "master").read_text()), signal.SIGKILL)
        for process in range(RANKS):
            told = self._await_event(process, "broken", "notice")
            end = self._await_event(process, "gave up", "end")
            click.echo(
                f"  peer {process}: {told['why']} after {1e3 * (told['at'] - began):.0f} ms, "
                f"still {end['why']} when it gave up after {end['at'] - began:.0f} s"
            )
        self._process.wait(self._timeout)
        click.echo(f"  the job ended with code {self._process.returncode}")
        self._alive.clear()


def command(arguments: list[str]) -> list[str]:
    """Of a job of PCCL."""
    return [sys.executable, str(HERE / "pccl_job.py"), str(RANKS), *arguments]


@click.command(help=__doc__)
@click.option("--phases", default=",".join(PHASES), show_default=True)
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait.")
def main(phases: str, timeout: float) -> None:
    """Prints what each peer was told; ends with an error where one hangs or goes on."""
    failed = False
    for number, phase in enumerate(phases.split(",")):
        click.echo(f"{phase}:")
        world = World(number, RANKS, phase, number, (Blow("master", (), 0.3),))
        try:
            Job(world, lambda rest: command(list(rest)), {}, timeout).run()
        except AssertionError as error:
            failed = True
            click.echo(str(error)[:4000], err=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
