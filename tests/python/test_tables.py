"""Tables of parameters under failures: lost ranks, exhausted memory, Ctrl-C, fork, new worlds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hosts import all_checks_on_hosts
from launching import PARALLEL, Job, check, find_mpirun, run
from one_run import OneRun, each_check_of

pytest.importorskip("rueda._native")

TABLES = PARALLEL / "check_tables.py"

PREAMBLE = """
import os, signal, sys, threading, time
import numpy as np
import rueda
from rueda.server import RowTable, Table

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def meet_then_die(dead):
    # A rank that is in the barrier may learn of the loss before it learns that all have arrived.
    try:
        rueda.barrier()
    except rueda.PeerLostError:
        assert rueda.rank() != dead
    if rueda.rank() == dead:
        die()

def add_until_broken(table, delta, rows=None):
    '''Returns how many additions were confirmed.'''
    confirmed = 0
    try:
        while True:
            (table.add(delta) if rows is None else table.add(rows, delta)).result()
            confirmed += 1
            print(f"confirmed {confirmed}", flush=True)
    except rueda.PeerLostError:
        return confirmed

"""

RECOVERS = """
rueda.init()
with RowTable("rows", 4, replicated=True) as rows, Table("flat", 3000, replicated=True) as flat:
    mine = [rueda.rank(), 1000 + rueda.rank()]
    threads = [
        threading.Thread(target=lambda: counts.__setitem__("rows", add_until_broken(rows, np.ones((2, 4)), mine))),
        threading.Thread(target=lambda: counts.__setitem__("flat", add_until_broken(flat, np.ones(3000)))),
    ]
    counts = {}
    old = rueda.rank()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rueda.recover()
    assert rueda.size() == 3
    rows = rows.restored()
    flat = flat.restored()
    found = rows.get(mine).result()
    assert (found >= counts["rows"]).all(), (found, counts)
    assert (found == found[:, :1]).all(), "whole additions"
    others = sum(rueda.allgather_object(counts["flat"]))
    values = flat.get().result()
    # Of each part all are whole; the lost rank had confirmed some as well.
    assert values.min() >= others, (values.min(), others)
    for owner in range(4):
        part = values[750 * owner : 750 * (owner + 1)]
        assert (part == part[0]).all(), part
    dead = rows.get([DEAD, 1000 + DEAD]).result()
    print("dead has", int(dead.min()), flush=True)
    rueda.barrier()
    rows.add([old], np.ones((1, 4)), ticks=True).result()
    assert rows.get([old], min_clock=1).result().min() >= counts["rows"] + 1
    rueda.barrier()
    rows.close()
    flat.close()
rueda.shutdown()
"""


@pytest.mark.parametrize(("dead", "transport"), [(0, "shm"), (3, "shm"), (1, "tcp")])
def test_rows_of_a_killed_owner_come_back_from_its_replica(dead: int, transport: str) -> None:
    extra = {"RUEDA_RECOVERY": "on", "RUEDA_TRANSPORT": transport}
    with Job(PREAMBLE + RECOVERS.replace("DEAD", str(dead)), 4, extra=extra) as job:
        job.wait_for_output(dead, "confirmed 12")
        os.kill(job.ranks[dead].pid, signal.SIGKILL)
        job.ranks[dead].wait()
        confirmed = job.output(dead).splitlines()
        for rank in set(range(4)) - {dead}:
            assert job.ranks[rank].wait(60) == 0, job.report()
            found = next(
                int(line.split()[-1])
                for line in job.output(rank).splitlines()
                if line.startswith("dead has")
            )
            # Two threads have written rows of either kind, each in order.
            rows = max(
                (int(line.split()[1]) for line in confirmed if confirmed.count(line) == 2),
                default=0,
            )
            assert found >= rows, (found, rows)


KEEPS = """
import random
rate, epsilon, dead = 0.1, 1e-6, DEAD

def trajectory(steps):
    '''What a number is after so many additions of 1.'''
    value = total = np.float32(0)
    values = [value]
    for step in range(steps):
        total += np.float32(1)
        value -= np.float32(rate) / (np.sqrt(total) + np.float32(epsilon))
        values.append(value)
    return np.array(values)

known = trajectory(20000)

def steps_of(values):
    '''How many additions these numbers of one owner have taken, all as many.'''
    assert (values == values.flat[0]).all(), "whole additions"
    return int(np.abs(known - values.flat[0]).argmin())

rueda.init()
old = rueda.rank()
options = {"rule": "adagrad", "parameters": [rate, epsilon], "replicated": True}
rows, flat = RowTable("rows", 4, **options), Table("flat", 40, **options)
rueda.barrier()
if old == dead:
    threading.Timer(random.Random(SEED).uniform(0.05, 0.5), die).start()
