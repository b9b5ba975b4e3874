"""`rueda equiv`: which runs it starts, what it reports about failures, and a whole training."""

from __future__ import annotations

import importlib
import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner
from forked import launched
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded
from recorded import training as training_of
from rich.console import Console
from rueda.equivalence.run_settings import RunSettings
from rueda.launcher.equiv.checks import check_strategies
from rueda.launcher.equiv.plan import (
    Plan,
    Planned,
    Way,
    candidates_of,
    parse_strategies,
    parse_variant,
)
from rueda.launcher.equiv.strategy_check import problem_of as problem_of_strategies
from rueda.launcher.errors import LaunchError
from rueda_command import launcher_environment, run_rueda

from .conftest import Rueda

pytest.importorskip("scipy", reason="SciPy, which the judge needs, is not installed")

from rueda.launcher.equiv.command import exit_code, make_equiv_command
from rueda.launcher.equiv.comparison import Comparison, compare
from rueda.launcher.equiv.looks import LOOKS_FILE, note_looks
from rueda.launcher.equiv.report import as_json, lines_of, print_report
from rueda.launcher.equiv.running import OUTPUT_FILE, Outcome, problem_of, run, run_again

EQUIV = ["equiv", "--launch=--no-mpi --grace 0.5", "--json"]
# Records a training of one number without torch, whose import takes a second.
SCRIPT = """
import os, sys, time
from pathlib import Path
import numpy as np
from rueda.equivalence.record_files import Layout, Writer
from rueda.equivalence.run_settings import settings_of_environment

folder, told = settings_of_environment()
rank, size = int(os.environ["RUEDA_RANK"]), int(os.environ["RUEDA_SIZE"])

def train(steps=5, moved=0.0, until=5, seed=told.seed, rank=rank, size=size):
    layout = Layout(("weight",), (1,), (2.0**-23,))
    writer = Writer(folder, rank, layout, size)
    rng = np.random.default_rng(seed)
    x = 1 + rng.normal()
    for step in range(steps + 1):
        x = 0.9 * x + (told.perturbation * 1e-7 * rng.uniform(-1, 1)) + (moved if step == 3 else 0)
        row = np.array([step, abs(x), step * 0.1, step * 10.0, 0, abs(x), x])
        row.view(np.int64)[4] = row[5:6].view(np.int64)[0]
        if step < until:
            writer.row(row)
    writer.metric(steps, "accuracy", -abs(x), is_result=True)
    writer.end(row, {"seed", "strategy"})
"""


@pytest.fixture
def training(tmp_path: Path) -> Callable[[str], list[str]]:
    """Writes a script that ends with these lines; returns its command line."""

    def write(text: str) -> list[str]:
        (tmp_path / "train.py").write_text(f"{SCRIPT}\n{text}\n")
        return ["python", "train.py"]

    return write


# --- The plan


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sync", "local:8", "diloco:16", "desloc:16,48,96", "downpour:20"]),
            st.sampled_from(["", ",codec=int8", ",fragments=2,delay=4", ",scale", ",.03,none"]),
        ),
        min_size=1,
        max_size=5,
        unique=True,
    )
)
def test_strategies_with_parameters_are_taken_apart(parts: list[tuple[str, str]]) -> None:
    strategies = [name + more for name, more in parts if name != "sync"] or ["sync"]
    assert parse_strategies(",".join(strategies)) == tuple(dict.fromkeys(strategies))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sync,local:8,diloco,ssp:3,async", ["sync", "local:8", "diloco", "ssp:3", "async"]),
        ("mine,local:8,sync", ["mine", "local:8", "sync"]),
        ("local:8;mine, sync ;", ["local:8", "mine", "sync"]),
        ("mine:8,x:2", ["mine:8", "x:2"]),
    ],
)
def test_a_strategy_begins_with_a_name_or_a_colon(text: str, expected: list[str]) -> None:
    assert parse_strategies(text) == tuple(expected)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True), st.integers(1, 6))
