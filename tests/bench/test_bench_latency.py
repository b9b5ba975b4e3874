"""`rueda bench latency`: its figures, and a small run of the real thing."""

from __future__ import annotations

import json
from pathlib import Path

import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.bench.latency.command import make_latency_command
from rueda.bench.latency.report import Distribution, Report

TIMES = st.lists(st.integers(1, 10**9), min_size=1, max_size=60)


@given(TIMES, st.sampled_from([0.1, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_no_less_than_that_part_of_the_calls(times: list[int], part: float) -> None:
    distribution = Distribution()
    distribution.add_run(times)
    found = distribution.quantile(part) * 1e9
    within = 1.02  # the resolution of the recorded times
    assert sum(time <= found * within for time in times) >= part * len(times)
    assert sum(time >= found / within for time in times) >= (1 - part) * len(times)


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_runs_can_be_added_in_parts(runs: list[list[int]]) -> None:
    at_once = Report({"command": "x"}, {"rueda": "1"})
    in_parts = Report({"command": "x"}, {"rueda": "1"})
    for run in runs:
        at_once.of("loop", "rueda").add_run(run)
        in_parts = Report.from_json(json.loads(json.dumps(in_parts.to_json())))
        in_parts.of("loop", "rueda").add_run(run)
    assert in_parts == at_once
    assert len(at_once.of("loop", "rueda").medians) == len(runs)


def test_a_slow_run_shows_in_the_table() -> None:
    report = Report({})
    for microseconds in (2, 2, 2, 2, 200):
        report.of("loop", "rueda").add_run([microseconds * 1000] * 100)
    cells = report.table().rows[0]
    assert cells[:3] == ["loop", "rueda", "5"]
    median, p90, p99, slowest = map(float, cells[3:])
    assert median == pytest.approx(2, rel=0.02)
    assert [p90, p99, slowest] == pytest.approx([200] * 3, rel=0.02)


def test_what_does_not_exist_is_refused() -> None:
    invoke = click.testing.CliRunner().invoke
    for arguments, word in (
        (["--contenders", "rueda,nonsense"], "nonsense"),
        (["--cases", "nonsense"], "nonsense"),
        (["--seconds", "nan"], "nan is not a number of seconds"),
        (["--seconds", "inf"], "inf is not a number of seconds"),
    ):
        refused = invoke(make_latency_command(), arguments)
        assert refused.exit_code == 2
        assert word in refused.output


def test_a_small_run(tmp_path: Path) -> None:
    pytest.importorskip("rueda._native")
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    cases = "barrier,private 64K,registered 4K"
    arguments = ["--runs", "1", "--contenders", "rueda", "--cases", cases]
    files = ["--add", str(found), "--markdown", str(page)]
    for runs in (1, 2):
        run = click.testing.CliRunner().invoke(
            make_latency_command(), [*arguments, *files], catch_exceptions=False
        )
        assert run.exit_code == 0, run.output
        report = Report.from_json(json.loads(found.read_text()))
        assert set(report.cases) == {"barrier", "private 64K", "registered 4K"}
        assert len(report.of("barrier", "rueda").medians) == runs
        assert report.of("barrier", "rueda").counts.total() == 2 * 1000 * runs
    assert "| barrier | rueda | 2 |" in page.read_text()
    for part, name in (
        *(("head", name) for name in ("ranks", "CPU", "kernel", "settings")),
        ("versions", "rueda"),
    ):
        kept = json.loads(found.read_text())
        kept[part][name] = "other"
        other = tmp_path / f"{name}.json"
        other.write_text(json.dumps(kept))
        refused = click.testing.CliRunner().invoke(
            make_latency_command(), [*arguments, "--add", str(other)]
        )
        assert refused.exit_code == 2
        assert f"the runs in there differ in {name}: other; here: " in refused.output
        assert json.loads(other.read_text()) == kept


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", '{"schema": 2}', '{"schema": 1, "cases": 3}']
)
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "found.json"
    file.write_text(text)
    arguments = ["--runs", "1", "--contenders", "rueda", "--cases", "barrier", "--add", str(file)]
    refused = click.testing.CliRunner().invoke(make_latency_command(), arguments)
    assert refused.exit_code == 2
    assert "is no report of `rueda bench latency`" in refused.output
    assert file.read_text() == text
