"""Allreduces that submit and wait in one call: when they apply, and how they are interrupted."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from textwrap import dedent

from launching import Job, alone


def test_what_takes_the_short_way() -> None:
    """The short path raises no errors and converts nothing: it declines unusual arguments."""
    ended = alone(
        """
        import numpy as np, rueda
        from rueda import _native, dtypes
        rueda.init()
        sum_ = rueda.Sum
        usual = ("x", sum_, 1.0, 1.0, 0)

        def takes(array, name="x", op=sum_, prescale=1.0, postscale=1.0, number=0, target=None):
            target = array if target is None else target
            before = rueda.metrics()["tensors_submitted"]
            taken = _native.allreduce_arrays(array, target, name, op, prescale, postscale, number)
            assert rueda.metrics()["tensors_submitted"] - before == taken
            return taken

        for name in dtypes.names():
            if name != "bfloat16":
                array = np.array([1, 0, 1]).astype(name)
                assert takes(array), name
                assert array.tolist() == [1, 0, 1], name
        assert takes(np.ones(())) and takes(np.ones((0, 3))) and takes(np.ones((2, 3)).T.copy())
        assert takes(np.ones(3), None) and takes(np.ones(3), "x", 0) and takes(np.ones(3), "ä")
        source, target = np.arange(3.0), np.empty(3)
        source.flags.writeable = False
        assert takes(source, prescale=2.0, postscale=3.0, target=target)
        assert target.tolist() == [0.0, 6.0, 12.0] and source.tolist() == [0.0, 1.0, 2.0]

        assert not takes(source)
        assert not takes(np.ones((3, 2)).T)
        assert not takes(np.ones(6)[::2])
        assert not takes(np.ones(3, ">f4"))
        assert not takes(np.zeros(3, "datetime64[s]"))
        assert not takes(np.zeros(3, np.longdouble))
        assert not takes(np.zeros(3, [("a", "f4")]))
        assert not takes(np.array([None]))
        assert not takes([1.0, 2.0])
        assert not takes(np.ones(3), 7)
        assert not takes(np.ones(3), "\\udc80")
        assert not takes(np.ones(3), op=8) and not takes(np.ones(3), op=-1)
        assert not takes(np.ones(3), op="sum") and not takes(np.ones(3), op=2**70)
        assert not takes(np.ones(3), prescale="1") and not takes(np.ones(3), postscale=1)
        assert not takes(np.ones(3), number=None)
        assert _native.address_of(source) == source.ctypes.data
        try:
            _native.address_of("text")
        except AttributeError:
            pass
        else:
            raise AssertionError

        # From outside nothing of this shows.
        assert rueda.allreduce_(np.ones(3), "x", prescale_factor="2").tolist() == [2.0] * 3
        assert rueda.allreduce(np.ones((3, 2)).T, postscale_factor=3).tolist() == [[3.0] * 3] * 2
        assert rueda.allreduce([1, 2], name=7, op=0).tolist() == [1, 2]

        class Mine(np.ndarray):
            pass

        mine = np.ones(3).view(Mine)
        assert rueda.allreduce_(mine) is mine
        assert type(rueda.allreduce(np.matrix([[1.0]]))) is np.ndarray
        """
    )
    assert ended.returncode == 0, ended.output


def test_errors_come_out_of_the_short_way() -> None:
    ended = alone(
        """
        import numpy as np, rueda
        array = np.ones(3)
        def refused(kind, text, **options):
            try:
                rueda.allreduce_(array, **options)
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        refused(rueda.NotInitializedError, "rueda.init()")
        rueda.init()
        refused(rueda.UnsupportedError, "bit_and", op=rueda.BitAnd)
        refused(rueda.InvalidArgumentError, "not been added", process_set=rueda.ProcessSet([0]))
        handle = rueda.allreduce_async_(array, name="x")
        handle.result()
        assert rueda.allreduce_(array, name="x") is array
        """
    )
    assert ended.returncode == 0, ended.output


def test_an_array_outlives_ctrl_c() -> None:
    """The operation continues, so its memory must stay alive until the other rank joins in."""
    program = """
        import gc, sys, weakref, numpy as np, rueda
        from rueda.handles import _pending
        rueda.init()
        if rueda.rank() == 0:
            base = np.full(1 << 16, 1.0)
            address = base.ctypes.data
            alive = weakref.ref(base)
            print("waiting", flush=True)
            try:
                rueda.allreduce_(base, name="x", op=rueda.Sum)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            else:
                sys.exit("was not interrupted")
            del base
            gc.collect()
            assert alive() is not None and alive().ctypes.data == address
            rueda.barrier(name="go")
            while not _pending[0].done():
                pass
            assert (alive() == 2.0).all()
            for _ in range(4):
                rueda.barrier()
            assert alive() is None
        else:
            rueda.barrier(name="go")
            assert (rueda.allreduce(np.full(1 << 16, 1.0), name="x", op=rueda.Sum) == 2.0).all()
            for _ in range(4):
                rueda.barrier()
    """
    with Job(program, 2) as job:
        job.wait_for_output(0, "waiting")
        time.sleep(0.3)
        job.ranks[0].send_signal(signal.SIGINT)
        ended = job.wait(60)
        assert [e.returncode for e in ended] == [0, 0], job.report()


def test_streams_need_not_wait_for_what_is_on_the_host() -> None:
    ended = alone(
        """
        import numpy as np, rueda
        from rueda import _native
        rueda.init()
        arrays = [np.ones(3), np.ones(5)]
        handle = rueda.grouped_allreduce_async(arrays, name="g")
        _native.wait_on_all(handle._natives, 0)
        assert handle.done()
        assert [a.tolist() for a in handle.result()] == [[1.0] * 3, [1.0] * 5]
        """
    )
    assert ended.returncode == 0, ended.output


def test_calls_that_wait_at_once_wake_no_other_thread() -> None:
    """Otherwise each call costs two thread switches, and those threads take the ranks' cores."""
    program = """
        import numpy as np, rueda
        rueda.init()
        array = np.zeros(1, np.float32)
        calls = 500

        def step():
            rueda.allreduce_(array, name="x", op=rueda.Sum)
            rueda.barrier(name="b")

        for _ in range(50):
            step()
        before = rueda.metrics()
        for _ in range(calls):
            step()
        after = rueda.metrics()
        grown = {name: after[name] - before[name] for name in after}
        assert grown["driven_by_caller"] >= 2 * calls, grown
        assert grown["sleeps"] < calls / 10, grown
    """
    with Job(program, 2) as job:
        ended = job.wait(60)
        assert [e.returncode for e in ended] == [0, 0], job.report()