mine = [old, 1000 + old, 5000 + old]
confirmed = added = 0
try:
    while True:
        rows.add(mine, np.ones((3, 4)), ticks=True).result()
        confirmed += 1
        os.write(1, b"confirmed %d\\n" % confirmed)
        flat.add(np.ones(40)).result()
        added += 1
        os.write(1, b"added %d\\n" % added)
except rueda.PeerLostError:
    pass
rueda.recover()
rows, flat = rows.restored(), flat.restored()
# The last addition, which was not confirmed, may have come to some of the rows' owners and not to others.
done = [steps_of(row) for row in rows.get(mine).result()]
assert confirmed <= min(done) and max(done) <= confirmed + 1, (confirmed, done)
assert confirmed <= rows.clock <= confirmed + 1, (confirmed, rows.clock)
counts = [steps_of(flat.get(begin=begin, count=13).result()) for begin in (0, 14, 27)]
print("flat has", min(counts), sum(rueda.allgather_object(added)), flush=True)
# Adagrad's sums came along: it goes on where it was, in the next world's parts as well.
rows.add(mine, np.ones((3, 4))).result()
expected = np.repeat(known[np.array(done) + 1], 4).reshape(3, 4)
np.testing.assert_allclose(rows.get(mine).result(), expected, rtol=1e-5)
theirs = [dead, 1000 + dead, 5000 + dead]
print("dead has", *sorted(steps_of(row) for row in rows.get(theirs).result()), flush=True)
rueda.barrier()
rows.close()
flat.close()
rueda.shutdown()
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_sums_of_the_rule_and_clocks_of_a_killed_owner_come_back(seed: int) -> None:
    """A rank kills itself at a random moment, whatever its threads are doing."""
    dead = seed % 3

    def last(lines: list[str], kind: str) -> int:
        return max((int(line.split()[1]) for line in lines if line.startswith(kind)), default=0)

    program = KEEPS.replace("DEAD", str(dead)).replace("SEED", str(seed))
    with Job(PREAMBLE + program, 3, extra={"RUEDA_RECOVERY": "on"}) as job:
        job.ranks[dead].wait(60)
        for rank in set(range(3)) - {dead}:
            assert job.ranks[rank].wait(60) == 0, job.report()
        told = job.output(dead).splitlines()
        for rank in set(range(3)) - {dead}:
            lines = {
                line.rpartition(" has ")[0]: [int(word) for word in line.split()[2:]]
                for line in job.output(rank).splitlines()
                if " has " in line
            }
            confirmed = last(told, "confirmed")
            fewest, _, most = lines["dead"]
            assert confirmed <= fewest, (lines, confirmed)
            assert most <= confirmed + 1, (lines, confirmed)
            least, of_others = lines["flat"]
            acknowledged = of_others + last(told, "added")
            assert acknowledged <= least <= acknowledged + 3, (lines, acknowledged)


def test_without_replicas_a_lost_part_is_told_to_all() -> None:
    program = """
rueda.init()
table = Table("weights", 100)
meet_then_die(1)
add_until_broken(table, np.ones(100))
rueda.recover()
try:
    table.restored()
except rueda.PeerLostError as error:
    print(error, flush=True)
# The name is free again.
with Table("weights", 100) as again:
    assert again.get().result().sum() == 0
    rueda.barrier()
table.close()
rueda.shutdown()
"""
    ended = run(PREAMBLE + program, 3, extra={"RUEDA_RECOVERY": "on"})
    for rank in (0, 2):
        assert ended[rank].returncode == 0, ended[rank].output
        assert "no remaining rank holds the part of rank 1" in ended[rank].output
        assert "replicated=True" in ended[rank].output


def test_what_a_rank_cannot_hand_over_is_told_to_all() -> None:
    """The partition fits the former ranks but not the survivors."""
    program = """
rueda.init()
rows = RowTable("rows", 4, partition=lambda rows: rows % 4, replicated=True)
rows.add([rueda.rank()], np.ones((1, 4))).result()
meet_then_die(2)
add_until_broken(rows, np.ones((1, 4)), [2])
rueda.recover()
for attempt in range(2):
    try:
        rows.restored()
    except rueda.InvalidArgumentError as error:
        print(error, flush=True)
# The name is free again.
with RowTable("rows", 4) as again:
    assert again.get([3]).result().sum() == 0
    rueda.barrier()
rueda.shutdown()
"""
    ended = run(PREAMBLE + program, 4, extra={"RUEDA_RECOVERY": "on"})
    for rank in (0, 1, 3):
        assert ended[rank].returncode == 0, ended[rank].output
        told = ended[rank].output.count("leaves row 3 without one of the 3 ranks as its owner")
        assert told == 2, ended[rank].output


