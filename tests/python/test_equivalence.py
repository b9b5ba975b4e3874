"""The verdicts of `rueda equiv` on records whose truth is known."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded import recorded, training

pytest.importorskip("scipy", reason="SciPy, which the judge needs, is not installed")

from rueda.equivalence.distances import distances, same_layout
from rueda.equivalence.judge import Baseline, Measure, judge
from rueda.equivalence.looks import share_of_look
from rueda.equivalence.measures import is_better_higher
from rueda.equivalence.quality import judge_quality, spread_margin
from rueda.equivalence.record_files import (
    Layout,
    RankRecord,
    RecordError,
    Writer,
    read_rank,
    recorded_size,
)
from rueda.equivalence.rounding import MARGIN, judge_rounding, saturated
from rueda.equivalence.targets import default_target, has_loss, losses, lost, reached, smooth

EPS = 2.0**-23
SEEDS = 5
finite = st.floats(-1e6, 1e6, allow_nan=False)
samples = st.integers(2, 12).flatmap(
    lambda n: st.tuples(st.lists(finite, min_size=n, max_size=n), st.lists(finite, min_size=n, max_size=n))
)  # fmt: skip


def baseline(seeds: int = SEEDS, steps: int = 20) -> Baseline:
    references = {s: [recorded(training(s, steps))] for s in range(seeds)}
    twins = {s: [recorded(training(s, steps, moved=EPS, by=1))] for s in range(seeds)}
    return Baseline(references, twins)


BASELINE = baseline()


def verdict(states: dict[int, dict[str, np.ndarray]], alpha: float = 0.05):  # type: ignore[no-untyped-def]
    return judge({seed: [recorded(s)] for seed, s in states.items()}, BASELINE, Measure(), alpha)


# --- Quality


@given(samples, st.floats(0.001, 0.4), st.floats(0.1, 100), finite)
def test_a_verdict_on_quality_does_not_depend_on_the_unit(
    both: tuple[list[float], list[float]], alpha: float, unit: float, zero: float
) -> None:
    ours, theirs = (np.array(each) for each in both)
    plain = judge_quality(ours, theirs, alpha, higher_is_better=True)
    mirrored = judge_quality(-ours, -theirs, alpha, higher_is_better=False)
    assert mirrored == plain or math.isnan(plain.gap)
    other = judge_quality(ours * unit + zero, theirs * unit + zero, alpha, higher_is_better=True)
    # A value on a limit may fall to either side of it in other units.
    clear = min(abs(plain.low), abs(plain.high), abs(max(-plain.low, plain.high) - plain.margin))
    scale = 1e-9 * (1 + max(map(abs, [*ours, *theirs])) + abs(zero))
    if clear > scale and (ours - theirs).std() > scale:
        assert other.verdict == plain.verdict


@given(samples, st.floats(0.01, 0.4))
def test_a_decided_verdict_is_supported_by_its_interval(
    both: tuple[list[float], list[float]], alpha: float
) -> None:
    found = judge_quality(*both, alpha, higher_is_better=True)
    if found.verdict == "same":
        assert -found.margin < found.low <= found.gap <= found.high < found.margin
    elif found.verdict == "worse":
        assert found.high < 0
    elif found.verdict == "better":
        assert found.low > 0
    else:
        assert found.why
        assert found.seeds_needed is None or found.seeds_needed > len(both[0])
    # A stricter alpha never turns an open question into an answer, nor one answer into another.
    stricter = judge_quality(*both, alpha / 4, higher_is_better=True)
    assert stricter.margin <= found.margin
    if found.verdict == "undecided":
        assert stricter.verdict == "undecided"


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("margin", [None, 2.0])
def test_wrong_verdicts_on_quality_are_as_rare_as_stated(seeds: int, margin: float | None) -> None:
    """Over 600 experiments with a fixed generator, at the worst gaps: zero and the margin."""
    rng = np.random.default_rng(seeds)
    alpha, experiments = 0.05, 600
    wrong = {"same": 0, "apart": 0}
    edge = margin if margin is not None else 1.96 * math.sqrt(2)
    for _ in range(experiments):
        theirs = rng.normal(size=seeds)
        ours = rng.normal(size=seeds) * 0.5 + 0.5 * theirs
        at_edge = judge_quality(ours - edge, theirs, alpha, higher_is_better=True, margin=margin)
        wrong["same"] += at_edge.verdict == "same"
        found = judge_quality(ours, theirs, alpha, higher_is_better=True, margin=margin)
        wrong["apart"] += found.verdict in ("worse", "better")
    limit = alpha * experiments + 3 * math.sqrt(alpha * experiments)
    assert wrong["same"] <= limit, wrong
    assert wrong["apart"] <= limit, wrong


def test_as_many_seeds_as_are_asked_for_decide() -> None:
    rng = np.random.default_rng(1)
    theirs = rng.normal(size=5)
    ours = theirs + 0.8 + 2.0 * rng.normal(size=5)
    found = judge_quality(ours, theirs, 0.05, higher_is_better=True)
    assert found.verdict == "undecided"
    assert found.seeds_needed is not None
    # Samples of that size with the mean and the spread found.
    count = found.seeds_needed

    def stretched(values: np.ndarray) -> np.ndarray:
        drawn = rng.normal(size=count)
        drawn = (drawn - drawn.mean()) / drawn.std(ddof=1)
        return drawn * values.std(ddof=1) + values.mean()

    more, gaps = stretched(theirs), stretched(ours - theirs)
    assert judge_quality(more + gaps, more, 0.05, higher_is_better=True).verdict != "undecided"


def test_few_seeds_make_a_narrow_margin() -> None:
    margins = [float(spread_margin(1.0, seeds, 0.025)) for seeds in (2, 3, 5, 10, 100)]
    assert margins == sorted(margins)
    assert margins[-1] < 1.96 * math.sqrt(2)
    assert judge_quality([1.0], [1.0], 0.05, higher_is_better=True).seeds_needed == 2


@pytest.mark.parametrize("margin", [None, 0.005])
def test_a_gap_that_is_the_same_but_for_its_last_bits_has_no_spread(margin: float | None) -> None:
    """As for accuracies, which are multiples of 1/360."""
    right = np.array([333, 330, 328, 335, 331])
    ours, theirs = (right - 4) / 360, right / 360
    assert (ours - theirs).std() > 0
    found = judge_quality(ours, theirs, 0.05, higher_is_better=True, margin=margin)
    assert found.verdict == "undecided"
    assert "the same in all seeds" in found.why


def test_numbers_that_are_not_finite_are_no_quality() -> None:
    nan = float("nan")
    assert judge_quality([nan, nan], [1.0, 2.0], 0.05, higher_is_better=True).verdict == "worse"
    some = judge_quality([nan, 2.0], [1.0, 2.0], 0.05, higher_is_better=True)
    assert (some.verdict, some.lost) == ("undecided", 1)
    assert "1 of 2 seeds" in some.why
    neither = judge_quality([1.0, 2.0], [nan, 2.0], 0.05, higher_is_better=True)
    assert (neither.verdict, neither.lost) == ("undecided", 0)
    assert "the reference has no finite number with 1 of 2 seeds" in neither.why
    # One seed that is lost is known to be worse; one that its reference has lost as well is not.
    assert judge_quality([nan], [1.0], 0.05, higher_is_better=True).verdict == "worse"
    assert judge_quality([nan], [np.inf], 0.05, higher_is_better=True).verdict == "undecided"


# --- Rounding


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=10), st.floats(0.001, 0.3))
def test_rounding_explains_only_what_all_of_the_interval_says(
    largest: list[float], alpha: float
) -> None:
    found = judge_rounding(largest, alpha)
    if len(largest) < 2:
        assert found.explains is None
    elif found.explains is None:
        assert found.low <= MARGIN <= found.high
        assert found.seeds_needed is None or found.seeds_needed > len(largest)
    else:
        assert found.high < MARGIN if found.explains else found.low > MARGIN
    stricter = judge_rounding(largest, alpha / 10)
    assert stricter.explains in (None, found.explains)


def test_looking_again_does_not_make_wrong_verdicts_frequent() -> None:
    """A state just beyond the limit, looked at up to eight times, each with the seeds asked for."""
    rng = np.random.default_rng(2)
    alpha, experiments, wrong = 0.05, 1000, 0
    for _ in range(experiments):
        logs: list[float] = []
        wanted = 5
        for look in range(8):
            logs += (1.0001 + 0.4 * rng.normal(size=wanted - len(logs))).tolist()
            found = judge_rounding(10 ** np.array(logs), share_of_look(alpha, look))
            if found.explains is not None:
                wrong += found.explains
                break
            wanted = min(found.seeds_needed or len(logs) + 4, len(logs) + 10)
    # One side over all looks; without correcting for them the rate doubles.
    assert wrong <= alpha * experiments + 3 * math.sqrt(alpha * experiments), wrong
    assert sum(share_of_look(alpha, look) for look in range(50)) <= 2 * alpha


def test_other_rounding_is_the_same_state() -> None:
    found = verdict({seed: training(seed, moved=EPS, by=2) for seed in range(SEEDS)})
    assert found.level == "same state"
    assert found.diverges is None
    assert 0 < found.distance < 1e-6


def test_equal_records_are_the_same_bits() -> None:
    assert verdict({seed: training(seed) for seed in range(SEEDS)}).level == "same bits"


def changed(change: Callable[[dict[str, np.ndarray]], None], moved: float = 0.0, by: int = 0):  # type: ignore[no-untyped-def]
    """Records one changed training per seed."""
    states = {seed: training(seed, moved=moved, by=by) for seed in range(SEEDS)}
    for each in states.values():
        change(each)
    return {seed: [recorded(each)] for seed, each in states.items()}


def test_bits_that_no_sketch_tells_apart_are_not_the_same() -> None:
    def zeros(sign: float) -> Callable[[dict[str, np.ndarray]], None]:
        return lambda states: states["bias"].__setitem__((slice(None), 0), sign * 0.0)

    base = Baseline(changed(zeros(1)), changed(zeros(1), EPS, 1))
    assert judge(changed(zeros(1)), base, Measure(), 0.05).level == "same bits"
    assert judge(changed(zeros(-1)), base, Measure(), 0.05).level == "same state"


def test_seeds_may_begin_with_the_same_model() -> None:
    def alike(states: dict[str, np.ndarray]) -> None:
        for rows in states.values():
            rows[0] = 0.5

    base = Baseline(changed(alike), changed(alike, EPS, 1))
    assert judge(changed(alike, EPS, 2), base, Measure(), 0.05).level == "same state"


def test_of_seeds_that_are_all_the_same_no_state_is_called_the_same() -> None:
    same = {seed: [recorded(training(0))] for seed in range(SEEDS)}
    twins = {seed: [recorded(training(0, moved=EPS, by=1))] for seed in range(SEEDS)}
    ours = {seed: [recorded(training(0, moved=EPS, by=2))] for seed in range(SEEDS)}
    found = judge(ours, Baseline(same, twins), Measure(), 0.05)
    assert found.level == "undecided"
    assert "all seeds of the reference are the same" in found.notes[0]


@settings(max_examples=25)
@given(
    st.integers(0, 20), st.sampled_from(["weight", "bias"]), st.floats(-4, -1), st.integers(0, 2)
)
def test_a_fault_is_found_where_it_was_planted(
    step: int, name: str, power: float, element: int
) -> None:
    states = {}
    for seed in range(SEEDS):
        states[seed] = training(seed, moved=EPS, by=2)
        states[seed][name][step:, element] += 10**power
    found = verdict(states)
    assert found.rounding is not None
    assert found.rounding.explains is False
    assert found.diverges is not None
    assert (found.diverges.step, found.diverges.tensor) == (step, name)
    assert found.diverges.seeds == SEEDS
    assert found.level not in ("same bits", "same state")


def test_a_fault_with_one_seed_of_five_is_not_called_the_same_state() -> None:
    states = {seed: training(seed, moved=EPS, by=2) for seed in range(SEEDS)}
    states[3]["bias"][7:] += 0.1
    found = verdict(states)
    assert found.level != "same state"
    assert found.rounding is not None
    assert found.rounding.explains is None
    assert found.diverges is not None
    assert (found.diverges.step, found.diverges.tensor, found.diverges.seeds) == (7, "bias", 1)


def test_the_rank_that_has_left_is_named() -> None:
    runs = {}
    for seed in range(SEEDS):
        good = training(seed)
        wrong = {name: rows.copy() for name, rows in good.items()}
        wrong["bias"][5:] += 1e-3
        runs[seed] = [recorded(good), recorded(good, rank=1), recorded(wrong, rank=2)]
    found = judge(runs, BASELINE, Measure(), 0.05)
    assert found.diverges is not None
    assert (found.diverges.rank, found.diverges.step) == (2, 5)
    assert not found.ranks_agree
    assert not found.ranks_agree_at_end


@pytest.mark.parametrize(
    ("names", "higher"),
    [
        ("loss val_loss test/loss valLoss log_loss perplexity eval.ppl nll RMSE mean-error top1_error wer", False),
        ("cross_entropy negative_log_likelihood", False),
        ("accuracy val_acc top1_accuracy test/f1 mAP auc BLEU mean_reward r2", True),
        ("neg_mean_squared_error value glossary terror accuracy_loss", None),
    ],
)  # fmt: skip
def test_names_of_numbers_tell_which_are_better(names: str, higher: bool | None) -> None:
    told = {name: is_better_higher(name) for name in names.split()}
    assert set(told.values()) == {higher}, told


def test_the_sentence_tells_which_numbers_are_better() -> None:
    def runs(by: float) -> dict[int, list[RankRecord]]:
        rng = np.random.default_rng(int(by))
        drawn = {seed: by + 0.01 * rng.normal() for seed in range(SEEDS)}
        return {
            seed: [recorded(training(seed, 9 + int(by)), results={"val_loss": value})]
            for seed, value in drawn.items()
        }

    for higher, level in ((False, "worse"), (True, "better")):
        found = judge(runs(1.0), Baseline(runs(0.0), {}), Measure("val_loss", higher), 0.05)
        assert found.level == level
        assert f"val_loss, {'more' if higher else 'less'} is better: gap (+ is better)" in found.why


LOST = [*[1.0] * 6, *[float("nan")] * 14]


@pytest.mark.parametrize("moved", [0.0, EPS, 0.1])
@pytest.mark.parametrize("seeds", [1, SEEDS])
def test_a_run_with_a_loss_of_nan_on_one_rank_has_diverged(moved: float, seeds: int) -> None:
    """Whatever its state, and though the other rank's loss is that of the reference."""
    base = baseline(seeds)
    runs = {}
    for seed in range(seeds):
        state = training(seed, moved=moved, by=2)
        runs[seed] = [recorded(state), recorded(state, LOST, rank=1)]
    for measure in (Measure(), Measure("accuracy", True)):
        if measure.name == "accuracy":  # of a state with NaN it may be any number
            for all_runs in (runs, base.references):
                for seed, run in all_runs.items():
                    all_runs[seed] = [replace(rank, results={"accuracy": 0.1}) for rank in run]
        found = judge(runs, base, measure, 0.05)
        assert found.level == "worse"
        told = "1 seed" if seeds == 1 else f"{seeds} seeds"
        assert found.why == (
            f"diverged with {seeds} of {told}: with seed 0 the loss became NaN in step 7 on rank 1"
        )
        assert any("apart from that same" in note for note in found.notes) == (
            moved == 0 or (moved == EPS and seeds > 1)
        )


