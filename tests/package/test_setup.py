"""The script that makes the environment: what it may delete, and what it reports."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def setup(venv: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Runs the script until it fails because its Python is unusable."""
    environment = {**os.environ, "VIRTUAL_ENV": str(venv), "PYTHON": python}
    return subprocess.run(
        [ROOT / ".ci" / "setup.sh", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def old_python(tmp_path: Path) -> str:
    """Stands in for a Python that is too old: the script ends without having made anything."""
    program = tmp_path / "old-python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    return str(program)


TOO_OLD = "Python 3.11 or newer is needed"


def test_a_folder_of_others_is_refused_and_left_alone(tmp_path: Path, old_python: str) -> None:
    venv = tmp_path / "precious"
    venv.mkdir()
    (venv / "thesis.tex").write_text("years of work")
    ran = setup(venv, old_python)
    assert ran.returncode == 1
    assert ran.stderr == (
        f".ci/setup.sh: {venv} exists and is no Python environment that works: remove it, or choose "
        "another folder with make VENV=FOLDER\n"
    )
    assert (venv / "thesis.tex").read_text() == "years of work"


def test_a_file_is_refused_and_left_alone(tmp_path: Path, old_python: str) -> None:
    venv = tmp_path / "precious"
    venv.write_text("years of work")
    assert "exists and is no Python environment" in setup(venv, old_python).stderr
    assert venv.read_text() == "years of work"


def test_what_the_script_has_made_is_made_anew_where_it_is_broken(
    tmp_path: Path, old_python: str
) -> None:
    venv = tmp_path / "venv"
    (venv / ".rueda").mkdir(parents=True)
    (venv / ".rueda" / "made").write_text("by .ci/setup.sh\n")
    (venv / "bin").mkdir()
    ran = setup(venv, old_python)
    assert TOO_OLD in ran.stderr
    assert not venv.exists()


@pytest.mark.parametrize("exists", [False, True])
def test_an_empty_folder_may_be_used(tmp_path: Path, old_python: str, exists: bool) -> None:
    venv = tmp_path / "venv"
    if exists:
        venv.mkdir()
    assert TOO_OLD in setup(venv, old_python).stderr


def test_how_far_a_build_is_is_told_now_and_then() -> None:
    script = (ROOT / ".ci" / "setup.sh").read_text()
    function = re.search(r"^now_and_then\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)
    assert function is not None
    # A clock on which each line takes 3 seconds.
    clock = 'unset SECONDS; SECONDS=0; read() { ((SECONDS += 3)); builtin read "$@"; }'
    said = subprocess.run(
        ["bash", "-c", f"{clock}\n{function[0]}\nnow_and_then"],
        input="".join(f"  [{n}/9] Building CXX object\n" for n in range(1, 10)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert said.split() == ["[4/9]", "[8/9]"]
