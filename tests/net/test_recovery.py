"""Ranks on several hosts go on after ranks are killed and hosts are cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from .lab.fixture import MakeLab
from .launching import Launcher

pytest.importorskip("rueda._native")

PROGRAM = """
    import json
    import numpy as np
    import rueda
    rueda.init()
    process = rank
    def total(name="x"):
        return rueda.allreduce(np.full(1000, rueda.rank() + 1.0), op=rueda.Sum, name=name)
    def tell(**what):
        pathlib.Path(f"told.{process}").write_text(json.dumps(what))
    total()
    mark("ready")
    began = time.monotonic()
    try:
        while True:
            total()
            if process in DYING and pathlib.Path("now").exists():
                os.kill(os.getpid(), signal.SIGKILL)
    except rueda.RuedaError as error:
        noticed = time.monotonic()
    if process in DYING:  # another died before it
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        recovery = rueda.recover(timeout=30)
        # Those that die may be lost one after the other.
        while max(DYING) >= 0 and rueda.size() > size - len(DYING):
            try:
                total()
            except rueda.PeerLostError:
                rueda.recover(timeout=30)
        expected = rueda.size() * (rueda.size() + 1) / 2
        assert np.all(total() == expected)
        tell(left=recovery.previous_ranks, lost=recovery.lost, size=rueda.size())
        wait_for("told", ALL)
    except rueda.PeerLostError as error:
        tell(stopped=str(error))
"""


def told(folder: Path, ranks: Sequence[int]) -> list[dict]:
    """Returns what the ranks reported about their end."""
    return [json.loads((folder / f"told.{rank}").read_text()) for rank in ranks]


def program(launcher: Launcher, dying: set[int], telling: int) -> list[str]:
    """Returns a job's command: ranks `dying` kill themselves when told, `telling` ranks report."""
    text = PROGRAM.replace("DYING", repr(dying or {-1})).replace("ALL", str(telling))
    return launcher.program(text)


def test_ranks_of_other_hosts_are_lost(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, rate="1gbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    line = ["-H", "h0:2,h1:1,h2:2", "--min-np", "2", *program(launcher, {0, 3}, 3)]
    with launcher.running(*line, ranks=5) as process:
        (tmp_path / "now").touch()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    for one in told(tmp_path, [1, 2, 4]):
        assert one["size"] == 3, one
        assert {0, 3} >= {int(rank) for rank in one["lost"]}, one


def test_a_host_that_falls_silent_is_lost_and_stops_itself(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(4, rate="1gbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    line = ["-H", "h0:1,h1:1,h2:1,h3:1", "--min-np", "1", *program(launcher, set(), 4)]
    with launcher.running(*line, ranks=4) as process:
        lab.link("h2", 0).silence()
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, out + err
    for one in told(tmp_path, [0, 1, 3]):
        assert one["left"] == [0, 1, 3], one
        assert list(one["lost"]) == ["2"], one
    (alone,) = told(tmp_path, [2])
    assert "stopped" in alone, alone  # a minority never goes on


@pytest.mark.parametrize("answer", ["nothing", "reset", "port-unreachable"])
def test_two_halves_never_both_go_on(make_lab: MakeLab, tmp_path: Path, answer: str) -> None:
    """Packets are lost, or a firewall answers them as if the host were gone."""
    lab = make_lab(4, rate="1gbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    line = ["-H", "h0:1,h1:1,h2:1,h3:1", "--min-np", "1", *program(launcher, set(), 4)]
    with launcher.running(*line, ranks=4) as process:
        lab.part(["h0", "h1"], ["h2", "h3"], answer)
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0, out + err
    for one in told(tmp_path, [0, 1]):
        assert one["left"] == [0, 1], one  # the half with the lowest number
    for one in told(tmp_path, [2, 3]):
        assert "cannot reach the surviving" in one["stopped"] or "majority" in one["stopped"], one


SEPARATED = """
    import numpy as np
    import rueda
    rueda.init()
    process = rank
    def total():  # large, so that it is reduced around a ring
        return rueda.allreduce(np.full(300_000, rueda.rank() + 1.0), op=rueda.Sum, name="x")
    total()
    mark("ready")
    try:
        while True:
            total()
    except rueda.PeerLostError as error:
        found = str(error)
    try:
        recovery = rueda.recover(timeout=30)
        assert np.all(total() == 3)
        print("left", recovery.previous_ranks, found, flush=True)
    except rueda.PeerLostError as error:
        print("stopped", error, flush=True)
"""


def test_of_two_ranks_that_only_others_reach_one_is_lost(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, rate="1gbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    line = ["-H", "h0:1,h1:1,h2:1", "--min-np", "1", *launcher.program(SEPARATED)]
    with launcher.running(*line, ranks=3) as process:
        lab.part(["h1"], ["h2"])
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert out.count("left [0, ") == 2, out + err
    assert (
        "rank 1 cannot reach rank 2 at tcp:" in out or "rank 2 cannot reach rank 1 at tcp:" in out
    )
    assert out.count("stopped") == 1, out + err


FREEZING = """
    import numpy as np
    import rueda
    rueda.init()
    process = rank
    for step in range(30):
        if process == 2 and step == 10:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            rueda.allreduce(np.ones(1000), name="x")
        except rueda.RuedaError:
            recovery = rueda.recover(timeout=30)
            print("lost", recovery.lost, recovery.details[2].reason, flush=True)
"""


def test_a_rank_that_stops_alone_on_its_host_is_ended_with_the_job(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(2, rate="1gbit")
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    program = launcher.program(FREEZING)
    ran = launcher.run("-H", "h0:2,h1:1", "--min-np", "1", "--grace", "1", *program)
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("unreachable") == 2, ran.out + ran.err
    assert "did not answer, and the others have gone on without it" in ran.err, ran.err
    assert "rank 2 on h1 is lost, killed by SIGKILL (Killed)" in ran.err, ran.err
