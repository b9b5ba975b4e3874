"""Ranks that continue after losses: what recover() finds, refuses and reports."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from launching import Ended, check, find_mpirun, run
from rueda_command import LAUNCHER

pytest.importorskip("rueda._native")

ON = {"RUEDA_RECOVERY": "on"}
PREAMBLE = """
import os, re, signal, time
import numpy as np
import rueda

def total(name="x", count=1000):
    return rueda.allreduce(np.full(count, rueda.rank() + 1.0, np.float32), op=rueda.Sum, name=name)

def until_broken():
    try:
        while True:
            total()
    except rueda.PeerLostError as error:
        return error

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at_work():
    try:
        total()
    finally:  # another may have died before it
        die()

def whole(count):
    assert rueda.size() == count, rueda.size()
    assert np.all(total() == count * (count + 1) // 2)

"""


def lose(program: str, size: int, lost: set[int], **variables: str) -> list[Ended]:
    """Runs ranks, some of which kill themselves; all others must succeed."""
    ended = run(PREAMBLE + program, size, extra={**ON, **variables})
    for rank, how in enumerate(ended):
        expected = -signal.SIGKILL if rank in lost else 0
        assert how.returncode == expected, f"rank {rank}\n" + "\n".join(e.output for e in ended)
    return ended


def test_the_table_of_descriptors_does_not_grow_in_a_recovery() -> None:
    # In a process with several threads, the kernel grows the table only after a delay.
    lose(
        """
def table():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line[:6] == "FDSize")

def taken():
    return len(os.listdir("/proc/self/fd"))

filling = os.open("/dev/null", os.O_RDONLY)
while taken() < table() - 40:
    os.dup(filling)
before = taken()
rueda.init()
after_init = table()
assert after_init - taken() >= taken() - before, (after_init, taken(), before)
if rueda.rank() == 3:
    die_at_work()
until_broken()
rueda.recover()
whole(3)
assert table() == after_init
""",
        4,
        {3},
    )


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def epoch_of(ended: Ended) -> int:
    (epoch,) = (line.split()[1] for line in ended.output.splitlines() if line.startswith("epoch "))
    return int(epoch)


def test_counters_go_on_in_the_worlds_that_follow() -> None:
    lose(
        """
def grown(before):
    after = rueda.metrics()
    smaller = {name: (before[name], after[name]) for name in before if after[name] < before[name]}
    assert not smaller, smaller
    return after

rueda.init()
rank = rueda.rank()
seen = rueda.metrics()
for loss in (3, 0):
    for _ in range(20):
        total()
    seen = grown(seen)
    if rank == loss:
        die_at_work()
    until_broken()
    seen = grown(seen)
    rueda.recover()
    after = grown(seen)
    assert after["allreduce_tensors"] == seen["allreduce_tensors"] >= 20
    whole(3 if loss == 3 else 2)
    seen = grown(after)
    assert seen["allreduce_tensors"] == after["allreduce_tensors"] + 1
rueda.barrier()
rueda.shutdown()
os.environ.update(RUEDA_BOOTSTRAP="none")
rueda.init()
assert rueda.metrics()["allreduce_tensors"] == 0
""",
        4,
        {0, 3},
    )


def test_a_timeline_goes_on_in_the_worlds_that_follow(tmp_path: Path) -> None:
    # Rank 2 becomes rank 1; its file keeps its name.
    ended = lose(
        """
rueda.init()
total("first")
if rueda.rank() == 1:
    die_at_work()
until_broken()
print("epoch", rueda.recover().epoch)
total("second")
""",
        3,
        {1},
        RUEDA_TIMELINE=str(tmp_path / "%r.json"),
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json", "2.json"]
    for first, later in ((0, 0), (2, 1)):
        events = events_of(tmp_path / f"{first}.json")
        assert {event["pid"] for event in events} == {first}
        rows = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
        assert (rows[0], rows[-1]) == ("first", "second"), rows
        (mark,) = (event for event in events if event["name"] == "WORLD")
        assert mark["ph"] == "i"
        assert mark["args"] == {"epoch": epoch_of(ended[first]), "rank": later, "size": 2}
        started = [
            e["ts"]
            for e in events
            if e["name"] == "ALLREDUCE" and e["tid"] == rows.index("second") + 1
        ]
        assert len(started) == 1
        assert mark["ts"] <= started[0]


def test_a_timeline_that_was_started_is_stopped_in_a_world_that_follows(tmp_path: Path) -> None:
    lose(
        f"""