def test_each_run_is_there_once_and_in_a_folder_of_its_own(ranks: list[int], seeds: int) -> None:
    reference = Way(1, "sync")
    ways = candidates_of(ranks, ["sync", "local:8"], ["ring:RUEDA_ALGORITHM=ring"], reference)
    assert len(ways) == 4 * len(ranks) - (1 in ranks)
    assert reference not in ways
    plan = Plan(reference, ways, seeds, ("python", "x.py", "--seed={seed}", "{np}{strategy}"))
    runs = list(plan.runs())
    assert len({run.folder for run in runs}) == len(runs) == seeds * (len(ways) + 2)
    last = plan.settings(runs[-1])
    assert last.command[2:] == (f"--seed={seeds - 1}", f"{ranks[-1]}local:8")
    assert dict(last.variables) == {"RUEDA_ALGORITHM": "ring"}


@pytest.mark.parametrize("text", ["ring", "ring:", ":A=1", "ring:=1", "a b:A=1", "ring:A-B=1"])
def test_a_variant_needs_a_name_and_variables(text: str) -> None:
    with pytest.raises(LaunchError, match="such as ring:RUEDA_ALGORITHM=ring"):
        parse_variant(text)


# --- What goes wrong


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = RunSettings(1, "sync", 0, ("true",))
    with pytest.raises(LaunchError, match=r"cannot write '.*/file/.*': Not a directory: choose"):
        run(tmp_path / "file" / "run", settings, 10)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--np", "0"], "--np 0: give numbers of ranks with commas"),
        (["--np", "two"], "--np two: give numbers of ranks with commas"),
        (["--np", "1"], "nothing to compare with 1 rank sync"),
        (["--reference", "sync"], "--reference sync: give a number of ranks and a strategy"),
        (["--strategy", ","], "names no strategy"),
        (["--variant", "a:A=1", "--variant", "a:A=2"], "--variant a: given twice"),
        (["--plot", "x.txt"], "--plot x.txt: the name must end in .svg"),
        (["--plot", "none/x.svg"], "--plot none/x.svg: there is no folder"),
        (["--metric", "accuracy:most"], "--metric accuracy:most: give a name, with :max or :min"),
        (["--metric", ":max"], "--metric :max: give a name"),
        (["--metric", "accuracy:"], "--metric accuracy:: give a name"),
        (
            ["--variant", "a:RUEDA_TRANSPORT=udp"],
            "--variant a: RUEDA_TRANSPORT=udp: give one of auto, shm, mpi, tcp",
        ),
        (
            ["--variant", "a:X=1,RUEDA_RING_CHUNK=much"],
            "RUEDA_RING_CHUNK=much: give a number of bytes",
        ),
        (
            ["--variant", "a:RUEDA_ALGORTIHM=ring"],
            "--variant a: the variable RUEDA_ALGORTIHM is unknown and has no effect; did you mean RUEDA_ALGORITHM?",
        ),
        (
            ["--variant", "a:A=1", "--variant", "b:RUEDA_STRATEGY="],
            "--variant b: the variable RUEDA_STRATEGY is unknown and has no effect",
        ),
        (
            ["--launch=-H localhost:1"],
            "2 ranks sync: -np 2 is more than the 1 slot of the hosts",
        ),
        (
            ["--variant", "a:RUEDA_ALGORITHM=rnig"],
            "--variant a: RUEDA_ALGORITHM=rnig: 'rnig' is none; choose from auto, flat",
        ),
        (["--launch=--no-such-flag"], "2 ranks sync: Error: No such option"),
        (["--launch=--no-mpi -np 3"], "--launch: leave out -np (-n, --num-proc): --np and"),
        (["--launch=-n3 --no-mpi"], "--launch: leave out -np (-n, --num-proc): --np and"),
        (["--launch=--num-proc=1"], "--launch: leave out -np (-n, --num-proc): --np and"),
        (["--launch=--nodes 2 --node-rank 0"], "--launch: leave out --nodes: each node would add"),
        (["--launch=--rendezvous tcp:a:1"], "--launch: leave out --rendezvous: each node would"),
        (["--launch=--mpi-args '-v --np 3'"], "--launch: leave out --np in --mpi-args: --np and"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    flags: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    monkeypatch.setattr("rueda.launcher.figures.require_matplotlib", lambda _: None)
    ran = CliRunner().invoke(make_equiv_command(), [*flags, "python", "train.py"])
    assert ran.exit_code == 2
    (line,) = ran.output.splitlines()
    assert sentence in line


@pytest.mark.parametrize("flag", ["--margin", "--target-loss", "--confidence", "--timeout"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_are_finite(flag: str, number: str) -> None:
    ran = CliRunner().invoke(make_equiv_command(), [flag, number, "python", "train.py"])
    assert ran.exit_code == 2
    assert f"Invalid value for '{flag}'" in ran.output


def test_a_strategy_with_invalid_parameters_is_told_before_anything_runs(
    rueda: Rueda, training: Callable[[str], list[str]], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    command = training("open('count', 'a').write('x')\ntrain()")
    ran = rueda(*EQUIV, "--np", "2", "--strategy", "mine:0,local:0", *command)
    assert ran.code == 2
    assert "--strategy local:0: " in ran.last_line
    assert "period=0" in ran.last_line
    assert "--strategy mine:0: 'mine' is none of Rueda's strategies" in ran.err
    ran = rueda(*EQUIV, "--np", "4", "--reference", "2:local:0", *command)
    assert ran.code == 2
    assert "--reference 2:local:0: " in ran.last_line
    assert "--strategy local" not in ran.err
    assert not (tmp_path / "count").exists()


def test_the_flag_that_names_an_unknown_strategy_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reference = Way(2, "x")
    check_strategies(Plan(reference, (Way(4, "y"), Way(4, "x:1")), 1, ("python",)))
    told = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("rueda: ").partition(": ")[0] for line in told] == [
        "--reference 2:x", "--strategy y", "--strategy x:1",
    ]  # fmt: skip
    check_strategies(Plan(reference, (Way(4, "x"),), 1, ("python",)))
    assert "--strategy x: 'x' is none" in capsys.readouterr().err


def test_a_number_without_bounds_has_none_in_help(rueda: Rueda) -> None:
    text = rueda("equiv", "--help").out
    assert "--target-loss X" in text
    assert "None" not in text
    assert "x>0" in text  # that of --margin, which has one


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("local:x", "period='x' is not a whole number"),
        ("local:8,often=1", "'often=1' is no parameter of LocalSGD"),
        ("downpour:0", "window=0"),
        ("ssp:-1", "slack=-1"),
        ("local:8", ""),
        ("diloco:16,codec=int8", ""),
        ("ssp:3,replicated=yes", ""),
    ],
)
def test_what_is_wrong_with_a_strategy_is_known_without_a_model(text: str, says: str) -> None:
    pytest.importorskip("torch")
    found = problem_of_strategies(["sync", text])
    assert says in found
    assert bool(says) == bool(found)


def test_looks_that_cannot_be_read_are_told_before_anything_runs(
    rueda: Rueda, training: Callable[[str], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / LOOKS_FILE).write_text("[]")
    command = training("open('count', 'a').write('x')\ntrain()")
    ran = rueda(*EQUIV, "--np", "2", "--out", "kept", *command)
    assert ran.code == 2
    assert "change --out" in ran.last_line
    assert not (tmp_path / "count").exists()


def test_flags_that_keep_the_number_of_ranks_are_accepted(
    rueda: Rueda, training: Callable[[str], list[str]]
) -> None:
    launch = "--launch=--no-mpi --nodes 1 --node-rank 0 -x NUMBER=-np"
    ran = rueda(*EQUIV, launch, "--np", "2", "--seeds", "1", *training("train()"))
    assert ran.code == 0, ran.err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "train(size=size + (size > 1))",
            "its world had 3 ranks instead of 2: leave out what sets another number of ranks",
        ),
        (
            "if rank == 0: train(rank=0, size=1)",
            "its 2 ranks did not form one world: rank 0 recorded a world of 1 rank.",
        ),
        (
            "train()\nif size == 2 and rank == 1: train(rank=2, size=3)",
            "its world grew to more than 2 ranks: leave out what lets ranks join",
        ),
    ],
)
def test_a_run_of_another_number_of_ranks_has_failed(
    rueda: Rueda, training: Callable[[str], list[str]], text: str, sentence: str
) -> None:
    ran = rueda(*EQUIV, "--np", "2", "--seeds", "1", *training(text))
    assert ran.code == 1, ran.err
    (way,) = json.loads(ran.out)["ways"]
    assert way["level"] == "failed"
    assert sentence in way["why"]
    ran = rueda(*EQUIV, "--np", "1", "--reference", "2", *training(text))
    assert ran.code == 2
    assert f"the reference, 2 ranks sync, seed 0: {sentence}" in ran.last_line


