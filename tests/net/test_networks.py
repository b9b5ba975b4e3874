"""Correct sums over networks that throttle, delay or lose packets, and per congestion control."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .lab import Lab
from .lab.fixture import MakeLab, or_skip
from .launching import Launcher

pytest.importorskip("rueda._native")

HOSTS = ["-H", "h0:1,h1:1", "--no-prefix"]
PROGRAM = """
    import numpy as np
    import rueda
    rueda.init()
    for step in range({steps}):
        for count in (1, 1000, {most}):
            total = rueda.allreduce(np.arange(count) + rank + step, name=str(count), op=rueda.Sum)
            assert np.array_equal(total, 2 * (np.arange(count) + step) + 1)
    print("done", rank, flush=True)
"""


def cap_flows(lab: Lab) -> None:
    lab.cap_flows(
        ["80mbit", "80mbit", "20mbit", "80mbit", "40mbit", "80mbit", "80mbit", "80mbit"], "sport"
    )


def delay(lab: Lab) -> None:
    lab.delay(0.02)


def lose(lab: Lab) -> None:
    lab.lose(5)


def use_reno(lab: Lab) -> None:
    lab.use_congestion_control("reno")


def use_bbr(lab: Lab) -> None:
    lab.use_congestion_control("bbr")


@pytest.mark.parametrize("change", [cap_flows, delay, lose, use_reno, use_bbr])
def test_sums_are_right(make_lab: MakeLab, tmp_path: Path, change: Callable[[Lab], None]) -> None:
    lab = make_lab(2, rate="500mbit")
    with or_skip():
        change(lab)
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    ran = launcher.run(*HOSTS, *launcher.program(PROGRAM.format(steps=4, most=1 << 20)))
    assert ran.code == 0, ran.err
    assert ran.out.count("done") == 2


def test_flows_that_are_held_back_are_several(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    lab.cap_flows(["80mbit"] * 8, "sport")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    program = launcher.program(PROGRAM.format(steps=20, most=1 << 20))
    ran = launcher.run(*HOSTS, *program, RUEDA_LOG_LEVEL="debug")
    assert ran.code == 0, ran.err
    numbers = [int(number) for number in re.findall(r"is sent data over (\d+) streams", ran.err)]
    assert max(numbers, default=1) > 1, ran.err
