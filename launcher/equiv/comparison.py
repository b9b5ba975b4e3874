"""Judges all ways to train, from the records of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from rueda.equivalence.judge import Baseline, Measure, Run, Verdict, judge
from rueda.equivalence.looks import share_of_look
from rueda.equivalence.measures import is_better_higher
from rueda.equivalence.quality import seeds_text
from rueda.equivalence.targets import default_target, final_loss, reached

from ..errors import LaunchError
from .plan import Plan, Planned, Way, parse_metric
from .running import Outcome

__all__ = ["Comparison", "Price", "Row", "choose_measure", "compare"]


@dataclass(frozen=True)
class Price:
    """The cost of reaching the target loss: medians over the seeds that reached it, or None.

    ``speedup``: the reference's time divided by this time, seed by seed.
    """

    reached: int
    seeds: int
    step: float | None = None
    seconds: float | None = None
    bytes: float | None = None
    speedup: float | None = None


@dataclass(frozen=True)
class Row:
    """One way to train: the verdict, the cost, and sentences about what went wrong."""

    way: Way
    verdict: Verdict
    price: Price
    value: float  # the measure's mean over seeds
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The results of a plan."""

    plan: Plan
    measure: Measure
    confidence: float
    target: float
    seed_distance: float
    seed_spread: float  # the measure's standard deviation over the reference's seeds
    seed_loss_spread: float
    reference: Row
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    earlier_looks: int = 0  # the largest number for any way


def choose_measure(name: str | None, margin: float | None, outcome: Outcome) -> Measure:
    """The measure ``NAME``, ``NAME:max`` or ``NAME:min``; by default the script's first in result(), or the loss.

    Without max or min, the name decides; for an unknown name, more is better. Raises LaunchError for a measure that
    the script has not reported.
    """
    results = [result for rank in outcome.ranks for result in rank.results]
    metrics = [metric for rank in outcome.ranks for metric in rank.metrics]
    wanted, direction = (
        (results[0] if results else "loss", "") if name is None else parse_metric(name)
    )
    given = dict.fromkeys(["loss", *results, *metrics])
    if wanted not in given:
        raise LaunchError(
            f"--metric {wanted}: the script passes {', '.join(given)} to rueda.torch.equiv.result() and record()"
        )
    higher = direction == "max" if direction else is_better_higher(wanted) is not False
    return Measure(wanted, higher, margin)


def compare(
    plan: Plan,
    outcomes: Mapping[Planned, Outcome],
    confidence: float,
    metric: str | None = None,
    margin: float | None = None,
    target: float | None = None,
    looks: Mapping[Way, int] = MappingProxyType({}),
) -> Comparison:
    """Judges all ways. ``looks``: the number of earlier looks at a way's runs, with other numbers of seeds.

    Raises LaunchError if the reference has failed, because there is nothing to compare with.
    """
    seeds = range(plan.seeds)
    for seed in seeds:
        for is_twin in (False, True):
            run = Planned(plan.reference, seed, is_twin)
            if outcomes[run].problem:
                raise LaunchError(f"the reference, {run}: {outcomes[run].problem}")
    references = {seed: outcomes[Planned(plan.reference, seed)].ranks for seed in seeds}
    twins = {seed: outcomes[Planned(plan.reference, seed, True)].ranks for seed in seeds}
    measure = choose_measure(metric, margin, outcomes[Planned(plan.reference, 0)])
    baseline = Baseline(references, twins)
    chosen = default_target(references, twins) if target is None else target
    alpha = (1 - confidence) / max(1, len(plan.candidates))
    rows = []
    for way in plan.candidates:
        found = {seed: outcomes[Planned(way, seed)] for seed in seeds}
        share = share_of_look(alpha, looks.get(way, 0))
        rows.append(_row(way, found, baseline, measure, share, chosen))
    values = [measure.of(run) for run in references.values()]
    losses = [final_loss(run) for run in references.values()]
    own_price = _price(references, references, chosen)
    is_itself = Verdict("same bits", "the reference")
    return Comparison(
        plan,
        measure,
        confidence,
        chosen,
        baseline.seed_distance(),
        _spread(values),
        _spread(losses),
        Row(plan.reference, is_itself, own_price, float(np.mean(values))),
        tuple(rows),
        tuple(_notes(plan, outcomes, baseline, measure, metric)),
        max((looks.get(way, 0) for way in plan.candidates), default=0),
    )


