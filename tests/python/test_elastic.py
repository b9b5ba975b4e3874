"""Ranks that join and leave while a job trains."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from elastic_launcher import UNTIL, ElasticJob
from launching import Ended, check

pytest.importorskip("rueda._native")


def all_well(job: ElasticJob, *but: int) -> dict[int, Ended]:
    ended = job.ended()
    for number, how in ended.items():
        expected = -signal.SIGKILL if number in but else 0
        assert how.returncode == expected, f"process {number}: {how.returncode}\n{job.outputs()}"
    return ended


MEMBERS = f"""
import os, time
import numpy as np
import rueda, rueda.elastic
{UNTIL}
def run(is_reached):
    until(is_reached)
    size = rueda.size()
    total = rueda.allreduce(np.full(1000, rueda.rank() + 1.0), "sum", rueda.Sum)
    assert np.all(total == size * (size + 1) // 2)
    print("ended as", rueda.rank(), "of", size, flush=True)

rueda.init()
print("began as", rueda.rank(), "of", rueda.size(), flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_newcomers_are_taken_in(size: int, transport: str) -> None:
    program = MEMBERS + f"run(lambda: rueda.size() == {size + 2})"
    with ElasticJob(program, size, RUEDA_TRANSPORT=transport) as job:
        job.start_joiner()
        job.start_joiner()
        ended = all_well(job)
    for number in (size, size + 1):
        assert re.search(r"began as [1-4] of", ended[number].output), ended[number].output


def test_counters_and_timelines_go_on_where_newcomers_are_taken_in(tmp_path: Path) -> None:
    program = (
        MEMBERS
        + f"""
is_member = "RUEDA_JOINER" not in os.environ
if is_member:
    rueda.start_timeline("{tmp_path}/%r")
    for _ in range(20):
        rueda.allreduce(np.ones(4), "early")
before = rueda.metrics()
run(lambda: rueda.size() == 3)
after = rueda.metrics()
smaller = {{name: (before[name], after[name]) for name in before if after[name] < before[name]}}
assert not smaller, smaller
assert not is_member or after["allreduce_tensors"] > before["allreduce_tensors"] >= 20
rueda.stop_timeline()
"""
    )
    with ElasticJob(program, 2) as job:
        job.start_joiner()
        all_well(job)
    assert len(list(tmp_path.iterdir())) == 2
    for rank in (0, 1):
        events = json.loads((tmp_path / str(rank)).read_text())
        assert {event["pid"] for event in events} == {rank}
        rows = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
        assert {"early", "sum"} <= rows, rows
        marks = [event["args"]["size"] for event in events if event["name"] == "WORLD"]
        assert marks[-1] == 3, marks


def test_a_lost_rank_is_replaced_again_and_again() -> None:
    program = (
        MEMBERS
        + "run(lambda: rueda.size() == 3 and rueda.attendance.attendance().members[-1:] == [6])"
    )
    with ElasticJob(program, 3) as job:
        present = [0, 1, 2]
        job.start_joiner()
        job.await_world(0, 1, 2, 3)
        present = [0, 1, 2, 3]
        for lost in (0, 2):
            job.kill(lost)
            present.remove(lost)
            job.await_world(*present)
            joiner = job.start_joiner()
            present.append(joiner)
            job.await_world(*present)
        job.kill(1)
        present.remove(1)
        job.await_world(*present)
        job.start_joiner()
        job.kill(3)
        all_well(job, 0, 1, 2, 3)


@pytest.mark.parametrize("leaving", [(0,), (1,), (0, 2)], ids=str)
def test_ranks_that_are_told_to_leave_end_well(leaving: tuple[int, ...]) -> None:
    program = MEMBERS + f"run(lambda: rueda.size() == {3 - len(leaving)})"
    with ElasticJob(program, 3) as job:
        job.let_leave(*leaving)
        ended = all_well(job)
    for number, how in ended.items():
        assert ("ended as" in how.output) == (number not in leaving), how.output


@pytest.mark.parametrize("told", [0, 2])
def test_what_one_rank_has_been_told_counts_for_all(told: int) -> None:
    with ElasticJob(MEMBERS + "run(lambda: rueda.size() == 2)", 3) as job:
        job.tell_only(told, leaving=[1])
        ended = all_well(job)
    assert "ended as" not in ended[1].output, ended[1].output


def test_some_leave_and_others_join_at_once() -> None:
    program = (
        MEMBERS
        + "run(lambda: rueda.size() == 3 and rueda.attendance.attendance().members == [1, 2, 3])"
    )
    with ElasticJob(program, 3) as job:
        job.let_leave(0)
        job.start_joiner()
        all_well(job)


def test_a_newcomer_that_does_not_come_leaves_the_world_as_it_is(tmp_path: Path) -> None:
    never = """
        import os, time
        from rueda.launcher_session import Session, process_number
        own = Session(os.environ["RUEDA_LAUNCHER"], hello=process_number())
        own.send(ready=process_number())
        time.sleep(600)
    """
    program = MEMBERS + "rueda.elastic.joining._ENTERING = 2\n"
    program += "run(lambda: os.path.exists(os.environ['ENOUGH']))"
    enough = tmp_path / "enough"
    with ElasticJob(program, 2, ENOUGH=str(enough)) as job:
        stranger = job.start_joiner(never)
        refusal = job.await_refusal()
        assert refusal["joiners"] == [stranger]
        enough.touch()
        for number in (0, 1):
            assert job.processes[number][0].wait(60) == 0, job.outputs()
        assert "no world was formed with" in job.outputs()
        assert "ended as 0 of 2" in job.outputs()


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rank_that_is_lost_while_others_are_let_in_is_not_missed(lost: int, when: str) -> None:
    """Before it reaches the meeting point, or once the new world exists."""
    dies = f"""
import signal
import time
entering, told = rueda._native.enter_world, os.environ.get("RUEDA_RANK")
def enter(*arguments):
    if told == "{lost}" and "{when}" == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    entered = entering(*arguments)
    if told == "{lost}":
        os.kill(os.getpid(), signal.SIGKILL)
    return entered
rueda._native.enter_world = enter
rueda.elastic.joining._ENTERING = 1000
"""
    program = MEMBERS + dies + "run(lambda: 3 in rueda.attendance.attendance().members)"
    with ElasticJob(program, 3) as job:
        job.start_joiner()
        all_well(job, lost)


DYING = """
import signal, threading

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def enter(*arguments):
    moment = dict(each.split(":") for each in os.environ["DIES"].split()).get(os.environ.get("RUEDA_JOINER"))
    if moment == "told":
        die()
    if moment not in (None, "entered"):
        threading.Timer(float(moment), die).start()
    entered = entering(*arguments)
    if moment is not None:
        die()
    return entered

entering, rueda._native.enter_world = rueda._native.enter_world, enter
rueda.elastic.joining._ENTERING = 1000  # whoever is waited for is waited for longer than the test lasts
while "RUEDA_JOINER" not in os.environ and not os.path.exists(os.environ["GATE"]):
    time.sleep(0.01)
"""
DYING_MEMBERS = MEMBERS.replace("rueda.init()\n", DYING + "rueda.init()\n")


def test_newcomers_that_die_while_they_are_let_in_are_not_waited_for(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    moments = ["told", "0.001", "0.005", "0.02", "entered"]
    dies = " ".join(f"{number}:{moment}" for number, moment in enumerate(moments, 2))
    last = 2 + len(moments)
    program = DYING_MEMBERS + f"run(lambda: {last} in rueda.attendance.attendance().members)"
    with ElasticJob(program, 2, DIES=dies, GATE=str(gate)) as job:
        for _ in moments:
            job.processes[job.start_joiner()][0].wait(60)
        job.start_joiner()
        ended = all_well(job, *range(2, last))
    assert "process 2 ended before it could join" in ended[0].output + ended[1].output


def test_one_that_dies_does_not_keep_others_out(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = DYING_MEMBERS + "run(lambda: 3 in rueda.attendance.attendance().members)"
    with ElasticJob(program, 2, DIES="2:told", GATE=str(gate)) as job:
        job.await_ready(job.start_joiner(), job.start_joiner())
        gate.touch()
        all_well(job, 2)
        assert not job.refused


def test_the_others_go_on_without_a_newcomer_of_another_build(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("rueda")
    assert spec is not None
    assert spec.origin is not None
    package = shutil.copytree(Path(spec.origin).parent, tmp_path / "other" / "rueda")
    library = package / "lib" / "librueda.so"
    content = library.read_bytes()
    # The hash of its sources is the only text of this form that contains letters.
    identities = {each for each in re.findall(rb"[0-9a-f]{64}", content) if not each.isdigit()}
    (identity,) = identities
    library.write_bytes(content.replace(identity, b"0123456789abcdef" * 4))
    program = MEMBERS + "run(lambda: os.path.exists(os.environ['ENOUGH']))"
    own = f"import sys; sys.path.insert(0, {str(package.parent)!r})\n{program}"
    enough = tmp_path / "enough"
    with ElasticJob(program, 2, ENOUGH=str(enough)) as job:
        stranger = job.start_joiner(own)
        refusal = job.await_refusal()
        assert refusal["joiners"] == [stranger]
        assert "the ranks run different builds of Rueda: " in refusal["why"], refusal
        assert "(build 0123456789ab) on rank 2" in refusal["why"], refusal
        job.kill(stranger)  # as a launcher does after the refusal
        enough.touch()
        ended = all_well(job, stranger)
    for number in (0, 1):
        assert f"ended as {number} of 2" in ended[number].output, job.outputs()
    assert "the ranks run different builds of Rueda: " in ended[stranger].output, job.outputs()


def test_outside_of_an_elastic_job_nothing_changes() -> None:
    check(
        """
        import rueda, rueda.elastic
        rueda.init()
        assert rueda.elastic.update() is None
        """,
        2,
    )


# KILLED: the process that kills itself in the fifth batch, once its gradients are ready.
HOROVOD = """
import os, signal, time
import horovod.torch as hvd
import torch

hvd.init()
print("began as", hvd.rank(), "of", hvd.size(), flush=True)
number = os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"]
model = torch.nn.Linear(3, 2)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
resets = []

@hvd.elastic.run
def train(state):
    while True:
        time.sleep(0.002)
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        if number == os.environ.get("KILLED") and state.batch == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        state.batch += 1
        enough = hvd.allreduce(torch.tensor([float(WANTED)]), name="enough", op=hvd.Min)
        if enough.item() == 1:
            return
        state.commit()

state = hvd.elastic.TorchState(model, optimizer, batch=0)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
weights = hvd.allgather(model.weight.detach().reshape(1, -1), name="weights")
assert torch.equal(weights, weights[:1].expand_as(weights)), weights
taken = -weights.mean().item() / 0.1  # each step subtracts 0.1
assert abs(taken - state.batch) < 0.01, (taken, state.batch)
print("ended as", hvd.rank(), "of", hvd.size(), "resets", resets, flush=True)
"""


def test_horovods_loop_takes_newcomers_in_and_goes_on_without_those_that_leave() -> None:
    pytest.importorskip("torch")
    from rueda.launcher.horovod_flags import alias_path

    path = alias_path(os.environ.get("PYTHONPATH"))
    with ElasticJob(HOROVOD.replace("WANTED", "hvd.size() == 3"), 2, PYTHONPATH=path) as job:
        job.start_joiner()
        ended = all_well(job)
    assert "ended as 2 of 3 resets []" in ended[2].output, ended[2].output
    assert "ended as 0 of 3 resets [3]" in ended[0].output, ended[0].output
    with ElasticJob(HOROVOD.replace("WANTED", "hvd.size() == 2"), 3, PYTHONPATH=path) as job:
        job.let_leave(0)
        ended = all_well(job)
    # Until all have heard who leaves, some may ask for a world that turns out to be the same.
    assert re.search(r"ended as 0 of 2 resets \[(3, )*2\]", ended[1].output), ended[1].output


@pytest.mark.parametrize("killed", [0, 2])
def test_horovods_loop_goes_on_when_a_rank_is_killed_and_takes_another_in(killed: int) -> None:
    pytest.importorskip("torch")
    from rueda.launcher.horovod_flags import alias_path

    left = [number for number in range(3) if number != killed]
    program = HOROVOD.replace("WANTED", "hvd.size() == 3 and state.batch > 8")
    path = alias_path(os.environ.get("PYTHONPATH"))
    with ElasticJob(program, 3, PYTHONPATH=path, KILLED=str(killed)) as job:
        job.await_world(*left)
        joiner = job.start_joiner()
        ended = all_well(job, killed)
    for rank, number in enumerate([*left, joiner]):
        resets = "[]" if number == joiner else "[2, 3]"
        assert f"ended as {rank} of 3 resets {resets}" in ended[number].output, job.outputs()


# The test decides what a rank does between hearing of a change and making it.
HOROVOD_STATE = """
import os, time
import rueda
import rueda.horovod.basics as hvd
from rueda.attendance import attendance
from rueda.elastic import changes
from rueda.horovod.elastic_state import ObjectState
from rueda.horovod.exceptions import HostsUpdatedInterrupt
from rueda.horovod.forming import run

SPECIAL
hvd.init()

class State(ObjectState):
    def check_host_updates(self):
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt as interrupt:
            heard(interrupt)
            raise

@run
def train(state):
    while True:
        time.sleep(0.002)
        state.batch += 1
        if is_enough():
            return
        state.commit()

state = State(rueda.broadcast_object, hvd.rank, batch=0)
train(state)
assert len(set(rueda.allgather_object(state.batch))) == 1
print("ended as", hvd.rank(), "of", hvd.size(), flush=True)
"""


def test_horovods_newcomers_get_the_state_where_ranks_were_only_to_leave(tmp_path: Path) -> None:
    program = HOROVOD_STATE.replace(
        "SPECIAL",
        """
def heard(interrupt):
    assert interrupt.skip_sync
    open(os.environ["HEARD"], "w").close()
    deadline = time.monotonic() + 60
    while not changes.wanted()[0] and time.monotonic() < deadline:
        time.sleep(0.001)
def is_enough():
    return hvd.size() == 2 and any(number > 1 for number in attendance().members)
""",
    )
    heard = tmp_path / "heard"
    with ElasticJob(program, 2, HEARD=str(heard)) as job:
        job.let_leave(1)
        deadline = time.monotonic() + 60
        while not heard.exists():
            assert time.monotonic() < deadline, job.outputs()
            time.sleep(0.01)
        job.start_joiner()  # unknown to the interrupt
        ended = all_well(job)
    assert "ended as 1 of 2" in ended[2].output, ended[2].output


def test_horovods_newcomers_do_not_wait_for_clocks_to_agree() -> None:
    """The clock behind the previous update is ahead of the clocks behind the next."""
    program = HOROVOD_STATE.replace(
        "SPECIAL",
        """
def heard(interrupt):
    pass
def is_enough():
    if hvd.rank() == 1 and state.batch == 1:
        state.on_hosts_updated(time.time() + 3600, 2)
    return 2 in attendance().members
""",
    )
    with ElasticJob(program, 2) as job:
        job.await_world(0, 1)  # formed by that update
        job.start_joiner()
        ended = all_well(job)
    assert "ended as 2 of 3" in ended[2].output, ended[2].output
