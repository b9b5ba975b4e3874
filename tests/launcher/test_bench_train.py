"""`rueda bench train`: its tables, and small runs of the real thing."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import click
import click.testing
import pytest
from rueda.launcher.bench.train.command import make_train_command
from rueda.launcher.bench.train.group import with_training
from rueda.launcher.bench.train.report import is_right, render
from rueda.launcher.native import Native

native = Native(ModuleType("rueda._native"), option_table=[])


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
    bench = with_training(collectives, native)
    for arguments, expected in (
        ([], "allreduce None"),
        (["allgather", "-b", "4"], "allgather 4"),
        (["-b", "4"], "allreduce 4"),
    ):
        assert runner.invoke(bench, arguments).output.strip() == expected
    assert "--bucket-bytes" in runner.invoke(bench, ["train", "--help"]).output
    refused = runner.invoke(bench, ["train", "--models", "synthetic,nonsense"])
    assert refused.exit_code == 2
    assert "nonsense" in refused.output


def test_models() -> None:
    torch = pytest.importorskip("torch")
    from rueda.launcher.bench.train.models import resnet50_shapes, trainings

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
    run = click.testing.CliRunner().invoke(make_train_command(native), [*arguments, *how, *files])
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
