"""A report as a self-contained HTML page."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rueda.report.prediction import steps_of_all, telling
from rueda.report.split import COLUMNS, WARM_UP

from ..figures import new_pyplot
from .assembly import Report
from .output import HEADS, PREDICTED, predictions_of, rows_of
from .sentences import lines_of

__all__ = ["page_of"]

# Okabe and Ito's palette, which colour-blind readers can distinguish.
_COLORS = ("#009e73", "#0072b2", "#d55e00", "#e69f00", "#bbbbbb")
# The maximum number of points of a curve; neighbours are averaged.
_POINTS = 400
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; } td, th { padding: .2rem .8rem; text-align: right; }
th { border-bottom: 1px solid #999; font-weight: 600; } td:first-child, th:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } li { margin: .3rem 0; } code { background: #f2f2f2; padding: 0 .2rem; }
"""


def page_of(report: Report) -> str:
    """The text of the page."""
    command = html.escape(" ".join(report.header.command))
    ranks = f"{report.header.size} rank{'s' if report.header.size > 1 else ''}"
    sentences = "".join(f"<li>{html.escape(line)}</li>" for line in lines_of(report))
    parts = [
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>rueda report: {command}</title><style>{_STYLE}</style></head><body>",
        f"<h1>rueda report</h1><p><code>{command}</code>, {ranks}</p><ul>{sentences}</ul>",
    ]
    heads = ("rank", "seconds", *HEADS)
    if report.training.sum():
        parts += ["<h2>The training</h2>", _table(heads, list(rows_of(report, "training")))]
        parts.append(
            _svg(lambda figure: _draw_parts(report, figure), 9, 0.9 + 0.35 * len(report.splits))
        )
    parts += ["<h2>The whole run</h2>", _table(heads, list(rows_of(report, "whole")))]
    if any(len(each.steps) for each in report.splits):
        parts += ["<h2>Steps</h2>", _svg(lambda figure: _draw_steps(report, figure), 11, 4)]
    if report.predictions:
        parts.append("<h2>Predicted</h2>")
        parts.append(_svg(lambda figure: _draw_prediction(report, figure), 11, 4))
        parts.append(_table(PREDICTED, list(predictions_of(report))))
    return "\n".join([*parts, "</body></html>\n"])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _svg(draw: Callable[[Any], None], width: float, height: float) -> str:
    pyplot = new_pyplot()
    figure = pyplot.figure(figsize=(width, height), layout="constrained")
    try:
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg")
    finally:
        pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_parts(report: Report, figure: Any) -> None:
    axis = figure.subplots()
    names = [f"rank {each.name}" for each in report.splits]
    left = np.zeros(len(names))
    for column, (head, color) in enumerate(zip(HEADS, _COLORS, strict=True)):
        widths = np.array([each.training[column] for each in report.splits])
        axis.barh(names, widths, left=left, color=color, label=head)
        left += widths
    axis.invert_yaxis()
    axis.set_xlabel("seconds of the training")
    axis.legend(ncols=len(HEADS), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _draw_steps(report: Report, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for each in report.splits:
        number, own = _thinned(1e3 * each.own)
        left.plot(number + each.first_step, own, label=f"rank {each.name}", linewidth=1)
    usual = [1e3 * each.own[WARM_UP:] for each in report.splits]
    left.set_ylim(0, 1.05 * max(map(_highest, usual), default=1))
    left.set_ylabel("own time of a step, ms")
    left.set_xlabel("step")
    if len(report.splits) <= 16:
        left.legend(frameon=False)
    usual_ranks = telling(report.splits)
    chosen = zip(usual_ranks, steps_of_all(usual_ranks), strict=True)
    mean = np.mean([each.steps[part] for each, part in chosen], 0)
    curves = [_thinned(1e3 * mean[:, column]) for column in range(len(COLUMNS))]
    right.set_ylim(0, 1.05 * _highest(1e3 * mean[WARM_UP:].sum(1)))
    first = max(each.first_step for each in usual_ranks)
    right.stackplot(curves[0][0] + first, [y for _, y in curves], colors=_COLORS, labels=HEADS)
    right.set_ylabel("mean over ranks, ms")
    right.set_xlabel("step")


def _highest(values: Any) -> float:
    return float(np.max(values, initial=1e-3))


def _thinned(values: Any) -> tuple[Any, Any]:
    """Averages neighbouring points."""
    size = max(1, math.ceil(len(values) / _POINTS))
    starts = np.arange(0, len(values), size)
    lengths = np.diff(np.append(starts, len(values)))
    return starts, np.add.reduceat(values, starts) / lengths if len(values) else values


def _draw_prediction(report: Report, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    ranks = [one.ranks for one in report.predictions]
    left.loglog(ranks, ranks, "k:", label="ideal")
    left.loglog(ranks, [one.speedup for one in report.predictions], "o-", label="predicted")
    right.semilogx(ranks, [100 * one.efficiency for one in report.predictions], "o-")
    if report.speedup is not None and report.efficiency is not None and report.ranks > 1:
        left.loglog([report.ranks], [report.speedup], "s", color="#d55e00", label="this run")
        right.semilogx([report.ranks], [100 * report.efficiency], "s", color="#d55e00")
    left.set_ylabel("speed-up over one rank")
    right.set_ylabel("efficiency, %")
    right.set_ylim(0)
    left.legend(frameon=False)
    for axis in (left, right):
        axis.set_xlabel("ranks")