def test_a_set_of_ranks_is_told_of_them_by_their_numbers_in_the_world() -> None:
    program = """
rueda.init()
some = rueda.add_process_set([0, 2, 3])
if rueda.rank() != 1:
    tables = [
        RowTable("rows", 4, partition=lambda rows: rows % 3, replicated=True, process_set=some),
        Table("flat", 30, process_set=some),
    ]
    tables[0].add(range(9), np.ones((9, 4))).result()
meet_then_die(2)
try:
    while True:
        rueda.barrier()
except rueda.PeerLostError:
    pass
rueda.recover()
if some.included():
    for table in tables:
        try:
            table.restored(some)
        except (rueda.InvalidArgumentError, rueda.PeerLostError) as error:
            print(error, flush=True)
rueda.barrier()
rueda.shutdown()
"""
    ended = run(PREAMBLE + program, 4, extra={"RUEDA_RECOVERY": "on"})
    assert ended[1].returncode == 0, ended[1].output
    for rank in (0, 3):
        assert ended[rank].returncode == 0, ended[rank].output
        # In the world that follows, rank 2 is what rank 3 was.
        assert "rank 2 cannot take part" in ended[rank].output
        assert "table 'rows': rank 2 cannot put what it holds" in ended[rank].output
        assert "no remaining rank holds the part of rank 2" in ended[rank].output


@pytest.mark.parametrize("added", [0, 1])
def test_ranks_that_hold_different_tables_of_a_name_are_told(added: int) -> None:
    """As if a rank had been lost when restored() had returned on some of the ranks only."""
    program = f"""
rueda.init()
first = rueda.rank()
held = [Table("flat", 24, replicated=True), RowTable("rows", 2, replicated=True)]

def add(flat, rows):
    flat.add(np.ones(24)).result()
    rows.add(np.arange(40), np.ones((40, 2))).result()

def lose(dead):
    meet_then_die(dead)
    try:
        while True:
            rueda.barrier()
    except rueda.PeerLostError:
        rueda.recover()

add(*held)
lose(1)
restored = [table.restored() for table in held]
for _ in range({added}):
    add(*restored)
if first != 2:
    held = restored
lose(2)  # which was rank 3
for table in held:
    try:
        table.restored()
    except rueda.MismatchError as error:
        assert error.field == "table" and len(error.values) == 2, error.values
        print(error, flush=True)
rueda.barrier()
# The names are free again.
with Table("flat", 24), RowTable("rows", 2):
    pass
rueda.shutdown()
"""
    stalls = {"RUEDA_STALL_ERROR": "20"}
    ended = run(PREAMBLE + program, 4, extra={"RUEDA_RECOVERY": "on", **stalls})
    for rank in (0, 2):
        assert ended[rank].returncode == 0, ended[rank].output
        for table in ("flat", "rows"):
            assert (
                f"table '{table}' differs between ranks: 3 owners, restored() 1 times, on rank 0; "
                "4 owners, restored() 0 times, on rank 1" in ended[rank].output
            ), ended[rank].output


def test_a_rank_without_memory_is_told_to_all() -> None:
    program = """
import resource
rueda.init()
if rueda.rank() == 1:
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), -1))
try:
    Table("large", 2 * (100 << 20))  # 400 MiB each
except rueda.InvalidArgumentError as error:
    print("whole:", error, flush=True)
with RowTable("rows", 1 << 16) as rows:  # 256 KiB each
    mine = [row for row in range(4000) if rows.owner_of(row) == 1]
    if rueda.rank() == 0:
        added = 0
        try:
            while True:
                rows.add([mine[added]], np.ones((1, 1 << 16))).result()
                added += 1
        except rueda.InvalidArgumentError as error:
            print("rows:", error, flush=True)
        rueda.barrier(name="full")
        rueda.barrier(name="more")
        assert rows.get([mine[0]]).result().min() == 1
        assert rows.get([mine[added]]).result().max() == 0, "nothing of what failed"
    else:
        rueda.barrier(name="full")
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        rueda.barrier(name="more")
    rueda.barrier()
assert rueda.allreduce(np.ones(3), op=rueda.Sum).tolist() == [2, 2, 2]
rueda.shutdown()
"""
    ended = run(PREAMBLE + program, 2, limit=120)
    for rank in ended:
        assert rank.returncode == 0, rank.output
        assert "rank 1 has no memory for 419430400 bytes" in rank.output
    assert "no memory for more than the" in ended[0].output


