"""Hosts with two links: both carry data, and either may be cut during a collective."""

from __future__ import annotations

import subprocess
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


SURVIVING = """
    import numpy as np
    import rueda
    rueda.init()
    process = rank
    measured = rueda.host_links()
    assert measured[0].transport == "tcp" and measured[0].latency_us > 0, measured
    mark("ready")
    try:
        while True:
            rueda.allreduce(np.ones(1000), name="x")
            if process == 2 and pathlib.Path("now").exists():
                os.kill(os.getpid(), signal.SIGKILL)
    except rueda.PeerLostError as error:
        assert "rank 2 " in str(error), error
    rueda.recover(timeout=60)
    assert np.all(rueda.allreduce(np.ones(1 << 20), op=rueda.Sum, name="y") == 2)
    assert rueda.host_links()[:1] == measured, (rueda.host_links(), measured)
    print("done", rueda.size(), flush=True)
"""


def wait_until_used(process: subprocess.Popen[str], link: Link, count: int) -> None:
    """Waits for `count` more sent bytes; fails before the system drops a connection (30 s)."""
    used = link.counters().sent_bytes
    deadline = time.monotonic() + 25
    while link.counters().sent_bytes < used + count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize(
    ("cut", "mend"),
    [(Link.cut, Link.mend), (Link.silence, Link.end_silence)],
    ids=["down", "silent"],
)
def test_a_link_that_is_cut_costs_no_result(
    make_lab: MakeLab,
    tmp_path: Path,
    cut: Callable[[Link], None],
    mend: Callable[[Link], None],
    number: int,
) -> None:
    lab = make_lab(2, links=2, rate="200mbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    link, other = lab.link("h1", number), lab.link("h1", 1 - number)
    with launcher.running(*BOTH, *launcher.program(PROGRAM), ranks=2) as process:
        cut(link)
        wait_until_used(process, other, 20 << 20)
        mend(link)
        wait_until_used(process, link, 4 << 20)
        (tmp_path / "enough").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count("done") == 2


def test_links_may_be_cut_in_turn(make_lab: MakeLab, tmp_path: Path) -> None:
    """While one link is cut, the other also carries the ranks' negotiation."""
    lab = make_lab(2, links=2, rate="200mbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    links = [lab.link("h1", number) for number in (0, 1)]
    with launcher.running(*BOTH, *launcher.program(PROGRAM), ranks=2) as process:
        for number in (0, 1, 0):
            link, other = links[number], links[1 - number]
            link.cut()
            wait_until_used(process, other, 8 << 20)
            link.mend()
            wait_until_used(process, link, 4 << 20)
        (tmp_path / "enough").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count("done") == 2


def test_a_rank_is_killed_while_a_first_link_is_silent(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, links=2, rate="200mbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    line = ["-H", "h0:1,h1:1,h2:1", "--min-np", "1", "--interface", "eth0,eth1", "--no-prefix"]
    with launcher.running(*line, *launcher.program(SURVIVING), ranks=3) as process:
        lab.link("h1", 0).silence()
        (tmp_path / "now").touch()
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert out.count("done 2") == 2, out + err
