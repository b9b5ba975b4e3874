"""`rueda bench train`: its tables, and small runs of the real thing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import click.testing
import pytest
from rueda.bench.subcommands import with_subcommands
from rueda.bench.train.command import make_train_command
from rueda.bench.train.doors import DOORS
from rueda.bench.train.doors_report import merged, read_report, render_run
from rueda.bench.train.doors_report import render as render_doors
from rueda.bench.train.report import is_right, render
from rueda.launcher.errors import LaunchError


def report() -> dict:
    def row(median: float, exposed: float) -> dict[str, float]:
        return {
            "median_ms": median, "p10_ms": median - 1, "p90_ms": median + 1, "steps": 8,
            "exposed_ms": exposed,
        }  # fmt: skip

    return {
        "ranks": 2, "threads": 1, "torch": "2.0", "transport": "shm", "bucket_bytes": 8,
        "notes": ["a note"],
        "models": {
            "synthetic": {
                "tensors": 161, "bytes": 102_228_128, "wrong": [],
                "results": {
                    "none": row(100, 0), "buckets": row(110, 10), "copies": row(115, 15),
                    "ddp": row(140, 40), "ddp-rueda": row(112, 12),
                },
            },
            "gradients": {
                "tensors": 161, "bytes": 102_228_128, "wrong": [],
                "results": {"buckets": row(8, 0), "mpi": row(36, 0)},
            },
        },
    }  # fmt: skip


def test_tables() -> None:
    lines = render(report()).splitlines()
    assert "a note" in lines
    assert "synthetic: 161 tensors, 102.2 MB of gradients" in lines
    cells = {line[:30].strip(): line[30:].split() for line in lines}
    assert cells["no communication"] == ["100.00", "99.00", "101.00"]
    assert cells["rueda, gradients in buckets"] in (
        ["110.00", "109.00", "111.00", "10.00", "0.25"],
        ["8.00", "7.00", "9.00", "4.50"],
    )
    assert cells["DistributedDataParallel, rueda"][-1] == "0.30"
    assert "MPI_Allreduce, one tensor    36.00  35.00  37.00               1.00" in lines
    page = render(report(), markdown=True)
    assert "| rueda, gradients anywhere | 115.00 | 114.00 | 116.00 | 15.00 | 0.38 |" in page
    assert page.count("| --- | ---:") == 2


def test_what_is_wrong_is_said() -> None:
    found = report()
    assert is_right(found)
    found["models"]["gradients"]["wrong"] = ["buckets: 3 elements on rank 1"]
    assert not is_right(found)
    assert "WRONG: buckets: 3 elements on rank 1" in render(found)


def test_train_stands_beside_the_collectives() -> None:
    @click.command()
    @click.argument("collective", default="allreduce")
    @click.option("-b")
    def collectives(collective: str, b: str | None) -> None:
        click.echo(f"{collective} {b}")

    runner = click.testing.CliRunner()
    bench = with_subcommands(collectives)
    for arguments, expected in (
        (["allgather", "-b", "4"], "allgather 4"),
        (["-b", "4"], "allreduce 4"),
    ):
        assert runner.invoke(bench, arguments).output.strip() == expected
    assert "--bucket-bytes" in runner.invoke(bench, ["train", "--help"]).output
    refused = runner.invoke(bench, ["train", "--models", "synthetic,nonsense"])
    assert refused.exit_code == 2
    assert "there is no model 'nonsense'" in refused.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--models", "synthetic,mlp"], "'mlp' is measured only with --doors"),
        (["--doors", "--models", "gradients"], "'gradients' is measured only without --doors"),
        (["--quick"], "--quick belongs to --doors"),
        (["--add", "x.json"], "--add belongs to --doors"),
    ],
)
def test_what_needs_other_flags_is_told(arguments: list[str], why: str) -> None:
    refused = click.testing.CliRunner().invoke(make_train_command(), arguments)
    assert refused.exit_code == 2
    assert why in refused.output


def test_models() -> None:
    torch = pytest.importorskip("torch")
    from rueda.bench.train.models import resnet50_shapes, trainings

    shapes = resnet50_shapes()
    assert len(shapes) == 161
    assert sum(torch.Size(shape).numel() for shape in shapes) == 25_557_032
    for training in trainings(0).values():
        torch.manual_seed(0)
        model = training.make()
        training.loss(model, 0).backward()
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("how", [["--no-mpi"], []], ids=["builtin", "auto"])
def test_a_small_run(tmp_path: Path, how: list[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("rueda._native")
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    arguments = ["-np", "2", "--rounds", "1", "--steps", "1", "--models", "transformer,gradients"]
    files = ["--json", str(found), "--markdown", str(page)]
    run = click.testing.CliRunner().invoke(make_train_command(), [*arguments, *how, *files])
    assert run.exit_code == 0, run.output
    measured = json.loads(found.read_text())
    assert measured["schema"] == 1
    assert measured["ranks"] == 2
    assert list(measured["models"]) == ["transformer", "gradients"]
    training = measured["models"]["transformer"]
    assert {"none", "buckets", "copies"} <= set(training["results"])
    for model in measured["models"].values():
        assert model["wrong"] == []
        assert all(result["median_ms"] > 0 for result in model["results"].values())
    assert "WRONG" not in page.read_text()


def doors_report(model: str = "mlp", ranks: int = 2) -> dict:
    def row(median: float) -> dict[str, float]:
        return {
            "median_ms": median, "p10_ms": median - 1, "p90_ms": median + 1, "steps": 8,
            "page_faults": 8192, "exposed_ms": median - 50,
        }  # fmt: skip

    results = {name: row(50 + 10 * number) for number, name in enumerate(DOORS)}
    for name, result in results.items():
        if name != "alone":
            result["of_best"] = result["median_ms"] / 60
    run = {
        "model": model, "ranks": ranks, "threads": 1, "torch": "2.0", "tensors": 8,
        "bytes": 67_000_000, "wrong": [], "results": results,
    }  # fmt: skip
    return {"schema": 1, "kind": "doors", "head": {"CPU": "one"}, "runs": [run]}


def test_table_of_doors() -> None:
    run = doors_report()["runs"][0]
    lines = render_run(run).splitlines()
    assert lines[0] == "mlp, 2 ranks with 1 threads each: 8 tensors, 67.0 MB of gradients"
    cells = {line[:44].strip(): line[44:].split() for line in lines}
    assert cells["no communication"] == ["50.0", "49.0", "51.0", "8192"]
    assert cells["DistributedDataParallel over gloo"][-3:] == ["10.0", "1.00", "8192"]
    assert cells["rueda.torch.DistributedOptimizer"][-3:] == ["40.0", "1.50", "8192"]
    assert lines[-1] == "wrong: nothing"
    run["wrong"] = ["optimizer: the ranks' parameters differ"]
    assert "WRONG: optimizer: the ranks' parameters differ" in render_run(run)
    page = render_doors(doors_report(), markdown=True)
    assert "- CPU: one" in page
    assert "| rueda.torch.DistributedOptimizer | 90.0 |" in page


def test_reports_of_doors_are_put_together(tmp_path: Path) -> None:
    file = tmp_path / "doors.json"
    assert read_report(file) is None
    file.write_text(json.dumps(doors_report()))
    first = read_report(file)
    second = merged(first, doors_report("conv"))
    third = merged(second, doors_report("mlp", 4))
    again = doors_report("conv")
    again["runs"][0]["bytes"] = 1
    last = merged(third, again)
    found = {(run["model"], run["ranks"]): run["bytes"] for run in last["runs"]}
    assert found == {("mlp", 2): 67_000_000, ("conv", 2): 1, ("mlp", 4): 67_000_000}
    for text in ("{", "{}", json.dumps({"schema": 1, "models": {}})):
        file.write_text(text)
        with pytest.raises(LaunchError, match="is no report of"):
            read_report(file)


def test_reports_of_doors_that_were_measured_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left unchanged. The torch version is known once something has been measured."""
    from rueda.bench.train import doors_run

    def measured(model: str, *_: object) -> dict:
        return doors_report(model)["runs"][0]

    monkeypatch.setattr(doors_run, "measure_doors", measured)
    file = tmp_path / "doors.json"

    def run(model: str) -> int:
        return doors_run.run_doors([model], 2, doors_run.QUICK, None, file, None)

    assert run("mlp") == run("conv") == 0
    whole = json.loads(file.read_text())
    assert [run["model"] for run in whole["runs"]] == ["mlp", "conv"]
    for name in ("CPU", "kernel", "settings", "torch"):
        other = whole | {"head": whole["head"] | {name: "other"}}
        file.write_text(json.dumps(other))
        with pytest.raises(LaunchError, match=f"the runs in there differ in {name}: other; here: "):
            run("conv")
        assert json.loads(file.read_text()) == other