def test_a_forked_child_is_told_that_it_has_no_table() -> None:
    program = """
rueda.init()
closed = Table("closed", 10)
closed.close()
with Table("weights", 10) as table:
    child = os.fork()
    if child == 0:
        for use in (lambda: table.get(), lambda: table.add(np.ones(10)), lambda: table.call("min"), table.close):
            try:
                use()
            except rueda.NotInitializedError as error:
                assert "forked" in str(error)
            else:
                os._exit(2)
        del closed  # its parent has what it shared
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table.add(np.ones(10), ticks=True).result()
    assert table.get(min_clock=1).result().sum() == 20
    rueda.barrier()
rueda.shutdown()
"""
    for ended in run(PREAMBLE + program, 2):
        assert ended.returncode == 0, ended.output


@pytest.mark.parametrize("where", ["open", "close", "get"])
def test_interrupted(where: str) -> None:
    """Ctrl-C ends a wait for others; the table remains usable and can be closed."""
    program = f"""
rueda.init()
rank = rueda.rank()
if "{where}" == "open" and rank == 0:
    print("waiting", flush=True)
    try:
        Table("weights", 10)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)
if "{where}" == "open":
    time.sleep(60)
table = Table("weights", 10)
rueda.barrier()
if rank == 0:
    print("waiting", flush=True)
    try:
        table.close() if "{where}" == "close" else table.get(min_clock=1).result()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    if "{where}" == "get":
        rueda.barrier(name="goes on")
        table.finish().result()
        assert table.get(min_clock=1).result().sum() == 10
    table.close()
else:
    if "{where}" == "get":
        rueda.barrier(name="goes on")
        table.add(np.ones(10), ticks=True).result()
        table.finish().result()
    else:
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    table.close()
print("closed", flush=True)
rueda.shutdown()
"""
    folder = Path(f"/tmp/rueda-test-{os.getpid()}-{where}")
    try:
        with Job(PREAMBLE + program, 2, [str(folder)]) as job:
            job.wait_for_output(0, "waiting")
            time.sleep(0.3)
            job.ranks[0].send_signal(signal.SIGINT)
            job.wait_for_output(0, "interrupted")
            folder.touch()
            if where == "open":
                return
            for process in job.ranks:
                assert process.wait(60) == 0, job.report()
    finally:
        folder.unlink(missing_ok=True)


def test_tables_of_another_world_and_of_one_that_has_ended() -> None:
    program = """
rueda.init()
old = Table("weights", 10)
old.add(np.ones(10)).result()
rueda.barrier()  # a rank that has left serves its part no more
rueda.shutdown()
for use in (lambda: old.get().result(), old.close):
    try:
        use()
    except rueda.ShutdownError as error:
        pass
    else:
        sys.exit("a table of a world that has ended")
assert len(old.parts()) == 1
"""
    for ended in run(PREAMBLE + program, 2):
        assert ended.returncode == 0, ended.output


def test_waiting_for_a_step_is_told_with_who_is_behind() -> None:
    program = """
rueda.init()
with Table("weights", 10) as table:
    if rueda.rank() == 0:
        try:
            table.get(min_clock=3).result()
        except rueda.StalledError as error:
            print(error, flush=True)
    else:
        table.tick().result()
        time.sleep(2.5)
    rueda.barrier()
rueda.shutdown()
"""
    stalls = {"RUEDA_STALL_WARNING": "0.5", "RUEDA_STALL_ERROR": "2"}
    ended = run(PREAMBLE + program, 2, extra=stalls)
    for rank in ended:
        assert rank.returncode == 0, rank.output
    told = ended[0].output
    assert "rank 0 waits for step 3 of ranks 0 and 1, which have done 0, 1" in told
    assert "finish()" in told


@pytest.fixture(scope="module")
def two_hosts() -> OneRun:
    if find_mpirun() is None:
        pytest.skip("there is no MPI")
    return all_checks_on_hosts(TABLES, 2, 2)


@each_check_of(TABLES)
def test_two_hosts_with_two_ranks_each(two_hosts: OneRun, check: str) -> None:
    two_hosts.require(check)


def test_an_addition_in_ring_order_is_answered_by_an_owner_that_closes_the_table() -> None:
    check(
        PREAMBLE
        + """
rueda.init()
both = rueda.add_process_set([0, 1])
table = Table("t", 1000, order="ring", process_set=both)
if rueda.rank() == 0:
    addition = table.add(np.ones(1000))  # waits at both owners for that of rank 1
rueda.barrier()
rueda.remove_process_set(both)
if rueda.rank() == 1:
    table.close()
    rueda.recv(np.zeros(1), 0)  # stays until rank 0 has its answer
else:
    table.close()
    try:
        addition.result()
        sys.exit("was added")
    except (rueda.StalledError, rueda.InvalidArgumentError) as error:
        assert "table" in str(error), error
    rueda.send(np.zeros(1), 1)
rueda.shutdown()
""",
        2,
        extra={"RUEDA_STALL_ERROR": "1"},
        limit=60,
    )