rueda.init()
rank = rueda.rank()
path = "{tmp_path}/%r"
rueda.start_timeline(path, format="horovod")
total("first")
if rank == 1:
    die_at_work()
until_broken()
rueda.recover()
total("second")
try:
    rueda.start_timeline(path)
    raise SystemExit("two timelines at once")
except rueda.InvalidArgumentError:
    pass
rueda.stop_timeline()
rueda.barrier()  # all have
total("third")
rueda.start_timeline(path + ".later")
total("fourth")
rueda.stop_timeline()
""",
        3,
        {1},
    )
    for first, later in ((0, 0), (2, 1)):
        events = events_of(tmp_path / str(first))
        names = {e["args"].get("name") for e in events if e.get("name") == "process_name"}
        assert "allreduce.second" in names, names
        assert "allreduce.third" not in names, names
        begun = [e["pid"] for e in events if e["ph"] == "B"]
        assert sorted(begun) == sorted(e["pid"] for e in events if e["ph"] == "E")
        assert "fourth" in (tmp_path / f"{later}.later").read_text()


def test_the_rank_that_becomes_the_first_begins_the_timeline_of_its_world(tmp_path: Path) -> None:
    ended = lose(
        """
rueda.init()
total("first")
if rueda.rank() == 0:
    die_at_work()
until_broken()
print("epoch", rueda.recover().epoch)
total("second")
""",
        3,
        {0},
        RUEDA_TIMELINE=str(tmp_path / "trace"),
    )
    later = f"trace.epoch{epoch_of(ended[1])}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace", later]
    rows = [e["args"]["name"] for e in events_of(tmp_path / later) if e["name"] == "thread_name"]
    assert rows == ["second"]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("lost", [{0}, {2}, {0, 1}, {1, 3}, {0, 2, 3}], ids=str)
def test_those_that_are_left_go_on(lost: set[int], transport: str) -> None:
    lose(
        rf"""
rueda.init()
rank = rueda.rank()
if rank in {lost}:
    die_at_work()
until_broken()
seen = 0
while seen < {len(lost)}:
    recovery = rueda.recover()
    for gone, cause in recovery.lost.items():
        assert re.match(rf"rank {{gone}} \(.+, pid \d+\) is gone: ", cause), cause
    seen += len(recovery.lost)
    if seen < {len(lost)}:
        until_broken()
assert rueda.rank() == sorted(set(range(4)) - {lost}).index(rank)
whole({4 - len(lost)})
""",
        4,
        lost,
        RUEDA_TRANSPORT=transport,
    )


def test_recover_says_who_is_lost_and_who_was_who() -> None:
    lose(
        """
rueda.init()
rank = rueda.rank()
members = rueda.add_process_set([0, 2])
if rank == 1:
    die_at_work()  # not while others still wait for the set
error = until_broken()
assert error.peer == 1, error
recovery = rueda.recover()
assert recovery.previous_ranks == [0, 2], recovery
assert list(recovery.lost) == [1] and "pid" in recovery.lost[1], recovery
first = recovery.epoch
if rank == 0:
    whole(2)
    die()
