"""The output of `rueda equiv`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rueda.equivalence.quality import seeds_text

from ..finite import finite
from ..terminal import print_table
from .comparison import Comparison, Price, Row

__all__ = ["as_json", "print_report"]

_COLORS = {
    "same bits": "green",
    "same state": "green",
    "same quality": "green",
    "better": "green",
    "other state": "yellow",
    "undecided": "yellow",
    "worse": "red",
    "failed": "red",
}


def print_report(comparison: Comparison, console: Console) -> None:
    """Prints the table, and sentences about what it does not show."""
    measure = comparison.measure
    plan = comparison.plan
    title = escape(f"Beside {plan.reference}, {seeds_text(plan.seeds)}")
    table = Table(title=title, title_justify="left")
    for name in ("", "verdict", "diverges at", measure.name, "gap"):
        table.add_column(escape(name))
    has_target = math.isfinite(comparison.target)
    if has_target:
        for name in (f"steps to {comparison.target:.3g}", "seconds", "faster", "bytes"):
            table.add_column(name, justify="right")
    for row in (comparison.reference, *comparison.rows):
        is_reference = row is comparison.reference
        cells = _cells(row, is_reference)
        table.add_row(*cells, *(_price(row.price, is_reference) if has_target else ()))
    print_table(console, table)
    for line in lines_of(comparison):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _cells(row: Row, is_reference: bool) -> Iterator[str]:
    verdict = row.verdict
    yield escape(str(row.way))
    if is_reference:
        yield "reference"
    else:
        yield f"[{_COLORS[verdict.level]}]{verdict.level}[/]"
    found = verdict.diverges
    yield "" if found is None else escape(f"{found.step}, {found.tensor}")
    yield _number(row.value)
    quality = verdict.quality
    if quality is None or not math.isfinite(quality.gap):
        yield ""
    elif math.isfinite(quality.low) and math.isfinite(quality.high):
        yield f"{quality.gap:+.2g} \\[{quality.low:+.2g}, {quality.high:+.2g}]"
    else:
        yield f"{quality.gap:+.2g}"


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""


def _price(price: Price, is_reference: bool) -> Iterator[str]:
    if price.step is None or price.seconds is None or price.bytes is None:
        yield from ("not reached" if price.seeds else "", "", "", "")
        return
    some = "" if price.reached == price.seeds else f" ({price.reached} of {price.seeds})"
    yield f"{price.step:g}{some}"
    yield f"{price.seconds:.2f}"
    yield "" if price.speedup is None or is_reference else f"{price.speedup:.2f}"
    yield f"{price.bytes:,.0f}"


def lines_of(comparison: Comparison) -> Iterator[str]:
    """Sentences, for people."""
    for row in comparison.rows:
        verdict = row.verdict
        yield f"{row.way}: {verdict.level}: {verdict.why}"
        yield from (f"  {note}" for note in verdict.notes)
        found = verdict.diverges
        if found is None and verdict.rounding is not None:
            yield f"  {verdict.rounding.factor:.2g} times the effect of rounding"
        if found is not None:
            size = f"{found.relative:.2g} of its norm, " if math.isfinite(found.relative) else ""
            yield (
                f"  exceeds what rounding explains after step {found.step} in '{found.tensor}' on rank {found.rank}: "
                f"{found.times:.2g} times rounding, {size}{found.seeds} of {seeds_text(comparison.plan.seeds)}"
            )
        if not verdict.ranks_agree_at_end:
            yield "  its ranks end with different bits"
        yield from (f"  {problem}" for problem in row.problems[1:])
    share = f"{100 * comparison.confidence:g}%"
    looks = ""
    if comparison.earlier_looks:
        together = f"{100 * max(0.0, 2 * comparison.confidence - 1):g}%"
        looks = (
            f" at the first look at their runs; with the verdicts of all further looks, each of which is allowed half "
            f"the error of the one before, they hold with {together}"
        )
    yield f"All verdicts hold together with {share} confidence{looks}. {_between_seeds(comparison)}"
    yield from (f"Note: {note}." for note in comparison.notes)


def _between_seeds(comparison: Comparison) -> str:
    """How far the reference's own seeds are apart, as far as that is known."""
    if comparison.plan.seeds == 1:
        return "One seed does not show what chance does: give 2 or more in --seeds to judge state and quality."
    told = []
    if math.isfinite(comparison.seed_distance):
        told.append(f"differs by {comparison.seed_distance:.2g} of its norm")
    if math.isfinite(comparison.seed_spread):
        told.append(
            f"has a standard deviation of {comparison.seed_spread:.2g} in {comparison.measure.name}"
        )
    if not told:
        return "How far seeds of the reference are apart is unknown."
    return f"Between seeds the reference {', and '.join(told)}."


def as_json(comparison: Comparison) -> object:
    """Schema 1, as `rueda equiv --help` documents it."""

    def row(each: Row) -> dict[str, object]:
        return {
            "np": each.way.ranks,
            "strategy": each.way.strategy,
            "variant": each.way.variant,
            "value": each.value,
            **dataclasses.asdict(each.verdict),
            "to_target": dataclasses.asdict(each.price),
            "problems": each.problems,
        }

    measure = comparison.measure
    return finite(
        {
            "schema": 1,
            "seeds": comparison.plan.seeds,
            "confidence": comparison.confidence,
            "metric": {"name": measure.name, "higher_is_better": measure.higher_is_better},
            "target_loss": comparison.target,
            "between_seeds": {
                "distance": comparison.seed_distance,
                "metric": comparison.seed_spread,
                "loss": comparison.seed_loss_spread,
            },
            "reference": row(comparison.reference),
            "ways": [row(each) for each in comparison.rows],
            "notes": comparison.notes,
        }
    )
