"""Plots the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rueda.equivalence.distances import distances, same_layout, total
from rueda.equivalence.judge import Run
from rueda.equivalence.targets import losses, smooth

from ..figures import new_pyplot, save_plot
from .comparison import Comparison
from .plan import Planned, Way
from .running import Outcome

__all__ = ["draw"]


def draw(comparison: Comparison, outcomes: Mapping[Planned, Outcome], path: Path) -> None:
    """Plots loss over steps, distance from the reference over steps (also its twin's), and gaps with intervals.

    Raises LaunchError if the file cannot be written.
    """
    pyplot = new_pyplot()
    plan = comparison.plan
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(17, 5), layout="constrained")
    for way in (plan.reference, *plan.candidates):
        runs = _runs(outcomes, Planned(way, 0), plan.seeds)
        if not runs or len({len(run[0].steps) for run in runs}) > 1:
            continue
        curves = np.stack([smooth(losses(run)) for run in runs])
        left.plot(runs[0][0].steps[1:, 0], curves.mean(0), label=str(way))
    if np.isfinite(comparison.target):
        left.axhline(comparison.target, color="black", linestyle=":")
    left.set_ylabel("loss, smoothed")
    references = _runs(outcomes, Planned(plan.reference, 0), plan.seeds)
    apart = {str(way): _runs(outcomes, Planned(way, 0), plan.seeds) for way in plan.candidates}
    apart["rounding (twin)"] = _runs(outcomes, Planned(plan.reference, 0, True), plan.seeds)
    for name, runs in apart.items():
        if len(runs) != len(references) or not all(
            same_layout(a[0], b[0]) for a, b in zip(runs, references, strict=True)
        ):
            continue
        curve = np.median(
            [
                total(distances(a[0], b[0])) / np.maximum(np.sqrt((b[0].norms ** 2).sum(1)), 1e-300)
                for a, b in zip(runs, references, strict=True)
            ],
            axis=0,
        )
        style = "k--" if name.startswith("rounding") else "-"
        middle.plot(
            references[0][0].state_steps, np.where(curve > 0, curve, np.nan), style, label=name
        )
    if np.isfinite(comparison.seed_distance):
        middle.axhline(comparison.seed_distance, color="black", linestyle=":", label="another seed")
    middle.set_yscale("log")
    middle.set_ylabel("distance over norm, rank 0, median of seeds")
    for number, row in enumerate(comparison.rows):
        quality = row.verdict.quality
        if quality is not None and np.isfinite([quality.low, quality.high]).all():
            right.plot([quality.low, quality.high], [number, number], "-", color="black")
            right.plot([quality.gap], [number], "o", color="black")
    margins = [row.verdict.quality.margin for row in comparison.rows if row.verdict.quality]
    if margins:
        right.axvspan(-max(margins), max(margins), color="green", alpha=0.15)
    right.set_yticks(range(len(comparison.rows)), [str(row.way) for row in comparison.rows])
    right.axvline(0, color="black", linestyle=":")
    right.set_xlabel(f"gap in {comparison.measure.name}, more is better")
    for axis in (left, middle):
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    save_plot(figure, path)


def _runs(outcomes: Mapping[Planned, Outcome], first: Planned, seeds: int) -> list[Run]:
    way: Way = first.way
    found = [outcomes[Planned(way, seed, first.is_twin)] for seed in range(seeds)]
    return [outcome.ranks for outcome in found if not outcome.problem]
