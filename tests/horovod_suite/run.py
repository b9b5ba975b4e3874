"""Runs Horovod's own tests for TensorFlow and Keras on Rueda, and prints how many pass.

git clone https://github.com/horovod/horovod CHECKOUT && git -C CHECKOUT checkout 2626dc8
.engines/keras/bin/python tests/horovod_suite/run.py CHECKOUT [FILE...]

Nothing is fetched. The checkout is left alone: its tests are copied, and changed by keras3.patch where they need
Keras 2.
pytest and cloudpickle come from the Python of the environment of all tests, which is VIRTUAL_ENV or .venv.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RANKS = {
    "test_tensorflow.py": 2,
    "test_tensorflow_process_sets.py": 4,
    "test_tensorflow2_keras.py": 2,
}
LIMIT = 1800  # seconds


def site_packages() -> str:
    """Returns the folder that has pytest."""
    python = Path(os.environ.get("VIRTUAL_ENV") or ROOT / ".venv") / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('platlib'))"
    return subprocess.check_output([python, "-c", asked], text=True).strip()


def run(folder: Path, file: str, site: str) -> bool:
    """Runs one file on all its ranks and prints rank 0's results; True if pytest finished."""
    output = folder / f"output of {file}"
    line = [
        sys.executable,
        "-m",
        "rueda",
        "run",
        "--horovod",
        "--gloo",
        "--output-filename",
        output,
    ]
    # A rank whose test failed runs the next one, and so do the others.
    line += ["-np", str(RANKS[file]), sys.executable, HERE / "rank.py", folder, site, file]
    variables = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    ended = subprocess.run(
        line, env=variables, stdout=subprocess.DEVNULL, timeout=LIMIT, check=False
    )
    told = next(output.glob("rank.*0/stdout"), output / "rank.0").read_text().splitlines()
    for each in told:
        if re.match(
            r"(FAILED|ERROR) |/.*: \w*(Error|Exception)|.*\b(passed|failed)\b.* in [\d.]+s", each
        ):
            print(f"{file}: {each}", flush=True)
    return ended.returncode in (0, 1)


def main(checkout: Path, files: list[str]) -> None:
    """See the module's docstring."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copytree(checkout / "test", folder / "test")
        with (HERE / "keras3.patch").open() as patch:
            subprocess.run(["patch", "-s", "-p1"], stdin=patch, cwd=folder, check=True)
        site = site_packages()
        ended = [run(folder, file, site) for file in files or RANKS]
    sys.exit(not all(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
