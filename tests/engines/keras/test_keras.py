"""rueda.keras with real ranks, on each backend of Keras, in .engines/keras."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).resolve().parent / "check_keras.py"
PYTHON = ROOT / ".engines" / "keras" / "bin" / "python"
CHECKS = [
    each.name
    for each in ast.parse(SCRIPT.read_text()).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("check_")
]
# What hangs is to fail while the test still waits.
STALLS = {"RUEDA_STALL_WARNING": "10", "RUEDA_STALL_ERROR": "30"}


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_one_script_on_each_backend(backend, tmp_path):
    if not PYTHON.exists():
        pytest.skip("there is no .engines/keras: make engines ENGINES=keras")
    command = [PYTHON, "-m", "rueda", "run", "-np", "2", PYTHON, SCRIPT]
    ended = subprocess.run(
        [*map(str, command), str(tmp_path), str(ROOT / "docs" / "keras.md")],
        env={**os.environ, **STALLS, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in range(2):
        assert re.findall(rf"^\[{rank}\]<stdout>: ok (\w+)", ended.stdout, re.MULTILINE) == CHECKS


def imported_with(tmp_path, version):
    """What `import rueda.keras` says where Keras is of that version, or is not installed."""
    if version is None:
        code = "import sys; sys.modules['keras'] = None\n"
    else:
        (tmp_path / "keras.py").write_text(f"__version__ = {version!r}\n")
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "import rueda\ntry:\n    import rueda.keras\nexcept ImportError as error:\n    print(error)\n"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout


@pytest.mark.parametrize("version", ["2.15.0", "4.0.0"])
def test_another_major_version_is_refused_in_a_sentence(tmp_path, version):
    assert imported_with(tmp_path, version) == (
        f"rueda.keras needs Keras 3 and Keras {version} is installed: pip install 'keras>=3,<4'\n"
    )


def test_without_keras_it_is_asked_for_in_a_sentence(tmp_path):
    assert imported_with(tmp_path, None) == "rueda.keras needs Keras 3: pip install 'keras>=3,<4'\n"