def test_records_of_earlier_versions_tell_no_size_and_are_judged(
    rueda: Rueda, training: Callable[[str], list[str]]
) -> None:
    ran = rueda(*EQUIV, "--np", "2", "--seeds", "1", *training("train(size=None)"))
    assert ran.code == 0, ran.err


def test_the_help_shows_lines_that_work_as_they_are(rueda: Rueda) -> None:
    text = rueda("equiv", "--help").out
    assert text.index("import rueda.torch as rueda\n") < text.index("rueda.equiv.seed()")


@pytest.mark.parametrize(
    ("text", "sentence", "timeout"),
    [
        ("sys.exit('no luck')", "it ended with exit code 1; the last line of its output", 60),
        ("pass", "it recorded nothing: use rueda.torch.wrap()", 60),
        ("time.sleep(60)", "it did not end within 1.5 s (--timeout)", 1.5),
    ],
)
def test_a_reference_that_fails_ends_it(
    rueda: Rueda, training: Callable[[str], list[str]], text: str, sentence: str, timeout: float
) -> None:
    ran = rueda(*EQUIV, "--timeout", str(timeout), *training(text))
    assert ran.code == 2
    assert "the reference, 1 rank sync, seed 0: " in ran.last_line
    assert sentence in ran.last_line


def test_runs_that_fail_are_told_and_the_others_judged(
    rueda: Rueda, training: Callable[[str], list[str]]
) -> None:
    faults = """
fault = os.environ.get("FAULT", "")
if fault == "fails" and rank == 1: sys.exit("out of luck")
train(moved=0.25 if fault == "moved" else 0)
"""
    variants = [f"--variant={name}:FAULT={name}" for name in ("fails", "moved")]
    ran = rueda(*EQUIV, "--seeds", "1", *variants, "--np", "2", *training(faults))
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)
    assert found["notes"] == []
    same, fails, moved = found["ways"]
    assert same["level"] == "same bits"
    assert (fails["level"], len(fails["problems"])) == ("failed", 1)
    assert "1 of 1 run: 2 ranks sync fails, seed 0: it ended with exit code 1" in fails["why"]
    assert "out of luck" in fails["why"]
    assert moved["level"] not in ("same bits", "same state", "failed")
    assert (moved["diverges"]["step"], moved["diverges"]["tensor"]) == (3, "weight")


