"""What becomes of a job on several hosts when one of them is lost, or the launcher's process there, job after job.

The hosts are a lab (network namespaces on this machine, links of 1 Gbit/s). The first has the launcher alone, three
others have two ranks each, which do random operations over TCP and check every result. Takes root. Kinds:

- `first`: all processes of the host where the ranks have met are killed at once, those of the launcher among them;
- `other`: the same with another host;
- `agent`: what the launcher has on a host is killed, with which the ranks there end;
- `partition`: nothing is killed, but a host falls silent; its ranks must stop, so that there are never two worlds.

Every other time, and always in a partition, the host falls silent first, as where power is lost: then only the
heartbeat tells.

    python benchmarks/recovery/hosts.py --jobs 50
"""

from __future__ import annotations

import math
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.chaos import harness  # noqa: E402
from tests.chaos.schedule import PHASES, Blow, World  # noqa: E402
from tests.net.lab import Lab, namespaces  # noqa: E402

KINDS = ("first", "other", "agent", "partition")
HOSTS, PER_HOST = 3, 2
RANKS = HOSTS * PER_HOST


class Job(harness.Job):
    """One in which a host is lost."""

    def __init__(self, world: World, lab: Lab, host: str, is_silent: bool) -> None:
        """`is_silent`: nothing that happens there is heard of elsewhere."""
        super().__init__(world, lambda rest: command(lab, rest), {})
        self._lab = lab
        self._host = host
        self._is_silent = is_silent

    def _deal(self, blow: Blow, outcome: harness.Outcome) -> None:
        super()._deal(blow, outcome)
        if blow.kind == "partition":
            for victim in blow.victims:
                self._await_event(victim, "expelled", "stop as one of a minority")
                alone = self._diary(victim)
                assert not any(line["event"] == "recovered" for line in alone), alone

    def _strike(self, blow: Blow) -> float:
        victims = namespaces.processes_of(self._lab.namespace(self._host))
        if blow.kind == "agent":
            ranks = {self._pids[victim] for victim in blow.victims}
            victims = [process for process in victims if process not in ranks]
        began = time.monotonic()
        if self._is_silent:
            self._lab.link(self._host).silence()
        if blow.kind != "partition":
            kill(victims)
        return began


def kill(processes: Sequence[int]) -> None:
    """Those that are still there."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def all_processes(lab: Lab) -> list[int]:
    """What runs on any host."""
    return [p for host in lab.names for p in namespaces.processes_of(lab.namespace(host))]


def await_nothing(lab: Lab) -> None:
    """Until no process is left on any host."""
    deadline = time.monotonic() + harness.TIMEOUT
    while left := all_processes(lab):
        if time.monotonic() > deadline:
            raise harness.Hang(f"processes {left} are left")
        time.sleep(0.05)


def command(lab: Lab, arguments: Sequence[str]) -> list[str]:
    """Of a job whose launcher has a host of its own."""
    hosts = ",".join(f"{name}:{PER_HOST}" for name in lab.names[1:])
    rueda = str(Path(sys.executable).with_name("rueda"))
    return lab.inside(
        "h0", rueda, "run", "--ssh", str(lab.agent), "-H", hosts, "--min-np", "1", "--no-prefix",
        "--host-timeout", "5", sys.executable, str(harness.RANK), *arguments,
    )  # fmt: skip


def _summary(seconds: Sequence[float]) -> str:
    return (
        f"{1e3 * statistics.median(seconds):.0f} ms in the median, {1e3 * max(seconds):.0f} at most"
    )


@click.command(help=__doc__)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=50, show_default=True, help="Of each kind."
)
@click.option("--kinds", default=",".join(KINDS), show_default=True)
@click.option("--seed", type=int, default=7, show_default=True)
@click.option(
    "--minutes", type=float, default=math.inf, help="No job of a kind begins later than this."
)
def main(jobs: int, kinds: str, seed: int, minutes: float) -> None:
    """Prints what came of it; ends with an error where a job hung or computed wrongly."""
    chosen = kinds.split(",")
    if unknown := set(chosen) - set(KINDS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose of {', '.join(KINDS)}")
    failed = 0
    with Lab(1 + HOSTS, rate="1gbit") as lab:
        for kind in chosen:
            failed += measure(lab, kind, jobs, random.Random(f"{kind} {seed}"), minutes * 60)
    sys.exit(failed > 0)


def measure(lab: Lab, kind: str, jobs: int, chance: random.Random, seconds: float) -> int:
    """Jobs of one kind, of which none begins after these seconds; returns how many have not gone on."""
    delays: Mapping[bool, list[float]] = {True: [], False: []}
    noticed: Mapping[bool, list[float]] = {True: [], False: []}
    failed = run = 0
    end = time.monotonic() + seconds
    for number in range(jobs):
        if time.monotonic() > end:
            break
        run += 1
        is_silent = number % 2 == 1 or kind == "partition"
        host = 0 if kind == "first" else chance.randrange(kind == "other", HOSTS)
        victims = tuple(range(host * PER_HOST, (host + 1) * PER_HOST))
        blow = Blow(kind, victims, chance.uniform(0.05, 0.3))
        world = World(number, RANKS, chance.choice(PHASES), chance.randrange(1 << 30), (blow,))
        name = lab.names[1 + host]
        try:
            outcome = Job(world, lab, name, is_silent).run()
            delays[is_silent] += [delay for _, delay in outcome.delays]
            noticed[is_silent] += [broken for broken, _ in outcome.moments]
            await_nothing(lab)
        except AssertionError as error:
            failed += 1
            click.echo(f"{kind}, job {number}, {is_silent=}: {error}", err=True)
            kill(all_processes(lab))  # else it would count against the jobs that follow
        finally:
            lab.link(name).end_silence()
    click.echo(f"{kind}: {run - failed} of {run} went on")
    for is_silent, those in delays.items():
        if those:
            click.echo(
                f"  {'silent' if is_silent else 'heard':6} {len(those):4} times: all knew of it after "
                f"{_summary(noticed[is_silent])}, a right result after {_summary(those)}"
            )
    return failed


if __name__ == "__main__":
    main()
