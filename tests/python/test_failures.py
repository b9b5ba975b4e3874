"""How worlds end by errors, signals and Ctrl-C: every rank learns of it in bounded time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from launching import Job, check, find_mpirun, run, run_under_mpirun

WAIT_FOR_THE_OTHERS = """
    import sys, rueda
    rueda.init()
    if rueda.rank() == 1:
        rueda.barrier(name="start")
        {act}
    try:
        rueda.barrier(name="start")
        print("waiting", flush=True)
        rueda.allreduce([1.0], name="never")
    except rueda.RuedaError as error:
        print(type(error).__name__, error.peer, error)
        sys.exit(7)
"""


def test_exit_with_operations_pending() -> None:
    ended = run(
        """
        import numpy as np, rueda
        rueda.init()
        rueda.barrier()
        rueda.allreduce_async(np.ones(1000), name=f"only on rank {rueda.rank()}")
        """,
        2,
        limit=60,
    )
    assert [e.returncode for e in ended] == [0, 0], ended


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_leaves_early(status: int) -> None:
    ended = run(WAIT_FOR_THE_OTHERS.format(act=f"sys.exit({status})"), 3, limit=60)
    assert [e.returncode for e in ended] == [7, status, 7], ended
    for rank in (0, 2):
        # A rank that exits with an error announces it as a loss; one that exits with 0 just leaves.
        kind = "PeerLostError" if status else "ShutdownError"
        assert kind in ended[rank].output
        assert "rank 1" in ended[rank].output
        assert (f"sys.exit({status})" in ended[rank].output) == bool(status)


def test_an_exception_in_one_rank_reaches_the_others() -> None:
    ended = run(WAIT_FOR_THE_OTHERS.format(act="open('/no/such/file')"), 3, limit=60)
    assert [e.returncode for e in ended] == [7, 1, 7], ended
    assert "Traceback" in ended[1].output
    for rank in (0, 2):
        assert "PeerLostError 1 " in ended[rank].output
        assert "FileNotFoundError: [Errno 2] No such file" in ended[rank].output


def test_an_exception_in_another_thread_ends_nothing() -> None:
    check(
        """
        import threading, rueda
        rueda.init()
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        assert rueda.allreduce([1], op=rueda.Sum).tolist() == [2]
        """,
        2,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_rank_that_is_killed(number: signal.Signals) -> None:
    act = "print('here', flush=True); import time; time.sleep(600)"
    with Job(WAIT_FOR_THE_OTHERS.format(act=act), 3) as job:
        job.wait_for_output(1, "here")
        job.wait_for_output(0, "waiting")
        job.ranks[1].send_signal(number)
        ended = job.wait(60)
    assert [e.returncode for e in ended] == [7, -number, 7], ended
    for rank in (0, 2):
        assert "PeerLostError 1 " in ended[rank].output


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_program_that_closes_descriptors_that_are_not_its_own(transport: str) -> None:
    act = "import os; os.closerange(3, 1024)"
    ended = run(
        WAIT_FOR_THE_OTHERS.format(act=act), 2, extra={"RUEDA_TRANSPORT": transport}, limit=60
    )
    assert [e.returncode for e in ended] == [7, 7], ended
    assert "the program here has closed a file descriptor of Rueda's" in ended[1].output
    assert "PeerLostError 1 " in ended[0].output


def test_messages_with_a_rank_that_dies() -> None:
    """A rank that waits to receive from it or anyone, or to send to it, learns of the loss."""
    program = """
        import os, time, numpy as np, rueda
        rueda.init()
        rueda.barrier()
        if rueda.rank() == 3:
            time.sleep(0.5)
            os._exit(3)
        waits = [
            lambda: rueda.recv(np.empty(5000), 3),
            lambda: rueda.recv(np.empty(5)),
            lambda: rueda.send(np.empty(5000), 3),
        ]
        try:
            waits[rueda.rank()]()
        except rueda.PeerLostError as error:
            print("PeerLostError", error.peer, error)
        try:
            rueda.send(np.ones(1), 0)
        except rueda.RuedaError as error:
            print("afterwards", type(error).__name__)
    """
    ended = run(program, 4, limit=60)
    for rank in range(3):
        assert "PeerLostError 3 " in ended[rank].output, ended
        assert "afterwards PeerLostError" in ended[rank].output, ended


AFTER_A_RANK_HAS_LEFT = """
    import os, signal, sys, time, numpy as np, rueda
    rueda.init()
    rank, has_left = rueda.rank(), os.path.join(sys.argv[1], "left")
    pair = rueda.add_process_set([0, 1])
    rueda.barrier()
    if rank == rueda.size() - 1:
        rueda.shutdown()
        os.close(os.open(has_left, os.O_CREAT))
        sys.exit()
    while not os.path.exists(has_left):
        time.sleep(0.01)

    def total():
        return rueda.allreduce(np.ones(2), name="x", op=rueda.Sum, process_set=pair)[0]
