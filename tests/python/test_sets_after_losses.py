"""Process sets across successive worlds, with lost members, remaining members and newcomers."""

from __future__ import annotations

import signal

import pytest
from elastic_launcher import UNTIL, ElasticJob
from launching import Ended, run

pytest.importorskip("rueda._native")

PREAMBLE = """
import os, signal, time
import numpy as np
import rueda, rueda.elastic

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def until_broken():
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            rueda.allreduce(np.ones(1000, np.float32), op=rueda.Sum, name="idle")
        raise AssertionError("the world is whole")
    except rueda.PeerLostError as error:
        return error

def meet():
    # All have come here before one goes on and dies.
    try:
        rueda.barrier()
    except rueda.PeerLostError:
        pass  # and it has

def recover(*lost):
    # Two that die at once may be lost one after the other.
    seen = 0
    while True:
        recovery = rueda.recover()
        seen += len(recovery.lost)
        if seen >= len(lost):
            return recovery
        until_broken()

def check(members, *ranks, count=1000):
    # What a set is, and what its sum, average and gathering are.
    ranks = list(ranks)
    assert members.ranks == ranks, (members, ranks)
    assert members.size() == len(ranks)
    assert members.included() == (rueda.rank() in ranks)
    if not members.included():
        assert members.rank() == -1
        return
    assert members.rank() == ranks.index(rueda.rank())
    mine = np.full(count, rueda.rank() + 1.0, np.float32)
    total = sum(rank + 1 for rank in ranks)
    for _ in range(3):  # agreed on, then replayed
        for op, expected in ((rueda.Sum, total), (rueda.Average, total / len(ranks))):
            result = rueda.allreduce(mine, op=op, name=f"check.{op}", process_set=members)
            assert np.allclose(result, expected), (members, result[:3], expected)
    gathered = rueda.allgather(np.array([rueda.rank()]), process_set=members)
    assert gathered.tolist() == ranks, gathered
    from_last = rueda.broadcast(mine, ranks[-1], process_set=members)
    assert np.all(from_last == ranks[-1] + 1)

def refused(call, *texts, error=rueda.InvalidArgumentError):
    try:
        call()
    except error as raised:
        for text in texts:
            assert text in str(raised), raised
    else:
        raise AssertionError("not refused")
"""

HOSTS = {"shm": {"RUEDA_TRANSPORT": "shm"}, "tcp": {"RUEDA_TRANSPORT": "tcp"}}


