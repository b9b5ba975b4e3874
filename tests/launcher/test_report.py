"""`rueda report`: runs of real ranks, their leftovers after failures, and its messages."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from click.testing import CliRunner, Result
from recorded_times import MS, elastic_run, recording, row, two_ranks
from rueda.launcher.report import make_report_command
from rueda.launcher.report.assembly import Asked, assemble
from rueda.launcher.report.output import PREDICTED
from rueda.launcher.report.page import _draw_steps, page_of
from rueda.report.prediction import Links, Prediction
from rueda.report.recording_format import MAIN, NO_ALLREDUCE, Kind, file_of
from rueda_command import LAUNCHER, launcher_environment

from .conftest import Rueda

REPORT = ["report", "--launch=--no-mpi --grace 0.5"]
SPREAD = ["--ranks-per-host", "1", "--predict", "2,8"]
PARTS = ("compute", "communication", "straggler", "input", "other")
# Sleeps and does an allreduce per step; the last rank sleeps twice as long. Reports its own times.
TRAIN = """
import json, os, signal, sys, time
import numpy as np
import rueda

rueda.init()
rank, size = rueda.rank(), rueda.size()
gradient = np.ones(25_000, np.float32)
steps = int(sys.argv[1])
kills = len(sys.argv) > 2 and rank == size - 1
at, measured = [time.monotonic()], {"compute": 0.0, "blocked": 0.0, "input": 0.0}

def ended(part):
    at.append(time.monotonic())
    measured[part] += at[-1] - at[-2]

for step in range(steps):
    if kills and step == steps - 5:
        os.kill(os.getpid(), signal.SIGKILL)
    with rueda.report.input():
        time.sleep(0.004)
    ended("input")
    time.sleep(0.02 * (2 if size > 1 and rank == size - 1 else 1))
    ended("compute")
    rueda.allreduce_(gradient, name="gradient")
    ended("blocked")
    rueda.report.step()
if rank == 0:
    print("measured", json.dumps({**measured, "all": at[-1] - at[0]}), flush=True)
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    return "train.py"


def check_sums(found) -> None:
    for each in found["per_rank"]:
        assert sum(each["whole"].values()) == pytest.approx(each["wall"], rel=0.02)
        assert all(each["whole"][part] >= 0 for part in PARTS)


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_run_is_divided_and_its_slow_rank_named(rueda: Rueda, train: str, ranks: int) -> None:
    flags = ["-np", str(ranks), "--out", "kept", "--json", *SPREAD]
    ran = rueda(*REPORT, *flags, "python3", train, "30")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert [each["rank"] for each in found["per_rank"]] == list(range(ranks))
    check_sums(found)
    (line,) = (line for line in ran.err.splitlines() if "measured" in line)
    measured = json.loads(line.partition("measured")[2])
    training = found["per_rank"][0]["training"]
    training["blocked"] = training["communication"] + training["straggler"]
    for part in ("compute", "input", "blocked"):
        assert training[part] == pytest.approx(measured[part], abs=0.02 * measured["all"])
    assert sum(training[part] for part in PARTS) == pytest.approx(measured["all"], rel=0.02)
    assert {each["steps"] for each in found["per_rank"]} == {30}
    slow = [one for one in found["stragglers"] if one["kind"] == "permanent"]
    assert [one["rank"] for one in slow] == ([ranks - 1] if ranks > 1 else [])
    assert any("SSP gains nothing" in line for line in found["sentences"]) == (ranks > 1)
    if ranks > 1:
        waits = [each["training"]["straggler"] for each in found["per_rank"]]
        assert min(waits[:-1]) > waits[-1]
    assert [one["ranks"] for one in found["predictions"]] == [2, 8]
    assert found["predictions"][1]["speedup"] > found["predictions"][0]["speedup"]


