"""Hosts with two links: both carry data, the second may be cut in the middle of a collective, the first for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .lab.fixture import MakeLab
from .lab.links import Link
from .launching import Launcher

pytest.importorskip("rueda._native")

BOTH = ["-H", "h0:1,h1:1", "--interface", "eth0,eth1", "--no-prefix"]
PROGRAM = """
    import numpy as np
    import rueda
    rueda.init()
    def reduce(count):
        for _ in range(count):
            total = rueda.allreduce(np.full(1 << 20, rank + 1.0, np.float32), name="x", op=rueda.Sum)
            assert np.all(total == 3)
    reduce(3)
    mark("ready")
    for step in range(1000):
        reduce(1)
        last = pathlib.Path("enough").exists()
        if rueda.allreduce(np.array([float(last)]), name="enough", op=rueda.Max)[0]:
            break
    print("done", rank, flush=True)
"""


def test_both_links_carry(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2, links=2, rate="200mbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    (tmp_path / "enough").touch()
    before = [lab.link("h0", number).counters().sent_bytes for number in (0, 1)]
    ran = launcher.run(*BOTH, *launcher.program(PROGRAM))
    assert ran.code == 0, ran.err
    assert ran.out.count("done") == 2
    sent = [lab.link("h0", number).counters().sent_bytes - before[number] for number in (0, 1)]
    assert min(sent) > sum(sent) / 5, sent


@pytest.mark.parametrize(
    ("cut", "mend"),
    [(Link.cut, Link.mend), (Link.silence, Link.end_silence)],
    ids=["down", "silent"],
)
def test_a_second_link_that_is_cut_costs_no_result(
    make_lab: MakeLab, tmp_path: Path, cut: Callable[[Link], None], mend: Callable[[Link], None]
) -> None:
    lab = make_lab(2, links=2, rate="200mbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    link = lab.link("h1", 1)
    with launcher.running(*BOTH, *launcher.program(PROGRAM), ranks=2) as process:
        cut(link)
        used = lab.link("h1", 0).counters().sent_bytes
        while lab.link("h1", 0).counters().sent_bytes < used + (20 << 20):
            assert process.poll() is None
        mend(link)
        used = link.counters().sent_bytes
        while link.counters().sent_bytes < used + (4 << 20):  # it is used again
            assert process.poll() is None
        (tmp_path / "enough").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count("done") == 2


# The control plane uses the first link alone.


def test_a_first_link_that_comes_back_costs_no_result(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2, links=2, rate="200mbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    link = lab.link("h1", 0)
    with launcher.running(*BOTH, *launcher.program(PROGRAM), ranks=2) as process:
        link.silence()
        time.sleep(2)
        assert process.poll() is None
        link.end_silence()
        used = link.counters().sent_bytes
        deadline = time.monotonic() + 60
        while link.counters().sent_bytes < used + (4 << 20):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (tmp_path / "enough").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count("done") == 2