"""


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_first_message_to_a_rank_that_has_left_fails_alone(
    transport: str, tmp_path: Path
) -> None:
    """An unconnected sender hears no goodbye and is refused a connection: that is no loss."""
    program = (
        AFTER_A_RANK_HAS_LEFT
        + """
    if rank == 1:
        for size in (400_000, 4):
            try:
                rueda.send(np.ones(size), 2)
            except rueda.ShutdownError as error:
                print("ShutdownError", error.peer, flush=True)
    assert [total() for _ in range(3)] == [2, 2, 2]
    """
    )
    ended = check(program, 3, [str(tmp_path)], {"RUEDA_TRANSPORT": transport})
    assert "ShutdownError 2" in ended[1].output, ended


RANK_3_ENDS_UNKNOWN_TO_RANK_5 = """
    import os, signal, sys, threading, time, numpy as np, rueda
    rueda.init()
    rank = rueda.rank()

    def exists(name):
        return os.path.exists(os.path.join(sys.argv[1], name))

    def wait_for(name):
        while not exists(name):
            time.sleep(0.01)

    def say(name):
        os.close(os.open(os.path.join(sys.argv[1], name), os.O_CREAT))

    pair = rueda.add_process_set([4, 5])
    processes = rueda.allgather_object(os.getpid())
    rueda.barrier()
    say(f"{rank} goes on")
    if rank == 4:
        wait_for("1 goes on")
        wait_for("5 goes on")
        os.kill(processes[1], signal.SIGSTOP)  # through which rank 5 is told of departures and losses
        say("stopped")
    if rank == 3:
        wait_for("stopped")
        if sys.argv[2] == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        rueda.shutdown()
        say("left")
        sys.exit()
    if rank != 5:
        wait_for("refused")
    if rank == 4:
        os.kill(processes[1], signal.SIGCONT)
    if rank == 5:
        if sys.argv[2] == "leaves":
            wait_for("left")
        else:
            while open(f"/proc/{processes[3]}/stat").read().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
        threading.Timer(0.5, say, ["refused"]).start()
        try:
            rueda.send(np.ones(400_000), 3)
        except (rueda.ShutdownError, rueda.PeerLostError) as error:
            print(type(error).__name__, error.peer, exists("refused"), flush=True)
