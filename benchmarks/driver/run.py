"""A run of `rueda bench`, from the command line to the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rueda.launcher.errors import LaunchError
from rueda.launcher.figures import require_plot
from rueda.launcher.job import suggestion
from rueda.launcher.result_files import require_file, write_file

from . import plot, tables, turns, values
from .arena import Arena, Interrupted
from .collectives import COLLECTIVES
from .contenders import (
    PATHS,
    PEERS,
    PRIVATE,
    REGISTERED,
    Contender,
    Missing,
    find_peer,
    limits,
    rueda,
)  # fmt: skip
from .explain import algorithm_table
from .group import Group
from .limits import LIMITS, SHARED_SUMS, room
from .machine import head, versions
from .mpi_libraries import find_open_mpis
from .plan import Entry, Plan
from .progress import Progress
from .report import Report
from .sizes import parse_size, size_sequence
from .tuning import settings, sweep

_USUAL_PEERS = ("mpi", "impi", "gloo")


@dataclass(frozen=True)
class Request:
    """The command line, as it was given."""

    collective: str
    ranks: int
    first: str | None
    last: str
    factor: int
    dtype: str
    op: str
    root: int
    memory: str
    paths: str
    peers: str | None
    baseline: Path | None
    impi: Path | None
    tune_mpi: bool
    rounds: int
    calls: int
    seconds: float
    late: float
    limits: bool
    explain: bool
    json_file: Path | None
    markdown_file: Path | None
    plot_file: Path | None


def _collective_of(word: str) -> str:
    if word not in COLLECTIVES:
        others = ["latency", "train"]
        raise LaunchError(
            f"'{word}' is no collective: choose from {', '.join(COLLECTIVES)}; {' and '.join(others)} are measured, "
            f"too{suggestion(word, [*COLLECTIVES, *others])}"
        )
    return word


def _one_of(word: str, known: Sequence[str], what: str) -> str:
    if word not in known:
        raise LaunchError(f"'{word}' is no {what}: choose from {', '.join(known)}")
    return word


def _some_of(text: str, known: Sequence[str], what: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise LaunchError(f"name at least one {what} of {', '.join(known)}")
    return [_one_of(word, known, what) for word in dict.fromkeys(words)]


def make_plan(request: Request, processors: tuple[int, ...]) -> Plan:
    """Checks the command line before anything starts. Raises LaunchError."""
    collective = COLLECTIVES[_collective_of(request.collective)]
    dtype = _one_of(request.dtype, values.DTYPES, "dtype")
    op = _one_of(request.op, values.OPERATIONS, "reduction")
    if request.ranks < 2:
        raise LaunchError(f"-np {request.ranks}: it takes at least 2 ranks to measure anything")
    if not 0 <= request.root < request.ranks:
        raise LaunchError(f"--root {request.root}: the ranks are 0 to {request.ranks - 1}")
    if request.tune_mpi and collective.name != "allreduce":
        raise LaunchError("--tune-mpi sweeps the algorithms of allreduce only")
    if not values.fits(op, dtype, request.ranks):
        raise LaunchError(
            f"-d {dtype} -o {op} -np {request.ranks}: it holds no sum of so many ranks; "
            "choose a wider dtype"
        )
    element = values.element_size(dtype)
    first = element if request.first is None else parse_size(request.first)
    parts = request.ranks if collective.needs_parts() else 1
    sizes = size_sequence(first, parse_size(request.last), request.factor, element, parts)
    return Plan(
        collective, request.ranks, tuple(sizes), dtype, op, request.root,
        request.rounds, request.calls, request.seconds, request.late / 1e3, processors,
    )  # fmt: skip


def _find_peers(request: Request) -> tuple[list[Contender], list[str]]:
    """The peers, and notes on missing ones. Raises LaunchError if --peers names a missing one."""
    if request.peers is not None and request.peers.strip() in {"", "none"}:
        return [], []
    insists = request.peers is not None
    words = _some_of(request.peers, PEERS, "peer") if request.peers else _USUAL_PEERS
    found, notes = [], []
    for word in words:
        try:
            found += find_peer(word, request.impi)
        except Missing as missing:
            if insists:
                raise LaunchError(f"--peers {word}: {missing}") from missing
            notes.append(f"{word} takes no part: {missing}")
    return found, notes


def _check_files(request: Request) -> None:
    for option in ("json", "markdown"):
        require_file(f"--{option}", getattr(request, f"{option}_file"))
    if request.plot_file is not None:
        require_plot(request.plot_file)


def _entries(
    contenders: Sequence[Contender], memories: Sequence[str], groups: Sequence[Group]
) -> list[Entry]:
    entries = []
    for contender, group in zip(contenders, groups, strict=True):
        for memory in contender.memories:
            if len(contender.memories) == 1:
                entries.append(Entry(contender.name, contender, memory, group))
            elif memory in memories:
                entries.append(Entry(f"{contender.name} {memory}", contender, memory, group))
    return entries


def run(request: Request) -> int:
    """Returns the exit code."""
    arena = Arena(request.ranks)
    plan = make_plan(request, arena.processors)
    memories = _some_of(request.memory, (PRIVATE, REGISTERED), "kind of memory")
    paths = _some_of(request.paths, PATHS, "way to call")
    ours = [rueda(path) for path in paths]
    if request.explain:
        return _explain(arena)
    if request.baseline is not None:
        ours += [rueda(path, request.baseline) for path in paths]
    peers, notes = _find_peers(request)
    _check_files(request)
    for line in notes:
        click.echo(f"rueda: {line}", err=True)
    report = Report(plan, head(plan), [], notes)
    try:
        with Progress() as progress, arena:
            _measure(request, report, arena, [*ours, *peers], memories, progress)
    except Interrupted as interrupted:
        click.echo(f"rueda: ended by {interrupted.number.name}; all ranks are gone", err=True)
        return 128 + interrupted.number
    _write(request, report)
    if report.wrong:
        click.echo(f"rueda: {report.wrong} elements were wrong", err=True)
    return 1 if report.wrong else 0


def _explain(arena: Arena) -> int:
    with arena:
        facts = arena.start(rueda("direct")).facts
    click.echo(algorithm_table(facts.get("algorithms") or "auto").as_text())
    return 0


def _steps(plan: Plan, request: Request, entries: int, swept: int) -> int:
    """The number of turns in the run, for the progress bar."""
    size_turns = entries + (len(SHARED_SUMS) if request.limits else 0)
    constant = len(LIMITS) if request.limits else 0
    return plan.rounds * (len(plan.sizes) * size_turns + constant) + swept


def _measure(
    request: Request, report: Report, arena: Arena, contenders: Sequence[Contender],
    memories: Sequence[str], progress: Progress,
) -> None:  # fmt: skip
    plan = report.plan
    groups = []
    for contender in contenders:
        progress.tell(f"starting {contender.name}", 0)
        groups.append(arena.start(contender))
    entries = _entries(contenders, memories, groups)
    mpis = find_open_mpis() if request.tune_mpi else []
    swept = sum(len(settings(mpi.major)) for mpi in mpis)
    progress.begin(_steps(plan, request, len(entries), swept))
    if mpis:
        tuned, report.tuned, notes = sweep(plan, mpis, arena.start, progress.tell)
        report.notes += notes
        entries += [Entry(t.contender.name, t.contender, PRIVATE, t.group, t.sizes) for t in tuned]
    report.entries = entries
    report.head |= versions(entries)
    machine = arena.start(limits(), room(plan.sizes)) if request.limits else None
    for name, value in report.head.items():
        progress.say(f"# {name}: {value}")
    for note in report.notes:
        progress.say(f"# note: {note}")
    if machine is not None:
        report.limits = turns.measure_limits(plan, machine, progress.tell)
        progress.say(tables.limits_table(report).as_text())
    for size in plan.sizes:
        report.sizes[size] = turns.measure_size(plan, entries, machine, size, progress.tell)
        progress.say(tables.times_table(report, size).as_text())


def _write(request: Request, report: Report) -> None:
    for table in [tables.summary_table(report), *tables.ratio_tables(report)]:
        click.echo("\n" + table.as_text())
    if request.json_file is not None:
        write_file(request.json_file, json.dumps(report.as_json(), indent=1, ensure_ascii=False))
    if request.markdown_file is not None:
        write_file(request.markdown_file, tables.markdown(report))
    if request.plot_file is not None:
        plot.draw(report, request.plot_file)