@pytest.mark.parametrize(
    ("levels", "codes"),
    [
        ({"same bits"}, (0, 0, 0)),
        ({"same state", "same bits"}, (1, 0, 0)),
        ({"same quality", "better"}, (1, 1, 0)),
        ({"other state"}, (1, 1, 3)),
        ({"undecided", "same bits"}, (3, 3, 3)),
        ({"undecided", "worse"}, (1, 1, 1)),
        ({"failed"}, (1, 1, 1)),
    ],
)
def test_the_exit_code_follows_what_is_asked_for(
    levels: set[str], codes: tuple[int, int, int]
) -> None:
    asked = ("bits", "state", "quality")
    assert tuple(exit_code(levels, required) for required in asked) == codes


WAY = Way(2, "sync")
PLAN = Plan(Way(1, "sync"), (WAY,), 2, ("python", "train.py"))


def outcomes(ours: list[Outcome]) -> dict[Planned, Outcome]:
    """Returns the plan's outcomes, with these of the candidate, seed by seed."""
    found = {}
    for seed, outcome in enumerate(ours):
        found[Planned(PLAN.reference, seed)] = Outcome((recorded(training_of(seed)),))
        twin = recorded(training_of(seed, moved=2.0**-23, by=1))
        found[Planned(PLAN.reference, seed, True)] = Outcome((twin,))
        found[Planned(WAY, seed)] = outcome
    return found