"""


def test_a_first_message_to_a_rank_that_left_before_this_one_was_told_fails_alone(
    tmp_path: Path,
) -> None:
    program = (
        RANK_3_ENDS_UNKNOWN_TO_RANK_5
        + """
    if rank in (4, 5):
        total = rueda.allreduce(np.ones(2), name="x", op=rueda.Sum, process_set=pair)
        assert total.tolist() == [2, 2]
    """
    )
    ended = check(program, 6, [str(tmp_path), "leaves"])
    assert "ShutdownError 3 True" in ended[5].output, ended


def test_a_first_message_to_a_rank_that_died_before_this_one_was_told_breaks_the_world(
    tmp_path: Path,
) -> None:
    ended = run(RANK_3_ENDS_UNKNOWN_TO_RANK_5, 6, [str(tmp_path), "dies"], limit=60)
    assert "PeerLostError 3" in ended[5].output, ended


def test_a_rank_that_dies_after_another_has_left_is_lost(tmp_path: Path) -> None:
    """Even without an open set of which it is a member: its neighbour knows it said no goodbye."""
    program = (
        AFTER_A_RANK_HAS_LEFT
        + """
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            total()
    except rueda.PeerLostError as error:
        print("PeerLostError", error.peer)
    """
    )
    ended = run(program, 4, [str(tmp_path)], limit=60)
    for rank in (0, 1):
        assert "PeerLostError 2" in ended[rank].output, ended


def test_the_rank_that_has_no_memory_left_is_named_on_all() -> None:
    program = """
        import resource, numpy as np, rueda
        rueda.init()
        tensor = np.ones(32 << 20, np.float32)
        rueda.allreduce(np.ones(3), name="the world is in use")
        if rueda.rank() == 1:
            pages = int(open("/proc/self/statm").read().split()[0])
            limit = pages * resource.getpagesize() + (8 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        rueda.barrier()
        try:
            rueda.allgather(tensor, name="large")
        except rueda.InternalError as error:
            print(error)
    """
    for rank in run(program, 2, [], limit=60):
        assert "the allgather of 'large' failed: rank 1 has no memory left for it" in rank.output


def test_a_rank_without_memory_for_a_result_is_named_on_all_at_once_and_the_world_goes_on() -> None:
    program = """
        import resource, numpy as np, rueda
        MEBIBYTE = 1 << 20
        rueda.init()
        large = np.ones(64 * MEBIBYTE, np.uint8)
        thing = large.tobytes()
        leaves = rueda.Leaves(2)
        def allow(more):
            if rueda.rank() == 1:
                used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
                limit = -1 if more is None else used + more * MEBIBYTE
                resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
        cases = {  # with the MiB that rank 1 has left
            "allreduce": (16, lambda: rueda.allreduce(large, "x", rueda.Max)),
            "later": (16, lambda: rueda.allreduce_async(large, "x", rueda.Max).result()),
            "group": (16, lambda: rueda.grouped_allreduce([large], "x", rueda.Max)),
            "leaves": (16, lambda: rueda.allreduce_leaves(large[None], leaves, "x", rueda.Sum)),
            "received": (16, lambda: rueda.broadcast_object(thing, 0, "x")),
            # There is room for the pickle, but not for a copy of it.
            "sent": (112, lambda: rueda.broadcast_object(thing, 1, "x")),
            "gathered": (112, lambda: rueda.allgather_object(thing, "x")),
        }
        for case, (room, begin) in cases.items():
            allow(room)
            rueda.barrier()
            try:
                begin()
            except rueda.InvalidArgumentError as error:
                print(case, "fails:", error)
            allow(None)
            assert rueda.allreduce(np.ones(3), "after", rueda.Sum).tolist() == [2.0] * 3
    """
    names = {"group": "x.0", "received": "x.content", "sent": "x.size", "gathered": "x.gathered"}
    for rank in check(program, 2, limit=60):
        for case in ("allreduce", "later", "group", "leaves", "received", "sent", "gathered"):
            told = f"{case} fails: rank 1 cannot take part in '{names.get(case, 'x')}': "
            lines = [each for each in rank.output.splitlines() if each.startswith(told)]
            assert len(lines) == 1, rank.output
            assert "MemoryError" in lines[0], lines


def test_ctrl_c_ends_a_wait() -> None:
    program = """
        import rueda
        rueda.init()
        rueda.barrier()
        print("waiting", flush=True)
        rueda.allreduce([1.0], name=f"only on rank {rueda.rank()}")
    """
    with Job(program, 2) as job:
        job.wait_for_output(0, "waiting")
        job.wait_for_output(1, "waiting")
        time.sleep(0.3)  # most likely it sleeps by now; an earlier signal must work as well
        job.ranks[0].send_signal(signal.SIGINT)
        ended = job.wait(60)
    assert ended[0].returncode == -signal.SIGINT, ended
    assert "KeyboardInterrupt" in ended[0].output
    assert ended[1].returncode == 1, ended
    assert "PeerLostError" in ended[1].output
    assert "KeyboardInterrupt" in ended[1].output


def test_an_operation_survives_ctrl_c() -> None:
    program = """
        import sys, rueda
        rueda.init()
        if rueda.rank() == 0:
            handle = rueda.allreduce_async([1.0], name="x", op=rueda.Sum)
            print("waiting", flush=True)
            try:
                handle.result()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            else:
                sys.exit("was not interrupted")
            rueda.barrier(name="go")
            assert handle.result().tolist() == [2.0]
        else:
            rueda.barrier(name="go")
            rueda.allreduce([1.0], name="x", op=rueda.Sum)
    """
    with Job(program, 2) as job:
        job.wait_for_output(0, "waiting")
        time.sleep(0.3)
        job.ranks[0].send_signal(signal.SIGINT)
        ended = job.wait(60)
        assert [e.returncode for e in ended] == [0, 0], job.report()


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
def test_an_exception_ends_a_job_under_mpirun() -> None:
    ended = run_under_mpirun(WAIT_FOR_THE_OTHERS.format(act="open('/no/such/file')"), 3, limit=90)
    assert ended.returncode != 0
    assert "FileNotFoundError" in ended.output


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
@pytest.mark.parametrize(
    ("act", "cause"),
    [
        ("open('/no/such/file')", "FileNotFoundError: [Errno 2] No such file"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "rank 1"),
    ],
    ids=["exception", "SIGKILL"],
)
def test_survivors_under_mpirun(act: str, cause: str) -> None:
    """Fault-tolerant mpirun leaves the survivors running, so that they can raise."""
    options = ["--with-ft", "ulfm", "--runtime-options", "error-nonzero-status=false"]
    ended = run_under_mpirun(WAIT_FOR_THE_OTHERS.format(act=act), 3, options=options, limit=90)
    survivors = [line for line in ended.output.splitlines() if line.startswith("PeerLostError 1 ")]
    assert len(survivors) == 2, ended.output
    assert all(cause in line for line in survivors), ended.output


def test_jobs_end_what_they_started() -> None:
    with Job("import time; time.sleep(600)", 2) as job:
        processes = job.ranks
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0].pid, 0)
