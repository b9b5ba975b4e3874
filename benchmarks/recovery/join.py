"""How long a process takes to join a job that trains, and how long it holds the others up.

Hosts of a lab (network namespaces on this machine, links of a given rate), one rank each, train with Adam; once they
have done some steps a process on one more host joins them. A step is a pause, in which a GPU would compute, then the
reduction of real gradients and a real optimizer step. Modes take turns: `background`, what rueda.elastic.steps() does,
and `waiting`, where the state travels while the others wait (`background_bytes` beyond its size).

Takes root, for the lab.

    python benchmarks/recovery/join.py --megabytes 256 --rate 1gbit --rounds 3
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "python")]
from elastic_launcher import ElasticJob  # noqa: E402

from tests.net.lab import Lab  # noqa: E402

RANK = Path(__file__).with_name("join_rank.py")
TIMEOUT = 300.0
BEFORE = 8  # steps, before somebody joins; the first is not counted


class JobOnHosts(ElasticJob):
    """Each process on a host of its own."""

    def __init__(self, lab: Lab, folder: Path, size: int, **variables: str) -> None:
        self._lab = lab
        self._folder = folder
        super().__init__(RANK.read_text(), size, FOLDER=str(folder), **variables)

    def _address(self) -> str:
        return str(self._folder / "launcher")  # other than an abstract one, all hosts see it

    def _rendezvous(self) -> str:
        return f"tcp:{self._lab.ipv4('h0')}:29400"

    def _command(self, number: int, program: str) -> list[str]:
        return self._lab.inside(f"h{number}", *super()._command(number, program))


def diary(folder: Path, number: int) -> list[dict]:
    """What a process has noted: events with the time of the clock that all share."""
    try:
        text = (folder / f"rank{number}").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def ends_of(folder: Path, number: int) -> list[str]:
    """The hash of the parameters with which the process has ended."""
    return [line["hash"] for line in diary(folder, number) if line["event"] == "end"]


def wait_for(folder: Path, number: int, event: str, count: int, job: ElasticJob) -> None:
    """Until the process has noted that so often."""
    deadline = time.monotonic() + TIMEOUT
    while sum(line["event"] == event for line in diary(folder, number)) < count:
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"process {number}: no {count} times {event}\n{job.outputs()}"
            )
        time.sleep(0.05)


def measure(
    mode: str, members: int, megabytes: int, rate: str, pause: float, verbose: bool
) -> dict[str, float]:
    """One job; times in seconds."""
    variables = {
        "MEGABYTES": str(megabytes),
        "PAUSE": str(pause),
        "MODE": mode,
        "LAST": str(members),
    }
    with Lab(members + 1, rate=rate) as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with JobOnHosts(lab, folder, members, **variables) as job:
            wait_for(folder, 0, "step", 1, job)
            newcomer = job.start_joiner()
            wait_for(folder, newcomer, "ready", 1, job)
            wait_for(folder, 0, "step", BEFORE, job)
            (folder / "go").touch()
            for number, how in job.ended().items():
                if how.returncode != 0:
                    raise click.ClickException(
                        f"process {number}: {how.returncode}\n{job.outputs()}"
                    )
            steps = [line for line in diary(folder, 0) if line["event"] == "step"]
            notes = {line["event"]: line for line in diary(folder, newcomer)[::-1]}
            hashes = {tuple(ends_of(folder, number)) for number in job.processes}
            assert len(hashes) == 1, hashes
            if verbose:
                for number in (0, newcomer):
                    for line in diary(folder, number):
                        click.echo(f"  process {number}: {line}")
    asked = notes["asked"]["at"]
    joined = notes["step"]["begin"]
    times = [(b["at"] - a["at"], a["at"]) for a, b in itertools.pairwise(steps)]
    quiet = [length for length, begin in times[1:] if begin + length < asked]
    disturbed = [length for length, begin in times if begin + length >= asked and begin <= joined]
    first = next(i for i, line in enumerate(steps) if line["size"] > members)
    return {
        "median step": statistics.median(quiet),
        "longest quiet": max(quiet),
        "longest while joining": max(disturbed),
        "joined after": joined - asked,
        "pause between steps": steps[first]["begin"] - steps[first - 1]["at"],
        "late bytes": notes["late"]["bytes"],
        "steps while joining": len(disturbed),
    }


@click.command(help=__doc__)
@click.option(
    "--megabytes", type=click.IntRange(min=1), default=256, show_default=True, help="Of state."
)
@click.option("--rate", default="1gbit", show_default=True, help="Of each host's link.")
@click.option("--members", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--pause", type=float, default=1.0, show_default=True, help="In each step, seconds.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--modes", default="background,waiting", show_default=True)
@click.option(
    "-v", "--verbose", is_flag=True, help="Print what the first rank and the newcomer have noted."
)
def main(
    megabytes: int, rate: str, members: int, pause: float, rounds: int, modes: str, verbose: bool
) -> None:
    """Prints a line for each job."""
    for _ in range(rounds):
        for mode in modes.split(","):
            found = measure(mode, members, megabytes, rate, pause, verbose)
            ratio = found["longest while joining"] / found["median step"]
            click.echo(
                f"{mode:10} "
                + ", ".join(f"{k} {v:.4g}" for k, v in found.items())
                + f", ratio {ratio:.2f}"
            )


if __name__ == "__main__":
    main()