def test_seeds_that_take_other_numbers_of_steps_are_told() -> None:
    uneven = [Outcome((recorded(training_of(seed, 20 - seed)),)) for seed in range(2)]
    (row,) = compare(PLAN, outcomes(uneven), 0.95).rows
    assert row.verdict.level == "failed"
    assert row.problems == ("2 ranks sync: its seeds took different numbers of steps: 19, 20",)


def test_ranks_that_take_other_numbers_of_steps_are_told() -> None:
    ranks = (recorded(training_of(0)), recorded(training_of(0, 19), rank=1))
    assert (
        problem_of(ranks) == "its ranks took different numbers of steps: 19 on rank 1, 20 on rank 0"
    )
    assert problem_of(ranks[:1]) == ""
    assert "recorded no step" in problem_of((recorded(training_of(0, 0)),))
    other = recorded({"bias": training_of(0)["bias"]}, rank=1)
    assert problem_of((ranks[0], other)) == "rank 1 has recorded a different model from rank 0's"


def test_a_script_that_does_not_use_its_seed_or_strategy_is_told() -> None:
    found = outcomes([Outcome((recorded(training_of(0)),))] * 2)
    alike = {run: found[Planned(run.way, 0, run.is_twin)] for run in found}
    ways = (WAY, Way(2, "local:8"))
    alike |= {Planned(ways[1], seed): alike[Planned(WAY, seed)] for seed in range(2)}
    notes = compare(replace(PLAN, candidates=ways), alike, 0.95).notes
    assert "all seeds of the reference have the same bits" in notes[0]
    assert "the script has not asked for its strategy" in notes[1]


def test_the_report_is_json_and_a_table_whatever_is_missing() -> None:
    ours = [Outcome((recorded(training_of(seed, 9)),)) for seed in range(2)]
    comparison = compare(PLAN, outcomes(ours), 0.95)
    text = json.dumps(as_json(comparison), allow_nan=False)
    assert json.loads(text)["ways"][0]["distance"] is None
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(comparison, console)
    told = console.export_text()
    assert "states are not compared: it took 9 steps, the reference 20" in told
    assert "All verdicts hold together with 95% confidence" in told


def text_of(comparison: Comparison) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(comparison, console)
    json.dumps(as_json(comparison), allow_nan=False)
    return console.export_text()