def test_of_a_killed_rank_the_rest_is_reported(rueda: Rueda, train: str) -> None:
    ran = rueda(*REPORT, "-np", "2", "--json", "--predict", "0", "python3", train, "60", "kill")
    assert ran.code == 137
    found = json.loads(ran.out)
    assert [each["rank"] for each in found["per_rank"]] == [0, 1]
    check_sums(found)
    assert found["per_rank"][0]["steps"] == 55
    assert 0 < found["per_rank"][1]["steps"] <= 55
    assert any("recording of rank 1 is cut short" in note for note in found["notes"])


# Rank 0 kills itself in its sixth step; all end ten steps after another has joined.
COMES_AND_GOES = """
import os, signal, time
import numpy as np
import rueda, rueda.elastic

rueda.init()
is_first = "RUEDA_JOINER" not in os.environ and rueda.rank() == 0
since = 0
for step in rueda.elastic.steps(3000):
    with step:
        if is_first and step.number == 5:
            for _ in range(2048):  # as many rows are written at once
                with rueda.report.input():
                    pass
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        joined = rueda.allreduce(np.array(["RUEDA_JOINER" in os.environ], np.int32), "joined", rueda.Max)
        rueda.report.step()
    since += int(joined[0]) if step.lost is None else 0
    if since == 10:
        break
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_of_a_job_in_which_a_rank_is_replaced_all_are_reported(
    rueda: Rueda, tmp_path: Path, ranks: int
) -> None:
    (tmp_path / "elastic.py").write_text(COMES_AND_GOES)
    launch = f"--launch=--min-np 1 --max-np {ranks}"
    flags = ["-np", str(ranks), "--out", "kept", "--json", "--predict", "0"]
    ran = rueda("report", launch, *flags, "python3", "elastic.py")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    check_sums(found)
    *first, joined = found["per_rank"]
    assert [each["rank"] for each in first] == list(range(ranks))
    assert [each["epoch"] for each in first] == [0] * ranks
    assert [each["joined"] for each in first] == [None] * ranks
    assert [each["left"] is None for each in first] == [False, *[True] * (ranks - 1)]
    assert (joined["rank"], joined["left"]) == (ranks - 1, None)
    assert 0 < first[0]["left"] < joined["joined"]
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        f"rank{ranks - 1}.epoch{joined['epoch']}.report",
        *(f"rank{rank}.report" for rank in range(ranks)),
    }
    (note,) = (note for note in found["notes"] if "joined after" in note)
    assert "rank 0 left or was lost after" in note
    assert f"rank {ranks - 1} (world {joined['epoch']}) joined after" in note
    assert all(len(each["waited_for"]) == ranks + 1 for each in found["per_rank"])


def test_a_full_disk_ends_the_recording_and_not_the_training(rueda: Rueda, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))\n"
        "import rueda\nrueda.init()\n"
        "for _ in range(5000): rueda.report.step()\nprint('trained')\n"
    )
    ran = rueda(*REPORT, "-np", "1", "--predict", "0", "python3", "train.py")
    assert ran.code == 0
    assert "trained" in ran.out
    assert "RUEDA_REPORT: cannot write" in ran.err
    assert "recording of rank 0 is cut short" in ran.out


def test_another_launcher_records_by_the_variable(rueda: Rueda, train: str, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    # From an earlier run with more ranks.
    (tmp_path / "kept" / "rank5.report").write_text("something")
    ran = rueda("run", "--no-mpi", "-np", "2", "python3", train, "12", RUEDA_REPORT="kept")
    assert ran.code == 0, ran.err
    assert "RUEDA_REPORT is unknown" not in ran.err
    assert (tmp_path / "kept" / "rank5.previous").exists()
    ran = rueda("report", "--predict", "0", "kept")
    assert ran.code == 0, ran.err
    assert "straggler" in ran.out
    assert "Rank 1 is permanently slow" in ran.out


def report(*arguments: object) -> Result:
    return CliRunner().invoke(make_report_command(), list(map(str, arguments)))


def test_what_cannot_be_reported_is_said_in_a_sentence(tmp_path: Path) -> None:
    for arguments, says in (
        ([tmp_path], "has no recording"),
        ([tmp_path / "none"], "cannot be read: No such file"),
        (["python3", "train.py"], "to run a command, give -np N"),
        (["--out", "x", tmp_path], "--out needs a run"),
        (["--predict", "many", tmp_path], "--predict many"),
        (["--predict=-3", tmp_path], "--predict -3: give numbers of ranks"),
        (["--predict", "1", tmp_path], "nothing is predicted for 1 rank; give numbers from 2 to"),
        (["--predict", "4,1000000", tmp_path], "nothing is predicted for 1,000,000 ranks;"),
        (["--np", "0", "true"], "--np"),
    ):
        ran = report(*arguments)
        assert ran.exit_code == 2
        assert says in ran.output


def test_what_lost_ranks_have_left_is_told_beside_the_steps_of_the_others(tmp_path: Path) -> None:
    _, second = two_ranks(tmp_path, steps=30)
    rows = second.rows
    last = np.flatnonzero(rows["kind"] == Kind.STEP)[1]
    file_of(tmp_path, 1).write_bytes(second.header.line() + rows[: last + 1].tobytes())
    found = json.loads(report(tmp_path, "--json", "--predict", "0").stdout)
    assert [each["steps"] for each in found["per_rank"]] == [30, 2]
    assert found["step"] == pytest.approx(0.09)
    notes = found["notes"]
    assert any("rank 1 recorded fewer than half of the 30 steps" in note for note in notes)
    assert not any("fewer than four" in note for note in notes)


def test_what_a_lost_rank_did_not_do_is_not_in_the_speed_up(tmp_path: Path) -> None:
    elastic_run(tmp_path, lost=2, joins=20)
    found = json.loads(report(tmp_path, "--json", "--predict", "0").stdout)
    assert (found["ranks"], found["ranks_of_steps"]) == (2, 1)
    assert found["efficiency"] == found["speedup"] == pytest.approx(60 / 65)
    assert any("1 rank did 0.92 times the work" in line for line in found["sentences"])
    elastic_run(tmp_path, lost=11, joins=20)
    file_of(tmp_path, 1).unlink()
    found = json.loads(report(tmp_path, "--json", "--predict", "0").stdout)
    says = "On average, 1.47 ranks did 1.36 times the work of one: efficiency 93%."
    assert any(says in line for line in found["sentences"])


@pytest.mark.parametrize("lost", [5, 20])
def test_links_are_fitted_only_if_all_ranks_did_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    for one in elastic_run(tmp_path, lost=lost, joins=20):
        header = replace(one.header, hosts=2, local_size=1)
        file_of(tmp_path, header.rank).write_bytes(header.line() + one.rows.tobytes())
    fitted = Links(1.0, 1.0, "fitted")
    monkeypatch.setattr("rueda.launcher.report.assembly.find_simulator", lambda: tmp_path)
    monkeypatch.setattr("rueda.launcher.report.assembly.fit_bandwidth", lambda *_: fitted)
    assert (assemble(tmp_path, Asked()).links == fitted) == (lost == 20)


def test_the_plots_of_steps_count_them_from_the_same_one(tmp_path: Path) -> None:
    elastic_run(tmp_path)
    figure, left, right = MagicMock(), MagicMock(), MagicMock()
    figure.subplots.return_value = left, right
    _draw_steps(assemble(tmp_path, Asked()), figure)
    curves = [drawn.args[0].tolist() for drawn in left.plot.call_args_list]
    assert curves == [[*range(1, 20)], [*range(1, 6)], [*range(9, 20)]]
    assert right.stackplot.call_args.args[0].tolist() == [*range(9, 20)]


def test_what_no_step_is_predicted_from_is_not_told_of(tmp_path: Path) -> None:
    other = [row(Kind.SUBMIT, at * MS, at * MS, 8, 32, MAIN | NO_ALLREDUCE) for at in (1055, 1155)]
    for rank, one in enumerate(two_ranks(tmp_path)):
        rows = np.concatenate([one.rows, np.frombuffer(b"".join(other), one.rows.dtype)])
        rows = rows[np.argsort(rows["end"], kind="stable")]
        file_of(tmp_path, rank).write_bytes(one.header.line() + rows.tobytes())
    for sizes in ("0", "2"):
        found = json.loads(report(tmp_path, "--json", "--predict", sizes).stdout)
        said = any("predicted steps are too short" in note for note in found["notes"])
        has_simulator = not any("simulator is not installed" in note for note in found["notes"])
        assert said == (sizes == "2" and has_simulator)


def test_a_page_is_written_of_a_command_that_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_ranks(tmp_path)
    monkeypatch.setattr("rueda.launcher.report.command.require_matplotlib", lambda _: None)
    monkeypatch.setattr("rueda.launcher.report.page.page_of", lambda _: "caf\udce9")
    ran = report("--html", tmp_path / "page.html", "--predict", "0", tmp_path)
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "page.html").read_text() == "caf\\udce9"


def test_a_baseline_is_what_speed_up_is_relative_to(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    two_ranks(tmp_path / "two")
    rows = [row(Kind.BEGIN, 0), *(row(Kind.STEP, (n + 1) * 45 * MS) for n in range(9))]
    recording([*rows, row(Kind.END, 500 * MS)], tmp_path / "one", size=1)
    flags = ["--json", "--predict", "0", "--baseline"]
    found = json.loads(report(tmp_path / "two", *flags, tmp_path / "one").stdout)
    assert found["one_rank"] == pytest.approx(0.045)
    assert found["speedup"] == pytest.approx(2 * 45 / 90)
    ran = report(*flags, tmp_path / "two", tmp_path / "two")
    assert ran.exit_code == 2
    assert "give a recording of one rank" in ran.output


def test_the_page_has_all_that_the_terminal_tells_of_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_ranks(tmp_path)
    found = replace(
        assemble(tmp_path, Asked()),
        predictions=[Prediction(1234, 617, 0.5, 0.0771, 0.0882, 1000.0, 0.81)],
    )
    monkeypatch.setattr("rueda.launcher.report.page._svg", lambda *_: "")
    page = page_of(found)
    for cell in ("1,234", "617", "500.0", "77.1", "88.2", "1000.0", "81%"):
        assert f"<td>{cell}</td>" in page
    heads = "".join(f"<th>{head}</th>" for head in PREDICTED)
    assert f"<tr>{heads}</tr>" in page
    assert "<th>waits, ms</th>" in heads


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_the_page_needs_no_other_file(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    ran = report("--html", tmp_path / "page.html", *SPREAD, tmp_path)
    assert ran.exit_code == 0, ran.output
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3
    assert "src=" not in page
    assert "<link" not in page
    assert "straggler wait" in page
    name = "x" * 300  # longer than a file name may be
    ran = report("--html", tmp_path / name, "--predict", "0", tmp_path)
    assert ran.exit_code == 2
    assert "xxx': File name too long" in ran.output
    assert "straggler" in ran.output, "what was found is told all the same"


def test_what_could_not_be_told_in_the_end_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rueda.launcher.report.command.require_matplotlib", lambda _: None)
    for flags, says in (
        (["--baseline", tmp_path / "typo"], "cannot be read: No such file"),
        (["--html", tmp_path / "none" / "page.html"], f"there is no folder '{tmp_path / 'none'}'"),
        (["--predict", "1"], "nothing is predicted for 1 rank;"),
    ):
        ran = report(*flags, "--np", "1", "touch", tmp_path / "ran")
        assert ran.exit_code == 2
        assert says in ran.output
    assert not (tmp_path / "ran").exists()


def test_after_a_run_that_could_not_start_its_flags_are_told_from_those_of_this_command(
    rueda: Rueda, tmp_path: Path
) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nexit 1\n")
    mpirun.chmod(0o755)
    ran = rueda("report", f"--launch=--mpirun {mpirun}", "-np", "1", "true")
    assert ran.code == 2
    assert "--launch=--no-mpi" in ran.last_line
    assert "rueda-report-" not in ran.err


def test_a_run_is_told_apart_from_what_its_folder_has(rueda: Rueda, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    two_ranks(tmp_path / "kept")
    ran = rueda(*REPORT, "-np", "1", "--out", "kept", "true")
    assert ran.code == 2
    assert "no rank has called rueda.init()" in ran.last_line
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "rank0.previous",
        "rank1.previous",
    }
    (tmp_path / "file").touch()
    ran = rueda(*REPORT, "-np", "1", "--out", "file/kept", "touch", "ran")
    assert ran.code == 2
    assert "cannot record in 'file/kept': Not a directory" in ran.last_line
    assert not (tmp_path / "ran").exists()


def test_of_a_program_that_does_nothing_with_rueda_that_is_told(
    rueda: Rueda, tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text(
        "import sys\nif len(sys.argv) > 1:\n"
        "    import rueda\n    rueda.init()\n    for _ in range(9): rueda.report.step()\n"
    )
    ran = rueda(*REPORT, "-np", "2", "python3", "alone.py")
    assert ran.code == 2
    assert "no rank has called rueda.init()" in ran.last_line
    assert "rueda report -np" not in ran.err, "this is what has just been done"
    ran = rueda(*REPORT, "-np", "2", "--predict", "2", "--json", "python3", "alone.py", "init")
    assert ran.code == 0, ran.err
    notes = json.loads(ran.out)["notes"]
    assert any("no operation was recorded" in note for note in notes)
    assert not any("allreduce" in note for note in notes)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*LAUNCHER, *arguments],
        env=launcher_environment(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(folder: Path, script: str) -> tuple[int, str, str]:
    """Reports on the script on two ranks, and interrupts that once rank 0 has printed a line to standard error."""
    (folder / "program.py").write_text(script)
    flags = ["-np", "2", "--launch=--no-mpi --grace 60", "--predict", "0", "--json"]
    process = start(folder, "report", *flags, "python3", "program.py")
    try:
        assert process.stderr is not None
        while "up" not in (line := process.stderr.readline()):
            assert line, "it has ended"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, err


def test_of_an_interrupted_run_what_was_recorded_is_reported(tmp_path: Path) -> None:
    code, out, err = interrupted(
        tmp_path,
        "import sys, time, rueda\nrueda.init()\n"
        "for _ in range(10): rueda.report.step()\n"
        "rueda.barrier()\nif rueda.rank() == 0: print('up', file=sys.stderr)\ntime.sleep(300)\n",
    )
    assert code == 130, err
    assert "rueda: ended by SIGINT; all ranks are gone" in err
    assert [each["steps"] for each in json.loads(out)["per_rank"]] == [9, 9]


def test_of_an_interrupted_run_without_a_recording_that_is_told(tmp_path: Path) -> None:
    code, out, err = interrupted(
        tmp_path,
        "import os, sys, time\nif os.environ['RUEDA_RANK'] == '0': print('up', file=sys.stderr)\n"
        "time.sleep(300)\n",
    )
    assert code == 130, err
    assert err.endswith("rueda: no rank has recorded anything\n")
    assert out == ""


def test_a_report_that_nobody_reads_or_can_read(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    for flags in ([], ["--json"]):
        arguments = ["report", "--predict", "0", *flags, "."]
        read_end, write_end = os.pipe()
        os.close(read_end)
        for stream, words, code in (
            (write_end, [], 141),
            (None, ["sh", "-c", 'exec "$@" >&-', "sh"], 0),
        ):
            ran = subprocess.run(
                [*words, *LAUNCHER, *arguments], env=launcher_environment(), cwd=tmp_path,
                stdout=stream, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert ran.returncode == code, ran.stderr
            assert ran.stderr == ""
        os.close(write_end)


@pytest.mark.parametrize("flag", ["--bandwidth", "--latency"])
def test_numbers_are_finite(flag: str, tmp_path: Path) -> None:
    two_ranks(tmp_path)
    ran = report(flag, "nan", tmp_path)
    assert ran.exit_code == 2
    assert "nan is not a finite number" in ran.output


def test_without_matplotlib_the_page_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ran = report("--html", tmp_path / "page.html", "--np", "1", "touch", tmp_path / "ran")
    assert ran.exit_code == 2
    assert "--html needs matplotlib: pip install matplotlib" in ran.output
    assert not (tmp_path / "ran").exists()
