from __future__ import annotations

import subprocess
import sys

from rueda_command import launcher_environment

# What Python raises for a missing module.
HIDE = "import sys; sys.modules['rueda._native'] = None\n"


def python(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + text],
        env=launcher_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_check_runs_and_says_what_is_missing() -> None:
    ran = python("sys.argv[1:] = ['check']; from rueda.launcher.cli import main; main()")
    assert ran.returncode == 1, ran.stderr
    (line,) = [x for x in ran.stdout.splitlines() if x.startswith("native extension: no")]
    assert "rueda._native" in line
    assert "pip install" in line


def test_run_runs_and_says_what_is_missing() -> None:
    arguments = ["run", "--no-mpi", "-np", "2", "echo", "hello"]
    ran = python(f"sys.argv[1:] = {arguments}; from rueda.launcher.cli import main; main()")
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["[0]<stdout>: hello", "[1]<stdout>: hello"]
    assert "the native extension is missing" in ran.stderr


def test_the_library_itself_says_so_at_first_use() -> None:
    for use in ("import rueda; rueda.init()", "from rueda import allreduce"):
        ran = python(use)
        assert ran.returncode == 1
        assert "needs the native extension" in ran.stderr
        assert "rueda check" in ran.stderr