def test_one_seed_says_what_it_cannot_say() -> None:
    found = outcomes([Outcome((recorded(training_of(0, moved=0.1, by=2)),))])
    told = text_of(compare(replace(PLAN, seeds=1), found, 0.95))
    assert told.startswith("Beside 1 rank sync, 1 seed ")
    assert "1 seeds" not in told
    assert "One seed does not show what chance does" in told
    assert re.search(r"gap \(\+ is better\) [+-]0: one seed has no spread; needs 2 seeds", told)
    assert not re.search(r"\b(nan|inf)\b", told)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_reference_that_diverges_is_told_as_such(loss: float, seeds: int) -> None:
    plan = replace(PLAN, seeds=seeds)
    found = outcomes([Outcome((recorded(training_of(seed)),)) for seed in range(seeds)])
    lost = recorded(training_of(0), [1.0] * 4 + [loss] * 16)
    found[Planned(PLAN.reference, 0)] = Outcome((lost,))
    comparison = compare(plan, found, 0.95)
    told = text_of(comparison)
    kind = "NaN" if loss != loss else "infinite"
    assert "recorded no loss" not in told
    count = "1 of 1 seed" if seeds == 1 else "1 of 2 seeds"
    assert f"the reference diverged with {count}, so quality is not judged" in told
    assert f"with seed 0 the loss became {kind} in step 5 on rank 0" in told
    assert not re.search(r"\b(nan|inf)\b", told)
    assert ("steps to" in told) == (seeds == 2)
    nothing = {run: Outcome((recorded(training_of(0), [None] * 20),)) for run in found}
    assert "the script has recorded no loss" in text_of(compare(plan, nothing, 0.95))


def test_a_diverged_run_is_worse_than_the_reference_with_the_same_state() -> None:
    lost = [1.0] * 5 + [float("nan")] * 15
    ours = [
        Outcome((recorded(training_of(seed)), recorded(training_of(seed), lost, rank=1)))
        for seed in range(2)
    ]
    comparison = compare(PLAN, outcomes(ours), 0.95)
    (row,) = comparison.rows
    assert row.verdict.level == "worse"
    assert exit_code({row.verdict.level}, "quality") == 1
    told = text_of(comparison)
    assert "diverged with 2 of 2 seeds: with seed 0 the loss became NaN in step 6 on rank 1" in told
    assert "apart from that same bits" in told


def test_a_run_without_the_metric_of_the_reference_has_failed() -> None:
    found = {
        run: Outcome((replace(outcome.ranks[0], results={"accuracy": 0.5}),))
        for run, outcome in outcomes(
            [Outcome((recorded(training_of(seed)),)) for seed in range(2)]
        ).items()
    }
    found[Planned(WAY, 1)] = Outcome((recorded(training_of(1)),))
    (row,) = compare(PLAN, found, 0.95).rows
    assert row.verdict.level == "failed"
    assert row.problems == ("2 ranks sync, seed 1: it recorded no accuracy, unlike the reference",)


def test_names_are_shown_as_they_are_and_no_markup() -> None:
    def renamed(outcome: Outcome) -> Outcome:
        (record,) = outcome.ranks
        layout = replace(record.layout, names=("a[/b]c", "x[red]"))
        return Outcome((replace(record, layout=layout, results={"[/] right": 1.0}),))

    far = [Outcome((recorded(training_of(seed, moved=0.1, by=2)),)) for seed in range(2)]
    found = {run: renamed(outcome) for run, outcome in outcomes(far).items()}
    comparison = compare(PLAN, found, 0.95)
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(comparison, console)
    told = console.export_text()
    assert "[/] right" in told.splitlines()[2]
    where = comparison.rows[0].verdict.diverges
    assert where is not None
    assert told.count(f"{where.step}, {where.tensor}") == 1


@pytest.mark.parametrize(
    ("metric", "higher", "asks"),
    [
        (None, False, False),
        ("speed", True, True),
        ("speed:min", False, False),
        ("loss", False, False),
    ],
)
def test_what_is_better_follows_the_name_or_is_asked_for(
    metric: str | None, higher: bool, asks: bool
) -> None:
    results = {"val_loss": 0.5, "speed": 3.0}
    found = {
        run: Outcome((replace(outcome.ranks[0], results=results),))
        for run, outcome in outcomes(
            [Outcome((recorded(training_of(seed)),)) for seed in range(2)]
        ).items()
    }
    comparison = compare(PLAN, found, 0.95, metric)
    assert comparison.measure.higher_is_better is higher
    assert comparison.measure.name == (metric or "val_loss").partition(":")[0]
    assert any("--metric speed:min" in note for note in comparison.notes) is asks


