"""Short versions of the soak runs of `make worlds`."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_losses_leave_nothing_behind(transport: str) -> None:
    program = Path(__file__).with_name("soak_losses.py")
    line = [sys.executable, str(program), "--minutes", "0", "--warm-up", "3"]
    ended = run_to_end(line, {"RUEDA_TRANSPORT": transport}, 240, "the soak")
    assert ended.returncode == 0, ended.output
    (losses,) = re.findall(r"(\d+) losses, looked at after 3: ", ended.output)
    assert int(losses) >= 7, ended.output
