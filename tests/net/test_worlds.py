"""Worlds of several hosts that `rueda run` starts without MPI: what the ranks do together."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import line_to_launch
from one_run import OneRun, each_check_of

from .lab import Lab
from .lab.fixture import MakeLab, or_skip
from .launching import Launcher, job_environment

pytest.importorskip("rueda._native")

PARALLEL = Path(__file__).parents[1] / "parallel" / "python"
RunOnce = Callable[[Path, str], OneRun]
TWO = ["-H", "h0:2,h1:2", "--no-prefix"]


SUMS = """
    import numpy as np
    import rueda
    for world in range(3):
        rueda.init()
        for size in (1, 1000, 300_003):
            total = rueda.allreduce(np.full(size, rank + 1.0), name=f"x{size}", op=rueda.Sum)
            assert np.all(total == rueda.size() * (rueda.size() + 1) / 2)
        rueda.shutdown()
    print("done", rank, rueda.__name__, flush=True)
"""


def done(out: str) -> list[int]:
    """Returns the ranks that have reached the end."""
    return sorted(int(match) for match in re.findall(r"^done (\d+)", out, re.MULTILINE))


@pytest.mark.parametrize("hosts", ["h0:2,h1:2", "h1:1,h2:1", "h0:1,h1:2,h2:1"])
def test_one_world_after_the_other(launcher: Launcher, hosts: str) -> None:
    ran = launcher.run("-H", hosts, "--no-prefix", *launcher.program(SUMS))
    ranks = sum(int(part.rpartition(":")[2]) for part in hosts.split(","))
    assert (ran.code, done(ran.out)) == (0, list(range(ranks))), ran.err


def test_a_world_over_ipv6(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2, ipv6=True)
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    ran = launcher.run(*TWO, *launcher.program(SUMS))
    assert (ran.code, done(ran.out)) == (0, [0, 1, 2, 3]), ran.err


def test_a_world_over_the_chosen_interface(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2, links=2)
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    first, second = lab.link("h1", 0).counters(), lab.link("h1", 1).counters()
    ran = launcher.run(*TWO, "--interface", "eth1", *launcher.program(SUMS))
    assert (ran.code, done(ran.out)) == (0, [0, 1, 2, 3]), ran.err
    assert lab.link("h1", 0).counters().sent_bytes - first.sent_bytes < 100_000
    assert lab.link("h1", 1).counters().sent_bytes - second.sent_bytes > 300_003 * 8


def test_a_world_goes_through_the_network_that_the_hosts_are_named_in(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(2, links=2)
    with or_skip():
        launcher = Launcher(lab, tmp_path, lab.ssh())
    for number, hosts in ((1, "h0-eth1:1,h1-eth1:1"), (0, "h0:1,h1:1"), (1, "h0:1,h1-eth1:1")):
        used, unused = lab.link("h1", number), lab.link("h1", 1 - number)
        before = used.counters(), unused.counters()
        ran = launcher.run("-H", hosts, "--no-prefix", *launcher.program(SUMS))
        assert (ran.code, done(ran.out)) == (0, [0, 1]), ran.err
        assert used.counters().sent_bytes - before[0].sent_bytes > 300_003 * 8
        assert unused.counters().sent_bytes - before[1].sent_bytes < 100_000


@pytest.fixture(scope="module")
def run_once(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Runs all checks of a script on these hosts, on first use."""
    folder = tmp_path_factory.mktemp("checks")

    @functools.cache
    def run(script: Path, hosts: str) -> OneRun:
        launcher = Launcher(lab, folder, [str(lab.agent)])
        # Set as the launcher does, so that a rank may be forked.
        environment = {**job_environment(), "PYTHONUNBUFFERED": "1"}
        rank = line_to_launch([sys.executable, str(script)], environment)
        ran = launcher.run("-H", hosts, "--no-prefix", *rank)
        launcher.wait_until_gone()
        return OneRun(ran.code == 0, [ran.out + ran.err])

    return run


@each_check_of(PARALLEL / "check_hosts.py")
def test_hosts_over_tcp(run_once: RunOnce, check: str) -> None:
    run_once(PARALLEL / "check_hosts.py", "h0:2,h1:2").require(check)


@each_check_of(PARALLEL / "check_torch_hosts.py")
def test_persistent_operations_over_tcp(run_once: RunOnce, check: str) -> None:
    pytest.importorskip("torch")
    run_once(PARALLEL / "check_torch_hosts.py", "h0:2,h1:2").require(check)


@pytest.mark.parametrize("hosts", ["h0:2,h1:2", "h0:1,h1:2"])
@each_check_of(PARALLEL / "check_compression.py")
def test_compression_over_tcp(run_once: RunOnce, hosts: str, check: str) -> None:
    run_once(PARALLEL / "check_compression.py", hosts).require(check)


@pytest.mark.parametrize("hosts", ["h0:2,h1:2", "h0:1,h1:2"])
@each_check_of(PARALLEL / "check_torch_compression.py")
def test_compression_of_gradients_over_tcp(run_once: RunOnce, hosts: str, check: str) -> None:
    pytest.importorskip("torch")
    run_once(PARALLEL / "check_torch_compression.py", hosts).require(check)


LOSES_A_RANK = """
    import numpy as np
    import rueda
    rueda.init()
    rueda.allreduce(np.ones(3), name="x")
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        rueda.allreduce(np.ones(3), name="y")
    except rueda.PeerLostError as error:
        print("lost", error.peer, flush=True)
"""


def test_a_rank_that_dies_on_another_host_is_named(launcher: Launcher) -> None:
    ran = launcher.run(*TWO, *launcher.program(LOSES_A_RANK))
    assert ran.code == 137
    assert "lost 3" in ran.out
    assert ran.last_line == "rueda: rank 3 on h1 failed first: killed by SIGKILL (Killed)"


def test_a_rank_that_was_told_another_size_is_named(launcher: Launcher) -> None:
    program = launcher.program("""
        import rueda
        if rank == 3:
            os.environ["RUEDA_SIZE"] = "5"
        rueda.init()
    """)
    ran = launcher.run(*TWO, "--init-timeout", "10", *program)
    assert ran.code != 0
    assert "rank 3 on h1 was rejected: rank 3 was told that there are 5 ranks" in ran.err


def test_a_rank_without_the_secret_is_no_rank(launcher: Launcher) -> None:
    program = launcher.program("""
        import rueda
        if rank == 2:
            os.environ["RUEDA_SECRET"] = "x" * 64
        rueda.init()
    """)
    ran = launcher.run(*TWO, "--init-timeout", "10", *program)
    assert ran.code != 0
    assert "another secret (RUEDA_SECRET) than rank 2 on h1" in ran.err