def lose(program: str, size: int, lost: set[int], transport: str = "shm") -> list[Ended]:
    """Runs ranks, some of which kill themselves; all others must succeed."""
    ended = run(PREAMBLE + program, size, extra={"RUEDA_RECOVERY": "on", **HOSTS[transport]})
    for rank, how in enumerate(ended):
        expected = -signal.SIGKILL if rank in lost else 0
        assert how.returncode == expected, f"rank {rank}\n" + "\n".join(e.output for e in ended)
    return ended


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_sets_go_on_with_the_members_that_are_left(transport: str) -> None:
    # With the lost rank, without it, of it alone, a superset, and of all.
    lose(
        """
rueda.init()
rank = rueda.rank()
sets = [rueda.add_process_set(ranks) for ranks in ([0, 1], [2, 3], [1], [1, 2, 3], [0, 1, 2, 3])]
numbers = [each.process_set_id for each in sets]
for each in sets:
    check(each, *each.ranks)
meet()
if rank == 1:
    die()
until_broken()
recover(1)
assert [each.process_set_id for each in sets] == numbers
for each, left in zip(sets, ([0], [1, 2], [], [1, 2], [0, 1, 2])):
    check(each, *left)
refused(
    lambda: rueda.allreduce(np.ones(3), process_set=sets[2]),
    f"process set {numbers[2]}, all of whose members are lost",
)
refused(lambda: rueda.barrier(process_set=sets[2]), "all of whose members are lost")
# All know the same numbers still.
rueda.remove_process_set(sets[2])
rueda.remove_process_set(sets[0])
more = rueda.add_process_set([0, 2])
assert more.process_set_id == numbers[-1] + 1
check(more, 0, 2)
check(sets[1], 1, 2)
""",
        4,
        {1},
        transport,
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_two_losses_in_a_row_and_two_at_once(transport: str) -> None:
    lose(
        """
rueda.init()
rank = rueda.rank()
low, high, all_of_them = (rueda.add_process_set(r) for r in ([0, 1, 2], [2, 3, 4], range(5)))
meet()
if rank == 0:
    die()
until_broken()
recover(0)
check(low, 0, 1)
check(high, 1, 2, 3)
pair = rueda.add_process_set([0, 3])  # of the second world
check(pair, 0, 3)
meet()
if rank in (2, 3):
    die()
until_broken()
recover(2, 3)
check(low, 0)
check(high, 1)
check(pair, 0, 1)
check(all_of_them, 0, 1)
""",
        5,
        {0, 2, 3},
        transport,
    )


def test_what_sets_have_under_way_fails_as_the_worlds_does_and_can_be_done_again() -> None:
    # Also in the set without the lost rank: the world ends for all.
    lose(
        """
rueda.init()
rank = rueda.rank()
with_it, without = rueda.add_process_set([0, 1]), rueda.add_process_set([0, 2])
if rank == 1:
    time.sleep(0.3)
    die()
mine = with_it if rank == 0 else without
pending = rueda.allreduce_async(np.ones(10), op=rueda.Sum, name="waits", process_set=mine)
refused(pending.result, "rank 1", error=rueda.PeerLostError)
if rank == 0:
    refused(lambda: rueda.barrier(process_set=without), "rank 1", error=rueda.PeerLostError)
recovery = recover(1)
assert recovery.interrupted == [f"allreduce of 'waits' (process set {mine.process_set_id})"], recovery
for members in (with_it, without):
    if members.included():
        total = rueda.allreduce(np.ones(10), op=rueda.Sum, name="waits", process_set=members)
        assert np.all(total == members.size()), (members, total)
""",
        3,
        {1},
    )


def test_threads_use_sets_of_their_own_after_a_loss() -> None:
    lose(
        """
import threading
rueda.init()
rank = rueda.rank()
sets = [rueda.add_process_set(ranks) for ranks in ([0, 1, 2], [0, 2, 3], range(4))]
meet()
if rank == 1:
    die()
until_broken()
recover(1)
failures = []
def work(members):
    try:
        for _ in range(50):
            total = rueda.allreduce(np.ones(4000), op=rueda.Sum, process_set=members)
            assert np.all(total == members.size())
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work, args=[each]) for each in sets if each.included()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
""",
        4,
        {1},
    )


def test_a_whole_world_that_begins_anew_has_its_sets() -> None:
    lose(
        """
rueda.init()
rank = rueda.rank()
pair = rueda.add_process_set([0, 2])
for _ in range(3):
    if rank == 0:
        rueda.recover(break_whole=True)
    else:
        until_broken()
        rueda.recover()
    check(pair, 0, 2)
rueda.shutdown()
rueda.init()
refused(lambda: rueda.barrier(process_set=pair), "has not been added")
assert rueda.add_process_set(pair).process_set_id == 1
""",
        3,
        set(),
    )


def test_a_set_that_was_not_added_yet_is_added_again() -> None:
    lose(
        """
rueda.init()
rank = rueda.rank()
kept, late = rueda.add_process_set([0, 1]), rueda.ProcessSet([0, 1, 2])
if rank == 3:
    time.sleep(0.3)
    die()
refused(lambda: rueda.add_process_set(late), "rank 3", error=rueda.PeerLostError)
recover(3)
refused(lambda: rueda.barrier(process_set=late), "has not been added")
check(kept, 0, 1)
assert rueda.add_process_set(late).process_set_id == 2
check(late, 0, 1, 2)
""",
        4,
        {3},
    )


def test_a_set_that_not_all_had_is_gone_and_says_so() -> None:
    lose(
        """
rueda.init()
rank = rueda.rank()
half = rueda.add_process_set([1, 3])
rueda.barrier()
if rank == 0:  # as if its removal had come to this rank alone
    rueda._native.end_process_sets()
if rank == 2:
    time.sleep(0.3)
    die()
until_broken()
recover(2)
number = half.process_set_id
refused(
    lambda: rueda.barrier(process_set=half),
    f"there is no process set {number}: it was being added or removed",
    "ranks 1 and 2 had it and rank 0 had not: add it again",
)
assert half.ranks == [1, 2]
assert rueda.add_process_set(half).process_set_id == number + 1
check(half, 1, 2)
""",
        4,
        {2},
    )


def test_optimizers_of_sets_train_on() -> None:
    pytest.importorskip("torch")
    lose(
        """
import torch, rueda.torch
rueda.init()
rank = rueda.rank()
members = rueda.add_process_set([0, 1, 2])
model = torch.nn.Linear(4, 2)
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=members
)
def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4) * (rueda.rank() + 1)).sum().backward()
    optimizer.step()
    return [each.grad.clone() for each in model.parameters()]
if members.included():
    for _ in range(3):
        step(model, optimizer)
meet()
if rank == 1:
    die()
until_broken()
recover(1)
if members.included():
    # Another optimizer of the set has other names than the one before the loss.
    other = torch.nn.Linear(4, 2)
    second = rueda.torch.DistributedOptimizer(
        torch.optim.SGD(other.parameters(), lr=0.1), other.named_parameters(), process_set=members
    )
    for _ in range(3):
        weight, bias = step(model, optimizer)
        # 3 rows of ones times rank + 1, summed: the average over ranks 0 and 1.
        assert torch.allclose(weight, torch.full_like(weight, 3 * 1.5)), weight
        step(other, second)
else:
    assert rueda.rank() == 2
""",
        4,
        {1},
    )


JOINING = (
    PREAMBLE
    + UNTIL
    + """
pair, last = rueda.ProcessSet([0, 1]), rueda.ProcessSet([2])
rueda.init(process_sets=[pair, last])
is_new = "RUEDA_JOINER" in os.environ
three = None if is_new else rueda.add_process_set([0, 1, 2])
if not is_new:
    meet()
    if rueda.rank() == 0:
        die()
until(lambda: rueda.size() == 4)
check(pair, 0)
check(last, 1)
if three is not None:
    check(three, 0, 1)
# What is added next has one number everywhere, and newcomers may be members.
more = rueda.add_process_set([1, 2, 3])
assert more.process_set_id == 4, more
check(more, 1, 2, 3)
rueda.remove_process_set(last)
print("ended well", flush=True)
"""
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_newcomers_are_no_members_and_number_alike(transport: str) -> None:
    with ElasticJob(JOINING, 3, **HOSTS[transport]) as job:
        job.await_world(1, 2)
        job.start_joiner()
        job.start_joiner()
        ended = job.ended()
    for number in (1, 2, 3, 4):
        assert ended[number].returncode == 0, job.outputs()
        assert "ended well" in ended[number].output, job.outputs()


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ("[other, last]", "began with another set instead of"),
        ("[pair]", "began with 2 sets, and this process has 1"),
        ("[pair, last, other]", "began with 2 sets, and this process has 3"),
    ],
    ids=["other", "fewer", "more"],
)
def test_a_newcomer_that_begins_with_other_sets_is_told(others: str, why: str) -> None:
    other = JOINING.replace("[pair, last])\nis_new", f"{others})\nis_new")
    other = other.replace("pair, last =", "other = rueda.ProcessSet([0, 2])\npair, last =")
    with ElasticJob(JOINING, 3) as job:
        job.await_world(1, 2)
        stranger = job.start_joiner(other)
        assert job.processes[stranger][0].wait(60) == 1, job.outputs()
        assert why in job.outputs()
        job.start_joiner()
        job.start_joiner()
        ended = job.ended()
    for number in (1, 2, 4, 5):
        assert "ended well" in ended[number].output, job.outputs()