def _spread(values: Sequence[float]) -> float:
    """The standard deviation; NaN with one seed, or with a number that is not finite."""
    has_spread = len(values) > 1 and bool(np.isfinite(values).all())
    return float(np.std(values, ddof=1)) if has_spread else float("nan")


def _row(
    way: Way,
    found: Mapping[int, Outcome],
    baseline: Baseline,
    measure: Measure,
    alpha: float,
    target: float,
) -> Row:
    problems = [f"{Planned(way, s)}: {o.problem}" for s, o in found.items() if o.problem]
    runs = {seed: outcome.ranks for seed, outcome in found.items() if not outcome.problem}
    steps = {len(run[0].steps) - 1 for run in runs.values()}
    if len(steps) > 1:
        told = ", ".join(map(str, sorted(steps)))
        problems.append(f"{way}: its seeds took different numbers of steps: {told}")
    problems += [
        f"{Planned(way, seed)}: it recorded no {measure.name}, unlike the reference"
        for seed, run in runs.items()
        if measure.is_told(baseline.references[seed]) and not measure.is_told(run)
    ]
    price = _price(runs, baseline.references, target)
    value = float(np.mean([measure.of(run) for run in runs.values()])) if runs else float("nan")
    if problems:
        count = f"{len(found)} run" if len(found) == 1 else f"{len(found)} runs"
        why = f"{len(problems)} of {count}: {problems[0]}"
        return Row(way, Verdict("failed", why), price, value, tuple(problems))
    return Row(way, judge(runs, baseline, measure, alpha), price, value)


def _price(runs: Mapping[int, Run], references: Mapping[int, Run], target: float) -> Price:
    came = {seed: found for seed, run in runs.items() if (found := reached(run, target))}
    if not came:
        return Price(0, len(runs))
    quotients = [
        theirs.seconds / ours.seconds
        for seed, ours in came.items()
        if (theirs := reached(references[seed], target)) and ours.seconds
    ]
    return Price(
        len(came),
        len(runs),
        float(np.median([each.step for each in came.values()])),
        float(np.median([each.seconds for each in came.values()])),
        float(np.median([each.bytes for each in came.values()])),
        float(np.median(quotients)) if quotients else None,
    )


def _notes(
    plan: Plan,
    outcomes: Mapping[Planned, Outcome],
    baseline: Baseline,
    measure: Measure,
    metric: str | None,
) -> list[str]:
    notes = []
    if ":" not in (metric or "") and is_better_higher(measure.name) is None:
        notes.append(
            f"the name '{measure.name}' does not tell whether more is better, so more is assumed to be: give "
            f"--metric {measure.name}:max or --metric {measure.name}:min"
        )
    record = baseline.references[0][0]
    if baseline.seeds_are_alike:
        notes.append(
            "all seeds of the reference have the same bits: the script does not use its seed, so the effect of chance "
            "is unknown; use rueda.torch.equiv.seed(), or {seed} in the command"
        )
    in_command = any("{strategy}" in word for word in plan.command)
    strategies = {way.strategy for way in (plan.reference, *plan.candidates)}
    if len(strategies) > 1 and "strategy" not in record.used and not in_command:
        notes.append(
            "the script has not asked for its strategy, so all runs used the same one: call wrap() without one, "
            "rueda.torch.equiv.strategy(), or use {strategy} in the command"
        )
    untold = [s for s, run in baseline.references.items() if not measure.is_told(run)]
    if measure.name == "loss" and len(untold) == plan.seeds:
        notes.append(
            "the script has recorded no loss, so quality is not judged: call rueda.torch.equiv.record(loss=loss) after "
            "each step"
        )
    elif untold:
        notes.append(
            f"the reference recorded no {measure.name} with {len(untold)} of {seeds_text(plan.seeds)}, first with seed "
            f"{untold[0]}, so quality is not judged"
        )
    lost = {s: how for s, run in baseline.references.items() if (how := measure.lost(run))}
    if lost:
        seed, how = next(iter(lost.items()))
        notes.append(
            f"the reference diverged with {len(lost)} of {seeds_text(plan.seeds)}, so quality is not judged: with seed "
            f"{seed} {how}"
        )
    last = baseline.last_testable_step()
    if last is not None and not baseline.seeds_are_alike:
        notes.append(
            "rounding alone moves the reference nearly as far as another seed"
            + (f" after step {last}" if last > 0 else "")
            + ": from then on its state shows nothing"
        )
    return notes
