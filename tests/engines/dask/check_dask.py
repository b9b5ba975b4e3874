"""rueda.dask on workers of this host."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
import rueda
import rueda.dask
from digits import learned, require_as_good
from rueda.dask import reservation

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "parallel" / "python")]
from parallel import raises  # noqa: E402


def total(add: int, fn: int = 1) -> tuple[int, int, float]:
    value = np.array([float((rueda.rank() + add) * fn)])
    return rueda.rank(), os.getpid(), float(rueda.allreduce(value, "total", rueda.Sum)[0])


def fails(marks: str) -> float:
    (Path(marks) / f"began-{rueda.rank()}").touch(exist_ok=False)
    if rueda.rank() == 1:
        raise ValueError("a bad row in the data")
    return float(rueda.allreduce(np.ones(1), "gradient")[0])


class HasLock(Exception):
    """No pickle carries its lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()
        self.sample = 7


class Wordless(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


def raises_one(kind: type[Exception]) -> None:
    if rueda.rank() == 1:
        raise kind("in the loader")
    rueda.barrier()


def loses(marks: str, times: int) -> int:
    """Rank 2 dies in the first `times` attempts; all ranks agree on the attempt's number."""
    if rueda.rank() == 0:
        attempt = len(list(Path(marks).iterdir()))
        (Path(marks) / str(attempt)).touch()
        rueda.broadcast_object(attempt)
    else:
        attempt = rueda.broadcast_object()
    if rueda.rank() == 2 and attempt < times:
        os.kill(os.getpid(), signal.SIGKILL)
    rueda.allreduce(np.ones(1), "step")
    return int(attempt)


def exits(code: object) -> int:
    """Rank 1 exits; its worker serves other ranks afterwards."""
    if rueda.rank() == 1:
        sys.exit(code)
    if code:
        rueda.allreduce(np.ones(1), "gradient")
    return os.getpid()


def is_interrupted() -> None:
    """Interrupts rank 1 as by Ctrl-C, which Dask's workers hand to their event loop instead."""
    if rueda.rank() == 1:
        raise KeyboardInterrupt("in the loader")
    rueda.allreduce(np.ones(1), "gradient")


def calls_fewer(marks: str) -> None:
    """Rank 1 returns while the others call another collective; counts the calls of this function."""
    (Path(marks) / f"{rueda.rank()}-{time.monotonic_ns()}").touch()
    for _ in range(2 if rueda.rank() == 1 else 3):
        rueda.allreduce(np.ones(1), "gradient")


def ends_its_world(marks: str) -> None:
    """Rank 1 ends the world in the first attempt; no worker is lost."""
    is_first = not (Path(marks) / "ended").exists()
    rueda.barrier()
    if rueda.rank() == 1 and is_first:
        (Path(marks) / "ended").touch()
        rueda.abort("rank 1 begins again")
    else:
        rueda.allreduce(np.ones(1), "gradient")


class FatalTo:
    """Kills this process when it is unpickled there, before its rank can meet the others."""

    def __init__(self, process: int) -> None:
        self.process = process
        if os.getpid() == process:
            os.kill(process, signal.SIGKILL)

    def __reduce__(self) -> tuple[Any, ...]:
        return FatalTo, (self.process,)


class HeldIn:
    """Blocks unpickling in this process until released, so its rank does not meet the others."""

    def __init__(self, process: int, marks: str) -> None:
        self.process = process
        self.marks = Path(marks)
        if os.getpid() == process and not (self.marks / "release").exists():
            (self.marks / "held").touch()
            appears(self.marks / "release")

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldIn, (self.process, str(self.marks))


def survives(_: object) -> int:
    rueda.barrier()
    return os.getpid()


def is_busy(marks: str, dies: bool) -> None:
    """Rank 1 fails or dies while rank 0 computes until it is told to end, so it cannot notice."""
    computes = Path(marks) / f"computes-{dies}"
    if rueda.rank() == 0:
        computes.touch()
    if rueda.rank() == 1:
        appears(computes)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("nobody notices")
    deadline = time.monotonic() + 60
    while rueda.rank() == 0 and not (Path(marks) / "end").exists():
        assert time.monotonic() < deadline, "not told to end"
        time.sleep(0.01)


def trains_on(marks: str) -> None:
    """Trains until another stops it, and writes what has stopped it."""
    own = Path(marks) / f"{rueda.rank()}"
    own.touch()
    deadline = time.monotonic() + 60
    try:
        rueda.barrier()
        (Path(marks) / "all").touch()
        while time.monotonic() < deadline:
            rueda.allreduce(np.ones(1), "gradient")
            time.sleep(0.01)
    except rueda.RuedaError as error:
        own.write_text(str(error))
        raise


def computes_on(marks: str) -> None:
    """Computes without collectives, so that nothing stops it."""
    (Path(marks) / f"{rueda.rank()}").touch()
    appears(Path(marks) / "end")


def appears(path: Path) -> None:
    """Returns when the file exists."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def outlasts(marks: str) -> int:
    """Rank 2 dies once; the others compute until its worker has been restarted."""
    rueda.barrier()
    if rueda.rank() == 2 and not (Path(marks) / "killed").exists():
        (Path(marks) / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    appears(Path(marks) / "back")
    rueda.allreduce(np.ones(1), "step")
    return rueda.rank()


def waits_for(marks: str, other: str, own: str) -> list[str]:
    """Reports that it runs, ends when the other job runs, and returns its ranks' workers."""
    (Path(marks) / own).touch()
    appears(Path(marks) / other)
    return rueda.allgather_object(distributed.get_worker().address)


def where() -> str:
    return str(distributed.get_worker().address)


def uneven(rows: list[int]) -> tuple[float, int]:
    """Sums rows, of which some ranks have more; returns the sum and the last rank to join."""
    found = 0.0
    for row in range(rows[rueda.rank()]):
        found += float(rueda.allreduce(np.array([row + 1.0]), "row", rueda.Sum)[0])
    return found, rueda.join()


def least_squares(steps: int) -> np.ndarray:
    """Fits by gradients of this rank's samples; all ranks together have 96."""
    inputs = np.random.default_rng(0).standard_normal((96, 8))[rueda.rank() :: rueda.size()]
    weights = np.zeros(8)
    for _ in range(steps):
        gradient = inputs.T @ (inputs @ (weights - np.arange(8.0))) / len(inputs)
        weights -= 0.3 * rueda.allreduce(gradient, "gradient")
    return weights


def check_results_are_by_rank(client: distributed.Client, folder: Path) -> None:
    for add in (1, 2):
        results = rueda.dask.run(client, total, [add], 3, kwargs={"fn": 2})
        assert [rank for rank, _, _ in results] == [0, 1, 2]
        assert len({process for _, process, _ in results}) == 3
        assert {value for _, _, value in results} == {2.0 * (3 + 3 * add)}
    assert len(rueda.dask.run(client, total, [0])) == 3
    assert len(rueda.dask.run(client, total, [0], 1)) == 1


def check_an_error_is_told_and_not_tried_again(client: distributed.Client, folder: Path) -> None:
    told: BaseException | None = None
    try:
        rueda.dask.run(client, fails, [str(folder)])
    except ValueError as error:
        told = error
    assert f"{told}" == "a bad row in the data"
    assert "raised on rank 1, worker" in f"{told.__notes__}"
    # A second try would have failed at the files of the first, with another error.
    assert len(list(folder.iterdir())) == 3
    assert len(rueda.dask.run(client, total, [0])) == 3
    before = [process for _, process, _ in rueda.dask.run(client, total, [0])]
    with raises(rueda.RuedaError, "sys.exit('cannot go on')"):
        rueda.dask.run(client, exits, ["cannot go on"])
    with raises(rueda.RuedaError, "KeyboardInterrupt: in the loader"):
        rueda.dask.run(client, is_interrupted)
    told = None
    try:
        rueda.dask.run(client, raises_one, [HasLock])
    except HasLock as error:
        told = error
    assert told is not None
    assert (f"{told}", told.sample) == ("in the loader", 7)
    with raises(rueda.RuedaError, "Wordless"):
        rueda.dask.run(client, raises_one, [Wordless])
    assert rueda.dask.run(client, exits, [0]) == [before[0], None, before[2]]
    with raises(rueda.InvalidArgumentError, "what a rank returns cannot be pickled", "type lock"):
        rueda.dask.run(client, threading.Lock)


def check_a_rank_that_returns_early_is_told_and_not_tried_again(
    client: distributed.Client, folder: Path
) -> None:
    told: BaseException | None = None
    try:
        rueda.dask.run(client, calls_fewer, [str(folder)], 3)
    except rueda.ShutdownError as error:
        told = error
    assert told is not None
    assert "rank 1 has shut down" in f"{told}"
    assert told.peer == 1
    assert any(f"raised on rank {rank}, worker" in f"{told.__notes__}" for rank in (0, 2))
    assert sorted(each.name[0] for each in folder.iterdir()) == ["0", "1", "2"]


def interrupts_once(path: Path) -> None:
    """Sends this process Ctrl-C when the file exists."""

    def interrupt() -> None:
        appears(path)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def check_an_interrupted_call_ends_its_ranks(client: distributed.Client, folder: Path) -> None:
    interrupts_once(folder / "all")
    with raises(KeyboardInterrupt, ""):
        rueda.dask.run(client, trains_on, [str(folder)], 3)
    began = time.monotonic()
    assert len(rueda.dask.run(client, total, [0], 3)) == 3
    assert time.monotonic() - began < 30, "the ranks trained on"
    told = [(folder / f"{rank}").read_text() for rank in range(3)]
    # A rank that is between two collectives then is in no world any more.
    either = ("rueda.dask.run() has ended in the client: KeyboardInterrupt", "not been initialised")
    assert all(any(text in each for text in either) for each in told), told


def check_a_rank_that_runs_on_after_its_call_is_named(
    client: distributed.Client, folder: Path
) -> None:
    """On a worker with a second thread, which would call another function at once."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as other,
    ):
        interrupts_once(folder / "0")
        with raises(KeyboardInterrupt, ""):
            rueda.dask.run(other, computes_on, [str(folder)], 1)
        with raises(rueda.RuedaError, "still runs rank 0 of an earlier rueda.dask.run()"):
            rueda.dask.run(other, total, [0], 1)
        threading.Timer(1, (folder / "end").touch).start()
        assert len(rueda.dask.run(other, total, [0], 1)) == 1


def check_a_lost_connection_makes_all_begin_anew(client: distributed.Client, folder: Path) -> None:
    with raises(rueda.PeerLostError, "no worker is lost", "rank 1 begins again"):
        rueda.dask.run(client, ends_its_world, [str(folder)], 3, retries=0)
    (folder / "ended").unlink()
    assert rueda.dask.run(client, ends_its_world, [str(folder)], 3) == [None] * 3


def check_a_rank_that_does_not_notice_is_named(client: distributed.Client, folder: Path) -> None:
    for dies, what in ((False, ") has failed"), (True, ") was lost")):
        told: BaseException | None = None
        # The timeout also limits how long workers may be missing at the start.
        with raises(rueda.TimeoutError, "rank 1 (tcp://", what, "not noticed within 2 s"):
            try:
                rueda.dask.run(client, is_busy, [str(folder), dies], 3, timeout=2)
            except rueda.TimeoutError as error:
                told = error
                raise
        cause = told.__cause__ if told else told
        assert repr(cause) == ("None" if dies else "ValueError('nobody notices')"), repr(cause)
        (folder / "end").touch()
        assert len(rueda.dask.run(client, total, [0], 3)) == 3
        (folder / "end").unlink()


def check_a_lost_worker_makes_all_begin_anew(client: distributed.Client, folder: Path) -> None:
    assert rueda.dask.run(client, loses, [str(folder), 2], 3) == [2, 2, 2]
    assert len(list(folder.iterdir())) == 3


def check_a_worker_that_is_back_before_the_others_notice(
    client: distributed.Client, folder: Path
) -> None:
    """At the same address, where Dask would run its rank again, alone."""
    before = client.run(os.getpid)

    def tell() -> None:
        appears(folder / "killed")
        deadline = time.monotonic() + 60
        while client.run(os.getpid, on_error="ignore").items() <= before.items():
            assert time.monotonic() < deadline, "no worker has come back"
            time.sleep(0.05)
        (folder / "back").touch()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    assert rueda.dask.run(client, outlasts, [str(folder)], 3) == [0, 1, 2]
    thread.join()
    assert client.run(os.getpid).keys() == before.keys()


def check_a_worker_that_is_back_before_it_was_missed(
    client: distributed.Client, folder: Path
) -> None:
    """Dask has rerun its rank by then, in a process that has not opened the rendezvous."""
    looked = rueda.dask.running.workers_of

    def none_is_missing(client: distributed.Client) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while len(there := looked(client)) < 3:
            assert time.monotonic() < deadline, "no worker has come back"
            time.sleep(0.05)
        return there

    rueda.dask.running.workers_of = none_is_missing
    try:
        for rank in (0, 2):
            process = rueda.dask.run(client, total, [0], 3)[rank][1]
            assert process not in rueda.dask.run(client, survives, [FatalTo(process)], 3)
    finally:
        rueda.dask.running.workers_of = looked


def check_a_worker_whose_rank_dask_does_not_call_again(
    client: distributed.Client, folder: Path
) -> None:
    """`distributed.scheduler.allowed-failures` is 0, so Dask reports the loss as an error."""

    def allow(failures: int) -> None:
        client.run_on_scheduler(
            lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", failures)
        )

    client.wait_for_workers(3, timeout=60)
    allow(0)
    assert rueda.dask.run(client, loses, [str(folder), 1], 3) == [1, 1, 1]
    allow(3)


def check_a_worker_that_is_lost_before_ranks_have_met(
    client: distributed.Client, folder: Path
) -> None:
    """Without this case the others would wait until `timeout`, and nothing would begin anew."""
    for rank in (2, 0):
        client.wait_for_workers(3, timeout=60)
        process = rueda.dask.run(client, total, [0], 3)[rank][1]
        assert process not in rueda.dask.run(client, survives, [FatalTo(process)], 3)


def check_a_rank_that_fails_before_ranks_have_met(client: distributed.Client, folder: Path) -> None:
    """Its error is raised, not the errors of the ranks that waited for it."""
    for rank in (2, 0):
        worker = rueda.dask.run(client, where, [], 3)[rank]
        client.run(rueda.init, workers=[worker])
        with raises(rueda.RuedaError, "in a world already"):
            rueda.dask.run(client, total, [0], 3)
        client.run(rueda.shutdown, workers=[worker])
    for rank in (2, 1):
        worker = rueda.dask.run(client, where, [], 3)[rank]
        client.run(os.putenv, "RUEDA_FUSION_THRESHOLD", "much", workers=[worker])
        with raises(rueda.InitializationError, "RUEDA_FUSION_THRESHOLD", "much"):
            rueda.dask.run(client, total, [0], 3)
        client.run(os.unsetenv, "RUEDA_FUSION_THRESHOLD", workers=[worker])
    assert len(rueda.dask.run(client, total, [0], 3)) == 3
    (worker,) = rueda.dask.run(client, where, [], 1)
    client.run(rueda.init, workers=[worker])
    with raises(rueda.RuedaError, "in a world already"):
        rueda.dask.run(client, total, [0], 1)
    client.run(rueda.shutdown, workers=[worker])
    opened = client.run(lambda: len(rueda.rendezvous._listeners))
    assert set(opened.values()) == {0}, opened


def check_ranks_that_wait_for_others_are_told_where_all_are_given_up(
    client: distributed.Client, folder: Path
) -> None:
    """All workers seem lost at once, while one rank waits for another that does not come."""
    process = rueda.dask.run(client, total, [0], 2)[1][1]
    (worker,) = rueda.dask.run(client, where, [], 1)
    looked = rueda.dask.running.workers_of
    lies: list[float] = []

    def none_is_there_once(client: distributed.Client) -> dict[str, Any]:
        if not lies and (folder / "held").exists() and executing():
            lies.append(time.monotonic())
            return {}
        return looked(client)

    def executing() -> list[str]:
        def tasks(dask_worker: distributed.Worker) -> list[str]:
            return [task.key for task in dask_worker.state.executing if "_rank" in str(task.key)]

        return list(client.run(tasks, workers=[worker])[worker])

    def release() -> None:
        deadline = time.monotonic() + 60
        while not lies or executing():
            assert time.monotonic() < deadline, "the rank still waits"
            time.sleep(0.05)
        (folder / "release").touch()

    rueda.dask.running.workers_of = none_is_there_once
    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    try:
        assert len(rueda.dask.run(client, survives, [HeldIn(process, str(folder))], 2)) == 2
    finally:
        rueda.dask.running.workers_of = looked
    thread.join()


def check_a_timer_of_the_client_hides_no_workers(client: distributed.Client, folder: Path) -> None:
    """The timer polls the scheduler and keeps an answer without workers."""
    ask = client._update_scheduler_info

    async def ask_and_let_the_timer_ask(n_workers: int = 0) -> None:
        await ask(n_workers=n_workers)
        await ask()

    client._update_scheduler_info = ask_and_let_the_timer_ask
    try:
        assert len(rueda.dask.run(client, total, [0])) == 3
    finally:
        client._update_scheduler_info = ask


def check_workers_that_are_lost_too_often(client: distributed.Client, folder: Path) -> None:
    with raises(rueda.PeerLostError, "rank 2 (tcp://"):
        rueda.dask.run(client, loses, [str(folder), 9], 3, retries=1)
    assert len(list(folder.iterdir())) == 2
    client.wait_for_workers(3, timeout=60)
    assert len(rueda.dask.run(client, total, [0])) == 3


def check_three_ranks_train_as_one(client: distributed.Client, folder: Path) -> None:
    (alone,) = rueda.dask.run(client, least_squares, [40], 1)
    together = rueda.dask.run(client, least_squares, [40], 3)
    for weights in together:
        np.testing.assert_allclose(weights, alone, rtol=1e-12)
        np.testing.assert_array_equal(weights, together[0])


def check_digits_are_trained_as_by_one_process(client: distributed.Client, folder: Path) -> None:
    (one,) = rueda.dask.run(client, learned, [], 1)
    together = rueda.dask.run(client, learned, [], 3)
    assert len(set(together)) == 1
    require_as_good(together[0], one)


def check_ranks_with_fewer_rows_join(client: distributed.Client, folder: Path) -> None:
    assert rueda.dask.run(client, uneven, [[4, 0, 2]]) == [(2 * (1 + 2) + 3 + 4, 0), (0, 0), (6, 0)]


def check_two_jobs_at_once(client: distributed.Client, folder: Path) -> None:
    """Two clients' jobs wait for each other; then two jobs each need all workers, in turn."""
    found: dict[str, Any] = {}

    def ask(by: distributed.Client, own: str, other: str, size: int) -> None:
        found[own] = rueda.dask.run(by, waits_for, [str(folder), other, own], size)[0]

    def both_at_once(*jobs: tuple[Any, ...]) -> None:
        threads = [threading.Thread(target=ask, args=job, daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=90)

    with distributed.Client(client.scheduler.address, set_as_default=False) as other:
        both_at_once((client, "a", "b", 1), (other, "b", "a", 2))
    assert len(found["a"] + found["b"]) == len({*found["a"], *found["b"]}) == 3
    both_at_once((client, "c", "c", 3), (client, "d", "d", 3))
    assert sorted(found["c"]) == sorted(found["d"]) == sorted(found["a"] + found["b"])


def check_a_job_that_waits_for_another_says_so(client: distributed.Client, folder: Path) -> None:
    told: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())
            (folder / "told").touch()

    def ask(own: str, other: str) -> None:
        rueda.dask.run(client, waits_for, [str(folder), other, own], 3)

    listener = Listener()
    logging.getLogger("rueda").addHandler(listener)
    patience, reservation.PATIENCE = reservation.PATIENCE, 0.0
    try:
        first = threading.Thread(target=ask, args=("first", "told"), daemon=True)
        first.start()
        appears(folder / "first")
        ask("second", "second")
        first.join()
    finally:
        reservation.PATIENCE = patience
        logging.getLogger("rueda").removeHandler(listener)
    what = "rueda.dask.run() waits for 3 workers: other jobs of rueda.dask.run() have 3 of the 3 that exist"
    assert told, told
    assert set(told) == {what}, told


def check_what_cannot_work_is_told(client: distributed.Client, folder: Path) -> None:
    for wrong in (0, -1, True, "all"):
        with raises(rueda.InvalidArgumentError, f"num_proc={wrong!r}"):
            rueda.dask.run(client, total, [0], wrong)
    wrong_kinds: list[tuple[str, Any, str]] = [
        ("fn", None, "fn=None cannot be called"),
        ("args", 5, "args=5: "),
        ("args", "text", "args='text': "),
        ("kwargs", [1], "kwargs=[1]: "),
        ("num_proc", "2", "num_proc='2'"),
        ("num_proc", 2.5, "num_proc=2.5"),
        ("retries", "2", "retries='2'"),
        ("timeout", "x", "timeout='x'"),
        ("timeout", -1, "timeout=-1"),
        ("client", None, "client=None is not a distributed.Client"),
    ]
    for name, given, told in wrong_kinds:
        with raises(rueda.InvalidArgumentError, told):
            rueda.dask.run(**{"client": client, "fn": total, "args": [0], name: given})
    assert len(rueda.dask.run(client, rueda.rank, None, np.int64(2), kwargs=None)) == 2
    closed = distributed.Client(client.scheduler.address, set_as_default=False)
    closed.close()
    with raises(rueda.InvalidArgumentError, "this client is closed"):
        rueda.dask.run(closed, total, [0])
    with raises(rueda.InvalidArgumentError, "retries=-1"):
        rueda.dask.run(client, total, [0], retries=-1)
    with raises(rueda.TimeoutError, "4 workers", "only 3", "raise timeout="):
        rueda.dask.run(client, total, [0], 4, timeout=0.1)
    lock = threading.Lock()
    with raises(
        rueda.InvalidArgumentError, "function with its arguments cannot be pickled", "lock"
    ):
        rueda.dask.run(client, lambda: lock)
    with (
        distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as threads,
        distributed.Client(threads) as other,
        raises(rueda.InvalidArgumentError, "processes=True"),
    ):
        rueda.dask.run(other, total, [0])


if __name__ == "__main__":
    named = {name: act for name, act in list(globals().items()) if name.startswith("check_")}
    checks = [act for name, act in named.items() if name in (sys.argv[2:] or named)]
    # By default Dask's cluster drops a worker that is still missing 15 s after its loss, even if it
    # was lost again.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        distributed.LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            worker_port="21700:21799",  # so that a restarted worker has the old address
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        for act in checks:
            folder = Path(sys.argv[1]) / act.__name__
            folder.mkdir()
            act(client, folder)
            print("ok", act.__name__, flush=True)
