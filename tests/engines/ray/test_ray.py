"""rueda.ray on a cluster of its own, in .engines/ray."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engines.environments import ROOT, Engine
from launching import environment
from worlds import checks_in

SCRIPT = Path(__file__).resolve().parent / "check_ray.py"


def run(engine: Engine, script: Path, folder: Path) -> str:
    """One process, which starts the cluster itself; Ray ends the workers with it."""
    with subprocess.Popen(
        [engine.python, script, folder],
        env=environment({"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that what it has started ends with it
    ) as process:
        try:
            output, _ = process.communicate(timeout=280)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    return output


def test_checks(engine: Engine, tmp_path: Path) -> None:
    output = run(engine, SCRIPT, tmp_path)
    assert re.findall(r"^ok (\w+)", output, re.MULTILINE) == checks_in(SCRIPT), output


def test_the_example_of_the_page(engine: Engine, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ray.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    output = run(engine, script, tmp_path)
    distances = re.findall(r"^rank (\d): ([\d.e-]+)$", output, re.MULTILINE)
    assert [rank for rank, _ in distances] == ["0", "1"], output
    assert distances[0][1] == distances[1][1]
    assert float(distances[0][1]) < 1e-3


def imported_with(tmp_path: Path, version: str | None) -> str:
    """What `import rueda.ray` says where Ray is of that version, or is not installed."""
    if version is None:
        code = "import sys; sys.modules['ray'] = None\n"
    else:
        (tmp_path / "ray.py").write_text(f"__version__ = {version!r}\n")
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += (
        "import rueda\ntry:\n    import rueda.ray\nexcept ImportError as error:\n    print(error)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("version", ["1.13.0", "2.50.1"])
def test_an_old_version_is_refused_in_a_sentence(tmp_path: Path, version: str) -> None:
    assert imported_with(tmp_path, version) == (
        f"rueda.ray needs Ray 2.51 or newer and Ray {version} is installed: "
        "pip install 'ray[train]>=2.51'\n"
    )


def test_without_ray_it_is_asked_for_in_a_sentence(tmp_path: Path) -> None:
    assert imported_with(tmp_path, None) == "rueda.ray needs Ray: pip install 'ray[train]>=2.51'\n"