def test_a_run_that_diverges_with_some_seeds_is_not_called_the_same() -> None:
    runs = {seed: [recorded(training(seed), LOST if seed == 3 else ())] for seed in range(SEEDS)}
    found = judge(runs, BASELINE, Measure(), 0.05)
    assert found.level == "undecided"
    assert "diverged with 1 of 5 seeds: with seed 3 the loss became NaN in step 7" in found.why
    # What the reference does with that seed as well is no fault of the candidate's.
    both = Baseline(dict(runs), {})
    assert judge(runs, both, Measure(), 0.05).level == "same bits"


def test_no_sentence_has_a_number_that_is_none() -> None:
    infinite = {seed: [recorded(training(seed), [np.inf] * 20)] for seed in range(SEEDS)}
    one = Baseline({0: BASELINE.references[0]}, {0: [recorded(training(0, moved=EPS, by=1))]})
    moved = {seed: [recorded(training(seed, moved=0.1, by=2))] for seed in range(SEEDS)}
    for found in (
        judge(moved, Baseline(infinite, {}), Measure(), 0.05),
        judge({0: moved[0]}, one, Measure(), 0.05),
        judge(infinite, BASELINE, Measure(), 0.05),
    ):
        assert not re.search(r"\b(nan|inf)\b", " ".join([found.why, *found.notes])), found