until_broken()
recovery = rueda.recover()
assert recovery.previous_ranks == [1] and list(recovery.lost) == [0], recovery
assert recovery.epoch > first
whole(1)
""",
        3,
        {0, 1},
    )


# Stops a process's service threads for some seconds, as if they got no CPU time.
STARVE = """
import ctypes, os, sys, time
SEIZE, INTERRUPT, DETACH, EVERY_THREAD = 0x4206, 0x4207, 17, 0x40000000
process, pause = int(sys.argv[1]), float(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
threads = [int(each) for each in os.listdir(f"/proc/{process}/task")]
threads = [each for each in threads if open(f"/proc/{process}/task/{each}/comm").read().startswith("rueda")]
assert threads
for thread in threads:
    if libc.ptrace(SEIZE, thread, None, None) != 0 or libc.ptrace(INTERRUPT, thread, None, None) != 0:
        sys.exit(77)
    os.waitpid(thread, EVERY_THREAD)
time.sleep(pause)
for thread in threads:
    libc.ptrace(DETACH, thread, None, None)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_runs_but_does_not_get_to_answer_is_not_lost(transport: str) -> None:
    # Twice the heartbeat. A rank that sleeps or is stopped that long is lost, and killed.
    ended = run(
        PREAMBLE
        + f"""
import subprocess, sys
rueda.init()
whole(2)
if rueda.rank() == 1:
    starving = subprocess.Popen([sys.executable, "-c", {STARVE!r}, str(os.getpid()), "2"])
    while starving.poll() is None:
        for _ in range(100000):  # most of the time: asking for the child may sleep
            pass
    print("traced with", starving.returncode, flush=True)
whole(2)
""",
        2,
        extra={**ON, "RUEDA_HEARTBEAT": "1", "RUEDA_TRANSPORT": transport},
    )
    if "traced with 77" in ended[1].output:
        pytest.skip("a process may not trace another one here")
    for how in ended:
        assert how.returncode == 0, "\n".join(each.output for each in ended)
    assert "traced with 0" in ended[1].output


WAITING = {
    "wait": "operation.wait()",
    "done": "while not operation.done(): time.sleep(0.001)",
}


@pytest.mark.parametrize("waiting", WAITING)
def test_a_frozen_rank_is_lost_while_others_wait_in_a_persistent_operation(waiting: str) -> None:
    """In their own threads, of which the engine knows nothing."""
    lose(
        f"""
import torch
import rueda.torch
rueda.init()
operation = rueda.torch.PersistentAllreduce(torch.ones(1000), op=rueda.Sum, name="kept")
for _ in range(3):
    operation.start()
    operation.wait()
if rueda.rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)  # the others kill it
operation.start()
try:
    {WAITING[waiting]}
    raise AssertionError("it ended")
except rueda.PeerLostError as error:
    assert (error.peer, error.reason) == (1, "unreachable"), (error.peer, error.reason)
rueda.recover()
whole(2)
""",
        3,
        {1},
    )


@pytest.mark.parametrize("frozen", [[0], [0, 1], [1, 2], [0, 1, 3]], ids=str)
def test_however_many_ranks_of_a_host_freeze_the_others_go_on(frozen: list[int]) -> None:
    """The first one and most of them, too: all are killed, so that none can go on later."""
    size = len(frozen) + 1
    lose(
        f"""
rueda.init()
whole({size})
if rueda.rank() in {frozen}:
    os.kill(os.getpid(), signal.SIGSTOP)
until_broken()
rueda.recover()
whole(1)
""",
        size,
        set(frozen),
        RUEDA_HEARTBEAT="0.5",
    )


@pytest.mark.parametrize("crashing", [[0], [0, 1]], ids=str)
def test_a_rank_that_is_writing_a_core_dump_has_ended(crashing: list[int], tmp_path: Path) -> None:
    """It does not answer for longer than the heartbeat, but must not be killed before the dump is whole."""
    if Path("/proc/sys/kernel/core_pattern").read_text().startswith(("|", "/")):
        pytest.skip("core dumps are not written to the working folder here")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("core dumps are limited here")
    held = (1200 << 20) // len(crashing)  # takes longer than the heartbeat
    ended = run(
        PREAMBLE
        + f"""
import pathlib, resource
crashing, rank = {crashing}, int(os.environ["RUEDA_RANK"])
held = np.ones({held} if rank in crashing else 0, np.uint8)
rueda.init()
size = rueda.size()
folder = pathlib.Path({os.fspath(tmp_path)!r}) / str(rank)
folder.mkdir()
os.chdir(folder)
whole(size)
if rank in crashing:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    total()
    os.kill(os.getpid(), signal.SIGSEGV)
error = until_broken()
assert error.reason == "ended", (error.reason, error)
rueda.recover()
whole(size - len(crashing))
""",
        len(crashing) + 1,
        extra={**ON, "RUEDA_HEARTBEAT": "0.2"},
    )
    written = "\n".join(each.output for each in ended)
    expected = [-signal.SIGSEGV if rank in crashing else 0 for rank in range(len(crashing) + 1)]
    assert [each.returncode for each in ended] == expected, written
    for rank in crashing:
        (dump,) = (tmp_path / str(rank)).iterdir()
        assert dump.stat().st_size > held, written
        dump.unlink()


def test_a_rank_that_has_left_is_not_lost_while_others_exchange_messages() -> None:
    """It would be killed, as it does not answer."""
    ended = run(
        PREAMBLE
        + """
rueda.init()
rank = rueda.rank()
total()
if rank == 1:
    rueda.shutdown()
    time.sleep(2)
elif rank == 2:
    time.sleep(1.5)
    rueda.send(np.ones(4), 0)
else:
    array = np.zeros(4)
    rueda.recv(array, 2)
    assert np.all(array == 1)
""",
        3,
        extra={**ON, "RUEDA_HEARTBEAT": "0.4"},
    )
    assert [each.returncode for each in ended] == [0, 0, 0], "\n".join(e.output for e in ended)


@pytest.mark.parametrize("looked", ["polled", "waited"])
def test_a_rank_that_has_left_is_not_taken_for_frozen(looked: str) -> None:
    """Though another has waited long in a persistent operation, and keeps it."""
    ended = run(
        PREAMBLE
        + f"""
import torch
import rueda.torch
looked = {looked!r}
rueda.init()
rank = rueda.rank()
operation = rueda.torch.PersistentAllreduce(torch.ones(1000), op=rueda.Sum, name="kept")
operation.start()
if rank == 2 and looked == "polled":
    time.sleep(0.5)
elif rank == 0 and looked == "polled":
    for _ in range(4):
        operation.done()
        time.sleep(0.1)
else:
    operation.wait()
if rank == 1:
    if looked == "waited":
        time.sleep(0.5)
    del operation
    rueda.shutdown()
    time.sleep(1.5)
elif looked == "polled":
    operation.wait()  # it is complete
    time.sleep(1.5)
else:
    operation.start()
    try:
        operation.wait()
        raise AssertionError("it ended")
    except rueda.ShutdownError:
        time.sleep(1.5)
    try:
        total()
        raise AssertionError("it ended")
    except rueda.ShutdownError:
        pass
""",
        3,
        extra={**ON, "RUEDA_HEARTBEAT": "0.4"},
    )
    assert [each.returncode for each in ended] == [0, 0, 0], "\n".join(e.output for e in ended)


def test_a_rank_that_freezes_between_steps_is_lost() -> None:
    lose(
        """
import rueda.elastic
class Nothing:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
rueda.init()
process = rueda.rank()
for step in rueda.elastic.steps(9, Nothing()):
    with step:
        if process == 1 and step.number == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
whole(2)
""",
        3,
        {1},
    )


def test_a_whole_world_is_broken_only_when_asked() -> None:
    check(
        PREAMBLE
        + """
rueda.init()
try:
    rueda.recover()
except rueda.InvalidArgumentError as error:
    assert "whole" in str(error)
else:
    raise AssertionError("not refused")
whole(3)
rank = rueda.rank()
for _ in range(3):
    if rank == 1:
        total()  # so that the others have read the sums before
        rueda.recover(break_whole=True)
    else:
        error = until_broken()
        assert "called recover()" in str(error), error
        recovery = rueda.recover()
        assert recovery.lost == {} and recovery.previous_ranks == [0, 1, 2]
    assert rueda.rank() == rank
    whole(3)
""",
        3,
        extra=ON,
    )


def test_an_error_is_a_loss_if_this_world_is_broken_or_will_be_at_once() -> None:
    # An error may be faster than the news, and may also come from a world that has ended.
    lose(
        """
from rueda.recovery import is_loss

rueda.init()
error, outdated = rueda.PeerLostError("rank 2 is gone", 2), rueda.PeerLostError("rank 7 is gone", 7)
outdated.is_outdated = True
assert not is_loss(error) and not is_loss(outdated)
whole(3)
if rueda.rank() == 2:
    time.sleep(1)
    die()
assert is_loss(error if rueda.rank() == 0 else outdated)
assert is_loss(error) and is_loss(outdated)
rueda.recover()
whole(2)
""",
        3,
        {2},
    )


@pytest.mark.parametrize("noticed", ["a collective", "a message"])
def test_a_rank_that_has_left_in_good_order_is_recovered_from(noticed: str) -> None:
    check(
        PREAMBLE
        + f"""
NOTICED = {noticed!r}
"""
        + """
rueda.init()
rank = rueda.rank()
for _ in range(3):
    whole(4 if rueda.size() == 4 else 3)
if rank == 1:
    raise SystemExit(0)
try:
    if NOTICED == "a message":
        rueda.send(np.ones(100_000), 1)
    else:
        total()
except rueda.RuedaError as error:
    noticed = error
recovery = rueda.recover()
if isinstance(noticed, rueda.ShutdownError):
    assert noticed.peer == 1 and recovery.lost == {1: "rank 1 has shut down"}, recovery
else:  # another rank has begun anew already
    assert isinstance(noticed, rueda.PeerLostError) and list(recovery.lost) == [1], recovery
    assert "called recover(), as rank 1 has shut down" in str(noticed), noticed
assert recovery.previous_ranks == [0, 2, 3], recovery
whole(3)
try:
    rueda.recover()
except rueda.InvalidArgumentError as error:
    assert "whole" in str(error)
else:
    raise AssertionError("not refused")
whole(3)
""",
        4,
        extra=ON,
    )


def test_a_first_step_in_which_a_rank_is_lost_is_taken_anew() -> None:
    """Also the first after a recovery: the ranks then do not know each other's gradients either."""
    pytest.importorskip("torch")
    lose(
        """
import rueda.torch, torch
rueda.init()
born = rueda.rank()
model = torch.nn.Linear(4, 1)
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
)
begun = done = 0
while done < 3:
    try:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        begun += 1
        if born == begun < 3:  # 1 in the first, 2 in the one after that
            die()
        optimizer.step()
        done += 1
    except rueda.PeerLostError:
        rueda.recover()
        done = 0
assert rueda.size() == 2, rueda.size()
rueda.torch.broadcast_parameters(model.state_dict())
""",
        4,
        {1, 2},
    )


def test_without_recovery_there_is_none() -> None:
    check(
        PREAMBLE
        + """
rueda.init()
try:
    rueda.recover()
except rueda.UnsupportedError as error:
    assert "recovery=on" in str(error)
else:
    raise AssertionError("not refused")
whole(2)
""",
        2,
    )


def test_fewer_than_the_least_stop_with_the_cause() -> None:
    lose(
        r"""
rueda.init()
if rueda.rank() == 2:
    die()
until_broken()
try:
    rueda.recover()
except rueda.PeerLostError as error:
    assert "of 3 ranks are left, fewer than 3" in str(error), error
    # The rank that tells of the loss first ends, and may be among the lost of the other.
    assert re.search(r"rank 2 \(.+, pid \d+\) is gone: ", str(error)), error
else:
    raise AssertionError("went on")
""",
        3,
        {2},
        RUEDA_MIN_NP="3",
    )


def test_a_rank_that_raises_is_lost_with_its_reason() -> None:
    ended = run(
        PREAMBLE
        + """
rueda.init()
if rueda.rank() == 1:
    raise ValueError("no more data")
until_broken()
recovery = rueda.recover()
assert "no more data" in recovery.lost[1], recovery
whole(2)
""",
        3,
        extra=ON,
    )
    assert [how.returncode for how in ended] == [0, 1, 0], [how.output for how in ended]


def test_the_world_is_formed_while_the_application_is_busy() -> None:
    lose(
        """
rueda.init()
rank = rueda.rank()
if rank == 0:
    die_at_work()
if rank == 2:
    time.sleep(2.5)  # longer than a heartbeat: it computes, and its threads answer
    until_broken()
else:
    until_broken()
recovery = rueda.recover()
assert list(recovery.lost) == [0], recovery
whole(3)
""",
        4,
        {0},
    )


def test_leaving_in_order_ends_what_recovers_too() -> None:
    check(
        PREAMBLE
        + """
for _ in range(3):
    rueda.init()
    whole(3)
    rueda.shutdown()
""",
        3,
        extra=ON,
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_who_ends_at_once_leaves_the_others_the_world_they_form(transport: str) -> None:
    # Some ranks still wait to hear that all have entered when the first has already left.
    for _ in range(3):
        lose(
            """
rueda.init()
if rueda.rank() == 1:
    die_at_work()
until_broken()
assert list(rueda.recover().lost) == [1]
assert rueda.size() == 7, rueda.size()
""",
            8,
            {1},
            RUEDA_TRANSPORT=transport,
        )


def test_a_rank_that_lacks_what_another_world_needs_stops_and_the_others_go_on() -> None:
    lose(
        """
import resource, sys
rueda.init()
rank = rueda.rank()
whole(4)
if rank == 1:  # no thread can be started
    pages = int(open("/proc/self/statm").read().split()[0])
    room = pages * resource.getpagesize() + (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
rueda.barrier()
if rank == 3:
    die_at_work()
until_broken()
try:
    sys.exit(f"went on: {rueda.recover(timeout=0.5)}")
except rueda.TimeoutError as error:
    assert "no other world was formed before the deadline: " in str(error), error
    assert "cannot start a thread" in str(error), error
    assert rank == 1 or "rank 1: " in str(error), error
if rank == 1:
    try:
        sys.exit(f"went on: {rueda.recover()}")
    except rueda.InitializationError as error:
        assert "cannot enter a world with the others" in str(error), error
        assert "cannot start a thread" in str(error), error
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    assert rueda.recover().previous_ranks == [0, 2]
    whole(2)
""",
        4,
        {3},
        RUEDA_HEARTBEAT="0.3",
    )


@pytest.mark.parametrize("most", ["4096", "soft"], ids=["soft", "hard"])
def test_a_rank_without_descriptors_raises_its_limit_or_stops(most: str) -> None:
    lose(
        f"""
import resource, sys
rueda.init()
rank = rueda.rank()
whole(4)
if rank == 1:
    soft = max(int(number) for number in os.listdir("/proc/self/fd")) + 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, {most}))
rueda.barrier()
if rank == 3:
    die_at_work()
until_broken()
if rank == 1 and {not most.isdigit()}:
    try:
        sys.exit(f"went on: {{rueda.recover()}}")
    except rueda.InitializationError as error:
        assert "ranks on this host need" in str(error) and "ulimit -Hn" in str(error), error
else:
    left = [0, 1, 2] if {most.isdigit()} else [0, 2]
    assert rueda.recover().previous_ranks == left
    whole(len(left))
""",
        4,
        {3},
    )


def test_forked_children_do_not_keep_a_lost_rank_alive(tmp_path: Path) -> None:
    lose(
        """
rueda.init()
met = os.environ["MET"]
if rueda.rank() == 1:
    if os.fork() == 0:
        end = time.monotonic() + 100
        while not os.path.exists(met) and time.monotonic() < end:
            time.sleep(0.01)
        os._exit(0)
    die()
began = time.monotonic()
until_broken()
rueda.recover()
assert time.monotonic() - began < 50, "it has waited for the child"
whole(2)
open(met, "w").close()
""",
        3,
        {1},
        MET=str(tmp_path / "met"),
    )


@pytest.mark.skipif(find_mpirun() is None, reason="no mpirun")
def test_under_mpirun_the_job_goes_on(tmp_path: Path) -> None:
    import subprocess

    from launching import environment

    (tmp_path / "program.py").write_text(
        PREAMBLE
        + """
rueda.init()
if rueda.rank() == 0:
    die_at_work()
until_broken()
rueda.recover()
whole(3)
print("went on", flush=True)
"""
    )
    ran = subprocess.run(
        [*LAUNCHER, "run", "--bootstrap", "mpi", "--min-np", "2", "-np", "4", "--oversubscribe",
         "python3", "program.py"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "needs Open MPI 5" in ran.stderr:
        pytest.skip("needs Open MPI 5")
    assert ran.stdout.count("went on") == 3, ran.stdout + ran.stderr
