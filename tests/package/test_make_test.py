"""The order of the steps of `make test`, with stand-ins for the tools that log their calls."""

import doctest
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The purpose of a tool's call; the call named by BROKEN fails.
STAND_IN = """#!/bin/sh
case "$(basename "$0") $*" in
  "cmake --preset "*) exit 0 ;;
  "cmake --build --preset "*) what="compile $3" ;;
  "ctest --test-dir "*)
    what="test ${2#build/}"
    mkdir -p "$2/Testing/Temporary" && echo "$REPORT" >"$2/Testing/Temporary/LastTest.log" ;;
  "python -m pytest "*) what="test python" ;;
  "engines.sh "*) what="install $*" ;;
esac
echo "$what" >>calls
[ "$what" != "$BROKEN" ]
"""

SCRIPTS = (".ci/setup.sh", ".ci/engines.sh")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (*(f"venv/bin/{tool}" for tool in ("cmake", "ctest", "python")), *SCRIPTS):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n" if name == ".ci/setup.sh" else STAND_IN)
        program.chmod(0o755)
    return tmp_path


def make(
    tree: Path, target: str, broken: str = "", report: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Runs a target; returns the result and the names of the calls."""
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    ran = subprocess.run(
        ["make", target, "VENV=venv", "JOBS=1"],
        cwd=tree,
        env={**environment, "BROKEN": broken, "REPORT": report},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    calls = tree / "calls"
    return ran, calls.read_text().splitlines() if calls.exists() else []


def test_one_part_runs_after_another(tree: Path) -> None:
    ran, calls = make(tree, "test")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert calls[0] == "compile release"
    assert [call for call in calls if call != "compile release"] == [
        "test release",
        "install optuna hydra kubernetes dask jax intelmpi",
        "test python",
        "compile asan",
        "test asan",
        "compile tsan",
        "test tsan",
    ]
    for part in ("pytest", "asan build", "tsan build", "asan tests", "tsan tests"):
        assert f"==> {part}: " in ran.stdout + ran.stderr


@pytest.mark.parametrize("broken", ["test python", "test asan"])
def test_all_parts_run_where_one_has_failed(tree: Path, broken: str) -> None:
    ran, calls = make(tree, "test", broken=broken)
    assert ran.returncode != 0
    assert calls[-1] == "test tsan"


def test_threads_are_looked_at_where_memory_has_failed(tree: Path) -> None:
    ran, calls = make(tree, "sanitizers", broken="test asan")
    assert ran.returncode != 0
    assert calls[-1] == "test tsan"


@pytest.mark.parametrize("broken", ["test python", "test tsan", "compile asan", "test release"])
def test_whatever_fails_is_the_result(tree: Path, broken: str) -> None:
    ran, _ = make(tree, "test", broken=broken)
    assert ran.returncode != 0


def test_engines_that_cannot_be_installed_are_done_without(tree: Path) -> None:
    ran, calls = make(tree, "test", broken="install optuna hydra kubernetes dask jax intelmpi")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "their tests are skipped" in ran.stdout
    assert "test python" in calls


def test_a_report_of_a_sanitizer_fails_also_where_the_test_passed(tree: Path) -> None:
    ran, _ = make(tree, "test", report="WARNING: ThreadSanitizer: data race")
    assert ran.returncode != 0


def test_the_tests_are_shared_out_as_the_examples_say() -> None:
    sharing = pytest.importorskip("sharing", reason="pytest-xdist is absent")
    failed, tried = doctest.testmod(sharing)
    assert tried
    assert not failed
