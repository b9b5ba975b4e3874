"""Horovod's elastic loop: who has the state, and interrupts that not every rank raises."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from elastic_launcher import ElasticJob
from launching import check

pytest.importorskip("rueda._native")

PREAMBLE = """
import os, signal, time
import numpy as np
import rueda
import rueda.horovod.basics as hvd
from rueda.attendance import attendance
from rueda.horovod.elastic_state import ObjectState
from rueda.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from rueda.horovod.forming import run

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def await_file(variable):
    deadline = time.monotonic() + 60
    while not os.path.exists(os.environ[variable]):
        assert time.monotonic() < deadline, variable
        time.sleep(0.002)

def await_newcomers(*wanted):
    here = attendance()
    deadline = time.monotonic() + 60
    while not set(wanted) <= {*here.joiners, *here.members}:
        assert time.monotonic() < deadline, here.joiners
        time.sleep(0.002)
        here.listen()

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
hvd.init()
"""

# Process 0 is lost while newcomers receive the state, which is the batch and its square.
NEWCOMERS = (
    PREAMBLE
    + """
class State(ObjectState):
    def sync(self):
        self.square = rueda.broadcast_object(self.square, 0, "square")
        MIDWAY
        super().sync()
        RECEIVED

@run
def train(state):
    print("begins as", hvd.rank(), "of", hvd.size(), "at", state.batch, flush=True)
    if number == 0:
        await_newcomers(*range(1, LAST + 1))
    while LAST not in attendance().members or state.batch < 4:
        time.sleep(0.002)
        state.batch += 1
        state.square = state.batch**2
        state.commit()

state = State(rueda.broadcast_object, hvd.rank, batch=0, square=0)
state.register_reset_callbacks([lambda: AT_RESET])
try:
    train(state)
except HorovodInternalError as error:
    raise SystemExit(f"{type(error.__cause__).__name__}: {error}")
assert state.square == state.batch**2
print("ended as", hvd.rank(), "of", hvd.size(), flush=True)
"""
)


def newcomers(
    last: int, midway: str = "pass", received: str = "pass", at_reset: str = "None"
) -> str:
    """The program: what each process does halfway in sync(), after it, and when the world has changed."""
    program = NEWCOMERS.replace("MIDWAY", midway).replace("RECEIVED", received)
    return program.replace("AT_RESET", at_reset).replace("LAST", str(last))


@pytest.mark.parametrize("moment", ["midway", "at_reset"])
def test_newcomers_without_the_state_do_not_go_on_alone(moment: str) -> None:
    program = newcomers(2, **{moment: "number == 0 and hvd.size() > 1 and die()"})
    with ElasticJob(program, 1) as job:
        job.await_ready(job.start_joiner(), job.start_joiner())
        ended = job.ended()
        assert ended[0].returncode == -signal.SIGKILL, job.outputs()
        for newcomer in (1, 2):
            assert ended[newcomer].returncode == 1, job.outputs()
            assert "StateIsLost: all ranks that had the" in ended[newcomer].output, job.outputs()


def test_a_newcomer_that_has_the_state_goes_on_alone() -> None:
    program = newcomers(1, received="number == 0 and hvd.size() > 1 and die()")
    with ElasticJob(program, 1) as job:
        job.start_joiner()
        ended = job.ended()
        assert "ended as 0 of 1" in ended[1].output, job.outputs()


def test_the_state_comes_from_the_newcomer_that_has_it(tmp_path: Path) -> None:
    """The first newcomer, which becomes rank 0, has not received it when process 0 is lost."""
    received = """
        if number == 0 and hvd.size() == 3:
            print("lost at", self.batch, flush=True)
            await_file("RECEIVED_BY_2")
            die()
        elif number == 1 and hvd.size() == 3:
            self.batch = self.square = -7
            self.save()
            rueda.barrier()  # until process 0 is lost
        elif number == 2 and hvd.size() == 3:
            open(os.environ["RECEIVED_BY_2"], "w").close()