def test_one_seed_decides_nothing_but_bits() -> None:
    one = Baseline({0: BASELINE.references[0]}, {0: [recorded(training(0, moved=EPS, by=1))]})
    same = judge({0: [recorded(training(0))]}, one, Measure(), 0.05)
    assert same.level == "same bits"
    moved = judge({0: [recorded(training(0, moved=EPS, by=2))]}, one, Measure(), 0.05)
    assert moved.level == "undecided"
    assert moved.seeds_needed == 2


def test_other_numbers_of_steps_leave_the_question_of_quality() -> None:
    losses = [1.0] * 9
    runs = {s: [recorded(training(s, 9), losses)] for s in range(SEEDS)}
    found = judge(runs, BASELINE, Measure(), 0.05)
    assert found.rounding is None
    assert "it took 9 steps, the reference 20" in found.notes[0]


def test_seeds_of_the_reference_may_take_other_numbers_of_steps() -> None:
    runs = {s: [recorded(training(s, 20 + s // 2))] for s in range(4)}
    # A twin may take another number of steps than its own reference, too.
    steps = {s: 20 if s == 3 else 20 + s // 2 for s in range(4)}
    base = Baseline(runs, {s: [recorded(training(s, steps[s], EPS, 1))] for s in range(4)})
    moved = {s: [recorded(training(s, 20 + s // 2, EPS, 2))] for s in range(4)}
    found = judge(moved, base, Measure(), 0.05)
    assert found.notes == ("the reference's own steps differ between seeds",)


def test_where_rounding_goes_as_far_as_a_seed_no_state_is_called_the_same() -> None:
    chaotic = Baseline(
        BASELINE.references, {s: [recorded(training(s, moved=0.5, by=1))] for s in range(SEEDS)}
    )
    runs = {s: [recorded(training(s, moved=0.5, by=2))] for s in range(SEEDS)}
    found = judge(runs, chaotic, Measure(), 0.05)
    assert found.level not in ("same bits", "same state")
    assert "rounding alone" in found.notes[0]


def in_chaos(seed: int, by: int, steps: int = 60) -> dict[str, np.ndarray]:
    """A logistic map per element, perturbed in each step by about as much as by rounding."""
    noise = np.random.default_rng([seed, by])
    rows = [np.random.default_rng(seed).uniform(0.2, 0.8, 32)]
    for _ in range(steps):
        moved = 3.9 * rows[-1] * (1 - rows[-1]) + by * EPS * noise.normal(size=32)
        rows.append(np.clip(moved, 1e-3, 1 - 1e-3))
    return {"chaotic": np.stack(rows)}


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_what_nobody_trains_does_not_hide_that_the_rest_tells_nothing(size: float) -> None:
    """E.g. embedding rows that no batch uses: each seed draws them, and they outweigh the rest."""

    def runs(by: int) -> dict[int, list[dict[str, np.ndarray]]]:
        found = {}
        for seed in range(SEEDS):
            state = in_chaos(seed, by)
            table = size * np.random.default_rng([seed, 9]).normal(size=32)
            moved = 1 + (by == 1) * EPS * np.random.default_rng(by).integers(-1, 2, (61, 32))
            found[seed] = [state | {"table": table * moved}]
        return found

    ours = runs(2)
    for (state,) in ours.values():
        state["chaotic"][45:] = 0.5  # a fault as large as the differences between seeds
    made = [
        {seed: [recorded(state)] for seed, (state,) in each.items()}
        for each in (runs(0), runs(1), ours)
    ]
    base = Baseline(*made[:2])
    last = base.last_testable_step()
    assert last is not None
    assert 5 < last < 45
    found = judge(made[2], base, Measure(), 0.05)
    assert found.level not in ("same bits", "same state")
    assert f"the same state up to step {last}" in found.notes[0]


def test_what_only_rounding_moves_leaves_the_state_of_the_rest() -> None:
    """E.g. a bias before a normalization, which Adam lets drift from its seed's initial value.

    The running mean behind it, which soon differs between seeds, drifts with it.
    """

    def runs(by: int) -> dict[int, list[RankRecord]]:
        found = {}
        for seed in range(SEEDS):
            state = training(seed, moved=EPS if by else 0.0, by=by)
            state["weight"] *= 2000
            drawn = np.random.default_rng([seed, 9])
            steps = np.random.default_rng([seed, by]).normal(size=(20, 3))
            steps *= 0.1 * np.exp(np.arange(20)[:, None] / 5)
            way = np.concatenate([np.zeros((1, 3)), steps.cumsum(0)])
            state["noise"] = drawn.normal(size=3) + way
            state["mean"] = 30 * drawn.normal(size=3) * (np.arange(21)[:, None] > 0) + way
            found[seed] = [recorded(state)]
        return found

    base = Baseline(runs(0), runs(1))
    assert base.last_testable_step() is None
    assert base.envelope is not None
    assert base.ways_apart is not None
    lost = [
        bool(saturated(base.envelope[:, [n]], base.ways_apart[:, [n]], [3]).any()) for n in range(4)
    ]
    assert dict(zip(base.first.layout.names, lost, strict=True)) == {
        "weight": False,
        "bias": False,
        "noise": False,
        "mean": True,
    }


# --- Records and targets


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_what_is_written_is_read(tensors: int, steps: int, every: int, random) -> None:  # type: ignore[no-untyped-def]
    import tempfile

    numels = tuple(random.choice([0, 1, 5, 32, 33, 1000]) for _ in range(tensors))
    layout = Layout(tuple(f"t{n}" for n in range(tensors)), numels, (EPS,) * tensors)
    rng = np.random.default_rng(random.randrange(1000))
    rows = rng.normal(size=(steps + 1, layout.width))
    rows[:, 0] = np.arange(steps + 1)
    places = list(layout.places.values())
    hashes = rng.integers(-(2**63), 2**63 - 1, size=(steps + 1, tensors))
    for number, place in enumerate(places):
        rows.view(np.int64)[:, place.start] = hashes[:, number]
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(folder, 3, layout)
        for row in rows:
            writer.row(row if int(row[0]) % every == 0 else row[: Layout.HEAD])
        writer.metric(1, "accuracy", 0.5, is_result=True)
        with pytest.raises(RecordError, match="did not finish its record"):
            read_rank(Path(folder), 3)
        writer.end(rows[-1], {"seed"})
        found = read_rank(Path(folder), 3)
        with pytest.raises(RecordError, match="has recorded nothing"):
            read_rank(Path(folder), 0)
    kept = [row for row in range(steps + 1) if row % every == 0] + [steps]
    assert np.array_equal(found.steps, rows[:, :4])
    assert list(found.state_steps) == kept
    assert np.array_equal(found.hashes, hashes[kept])
    assert [sketch.shape for sketch in found.sketches] == [(len(kept), min(n, 32)) for n in numels]
    assert (found.results, found.used) == ({"accuracy": 0.5}, {"seed"})


def test_a_record_tells_the_size_of_its_world_unless_it_is_of_an_earlier_version(
    tmp_path: Path,
) -> None:
    layout = Layout(("weight",), (1,), (EPS,))
    row = np.zeros(layout.width)
    for rank, size in enumerate((None, 4)):
        writer = Writer(tmp_path, rank, layout, size)
        writer.row(row)
        writer.end(row, set())
        assert recorded_size(tmp_path, rank) == size
    path = tmp_path / "rank1.json"
    described = json.loads(path.read_text())
    for content in (
        described | {"size": "4"},
        [],
        {n: described[n] for n in described if n != "size"},
    ):
        path.write_text(json.dumps(content))
        assert recorded_size(tmp_path, 1) is None
    assert read_rank(tmp_path, 1).layout == layout
    path.write_text("{")
    assert recorded_size(tmp_path, 1) is None
    assert recorded_size(tmp_path, 2) is None


def test_distances_are_zero_for_equal_bits_and_infinite_for_nan() -> None:
    states = training(0)
    other = {name: rows.copy() for name, rows in states.items()}
    other["weight"][3, 0] = np.nan
    other["bias"][4] += [3, 4, 0]
    apart = distances(recorded(states), recorded(other))
    assert apart.sum(where=np.isfinite(apart)) == pytest.approx(5)
    assert apart[3, 0] == np.inf
    assert not same_layout(recorded(states), recorded({"weight": states["weight"]}))


def test_a_smoothed_loss_is_of_its_window_alone() -> None:
    """Whatever the losses before it, e.g. a first step with too large a scale."""
    for first in (np.nan, np.inf, 1e300):
        found = smooth(np.array([first, *[0.5] * 99]))
        assert (found[5:] == 0.5).all()


def test_of_losses_those_ranks_count_that_tell() -> None:
    told, silent = recorded(training(0, 2), [1.0, 2.0]), recorded(training(0, 2), [None] * 2, 1)
    assert losses([told, silent]).tolist() == [1.0, 2.0]
    assert np.isnan(losses([silent])).all()
    assert not has_loss([silent])
    diverged = recorded(training(0, 2), [1.0, np.nan], 1)
    assert np.isnan(losses([told, diverged])[1])
    assert has_loss([recorded(training(0, 2), [np.nan] * 2)])


def test_a_step_without_a_loss_has_that_of_the_step_before() -> None:
    """As where a loss is recorded in every third step only."""
    told = [None, 1.0, None, None, 2.0, np.inf, None, 4.0, None]
    found = losses([recorded(training(0, 9), told), recorded(training(0, 9), [None] * 9, 1)])
    assert np.isnan(found[0])
    assert found[1:].tolist() == [1, 1, 1, 2, np.inf, np.inf, 4, 4]


@pytest.mark.parametrize(
    ("told", "other", "sentence"),
    [
        ([3.0, np.nan, np.nan, np.nan], [1.0] * 4, "the loss became NaN in step 2 on rank 0"),
        ([3.0] * 4, [1.0, 1.0, None, np.inf], "the loss became infinite in step 4 on rank 1"),
        ([np.nan, 2.0, np.nan, None], [1.0] * 4, "the loss became NaN in step 3 on rank 0"),
        ([None] * 4, [np.nan, None, None, None], "the loss became NaN in step 1 on rank 1"),
        ([np.nan, 2.0, 2.0, 2.0], [1.0] * 4, "None"),
        ([None] * 4, [None] * 4, "None"),
    ],
)
def test_where_a_loss_is_lost_is_known(
    told: list[float | None], other: list[float | None], sentence: str
) -> None:
    ranks = [recorded(training(0, 4), told), recorded(training(0, 4), other, 1)]
    assert str(lost(ranks)) == sentence


def test_a_loss_that_is_a_result_counts() -> None:
    ranks = [recorded(training(0), rank=rank, results={"loss": rank}) for rank in range(2)]
    assert Measure().of(ranks) == 0.5
    assert Measure().of([recorded(training(0))]) == 1.0


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200), st.floats(0, 10))
def test_a_target_is_reached_in_the_first_step_that_is_at_it(
    found: list[float], target: float
) -> None:
    run = [recorded(training(0, len(found)), found)]
    smoothed = smooth(np.array(found))
    window = max(1, len(found) // 20)
    assert smoothed[-1] == pytest.approx(np.mean(found[-window:]), abs=1e-9)
    came = reached(run, target)
    if came is None:
        assert (smoothed > target).all()
    else:
        assert smoothed[came.step - 1] <= target
        assert (smoothed[: came.step - 1] > target).all()
        assert (came.seconds, came.bytes) == (came.step * 0.5, came.step * 100)


def falling(end: float, steps: int = 20) -> list[RankRecord]:
    """A run whose loss falls to this."""
    return [recorded(training(0, steps), list(np.linspace(end + 2, end, steps)))]


@given(
    st.floats(-1, 10),
    st.sampled_from([0.0, 1e-7, 1e-4, 0.1]),
    st.lists(st.floats(-1, 1), min_size=1, max_size=6),
)
@example(0.0, 1e-7, [0.0, 2.0**-126])
def test_a_run_that_differs_by_rounding_reaches_the_default_target(
    end: float, size: float, rounding: list[float]
) -> None:
    """Wherever it ends within the same rounding as the twins, with each seed."""
    ends = {seed: end - seed for seed in range(len(rounding))}
    references = {seed: falling(each) for seed, each in ends.items()}
    effects = {seed: size * max(1, abs(end)) * each for seed, each in enumerate(rounding)}
    twins = {seed: falling(each + effects[seed]) for seed, each in ends.items()}
    target = default_target(references, twins)
    # What is left of an effect in its run's own digits: 1e-45 changes a loss of 0 and none of -1.
    largest = max(abs(each + effects[seed] - each) for seed, each in ends.items())
    for each in ends.values():
        assert reached(falling(each + largest), target) is not None
    assert target - end <= 2 * largest + 1e-3 * abs(end) + 1e-9, "no worse training reaches it"
    assert reached(falling(end + 3 * largest + 2e-3 * abs(end) + 1e-6), target) is None


def test_what_diverged_is_no_default_target() -> None:
    nan, good = falling(float("nan")), falling(1.0)
    assert math.isnan(default_target({0: nan}, {0: good}))
    assert default_target({0: good, 1: nan}, {0: nan, 1: good}) == pytest.approx(1.001)
