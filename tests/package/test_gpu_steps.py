"""GPU tests on a machine lent for minutes: run in parts, within a deadline, saving results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "gpu"))

import first_light  # noqa: E402
from gpu_steps import SKIPPED, Step, Steps  # noqa: E402

# Records a passed test, then hangs, next to a process in its own session.
STAYS = """
import json, os, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
with open(os.environ["RUEDA_TEST_RECORD"], "a") as record:
    record.write(json.dumps({"test": "first", "outcome": "passed", "child": child.pid}) + "\\n")
print("it is here", flush=True)
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("asked to end", flush=True)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_every_gpu_test_belongs_to_one_step() -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", "tests/gpu/first_light.ini"),
            *("--rootdir", ".", "--collect-only", "-q", "tests/gpu"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "RUEDA_TEST_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    collected = [line for line in ended.stdout.splitlines() if "::" in line]
    assert len(collected) > 20, ended.stdout
    chosen = [
        word
        for part in first_light.PARTS.values()
        for step in part()
        for word in step.command
        if word.startswith("tests/gpu/test_")
    ]
    for test in collected:
        by = [each for each in chosen if test == each or test.startswith((f"{each}[", f"{each}::"))]
        assert len(by) == 1, (test, by)
    for each in chosen:
        assert any(test == each or test.startswith(each) for test in collected), each


def test_each_part_begins_with_what_it_needs() -> None:
    for name, part in first_light.PARTS.items():
        steps = part()
        assert steps[0].required, name
        assert len({step.name for step in steps}) == len(steps), name
        assert all(step.limit < 570 for step in steps), name


def test_steps_end_in_time_and_keep_what_they_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps("part", tmp_path, seconds=120, grace=1)
    ok = steps.run(
        [
            Step("passes", python("print('fine')"), 30),
            Step("stays", python(STAYS), 5),
            Step("is skipped", python(f"print('no card'); raise SystemExit({SKIPPED})"), 30),
            Step("does nothing", python("print('skipped: none')"), 30, skip_mark="skipped:"),
            Step("fails", python("print('the reason'); raise SystemExit(3)"), 30, required=True),
            Step("needs it", python("print('never')"), 30),
        ]
    )
    assert not ok
    content = json.loads((tmp_path / "part.json").read_text())
    assert content["still to come"] == []
    by_name = {step["name"]: step for step in content["steps"]}
    assert {name: step["outcome"] for name, step in by_name.items()} == {
        "passes": "passed",
        "stays": "failed",
        "is skipped": "skipped",
        "does nothing": "skipped",
        "fails": "failed",
        "needs it": "not reached",
    }
    assert by_name["stays"]["reason"] == "not over after 5 s"
    assert by_name["is skipped"]["reason"] == "no card"
    assert by_name["does nothing"]["reason"] == "skipped: none"
    assert by_name["fails"]["reason"] == "exit status 3: the reason"
    assert by_name["needs it"]["reason"] == "'fails' has not passed"
    (record,) = by_name["stays"]["records"]
    assert record["test"] == "first"
    assert not is_there(record["child"])
    log = (tmp_path / "part.log").read_text()
    assert "asked to end" in log
    assert "never" not in log
    printed = capsys.readouterr().out
    assert "the reason" in printed
    assert "1 passed" in steps.summary().splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.json", "part.log"]


def test_what_the_deadline_cuts_off_is_named(tmp_path: Path) -> None:
    steps = Steps("part", tmp_path, seconds=5, grace=1)
    began = time.monotonic()
    assert not steps.run([Step("sleeps", ["sleep", "60"], 50), Step("comes after", ["true"], 50)])
    assert time.monotonic() - began < 30
    outcomes = json.loads((tmp_path / "part.json").read_text())["steps"]
    assert [step["outcome"] for step in outcomes] == ["failed", "not reached"]
    assert outcomes[1]["reason"] == "the time was over"
