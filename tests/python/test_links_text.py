"""What `python -m rueda.links` prints."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from rueda.links import describe


def world(*predictions: float) -> dict[str, Any]:
    rows = [
        {"bytes": 8 << number, "algorithm": f"a{number}", "predicted_us": predicted}
        for number, predicted in enumerate(predictions)
    ]
    return {"ranks": 2, "hosts": {"vm": 2}, "links": [], "allreduce": rows}


@pytest.mark.parametrize(
    ("predicted", "told"),
    [
        (0, "no time predicted: nothing was measured"),
        (0.034, "0.034 µs predicted"),
        (0.49, "0.49 µs predicted"),
        (9.96, "10 µs predicted"),
        (39.4, "39 µs predicted"),
        (1234.5, "1234 µs predicted"),
    ],
)
def test_a_short_time_is_not_none(predicted: float, told: str) -> None:
    assert describe(world(predicted)).splitlines()[-1] == f"allreduce from 8 bytes: a0, {told}"


def test_it_prints_whatever_the_encoding_lacks() -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RUEDA_")},
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "RUEDA_BOOTSTRAP": "none",
    }
    program = (
        "import rueda.links as links\nlinks.describe = lambda _: '39 \\u00b5s'\nlinks.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "39 ?s\n"), done.stderr
