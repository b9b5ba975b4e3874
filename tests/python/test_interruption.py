"""Signals and interpreter exit while something waits, and new worlds after a failure."""

from __future__ import annotations

import signal
import sys
import time

import pytest
from launching import Job, alone, check, find_mpirun, run_to_end, run_under_mpirun

needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")

WAITS = {
    "a handle": "rueda.allreduce_async(np.ones(2), name=f'only here {number}').result()",
    "a blocking call": "rueda.allreduce(np.ones(2), name=f'only here {number}')",
    "a queue": "_native.CompletionQueue().wait(0.1)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_daemon_thread_that_waits_does_not_spoil_the_exit(wait: str) -> None:
    check(
        f"""
        import sys, threading, time
        import numpy as np, rueda
        from rueda import _native

        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(1)

        def wait(number):
            began.release()
            while True:
                try:
                    {wait}
                except rueda.RuedaError:
                    pass

        rueda.init()
        began = threading.Semaphore(0)
        for number in range(4):
            name = f"{{rueda.rank()}}.{{number}}"  # nobody else's
            threading.Thread(target=wait, args=(name,), daemon=True).start()
        for _ in range(4):
            began.acquire()
        assert rueda.allreduce([1.0], op=rueda.Sum).tolist() == [2.0]
        sys.slow = Slow()  # so that threads come back while the interpreter is ending
        """,
        2,
    )


INTERRUPTED = {
    "init": """
        import rueda
        if RANK == 0:
            print("waits", flush=True)
            try:
                rueda.init()
            except KeyboardInterrupt:
                assert not rueda.is_initialized()
                print("interrupted")
    """,
    "init of a later rank": """
        import rueda
        if RANK == 1:
            print("waits", flush=True)
            try:
                rueda.init()
            except KeyboardInterrupt:
                assert not rueda.is_initialized()
                print("interrupted")
    """,
    "add_process_set": """
        import rueda
        rueda.init()
        if RANK == 0:
            print("waits", flush=True)
            try:
                rueda.add_process_set([0])
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            rueda.barrier(name="later")
        else:
            print("idle", flush=True)
            input_ended()
            rueda.add_process_set([0])
            rueda.barrier(name="later")
        assert rueda.allreduce([1.0], op=rueda.Sum).tolist() == [2.0]
    """,
    "remove_process_set": """
        import rueda
        rueda.init()
        pair = rueda.add_process_set([0, 1])
        if RANK == 0:
            print("waits", flush=True)
            try:
                rueda.remove_process_set(pair)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            rueda.barrier(name="later")
        else:
            print("idle", flush=True)
            input_ended()
            rueda.remove_process_set(pair)
            rueda.barrier(name="later")
        assert rueda.allreduce([1.0], op=rueda.Sum).tolist() == [2.0]
    """,
}

PROLOGUE = """
        import os, time
        RANK = int(os.environ["RUEDA_RANK"])
        def input_ended():
            deadline = time.monotonic() + 60
            while not os.path.exists(os.environ["GO_ON"]):
                assert time.monotonic() < deadline, "nobody said that rank 0 was interrupted"
                time.sleep(0.01)
"""


@pytest.mark.parametrize("program", INTERRUPTED.values(), ids=INTERRUPTED)
def test_ctrl_c_ends_what_waits_for_other_ranks(program: str, tmp_path: object) -> None:
    import textwrap
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    go_on = tmp_path / "go on"
    text = textwrap.dedent(PROLOGUE) + textwrap.dedent(program)
    with Job(text, 2, extra={"GO_ON": str(go_on), "RUEDA_INIT_TIMEOUT": "100"}) as job:
        waiting = 1 if "RANK == 1" in program else 0
        job.wait_for_output(waiting, "waits")
        time.sleep(0.5)  # most likely it waits by then; if not, it is interrupted earlier
        job.ranks[waiting].send_signal(signal.SIGINT)
        job.wait_for_output(waiting, "interrupted", limit=30)
        go_on.touch()
        ended = job.wait(60)
        assert all(rank.returncode == 0 for rank in ended), job.report()


DOES_AT_ONCE = {
    "allgather": ("", "rueda.allgather(part, name=f'number {number}')"),
    "broadcast": ("", "rueda.broadcast(part, 1, name=f'number {number}')"),
    "alltoall": ("", "rueda.alltoall(part, name=f'number {number}')"),
    "all_gather_into_tensor": (
        "dist.init_process_group('rueda')",
        "dist.all_gather_into_tensor(torch.empty(8), torch.ones(4))",
    ),
    "reduce_scatter_tensor": (
        "dist.init_process_group('rueda')",
        "dist.reduce_scatter_tensor(torch.empty(4), torch.ones(8))",
    ),
}


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "RuntimeError"])
@pytest.mark.parametrize(("before", "call"), DOES_AT_ONCE.values(), ids=DOES_AT_ONCE)
def test_a_signal_leaves_an_operation_that_its_caller_does_himself(
    before: str, call: str, raised: str
) -> None:
    """The operation continues, its tensors live exactly until its end, and its name is free."""
    imports = "import torch, torch.distributed as dist, rueda.torch.c10d" if before else ""
    check(
        f"""
        import os, signal, threading, time
        import numpy as np, rueda
        from rueda import handles
        {imports}

        def handle(*_):
            raise {raised}

        def interrupt(thread, submitted):
            while rueda.metrics()["tensors_submitted"] == submitted:
                time.sleep(0.01)
            signal.pthread_kill(thread, signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, handle)
        {before or "rueda.init()"}
        part, told, number = np.ones(4), np.zeros(1), 0
        rueda.barrier()
        if rueda.rank() == 0:
            submitted = rueda.metrics()["tensors_submitted"]
            arguments = (threading.get_ident(), submitted)
            other = threading.Thread(target=interrupt, args=arguments)
            other.start()
            try:
                {call}
            except {raised}:
                pass
            else:
                raise AssertionError("not interrupted")
            other.join()
            assert any(each._references for each in handles._pending), "nothing keeps the tensors"
            rueda.send(told, 1)
        else:
            rueda.recv(told, 0)
            {call}
        for number in range(1, 4):
            {call}
        rueda.barrier()
        if rueda.rank() == 0:
            assert handles.release_completed() == 0, "tensors are kept for good"
        """,
        2,
    )