def test_each_further_look_at_runs_may_be_wrong_by_half_as_much(tmp_path: Path) -> None:
    def look(seeds: int, **other: Any) -> int:
        return note_looks(tmp_path, replace(PLAN, seeds=seeds, **other))[WAY]

    assert [look(5), look(9), look(5), look(9), look(12)] == [0, 1, 0, 1, 2]
    assert look(9, command=("python", "other.py")) == 0
    assert note_looks(tmp_path, replace(PLAN, seeds=9), "metric=loss")[WAY] == 3
    assert note_looks(tmp_path, replace(PLAN, candidates=(WAY, Way(3, "sync")), seeds=14)) == {
        WAY: 4,
        Way(3, "sync"): 0,
    }
    moved = [Outcome((recorded(training_of(seed, moved=2.0**-23, by=2)),)) for seed in range(2)]
    first, third = (compare(PLAN, outcomes(moved), 0.95, looks={WAY: n}) for n in (0, 2))
    bounds = [each.rows[0].verdict.rounding for each in (first, third)]
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert bounds[1].high > 2 * bounds[0].high
    told = [
        next(line for line in lines_of(each) if "hold together" in line) for each in (first, third)
    ]
    assert "with 95% confidence. " in told[0]
    assert "with 95% confidence at the first look" in told[1]
    assert "the error of the one before, they hold with 90%. " in told[1]
    (tmp_path / LOOKS_FILE).write_text("[]")
    with pytest.raises(LaunchError, match="change --out"):
        look(5)


