"""One verdict on a way to train, from what runs with several seeds have recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from rueda.equivalence.distances import distances, furthest, same_layout, total, ways_apart
from rueda.equivalence.quality import QualityFinding, judge_quality, seeds_text
from rueda.equivalence.record_files import RankRecord
from rueda.equivalence.rounding import (
    MARGIN,
    Divergence,
    RoundingFinding,
    divergence_of,
    envelope,
    judge_rounding,
    quotients,
    saturated,
    testable,
)
from rueda.equivalence.targets import final_loss, has_loss, lost

__all__ = ["LEVELS", "Baseline", "Measure", "Run", "Verdict", "judge"]

Run = Sequence[RankRecord]
# What is surely known, the most first. "Other state": rounding does not explain it, and the quality is open.
LEVELS = (
    "same bits",
    "same state",
    "same quality",
    "better",
    "other state",
    "undecided",
    "worse",
    "failed",
)


@dataclass(frozen=True)
class Measure:
    """By which number quality is judged: what the script has given to result() by that name, or last to record().

    "loss": where result() was given none, the mean of the last ones of record().

    ``margin``: what counts as the same, in its units; None: what the reference's seeds differ by.
    """

    name: str = "loss"
    higher_is_better: bool = False
    margin: float | None = None

    def __str__(self) -> str:
        return f"{self.name}, {'more' if self.higher_is_better else 'less'} is better"

    def of(self, run: Run) -> float:
        """Of one run, the mean over the ranks that tell; NaN where none does."""
        found = [value for value in self._given(run) if value is not None]
        if not found and self.name == "loss":
            return final_loss(run)
        with np.errstate(invalid="ignore"):
            return float(np.mean(found)) if found else float("nan")

    def is_told(self, run: Run) -> bool:
        """Whether any rank tells it, be it NaN."""
        by_name = any(value is not None for value in self._given(run))
        return by_name or (self.name == "loss" and has_loss(run))

    def lost(self, run: Run) -> str:
        """Why a number that was told is not finite; "" where it is."""
        if not self.is_told(run) or np.isfinite(self.of(run)):
            return ""
        for rank, value in zip(run, self._given(run), strict=True):
            if value is not None and not np.isfinite(value):
                return (
                    f"{self.name} is {'NaN' if np.isnan(value) else 'infinite'} on rank {rank.rank}"
                )
        return str(lost(run) or f"{self.name} is infinite")

    def _given(self, run: Run) -> list[float | None]:
        return [_given(rank, self.name) for rank in run]


def _given(rank: RankRecord, name: str) -> float | None:
    if name in rank.results:
        return rank.results[name]
    return rank.metrics[name][-1][1] if name in rank.metrics else None


@dataclass(frozen=True)
class Verdict:
    """What one way to train comes to, beside the reference.

    - ``level``: one of :data:`LEVELS`; ``why``: a sentence.
    - ``seeds_needed``: for "undecided" and "other state", how many would decide, as far as these show; None where that
      is unknown.
    - ``rounding``: None where states cannot be laid side by side, as after other numbers of steps.
    - ``diverges``: where it first leaves what rounding explains.
    - ``distance``: of the last states, relative to the reference's norm, median over seeds; NaN as ``rounding``.
    - ``loss_gap``: of the last losses, mean over seeds.
    - ``ranks_agree``: whether all ranks had the same bits after each recorded step; ``ranks_agree_at_end``.
    """

    level: str
    why: str
    seeds_needed: int | None = None
    rounding: RoundingFinding | None = None
    quality: QualityFinding | None = None
    diverges: Divergence | None = None
    distance: float = float("nan")
    loss_gap: float = float("nan")
    ranks_agree: bool = True
    ranks_agree_at_end: bool = True
    notes: tuple[str, ...] = field(default=())


class Baseline:
    """The reference's runs by seed, and their twins', laid side by side once for all that is compared with them."""

    def __init__(self, references: Mapping[int, Run], twins: Mapping[int, Run]) -> None:
        self.references = dict(references)
        self.seeds = sorted(references)
        firsts = [references[seed][0] for seed in self.seeds]
        self.first = firsts[0]
        alike = [each for each in firsts if same_layout(each, self.first)]
        pairs = list(combinations(alike, 2))
        between = [distances(a, b) for a, b in pairs]
        self.seeds_apart = np.median(between, axis=0) if between else None
        moved = [ways_apart(a, b) for a, b in pairs]
        self.ways_apart = np.median(moved, axis=0) if moved else None
        self.seeds_are_alike = bool(between) and not any(apart.any() for apart in between)
        of_twins = [
            furthest(twins[seed], references[seed][0])[0]
            for seed in self.seeds
            if seed in twins
            and same_layout(twins[seed][0], self.first)
            and same_layout(references[seed][0], self.first)
        ]
        comparable = len(alike) == len(of_twins) == len(self.seeds)
        self.envelope = envelope(np.stack(of_twins), firsts) if comparable else None

    def seed_distance(self) -> float:
        """Of the last states of two seeds, relative to the norm; NaN with one seed."""
        if self.seeds_apart is None:
            return float("nan")
        return float(total(self.seeds_apart)[-1]) / _norm(self.first)

    def last_testable_step(self) -> int | None:
        """Up to which step rounding is far from explaining what seeds differ by; None: to the end.

        That is asked once seeds have come apart: they may begin with the same model.
        """
        if self.envelope is None or self.seeds_apart is None or self.ways_apart is None:
            return None
        chaotic = saturated(self.envelope, self.ways_apart, self.first.layout.numels)
        open_rows = testable(self.envelope, self.seeds_apart) & ~chaotic
        if not open_rows.any():
            return -1
        ends = np.flatnonzero(open_rows[:-1] & ~open_rows[1:])
        return int(self.first.state_steps[ends[0]]) if len(ends) else None


def _norm(record: RankRecord) -> float:
    return float(np.sqrt((record.norms[-1] ** 2).sum())) or 1.0


def _ranks_agree(run: Run) -> np.ndarray:
    """(R+1,): after which recorded steps all ranks have the same bits."""
    agree = [(run[0].hashes == rank.hashes).all(1) for rank in run if same_layout(run[0], rank)]
    return np.asarray(np.all(agree, axis=0))


def judge(
    candidates: Mapping[int, Run],
    baseline: Baseline,
    measure: Measure,
    alpha: float,
) -> Verdict:
    """The verdict on a candidate's runs, by seed, all of which the baseline must have.

    A run whose numbers are not finite where the reference's are has diverged, whatever else is the same.

    ``alpha``: the probability with which it may be wrong, at this look; half of it goes to the question of the state,
    and half to that of the quality.
    """
    seeds = sorted(candidates)
    pairs = [(candidates[seed], baseline.references[seed]) for seed in seeds]
    diverged = {seed: _diverged(measure, *pair) for seed, pair in zip(seeds, pairs, strict=True)}
    quality = judge_quality(
        [
            float("nan") if diverged[seed] else measure.of(ours)
            for seed, (ours, _) in zip(seeds, pairs, strict=True)
        ],
        [measure.of(theirs) for _, theirs in pairs],
        alpha / 2,
        higher_is_better=measure.higher_is_better,
        margin=measure.margin,
    )
    verdict = _verdict(pairs, baseline, measure, alpha, quality)
    return _with_divergence(verdict, quality, diverged) if quality.lost else verdict


def _diverged(measure: Measure, ours: Run, theirs: Run) -> str:
    """How a candidate's run came to numbers that are not finite, where the reference's did not; "" if it did not."""
    if not np.isfinite(measure.of(theirs)):
        return ""
    if not measure.is_told(ours):
        return f"it recorded no {measure.name}"
    found = measure.lost(ours)
    return found or ("" if lost(theirs) else str(lost(ours) or ""))


def _with_divergence(
    verdict: Verdict, quality: QualityFinding, diverged: Mapping[int, str]
) -> Verdict:
    """What a run that diverged makes of a verdict: neither bits nor rounding speak for a loss of NaN."""
    seed, how = next((seed, how) for seed, how in diverged.items() if how)
    why = f"diverged with {quality.lost} of {seeds_text(len(diverged))}: with seed {seed} {how}"
    level = verdict.level if verdict.level == "other state" else quality.verdict
    notes = verdict.notes
    if verdict.level in ("same bits", "same state"):
        notes = (f"apart from that {verdict.level}: {verdict.why}", *notes)
    return replace(verdict, level=level, why=why, seeds_needed=None, notes=notes)


def _verdict(
    pairs: Sequence[tuple[Run, Run]],
    baseline: Baseline,
    measure: Measure,
    alpha: float,
    quality: QualityFinding,
) -> Verdict:
    with np.errstate(invalid="ignore"):
        loss_gap = float(np.mean([final_loss(ours) - final_loss(theirs) for ours, theirs in pairs]))
    agree = [_ranks_agree(ours) for ours, _ in pairs]
    known = {
        "quality": quality,
        "loss_gap": loss_gap,
        "ranks_agree": all(bool(found.all()) for found in agree),
        "ranks_agree_at_end": all(bool(found[-1]) for found in agree),
    }
    other = next((pair for pair in pairs if not same_layout(pair[0][0], pair[1][0])), None)
    if other is not None:
        note = _other_layout(other[0][0], other[1][0])
        return _by_quality(measure, [note], known)
    found = [furthest(ours, theirs[0]) for ours, theirs in pairs]
    apart = [each[0] for each in found]
    known["distance"] = float(
        np.median(
            [
                float(total(each)[-1]) / _norm(theirs[0])
                for each, (_, theirs) in zip(apart, pairs, strict=True)
            ]
        )
    )
    if not any(each.any() for each in apart):
        return Verdict("same bits", f"after each step, with {seeds_text(len(pairs))}", **known)  # type: ignore[arg-type]
    if baseline.envelope is None:
        return _by_quality(measure, ["the reference's own steps differ between seeds"], known)
    of_seeds = [quotients(each, baseline.envelope) for each in apart]
    rounding = judge_rounding([float(each.max()) for each in of_seeds], alpha / 2)
    known["rounding"] = rounding
    if rounding.explains is not True:
        ranks = [each[1] for each in found]
        known["diverges"] = divergence_of(of_seeds, ranks, apart, baseline.first)
    return _by_state(baseline, measure, rounding, known)


def _by_state(
    baseline: Baseline, measure: Measure, rounding: RoundingFinding, known: dict[str, object]
) -> Verdict:
    if rounding.explains is None:
        needed = rounding.seeds_needed
        more = (
            f"{seeds_text(needed)} would"
            if needed
            else "these seeds do not suggest that more would"
        )
        note = f"whether rounding explains the state is open ({more} tell)"
        return _by_quality(measure, [note], known)
    if not rounding.explains:
        return _by_quality(measure, [], known)
    last = baseline.last_testable_step()
    if last is None:
        why = f"at most {rounding.high:.2g} times the effect of rounding; {MARGIN:g} would be too much"
        return Verdict("same state", why, **known)  # type: ignore[arg-type]
    if baseline.seeds_are_alike:
        note = "all seeds of the reference are the same: how far a state may go is not known"
    elif last < 1:
        note = "rounding alone moves this training as far as another seed from the first step on"
    else:
        note = f"the same state up to step {last}; afterwards rounding alone moves it as far as another seed"
    return _by_quality(measure, [note], known)


def _by_quality(measure: Measure, notes: list[str], known: dict[str, object]) -> Verdict:
    quality = known["quality"]
    assert isinstance(quality, QualityFinding)
    level = {"same": "same quality"}.get(quality.verdict, quality.verdict)
    rounding = known.get("rounding")
    if (
        level == "undecided"
        and isinstance(rounding, RoundingFinding)
        and rounding.explains is False
    ):
        level = "other state"
    needed = None
    gap = f"{measure}: gap (+ is better) {quality.gap:+.3g}"
    interval = f"{gap} in [{quality.low:+.3g}, {quality.high:+.3g}]"
    if quality.verdict == "same":
        why = f"{interval}, within ±{quality.margin:.3g}"
    elif quality.verdict == "undecided":
        needed = quality.seeds_needed
        told = (
            f"needs {seeds_text(needed)}"
            if needed
            else "these seeds do not suggest that more would decide it"
        )
        if np.isnan(quality.gap):
            why = f"{measure}: {quality.why}"
        elif np.isfinite([quality.low, quality.high]).all():
            why = f"{interval}, ±{quality.margin:.3g} would be the same: {quality.why}; {told}"
        else:
            why = f"{gap}: {quality.why}; {told}"
    else:
        why = quality.why or interval
    return Verdict(level, why, needed, notes=tuple(notes), **known)  # type: ignore[arg-type]


def _other_layout(ours: RankRecord, theirs: RankRecord) -> str:
    if ours.layout.names != theirs.layout.names or ours.layout.numels != theirs.layout.numels:
        names = sorted(set(ours.layout.names) ^ set(theirs.layout.names))
        what = ", ".join(names) if names else "the same names, different sizes"
        return f"states are not compared: the model has different tensors ({what})"
    steps = f"{len(ours.steps) - 1} step{'' if len(ours.steps) == 2 else 's'}"
    return f"states are not compared: it took {steps}, the reference {len(theirs.steps) - 1}"