# Rank 1 makes a call that it has made before once the file "go" exists.
REPEATED = """
    import os, threading, time, numpy as np, rueda
    rueda.init()
    array = np.ones(1, np.float32)
    for _ in range(50):
        rueda.allreduce_(array, name="x", op=rueda.Max)
    rueda.barrier()
    array[0] = 2 - rueda.rank()
    if rueda.rank() == 1:
        while not os.path.exists("go"):
            time.sleep(0.001)
        rueda.allreduce_(array, name="x", op=rueda.Max)
        assert array[0] == 2
        rueda.barrier()
        raise SystemExit
"""


def test_a_repeated_call_that_waits_lets_other_threads_run(tmp_path: Path) -> None:
    """The call holds the GIL briefly, while the other ranks may arrive, but no longer."""
    program = dedent(REPEATED) + dedent(
        """
        def call_the_other() -> None:
            begins.wait()
            for _ in range(20):
                time.sleep(0.01)
            open("go", "w").close()

        begins = threading.Event()
        thread = threading.Thread(target=call_the_other)
        thread.start()
        begins.set()
        rueda.allreduce_(array, name="x", op=rueda.Max)
        assert array[0] == 2
        rueda.barrier()
        thread.join()
        """
    )
    with Job(program, 2, folder=tmp_path) as job:
        ended = job.wait(60)
        assert [e.returncode for e in ended] == [0, 0], job.report()


def test_a_repeated_call_that_waits_can_be_interrupted(tmp_path: Path) -> None:
    program = dedent(REPEATED) + dedent(
        """
        print("waiting", flush=True)
        try:
            rueda.allreduce_(array, name="x", op=rueda.Max)
        except KeyboardInterrupt:
            open("go", "w").close()
        rueda.barrier()
        assert array[0] == 2  # it went on
        """
    )
    with Job(program, 2, folder=tmp_path) as job:
        job.wait_for_output(0, "waiting")
        time.sleep(0.3)
        job.ranks[0].send_signal(signal.SIGINT)
        ended = job.wait(60)
        assert [e.returncode for e in ended] == [0, 0], job.report()


def test_barriers_and_calls_without_a_name_send_no_message() -> None:
    program = """
        import numpy as np, rueda
        rueda.init()
        arrays = [np.zeros(2, dtype) for dtype in ("float32", "int64", "uint8")]

        def step():
            rueda.barrier()
            for array in arrays:
                rueda.allreduce_(array, op=rueda.Sum)
                rueda.allreduce_(array, name=array.dtype.name, op=rueda.Sum)

        for _ in range(150):
            step()
        before = rueda.metrics()
        for _ in range(150):
            step()
        after = rueda.metrics()
        grown = {name: after[name] - before[name] for name in after}
        assert grown["control_messages_sent"] == 0, grown
        assert grown["plans_replayed"] == 150 * 7, grown
    """
    with Job(program, 2) as job:
        ended = job.wait(60)
        assert [e.returncode for e in ended] == [0, 0], job.report()