def test_runs_that_are_there_are_not_run_again(
    rueda: Rueda, training: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command = training("open('count', 'a').write('x')\ntrain()")
    flags = ["--np", "2", "--seeds", "1", "--out", "kept"]
    first = rueda(*EQUIV, *flags, "--metric", "accuracy:max", *command)
    assert first.code == 0, first.err
    assert len((tmp_path / "count").read_text()) == 4  # the reference, its twin, and 2 ranks
    again = rueda("equiv", *command, *flags, *EQUIV[1:])
    assert json.loads(again.out) == json.loads(first.out)
    assert len((tmp_path / "count").read_text()) == 4
    (looks,) = json.loads((tmp_path / "kept" / LOOKS_FILE).read_text()).values()
    assert looks == [
        f"1 seeds, 1 ways metric={metric}, margin=None, confidence=0.95"
        for metric in ("accuracy:max", None)
    ]


@pytest.mark.parametrize(
    ("end", "timeout", "problem"),
    [
        ("pass", 60, ""),
        ("sys.exit('no luck')", 60, "it ended with exit code 1"),
        ("time.sleep(60)", 5, "it did not end within"),
    ],
)
def test_only_a_run_that_ended_well_is_not_run_again(
    training: Callable[[str], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    timeout: float,
    problem: str,
) -> None:
    """Its records may be complete all the same. Folders of earlier versions do not tell."""
    monkeypatch.setenv("PYTHONPATH", launcher_environment().get("PYTHONPATH", ""))
    command = (sys.executable, str(tmp_path / training(f"train()\n{end}")[1]))
    folder, settings = tmp_path / "run", RunSettings(1, "sync", 0, command, ("--no-mpi",))
    assert run_again(folder, settings) is None
    first = run(folder, settings, timeout)
    assert first.problem.startswith(problem)
    assert bool(first.problem) is bool(problem)
    again = run_again(folder, settings)
    assert (again is None) is bool(problem)
    if again is not None:
        assert len(again.ranks[0].steps) == len(first.ranks[0].steps) == 5
        assert run_again(folder, replace(settings, seed=1)) is None
        (folder / "succeeded").unlink()
        assert run_again(folder, settings) is None


def test_variables_of_a_variant_reach_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", launcher_environment().get("PYTHONPATH", ""))
    launch = ("--dry-run", "--no-mpi", "-H", "far-away-1:1,far-away-2:1")
    variables = (("OWN", ":4096:8"), ("OTHER", "a b"))
    run(tmp_path / "run", RunSettings(2, "sync", 0, ("true",), launch, variables), 60)
    lines = (tmp_path / "run" / OUTPUT_FILE).read_text().splitlines()
    ranks = [shlex.split(line) for line in lines if line.startswith("env ")]
    assert len(ranks) == 2
    assert all({"OWN=:4096:8", "OTHER=a b"} <= set(words) for words in ranks)


def test_a_metric_that_is_none_is_told_after_the_first_run(
    rueda: Rueda, training: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command = training("open('count', 'a').write('x')\ntrain()")
    ran = rueda(*EQUIV, "--np", "2", "--metric", "speed", *command)
    assert ran.code == 2
    assert "--metric speed: the script passes loss, accuracy to" in ran.last_line
    assert len((tmp_path / "count").read_text()) == 1


def test_a_picture_that_cannot_be_written_leaves_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    found = outcomes([Outcome((recorded(training_of(seed)),)) for seed in range(2)])
    Path("x.svg").symlink_to("/dev/full")
    figure, pyplot = MagicMock(), MagicMock()
    figure.savefig.side_effect = lambda file, **_: file.write(b"<svg/>")
    pyplot.subplots.return_value = (figure, [MagicMock() for _ in range(3)])
    monkeypatch.setattr("rueda.launcher.equiv.command._outcomes", lambda *_: found)
    monkeypatch.setattr("rueda.launcher.figures.require_matplotlib", lambda _: None)
    for module in ("equiv.plot", "figures"):
        monkeypatch.setattr(f"rueda.launcher.{module}.new_pyplot", lambda: pyplot)
    flags = ["--np", "2", "--seeds", "2", "--json", "--plot", "x.svg"]
    ran = CliRunner().invoke(make_equiv_command(), [*flags, "python", "train.py"])
    assert ran.exit_code == 2
    assert json.loads(ran.stdout)["schema"] == 1
    assert ran.stderr == "rueda: cannot write 'x.svg': No space left on device\n"
    pyplot.close.assert_called_once_with(figure)


def test_a_fault_in_a_training_with_torch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks train the digits: like one rank up to rounding, then with a fault from step 40."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    folder = Path(__file__).parents[2] / "benchmarks" / "equiv"
    monkeypatch.syspath_prepend(folder)
    images = str(importlib.import_module("images").prepare(tmp_path))
    flags = ["--seeds", "1", "--np", "2", "--variant=stale:EQUIV_FAULT=stale-gradient"]
    command = [*EQUIV, *flags, *launched(folder / "train.py", ["--steps", "45"])]
    ran = run_rueda(tmp_path, command, {"EQUIV_IMAGES": images}, timeout=240)
    assert ran.code == 3, ran.err
    good, stale = json.loads(ran.out)["ways"]
    assert good["diverges"] is None
    assert good["rounding"]["factor"] < 10
    assert good["ranks_agree"]
    assert good["to_target"]["reached"] == 1
    assert (stale["diverges"]["step"], stale["diverges"]["tensor"]) == (40, "2.weight")
    assert stale["rounding"]["factor"] > 10


@pytest.mark.parametrize(
    ("command", "words"),
    [(["pyhton", "train.py"], "pyhton"), (["python", "no-such-file.py"], "no-such-file.py")],
)
def test_a_program_that_is_not_there_is_told_before_anything_runs(
    tmp_path: Path, command: list[str], words: str
) -> None:
    ran = run_rueda(tmp_path, [*EQUIV, "--np", "1,2", *command], {}, timeout=60)
    assert ran.code == 2
    assert words in ran.err
    assert "run 1 of" not in ran.err