def test_a_signal_that_has_come_takes_no_errors_place() -> None:
    """The error is raised unchanged, and the handler runs as soon as Python code runs again."""
    ended = alone(
        """
        import ctypes, operator, signal
        import rueda
        from rueda import _native
        rueda.init()
        came = []
        signal.signal(signal.SIGINT, lambda *_: came.append(1))
        call = operator.methodcaller("__call__")
        rueda.shutdown()
        class Raised(Exception):
            pass
        def handler(*_):
            raise Raised
        # All in C, so that no handler runs between the signal and the error.
        def both():
            return list(map(call, [ctypes.pythonapi.PyErr_SetInterrupt, _native.rank]))
        try:
            both()
        except rueda.NotInitializedError as error:
            assert "rueda.init()" in str(error) and error.peer is None
            assert error.args == (str(error),)
        else:
            raise AssertionError("no error")
        assert came == [1]
        signal.signal(signal.SIGINT, handler)
        try:
            try:
                both()
            except rueda.NotInitializedError:
                for _ in range(10):
                    pass
                raise AssertionError("the signal was lost")
        except Raised as raised:
            assert isinstance(raised.__context__, rueda.NotInitializedError), repr(raised.__context__)
        """
    )
    assert ended.returncode == 0, ended.output


def test_errors_are_made_as_their_constructors_make_them() -> None:
    ended = alone(
        """
        import copy, pickle
        import numpy as np, rueda
        rueda.init()
        try:
            rueda.add_process_set([5])
        except rueda.InvalidArgumentError as error:
            same = rueda.InvalidArgumentError(str(error), error.peer)
            assert str(same) == str(error) and same.peer == error.peer
            again = pickle.loads(pickle.dumps(error))
            assert str(again) == str(error) and vars(again) == vars(error), vars(again)
            assert vars(same).keys() == vars(error).keys(), vars(error)
        try:
            rueda.allreduce_async(np.ones(1), name="x").result()
            rueda.allreduce(np.ones(2, bool), op=rueda.Average)
        except rueda.UnsupportedError as error:
            assert error.peer == 0
        """
    )
    assert ended.returncode == 0, ended.output


RECOVERS = """
        import numpy as np, rueda
        from rueda import _native
        for world in range(3):
            rueda.init()
            assert rueda.allreduce([1.0], op=rueda.Sum, name="sum").tolist() == [2.0]
            if world == 2:
                break
            large = rueda.allreduce_async(np.ones(1 << 22), name="under way")
            told = np.zeros(1)
            if rueda.rank() == world:
                rueda.recv(told, 1 - world)  # that the other has its sum
                _native.abort("given up")
            try:
                telling = rueda.send_async(told, world)
                rueda.barrier()
            except (rueda.PeerLostError, rueda.ShutdownError, rueda.NotInitializedError):
                pass
            else:
                raise AssertionError("the world is not broken")
            rueda.shutdown()
        print("recovered")
"""


def test_a_job_that_recovers_has_succeeded() -> None:
    ended = check(RECOVERS, 2)
    assert all("recovered" in rank.output for rank in ended)


@needs_mpirun
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_a_job_that_recovers_has_succeeded_under_mpirun(transport: str) -> None:
    ended = run_under_mpirun(RECOVERS, 2, extra={"RUEDA_TRANSPORT": transport})
    assert ended.output.count("recovered") == 2, ended.output
    assert ended.returncode == 0, ended.output


@pytest.mark.parametrize("options", [["--no-mpi"], []], ids=str)
def test_a_job_that_recovers_has_succeeded_under_rueda_run(options: list[str]) -> None:
    import textwrap

    line = [sys.executable, "-m", "rueda", "run", "-np", "2", *options, sys.executable, "-c"]
    ended = run_to_end([*line, textwrap.dedent(RECOVERS)], None, 120, "rueda run")
    assert ended.output.count("recovered") == 2, ended.output
    assert ended.returncode == 0, ended.output
