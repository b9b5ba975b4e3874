"""What the surviving ranks learn about how others have ended."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from .conftest import Rueda

pytest.importorskip("rueda._native")

# Ranks 1 and 2 end one after the other; ranks 0 and 3 go on.
PROGRAM = """
import numpy as np
import rueda
from rueda.endings import endings

def told(lost):
    # The launcher hears of it a moment later than the others do, at times.
    deadline = time.monotonic() + 30
    while lost.ending is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return lost

def fail():
    raise ValueError("no more data")  # raises

def go_on():
    try:
        while True:
            pending = rueda.allreduce_async(np.ones(1000), name="gradient")
            mark("open")
            pending.result()
    except rueda.PeerLostError as error:
        assert "gradient" in str(error) and error.tensor == "gradient", error
    try:  # now the loss is known before
        rueda.allreduce(np.ones(10), name="late")
    except rueda.PeerLostError as error:
        assert "allreduce of 'late'" in str(error) and error.tensor == "late", error
    return rueda.recover()

rueda.init()
asked = endings._session  # now, since survivors have more urgent things to do
assert asked is not None and asked.is_open
total = rueda.allreduce(np.ones(3), op=rueda.Sum, name="first")
if rank == 1:
    wait_for("open", 3)  # for all of them to have something to be interrupted in
    os.kill(os.getpid(), signal.SIGKILL)
recovery = go_on()
assert endings._session is asked
lost = told(recovery.details[1])
assert lost.rank == 1 and lost.cause == recovery.lost[1]
assert lost.host in lost.cause and str(lost.process_id) in lost.cause
print("killed:", lost.exit_status, lost.ending, recovery.interrupted)
rueda.barrier()
if rank == 2:
    fail()  # step
lost = told(go_on().details[1])
print("raised:", lost.exit_status, lost.ending, "|", lost.cause)
"""


def test_survivors_learn_the_exit_status(rueda: Rueda, script: Callable[[str], str]) -> None:
    name = script(PROGRAM)
    ran = rueda("run", "-np", "4", "--min-np", "1", "python3", name)
    assert ran.code == 0, ran.out + ran.err
    killed = re.findall(r"killed: (.*)", ran.out)
    assert len(killed) == 3, ran.out
    for line in killed:
        assert line == "-9 killed by SIGKILL (Killed) [\"allreduce of 'gradient'\"]"
    raised = re.findall(r"raised: (.*)", ran.out)
    assert len(raised) == 2, ran.out
    for line in raised:
        status, _, cause = line.partition(" | ")
        assert status == "1 exit code 1"
        assert re.search(
            r"failed: ValueError: no more data, raised at program.py:\d+ in fail, "
            r"called from program.py:\d+ in <module>$",
            cause,
        ), cause


def test_without_a_launcher_nothing_is_known_of_the_status() -> None:
    from rueda import Lost

    lost = Lost(1, "host", 4711, "rank 1 is gone")
    assert lost.exit_status is None
    assert lost.ending is None


# Rank 1 ends as WAY says; without recovery the others can only report it.
ALONE = """
import numpy as np
import rueda

rueda.init()
try:
    rueda.allreduce(np.ones(3), name="first")  # in which rank 1 may be gone already for the others
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV) if WAY == "signal" else os._exit(3)
    while True:
        rueda.allreduce(np.ones(1000), name="gradient")
except rueda.PeerLostError as error:
    print("told:", error, flush=True)
"""


@pytest.mark.parametrize(
    ("way", "how"),
    [
        ("signal", r"it was killed by SIGSEGV \(Segmentation fault\)"),
        ("code", "it has ended with exit code 3"),
    ],
)
def test_without_recovery_the_error_tells_how_the_rank_has_ended(
    rueda: Rueda, script: Callable[[str], str], way: str, how: str
) -> None:
    ran = rueda("run", "--no-mpi", "-np", "3", "python3", script(f"WAY = {way!r}\n" + ALONE))
    told = re.findall(r"told: (.*)", ran.out)
    assert len(told) == 2, ran.out + ran.err
    for line in told:
        assert re.search(rf"rank 1 \([^,]+, pid \d+\) is gone.*; {how}$", line), line