"""
    program = newcomers(2, received=received.strip())
    with ElasticJob(program, 1, RECEIVED_BY_2=str(tmp_path / "file")) as job:
        job.await_ready(job.start_joiner(), job.start_joiner())
        ended = job.ended()
        lost_at = ended[0].output.split()[-1]
        for number, rank in ((1, 1), (2, 0)):
            assert f"begins as {rank} of 2 at {lost_at}\n" in ended[number].output, job.outputs()
            assert f"ended as {rank} of 2" in ended[number].output, job.outputs()


# Ranks are to raise the interrupt in step 4.
INTERRUPTED = (
    PREAMBLE
    + """
interrupts = 0

@run
def train(state):
    global interrupts
    while state.step < 8:
        time.sleep(0.002)
        rueda.allreduce(np.ones(2), "gradient")
        state.step += 1
        if state.step == 4 and interrupts == 0 and IS_RAISED:
            BEFORE
            interrupts += 1
            raise HostsUpdatedInterrupt(skip_sync=True)
        CHECK

state = ObjectState(rueda.broadcast_object, hvd.rank, step=0)
train(state)
assert len(set(rueda.allgather_object(state.step))) == 1
print("ended as", hvd.rank(), "of", hvd.size(), "after", interrupts, flush=True)
"""
)

# If a rank waits for one that is elsewhere, that is an error that does not pass.
STALL = {"RUEDA_STALL_WARNING": "10", "RUEDA_STALL_ERROR": "20"}


def interrupted(is_raised: str, check: str = "state.commit()", before: str = "pass") -> str:
    """The program: who raises the interrupt, after what, and what ends a step."""
    program = INTERRUPTED.replace("IS_RAISED", is_raised).replace("BEFORE", before)
    return program.replace("CHECK", check)


def test_an_interrupt_of_one_rank_makes_the_others_form_the_world_anew() -> None:
    with ElasticJob(interrupted("number == 1"), 2, **STALL) as job:
        ended = job.ended()
        for rank in (0, 1):
            assert f"ended as {rank} of 2 after {rank}" in ended[rank].output, job.outputs()


def test_an_interrupt_of_one_rank_without_recovery() -> None:
    ended = check(interrupted("number == 1"), 2, extra=STALL)
    for rank in (0, 1):
        assert f"ended as {rank} of 2 after {rank}" in ended[rank].output


def test_interrupts_of_the_program_on_all_ranks_let_newcomers_in() -> None:
    """It does not ask Rueda whether any wait."""
    program = interrupted("number < 2", "pass", "await_newcomers(2)")
    with ElasticJob(program, 2, **STALL) as job:
        job.start_joiner()
        ended = job.ended()
        assert "ended as 2 of 3" in ended[2].output, job.outputs()


@pytest.mark.parametrize("left", ["first", "newcomer"])
def test_the_last_rank_goes_on_after_an_interrupt_or_a_failure(left: str) -> None:
    program = (
        PREAMBLE
        + """
@run
def train(state):
    if LEFT and hvd.size() == 1:
        state.starts += 1
        if state.starts == 1:
            state.on_hosts_updated(1, 2)
        if state.starts == 2:
            state.save()
            raise HorovodInternalError("as of a collective")
        if state.starts == 3:
            return
    while True:
        time.sleep(0.002)
        if not LEFT and hvd.size() == 2:
            die()
        state.commit()

state = ObjectState(rueda.broadcast_object, hvd.rank, starts=0)
train(state)
print("ended", state.starts, flush=True)
"""
    )
    if left == "first":
        with ElasticJob(program.replace("LEFT", "number == 0"), 2) as job:
            ended = job.ended()
            assert "ended 3" in ended[0].output, job.outputs()
    else:
        with ElasticJob(program.replace("LEFT", "number == 1"), 1) as job:
            job.start_joiner()
            ended = job.ended()
            assert "ended 3" in ended[1].output, job.outputs()


def test_any_growing_timestamps_count_after_a_join() -> None:
    program = (
        PREAMBLE
        + """
resets = []

@run
def train(state):
    if number == 0 and resets == [2]:
        state.on_hosts_updated(1, 2)
    while hvd.size() < 2:
        time.sleep(0.002)
        state.commit()
    state.commit()

state = ObjectState(rueda.broadcast_object, hvd.rank)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
print("resets", resets, flush=True)
"""
    )
    with ElasticJob(program, 1) as job:
        job.start_joiner()
        ended = job.ended()
        assert "resets [2, 2]" in ended[0].output, job.outputs()
