"""A short run of what `make worlds` does for as long as one likes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launching import run_to_end

pytest.importorskip("rueda._native")


def test_worlds_leave_nothing_behind() -> None:
    program = Path(__file__).with_name("soak_worlds.py")
    ended = run_to_end([sys.executable, str(program), "--minutes", "0.05"], {}, 240, "the soak")
    assert ended.returncode == 0, ended.output
    assert ended.output.count(" worlds: ") == 4