def test_options_of_doors() -> None:
    runner = click.testing.CliRunner()
    command = make_train_command()
    for arguments, word in (
        (["--quick"], "--quick belongs to --doors"),
        (["--add", "x"], "--add belongs to --doors"),
        (["--doors", "--models", "gradients"], "gradients"),
        (["--models", "mlp"], "mlp"),
        (["--doors", "--seconds", "nan"], "nan is not a number of seconds"),
        (["--doors", "--seconds", "inf"], "inf is not a number of seconds"),
    ):
        refused = runner.invoke(command, arguments)
        assert refused.exit_code == 2
        assert word in refused.output


DOOR_RUN = """
import json
from rueda.bench.progress import Progress
from rueda.bench.train.doors import measure_doors
from rueda.bench.train.doors_run import QUICK
with Progress() as progress:
    print(json.dumps(measure_doors("conv", 2, ("alone", "ddp-rueda", "optimizer"), QUICK, progress)))
"""


def test_a_quick_run_of_doors() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("rueda._native")
    # In its own process: whatever it leaves behind ends with it.
    command = [sys.executable, "-c", DOOR_RUN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    run = json.loads(ended.stdout)
    assert run["wrong"] == []
    assert list(run["results"]) == ["alone", "ddp-rueda", "optimizer"]
    assert min(result.get("of_best", 1.0) for result in run["results"].values()) == 1.0
    assert all(result["steps"] == 1 for result in run["results"].values())
    assert all(result["median_ms"] > 0 for result in run["results"].values())
