"""Every rank: tables of elements and of rows, as scripts use them."""

from __future__ import annotations

import math
import os
import shutil
import struct
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import parallel
import rueda
from parallel import raises, still_works
from rueda.server import RowTable, Table


def rank() -> int:
    return rueda.rank()


def size() -> int:
    return rueda.size()


def check_what_all_ranks_add_is_there() -> None:
    """With fewer elements than ranks, inline, and as separate messages."""
    for count in (1, 7, 1000, 200_003):
        with Table("weights", count) as table:
            delta = np.arange(count, dtype=np.float32) % 17 + rank()
            table.add(delta, factor=0.5, ticks=True).result()
            found = table.get(min_clock=1).result()
            ranks = size() * (size() - 1) / 2
            expected = 0.5 * (size() * (np.arange(count, dtype=np.float32) % 17) + ranks)
            np.testing.assert_array_equal(found, expected)
            out = np.empty(count // 2, np.float32)
            assert table.get(out, begin=count // 3).result() is out
            np.testing.assert_array_equal(out, expected[count // 3 :][: count // 2])
            rueda.barrier()
            if rank() == size() - 1:
                table.put(np.ones(count)).result()
            rueda.barrier()
            assert (table.min(), table.max(), table.sum()) == (1, 1, count)
            np.testing.assert_allclose(table.norm(), np.sqrt(count))
            assert table.clock == 1


def check_rows_come_in_the_order_in_which_they_are_asked_for() -> None:
    for partition in (None, lambda rows: rows % rueda.size()):
        with RowTable("rows", 16, spread=0.5, seed=3, partition=partition) as table:
            rows = np.array([5, 10**12, 5, 0])
            before = table.get(rows).result()
            assert before.shape == (4, 16)
            assert abs(before).max() <= 0.5
            np.testing.assert_array_equal(before[0], before[2])
            assert len(np.unique(before)) > 40
            rueda.barrier()
            delta = np.arange(64, dtype=np.float32).reshape(4, 16)
            table.add(rows, delta, ticks=True).result()
            after = table.get(rows.reshape(2, 2), min_clock=1).result()
            assert after.shape == (2, 2, 16)
            added = size() * np.stack(
                [delta[0] + delta[2], delta[1], delta[0] + delta[2], delta[3]]
            )
            np.testing.assert_allclose(after.reshape(4, 16), before + added, rtol=1e-6)
            assert [row for row, _ in table.top(3)] == [0, 5, 10**12]
            rueda.barrier()
            if rank() == 0:
                table.put([1, 1], [np.ones(16), np.full(16, 2)]).result()
            rueda.barrier()
            assert table.get([1]).result().tolist() == [[2.0] * 16]
            assert table.get([]).result().shape == (0, 16)


def check_a_seed_may_be_any_whole_number() -> None:
    with (
        RowTable("below", 4, spread=1.0, seed=-1) as below,
        RowTable("one", 4, spread=1.0, seed=1) as one,
    ):
        assert not np.array_equal(below.get([7]).result(), one.get([7]).result())
        rueda.barrier()


def check_the_order_of_the_ring_has_the_bits_of_an_allreduce() -> None:
    random = np.random.default_rng(rank())
    weights = np.zeros(10_001, np.float32)
    with Table("ring", weights.size, order="ring") as table:
        for step in range(3):
            delta = random.standard_normal(weights.size).astype(np.float32)
            table.add(delta, ticks=True).result()
            if os.environ.get("RUEDA_ALGORITHM") == "ring":
                weights += rueda.allreduce(delta, op=rueda.Sum, name="delta")
                np.testing.assert_array_equal(
                    table.get(min_clock=step + 1).result().view(np.int32), weights.view(np.int32)
                )
            # The same bits on all ranks, whatever the order of additions.
            own = table.get(min_clock=step + 1).result().view(np.int32)
            largest = rueda.allreduce(own, op=rueda.Max, name="bits")
            np.testing.assert_array_equal(own, largest)


def check_a_refused_step_is_not_counted() -> None:
    """Factors differ in every third step, so that all its additions are refused while others are under way."""
    if size() == 1:
        return
    with Table("refused", 50, order="ring") as table:

        def add(is_refused: bool) -> rueda.Handle[None]:
            factor = 2.0 if is_refused and rank() == 0 else 1.0
            return table.add(np.ones(50), factor=factor, ticks=True)

        def require(refused: rueda.Handle[None]) -> None:
            with raises(rueda.MismatchError, "others of the same step"):
                refused.result()

        add(False).result()
        assert table.clock == 1
        require(add(True))
        assert table.clock == 1
        rueda.barrier()
        handles = [add(step % 3 == 1) for step in range(50)]
        assert 34 <= table.clock <= 51
        for step, handle in enumerate(handles):
            require(handle) if step % 3 == 1 else handle.result()
        assert table.clock == 34
        assert table.clocks() == [34] * size()
        assert table.get(min_clock=table.clock).result().tolist() == [34 * size()] * 50
        rueda.barrier()
        refused = add(True)
        table.restart().result()
        require(refused)
        assert table.clock == 0  # the step was of before
        rueda.barrier()
        handle = add(False)
        assert table.clock == 1  # at once
        handle.result()
        assert table.get(min_clock=1).result().tolist() == [35 * size()] * 50
        rueda.barrier()


def check_adagrad_at_the_owner() -> None:
    with Table("adagrad", 9, rule="adagrad", parameters=[0.1, 1e-8]) as table:
        if rank() == 0:
            table.add(np.full(9, 2)).result()
            table.add(np.full(9, 2)).result()
        rueda.barrier()
        np.testing.assert_allclose(table.get().result(), -0.1 * (2 / 2 + 2 / np.sqrt(8)), rtol=1e-5)
        rueda.barrier()


def check_staleness() -> None:
    with Table("stale", size(), bounds=[0, *[size()] * size()]) as table:
        table.get().result()
        rueda.barrier()
        for turn in range(size()):
            if turn == rank():
                table.add(np.ones(size()), by_staleness=True).result()
            rueda.barrier()
        np.testing.assert_allclose(
            table.get().result(), sum(1 / (1 + stale) for stale in range(size())), rtol=1e-6
        )
        assert table.staleness() == {rank(): 1}


def check_staleness_where_all_add_at_once() -> None:
    """An owner divides each addition by 1 + its staleness, in one atomic step."""
    turns = 60 // size()
    with Table("stale at once", 3 * size()) as table:
        rueda.barrier()
        for _ in range(turns):
            table.get().result()
            table.add(np.ones(3 * size()), by_staleness=True).result()
        rueda.barrier()
        met = np.zeros(65)
        for staleness, count in table.staleness().items():
            met[staleness] = count
        total = rueda.allreduce(met, op=rueda.Sum, name="met")
        assert total.sum() == turns * size() * size()  # one per owner
        parts = table.get().result().reshape(size(), 3)
        assert np.all(parts == parts[:, :1])  # atomic: all of an owner's elements are equal
        expected = (total / (1 + np.arange(65))).sum()
        np.testing.assert_allclose(parts[:, 0].sum(), expected, rtol=1e-5)
        rueda.barrier()


def check_a_rank_that_finishes_early_goes_on_serving() -> None:
    with Table("early", 40, replicated=True) as table:
        steps = 3 if rank() == 0 else 20
        for step in range(steps):
            table.get(min_clock=step - 1).result()
            table.add(np.ones(40), ticks=True).result()
        table.finish().result()
        if rank() != 0:
            assert table.get(min_clock=100).result().tolist() == [20 * (size() - 1) + 3] * 40


def check_several_threads() -> None:
    with Table("threads", 500) as table, RowTable("thread rows", 3) as rows:

        def work(number: int) -> None:
            for _ in range(20):
                table.add(np.ones(500)).result()
                rows.add([number], np.ones((1, 3))).result()
                table.get().result()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rueda.barrier()
        assert table.get().result().tolist() == [60 * size()] * 500
        assert rows.get([0, 1, 2]).result().tolist() == [[20 * size()] * 3] * 3
        rueda.barrier()


def check_a_table_of_some_ranks() -> None:
    ranks = [each for each in range(size()) if each != 1]
    some = rueda.add_process_set(ranks)
    if rank() != 1:
        with Table("some", 10, process_set=some) as table:
            table.add(np.ones(10), ticks=True).result()
            assert table.get(min_clock=1).result().tolist() == [len(ranks)] * 10
    else:
        with raises(rueda.InvalidArgumentError, "not a member of process set"):
            Table("some", 10, process_set=some)
    rueda.remove_process_set(some)


def check_a_table_of_a_set_that_was_removed() -> None:
    """Whether its parts are in shared memory, like the small table's, or not."""
    some = rueda.add_process_set(range(size()))
    tables = [Table(f"of {count}", count, process_set=some) for count in (100, 10**6)]
    rows = RowTable("rows of it", 4, process_set=some)
    rueda.barrier()
    rueda.remove_process_set(some)
    for table in tables:
        delta = np.ones(table.size)
        for use in (
            table.get,
            lambda table=table, delta=delta: table.add(delta),
            lambda table=table, delta=delta: table.add(delta, ticks=True),
            lambda table=table, delta=delta: table.put(delta),
            table.tick,
        ):
            with raises(rueda.InvalidArgumentError, "has been removed"):
                use().result()
        for part in table.parts():
            assert not part.values.any(), "something was added all the same"
    for use in (lambda: rows.get([3]), lambda: rows.add([3], np.ones(4))):
        with raises(rueda.InvalidArgumentError, "has been removed"):
            use().result()
    for each in (*tables, rows):
        each.close()


def check_a_forked_child_has_no_part() -> None:
    tables = [Table("forked", 1000), Table("forked, too large to be shared", 10**6)]
    uses = (
        Table.parts,
        lambda table: table.get().result(),
        lambda table: table.add(np.ones(table.size)).result(),
        lambda table: table.tick().result(),
        Table.clocks,
        Table.staleness,
        Table.seen,
        Table.close,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        child = os.fork()
    if child == 0:
        try:
            for table in tables:
                for use in uses:
                    with raises(rueda.NotInitializedError, "forked"):
                        use(table)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for table in tables:
        table.close()


def check_bad_input() -> None:
    with raises(rueda.InvalidArgumentError, "no update rule 'adam'"):
        Table("t", 10, rule="adam")
    with raises(rueda.InvalidArgumentError, "end at the size, 10"):
        Table("t", 10, bounds=[0] * size() + [9])
    with raises(rueda.InvalidArgumentError, "bytes on the host of", "left"):
        Table("t", 10**13)
    with raises(rueda.InvalidArgumentError, "'backwards'"):
        Table("t", 10, order="backwards")  # type: ignore[arg-type]
    for wrong, said in ((1.5, "size=1.5"), ("10", "size='10'"), (2**70, "64 bits")):
        with raises(rueda.InvalidArgumentError, said):
            Table("t", wrong)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "surrogate"):
        Table("t\udc80", 10)
    for name in (None, ""):
        with raises(rueda.InvalidArgumentError, f"name={name!r}: a table needs a name"):
            Table(name, 10)  # type: ignore[arg-type]
        with raises(rueda.InvalidArgumentError, f"name={name!r}: a table needs a name"):
            RowTable(name, 3)  # type: ignore[arg-type]
    if rank() == 0:  # of one rank only: it waits for nobody
        with raises(rueda.InvalidArgumentError, "a table needs a name"):
            Table("", 10)
    with raises(rueda.InvalidArgumentError, "initial='one'"):
        RowTable("t", 3, initial="one")  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "parameters=0.1"):
        RowTable("t", 3, parameters=0.1)  # type: ignore[arg-type]
    for size_, row in ((0, 3), (-1, 3), (2**51, 3), (3, 0), (3, -1), (3, 2**25)):
        wrong_one = f"width={row} is not from 1 to" if size_ == 3 else f"size={size_} is not from 1"
        with raises(rueda.InvalidArgumentError, "'rueda.table 't''", wrong_one):
            Table("t", size_) if size_ != 3 else RowTable("t", row)
    for given, said in (
        ({"rule": 5}, "rule=5 is not a text"),
        ({"replicated": "no"}, "replicated='no' is neither True nor False"),
        ({"parameters": ["0.1"]}, "parameters='0.1' is not a number"),
        ({"process_set": 5}, "5 is not a process set"),
    ):
        with raises(rueda.InvalidArgumentError, said):
            Table("t", 10, **given)  # type: ignore[arg-type]
        with raises(rueda.InvalidArgumentError, said):
            RowTable("t", 10, **given)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "partition=5 is not a function"):
        RowTable("t", 10, partition=5)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "rows=0: a table has one row or more"):
        RowTable("t", 3, rows=0)
    if size() > 1:
        with raises(rueda.InvalidArgumentError, "rows='9'"):  # of one rank only
            RowTable("t", 3, rows="9" if rank() == 1 else 9)  # type: ignore[arg-type]
        for rows in (9, None):
            with raises(rueda.MismatchError, "table 't'", "rows 10 on rank 1, rows "):
                RowTable("t", 3, rows=10 if rank() == 1 else rows)
        with raises(rueda.InvalidArgumentError, "width=2.5"):  # of one rank only
            RowTable("t", 2.5 if rank() == 1 else 2)  # type: ignore[arg-type]
        with raises(rueda.InvalidArgumentError, "'backwards'"):  # of one rank only
            Table("t", 10, order="backwards" if rank() == 1 else "ring")  # type: ignore[arg-type]
        with raises(rueda.MismatchError, "table 't'", "size 11", "size 10"):
            Table("t", 11 if rank() == 1 else 10)
        with raises(rueda.MismatchError, "replicated yes", "replicated no"):
            RowTable("t", 3, replicated=rank() == 0)
        # Numbers must match to the last bit: each rank computes initial rows from them.
        with raises(rueda.MismatchError, "initial rows 0 +- 1, seed 0", "1.000001"):
            RowTable("t", 3, spread=1.000001 if rank() == 1 else 1.0)
        with raises(rueda.MismatchError, "[0.05, 1e-08]", "[0.05000000000000001, 1e-08]"):
            rate = 0.05000000000000001 if rank() == 1 else 0.05
            Table("t", 3, rule="adagrad", parameters=[rate, 1e-8])
    with Table("t", 10) as table, RowTable("rows", 2) as rows:
        with raises(rueda.InvalidArgumentError, "open already"):
            Table("t", 10)
        with raises(rueda.InvalidArgumentError, "10 in all"):
            table.add(np.ones(4), begin=7)
        for factor in (math.nan, math.inf, -math.inf, 1e39, np.float32(math.nan), 10**400):
            for add in (
                lambda factor=factor: table.add(np.ones(10), factor=factor, ticks=True),
                lambda factor=factor: rows.add([1], np.ones(2), factor=factor, ticks=True),
            ):
                with raises(rueda.InvalidArgumentError, "add(): factor=", "is not a"):
                    add()
        assert table.clock == rows.clock == 0
        assert not table.get().result().any()
        with raises(rueda.InvalidArgumentError, "-1 elements"):
            table.get(begin=11)
        with raises(rueda.InvalidArgumentError, "contiguous, writable array of float32"):
            table.get(np.empty(10))
        with raises(rueda.InvalidArgumentError, "no row -3"):
            rows.get([1, -3])
        with raises(rueda.InvalidArgumentError, "no row -1"):
            rows.add([-1], np.ones(2))
        with raises(rueda.InvalidArgumentError, "no row 9223372036854775809"):
            rows.get(np.array([2**63 + 1], np.uint64))
        with raises(rueda.InvalidArgumentError, "whole numbers"):
            rows.get([1.5])
        with raises(rueda.InvalidArgumentError, "of 2 elements"):
            rows.add([1, 2], np.ones(3))
        with raises(rueda.InvalidArgumentError, "no shard function 'median'"):
            table.call("median")
        with raises(rueda.InvalidArgumentError, "'top' failed at its owner, rank "):
            table.call("top", struct.pack("=i", 3))
    with raises(rueda.InvalidArgumentError, "has been closed"):
        table.add(np.ones(10))
    table.close()
    wrong = lambda found: np.full(found.shape, rueda.size())  # noqa: E731
    with RowTable("rows", 2, partition=wrong) as rows:
        for use in (lambda: rows.get([7]), lambda: rows.add([7], np.ones(2))):
            with raises(rueda.InvalidArgumentError, "leaves row 7 without"):
                use()
    owned: list[np.ndarray] = []

    def owners(asked: np.ndarray) -> np.ndarray:
        owned.append(asked)
        return asked % rueda.size()

    for partition in (None, owners):
        with RowTable("limited", 2, rows=100, partition=partition) as rows:
            rows.put([99, 0], np.ones((2, 2))).result()
            for use in (
                lambda: rows.get([[3, 100]]),
                lambda: rows.get(np.array([100], np.uint8)),
                lambda: rows.put([100], np.ones(2)),
                lambda: rows.add([7, 100, 7], np.ones((3, 2))),
                lambda: rows.owner_of(100),
            ):
                with raises(
                    rueda.InvalidArgumentError,
                    "table 'limited': there is no row 100: it has 100 rows",
                ):
                    use()
            with raises(rueda.InvalidArgumentError, "no row -1: it has 100 rows"):
                rows.get([-1])
            rueda.barrier()
            assert rows.get([99, 7]).result().tolist() == [
                [1, 1],
                [0, 0],
            ]  # add() has changed nothing
    assert all(asked.max() < 100 for asked in owned)
    with (
        RowTable("rows", 2, partition=lambda _: [0]) as rows,
        raises(rueda.InvalidArgumentError, "owners of shape (1,) for 2 rows"),
    ):
        rows.get([7, 8])
    still_works()


def check_arguments_of_wrong_types() -> None:
    """Each error names the table, the call, the argument, what it got and what it wants."""
    one: Any = np.ones(10)
    with Table("t", 10) as table, RowTable("rows", 2) as rows:
        text: Any = "x"
        for use, said in (
            (lambda: table.get(begin=1.5), "'t': get(): begin=1.5 is not a whole number"),
            (lambda: table.get(count=text), "'t': get(): count='x' is not a whole number"),
            (lambda: table.get(min_clock=text), "'t': get(): min_clock='x' is not a whole number"),
            (lambda: table.get(min_clock=2**64), "'t': get(): min_clock=18446744073709551616 has"),
            (lambda: table.get(text), "'t': get(): out= must be a contiguous, writable array"),
            (lambda: table.put(text), "'t': put(): values='x' cannot be converted"),
            (lambda: table.put(None), "'t': put(): values=None cannot be converted"),
            (lambda: table.put([[1], [1, 2]]), "'t': put(): values=[[1], [1, 2]] cannot be"),
            (lambda: table.put([None] * 10), "'t': put(): values=[None, "),
            (lambda: table.add([*one[:9], None]), "its dtype is object"),
            (lambda: table.put(one * 1j), "its dtype is complex128"),
            (lambda: table.put(one, begin=text), "'t': put(): begin='x' is not a whole number"),
            (lambda: table.add(text), "'t': add(): delta='x' cannot be converted"),
            (lambda: table.add(one, begin=text), "'t': add(): begin='x' is not a whole number"),
            (lambda: table.add(one, factor=text), "'t': add(): factor='x' is not a number"),
            (lambda: table.add(one, ticks=text), "'t': add(): ticks='x' is neither True nor"),
            (lambda: table.add(one, by_staleness=text), "'t': add(): by_staleness='x' is neither"),
            (lambda: table.call(5), "'t': call(): function=5 is not a text"),
            (lambda: table.call("min", []), "'t': call(): arguments=[] are not bytes"),
            (lambda: table.top(text), "'t': top(): count='x' is not a whole number"),
            (lambda: table.top(-1), "'t': top(): count=-1 is negative"),
            (lambda: rows.get(text), "'rows': get(): rows are whole numbers, not of dtype <U1"),
            (lambda: rows.get([[1], [1, 2]]), "'rows': get(): rows=[[1], [1, 2]]: "),
            (lambda: rows.get([1], min_clock=text), "'rows': get(): min_clock='x' is not a whole"),
            (lambda: rows.get([1], text), "'rows': get(): out= must be a contiguous"),
            (lambda: rows.put([1], text), "'rows': put(): values='x' cannot be converted"),
            (
                lambda: rows.add([1], [None, 1]),
                "'rows': add(): delta=[None, 1] cannot be converted",
            ),
            (lambda: rows.put([1], one), "'rows': put(): values= of shape (10,) for 1 row of 2"),
            (lambda: rows.add([1], one[:2], factor=text), "'rows': add(): factor='x' is not a"),
            (lambda: rows.add([1], one[:2], ticks=text), "'rows': add(): ticks='x' is neither"),
            (lambda: rows.owner_of(text), "'rows': owner_of(): row='x' is not a whole number"),
        ):
            with raises(rueda.InvalidArgumentError, f"table {said}" if said[0] == "'" else said):
                use()
        assert table.clock == rows.clock == 0
        rueda.barrier()
        # What is of another type but has the right meaning is taken.
        table.add(one, begin=np.int64(0), factor=np.float32(1), ticks=np.bool_(True)).result()  # type: ignore[arg-type]
        assert table.get(min_clock=np.int64(1)).result().tolist() == [size()] * 10  # type: ignore[arg-type]
        assert len(table.call("min", bytearray())) == size()  # type: ignore[arg-type]
        rueda.barrier()
    words: Any = lambda asked: ["x"] * len(asked)  # noqa: E731
    with (
        RowTable("rows", 2, partition=words) as rows,
        raises(rueda.InvalidArgumentError, "table 'rows': partition() gave ['x'] instead of ranks"),
    ):
        rows.get([7])
    still_works()


def check_of_repeated_rows_the_last_is_put_and_all_are_added() -> None:
    rng = np.random.default_rng(7)
    numbers = rng.integers(0, 50, 1000)  # each about twenty times
    values = rng.normal(size=(1000, 3)).astype(np.float32)
    last = dict(zip(numbers.tolist(), values.tolist(), strict=True))
    with RowTable("rows", 3) as table:
        if rank() == 0:
            for _ in range(3):
                table.put(numbers, values).result()
                assert table.get(list(last)).result().tolist() == list(last.values())
            table.put(np.arange(50), np.zeros((50, 3))).result()
            table.add(numbers, values).result()
            found = table.get(np.arange(50)).result()
            for number in last:
                expected = values[numbers == number].sum(0)
                np.testing.assert_allclose(found[number], expected, rtol=1e-4, atol=1e-5)
        rueda.barrier()


def check_deltas_of_a_repeated_row_are_summed_in_their_order() -> None:
    """Each float32 sum is rounded, so that another order, as NumPy's pairwise sums have it, gives another value."""
    deltas = np.array([1e8, *[1] * 7, -1e8, *[1] * 9, 0.1, 0.3], np.float32)
    expected = np.float32(0)
    for delta in deltas:
        expected += delta
    assert expected != np.add.reduceat(deltas, [0])[0]  # or this checks nothing
    for width in (1, 3):
        with RowTable("in order", width) as table:
            if rank() == 0:
                rows = np.full(2 * deltas.size, 5)
                rows[1::2] = 6 + np.arange(deltas.size)
                table.add(rows, np.repeat(deltas, 2 * width)).result()
                assert table.get([5]).result().tolist() == [[expected] * width]
                assert table.get([6, 14]).result().tolist() == [[1e8] * width, [-1e8] * width]
            rueda.barrier()


def check_an_add_does_not_wait_for_a_rank_that_computes() -> None:
    """That rank's script does not call Rueda until the others have added, and holds the GIL."""
    with Table("busy", 1000 * size(), bounds=[0, *[1000 * size()] * size()]) as table:
        folder = Path(rueda.broadcast_object(tempfile.mkdtemp() if rank() == 0 else None))
        if rank() == 0:
            end = time.monotonic() + 60
            while len(list(folder.iterdir())) < size() - 1:
                assert time.monotonic() < end, "nobody has added while rank 0 computed"
                for _ in range(1000):
                    sum(range(1000))
            shutil.rmtree(folder)
        else:
            for _ in range(10):
                table.add(np.ones(1000 * size())).result()
            (folder / str(rank())).touch()
        rueda.barrier()


def check_nothing_of_an_unnamed_row_takes_memory() -> None:
    with RowTable("sparse", 1000) as table:
        table.get(np.arange(1000)).result()
        assert struct.unpack("=q", table.call("count")[rank()])[0] == 0
        rueda.barrier()
        table.add([rank()], np.ones((1, 1000))).result()
        rueda.barrier()
        assert sum(struct.unpack("=q", n)[0] for n in table.call("count")) == 1000 * size()
        rueda.barrier()


def check_nan_is_the_largest_of_all() -> None:
    """This takes a core whose owners put NaN first as well."""
    nan = math.nan
    with Table("nan", 6) as table, RowTable("nan rows", 2) as rows:
        if rank() == 0:
            table.put([7, nan, 5, 1, 2, 3]).result()
            rows.put([1, 2, 3, 4], [[1, 1], [nan, 1], [5, 5], [1, nan]]).result()
        rueda.barrier()
        assert math.isnan(table.max())
        for top, expected in (
            (table.top(6), [(1, nan), (0, 7), (2, 5), (5, 3), (4, 2), (3, 1)]),
            (table.top(1), [(1, nan)]),
            (table.top(2), [(1, nan), (0, 7)]),
            (rows.top(3), [(2, nan), (4, nan), (3, np.float32(math.sqrt(50)))]),
        ):
            np.testing.assert_equal(top, expected)
        rueda.barrier()


if __name__ == "__main__":
    parallel.run(globals())
