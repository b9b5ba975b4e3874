"""Prints a report on the terminal, or as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rueda.report.split import COLUMNS, RankSplit

from ..finite import finite
from ..terminal import print_table
from .assembly import Report
from .sentences import lines_of

__all__ = ["HEADS", "PREDICTED", "as_json", "predictions_of", "print_report", "rows_of"]

# Column titles that fit 80 characters.
_NARROW = ("compute", "exposed\ncommunication", "straggler\nwait", "input\nwait", "other")
HEADS = ("compute", "exposed communication", "straggler wait", "input wait", "other")
# Column titles of the predictions.
PREDICTED = (
    "ranks",
    "hosts",
    "step, ms",
    "exposed, ms",
    "waits, ms",
    "speed-up",
    "efficiency",
)


def print_report(report: Report, console: Console) -> None:
    """Prints tables, and sentences about what they mean."""
    for title, key in (("The training", "training"), ("The whole run", "whole")):
        if key == "training" and not report.training.sum():
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("rank", no_wrap=True)
        for head in ("seconds", *_NARROW):
            table.add_column(head, justify="right")
        for cells in rows_of(report, key):
            table.add_row(*cells)
        print_table(console, table)
    if report.predictions:
        table = Table(title="Predicted, each rank with the data that it has", title_justify="left")
        for head in PREDICTED:
            table.add_column(head, justify="right")
        for cells in predictions_of(report):
            table.add_row(*cells)
        print_table(console, table)
    for line in lines_of(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def predictions_of(report: Report) -> Iterator[Sequence[str]]:
    """One row per prediction, under PREDICTED."""
    for one in report.predictions:
        yield (
            f"{one.ranks:,}",
            f"{one.hosts:,}",
            f"{1e3 * one.step:.1f}",
            f"{1e3 * one.exposed:.1f}",
            f"{1e3 * one.waits:.1f}",
            f"{one.speedup:.1f}",
            f"{one.efficiency:.0%}",
        )


def rows_of(report: Report, key: str) -> Iterator[Sequence[str]]:
    """One row per rank, and one for all if there are several."""
    for each in report.splits:
        yield _cells(each.name, getattr(each, key))
    if len(report.splits) > 1:
        sums = sum(getattr(each, key) for each in report.splits)
        yield _cells("mean", np.asarray(sums) / len(report.splits))


def _cells(name: str, parts: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Sequence[str]:
    total = max(float(parts.sum()), 1e-12)
    return (name, f"{total:.2f}", *(f"{share:.1%}" for share in parts / total))


def as_json(report: Report) -> object:
    """Schema 1, as `rueda report --help` documents it."""

    def rank(each: RankSplit) -> dict[str, object]:
        return {
            "rank": each.rank,
            "epoch": each.epoch,
            "joined": each.presence.joined,
            "left": each.presence.left,
            "host": each.host,
            "wall": each.wall,
            "whole": dict(zip(COLUMNS, each.whole.tolist(), strict=True)),
            "training": dict(zip(COLUMNS, each.training.tolist(), strict=True)),
            "steps": len(each.steps),
            "waited_for": each.waited_for.tolist(),
            "events": each.events,
            "recording": each.recording,
        }

    workload = report.workload
    return finite(
        {
            "schema": 1,
            "ranks": report.header.size,
            "hosts": report.header.hosts,
            "command": report.header.command,
            "per_rank": [rank(each) for each in report.splits],
            "step": None if workload is None else workload.step,
            "one_rank": report.one_rank,
            "speedup": report.speedup,
            "ranks_of_steps": None if workload is None else report.ranks,
            "efficiency": report.efficiency,
            "links": None if report.links is None else dataclasses.asdict(report.links),
            "predictions": [dataclasses.asdict(one) for one in report.predictions],
            "stragglers": [dataclasses.asdict(one) for one in report.stragglers],
            "ssp": [{"bound": bound, "time": ratio} for bound, ratio in report.bounds.items()],
            "sentences": list(lines_of(report)),
            "notes": report.notes,
        }
    )
