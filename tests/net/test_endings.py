"""Ranks learn how ranks of other hosts have ended."""

from __future__ import annotations

import re

import pytest

from .launching import PREAMBLE, Launcher
from .pods import Pods

# Rank 3 is killed, then rank 2 ends by itself. The survivors wait until they are told how. They may
# fail an allreduce that the ended rank completed.
PROGRAM = """
import numpy as np
import rueda

def meet():
    rueda.allreduce(np.ones(3), name="first")

def go_on():
    try:
        meet()
        while True:
            rueda.allreduce(np.ones(1000), name="gradient")
    except rueda.PeerLostError:
        recovery = rueda.recover()
    (lost,) = recovery.details.values()
    deadline = time.monotonic() + 60
    while lost.ending is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return lost

rueda.init(init_timeout=60)
if rank == 3:
    meet()
    os.kill(os.getpid(), signal.SIGKILL)
lost = go_on()
print("killed:", lost.host, lost.exit_status, lost.ending, flush=True)
if rank == 2:
    meet()
    os._exit(9)
lost = go_on()
print("left:", lost.host, lost.exit_status, lost.ending, flush=True)
"""


def check(out: str) -> None:
    """Checks what ranks 0 to 2 have printed."""
    assert re.findall(r"killed: (.*)", out) == ["h1 -9 killed by SIGKILL (Killed)"] * 3, out
    assert re.findall(r"left: (.*)", out) == ["h1 9 exit code 9"] * 2, out


@pytest.mark.parametrize("may_grow", [False, True])
def test_ranks_on_all_hosts_learn_how_others_have_ended(launcher: Launcher, may_grow: bool) -> None:
    # Nobody joins meanwhile: h0 and h1 have no free slots, and h2 is not in the list.
    limits = ["--min-np", "1", *(["--max-np", "4"] if may_grow else [])]
    ran = launcher.run("-H", "h0:2,h1:2", *limits, *launcher.program(PROGRAM))
    assert ran.code == 0, ran.out + ran.err
    check(ran.out)


def test_so_do_ranks_of_other_launchers(pods: Pods) -> None:
    processes = pods.all(2, "--min-np", "1", program=PREAMBLE + PROGRAM)
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    check("".join(out for out, _ in ends))