HOROVOD = (
    PREAMBLE
    + """
import rueda.horovod.basics as hvd
from rueda.horovod.elastic_state import ObjectState
from rueda.horovod.forming import run
from rueda.horovod.process_sets import add_process_set

hvd.init()
single = None

@run
def train(state):
    global single
    # As in Horovod, whose world begins anew without sets.
    assert single is None or single.size() is None, single
    single = add_process_set([1])
    if single.included():
        assert rueda.allreduce(np.ones(2), op=rueda.Sum, process_set=single).tolist() == [1, 1]
    while True:
        time.sleep(0.002)
        state.batch += 1
        if rueda.allreduce(np.array([hvd.size()], np.int32), "size", rueda.Min)[0] == 4:
            return
        if state.batch == 3 and os.environ.get("RUEDA_RANK") == "0":
            die()
        state.commit()

train(ObjectState(rueda.broadcast_object, hvd.rank, batch=0))
assert [rueda._native.ranks_of(n) for n in rueda._native.process_set_ids()] == [[0, 1, 2, 3], [1]]
print("ended well", flush=True)
"""
)


def test_horovods_loop_begins_anew_without_sets() -> None:
    with ElasticJob(HOROVOD, 3) as job:
        job.await_world(1, 2)
        job.start_joiner()
        job.await_world(1, 2, 3)  # in which one has not heard of the update that let it in
        job.start_joiner()
        ended = job.ended()
    for number in (1, 2, 3, 4):
        assert "ended well" in ended[number].output, job.outputs()


def test_horovods_newcomers_do_not_add_the_sets_of_init() -> None:
    # Former ranks do not call init() again, and have lost those sets.
    program = (
        HOROVOD.replace(
            "hvd.init()\n",
            "from rueda.horovod.process_sets import ProcessSet\n"
            "first = ProcessSet([0])\n"
            "hvd.init(process_sets=[first])\n",
        )
        .replace("== 4", "== 3")
        .replace("state.batch == 3", "state.batch < 0")
    )
    program = program.replace("[[0, 1, 2, 3], [1]]", "[[0, 1, 2], [1]]")
    with ElasticJob(program, 2) as job:
        job.start_joiner()
        ended = job.ended()
    for how in ended.values():
        assert "ended well" in how.output, job.outputs()
