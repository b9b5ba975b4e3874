"""Rueda's process group under torchft; replicas are threads, as in torchft's, or processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from launching import command, environment

torch = pytest.importorskip("torch")
pytest.importorskip("torchft", reason="torchft is not installed")

import rueda  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rueda.torch.torchft import ProcessGroupRueda  # noqa: E402
from torchft import process_group_test as torchfts  # noqa: E402

SUITES = Path(__file__).with_name("torchft_suites.py")
ENOUGH = 60.0  # seconds, more than anything here takes
T = TypeVar("T")


class Replicas:
    """Threads with a group each, configured together."""

    def __init__(self, count: int, timeout: float = ENOUGH) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.groups = [ProcessGroupRueda(timedelta(seconds=timeout)) for _ in range(count)]
        self._threads = ThreadPoolExecutor(count)
        self._quorum = 0

    def run(self, work: Callable[[int], T], among: int | None = None) -> list[T]:
        begun = [self._threads.submit(work, rank) for rank in range(among or len(self.groups))]
        return [each.result(ENOUGH) for each in begun]

    def configure(self, among: int | None = None) -> None:
        """Configures the first ``size`` replicas, or all."""
        size = among or len(self.groups)
        self._quorum += 1
        address = f"127.0.0.1:{self.store.port}/quorum/{self._quorum}"
        self.run(lambda rank: self.groups[rank].configure(address, "", rank, size), size)

    def sum(self, among: int | None = None) -> list[float]:
        """What each gets from summing 1 of rank 0, 2 of rank 1, ..."""

        def add(rank: int) -> float:
            tensor = torch.full((1000,), rank + 1.0)
            self.groups[rank].allreduce([tensor], dist.ReduceOp.SUM).wait()
            return float(tensor[-1])

        return self.run(add, among)

    def close(self) -> None:
        self.run(lambda rank: self.groups[rank].shutdown())
        self._threads.shutdown()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keeps torch's threads from spinning while replicas want to run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def replicas() -> Iterator[Callable[..., Replicas]]:
    made: list[Replicas] = []

    def make(*arguments: Any) -> Replicas:
        made.append(Replicas(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def error_of(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller checks it
        work()
    return caught.value


@pytest.mark.parametrize("collective", torchfts._ALL_COLLECTIVES)
def test_torchfts_own_checks_of_each_collective_pass(
    replicas: Callable[..., Replicas], collective: str
) -> None:
    three = replicas(3)
    three.configure()
    check = torchfts._COLLECTIVE_TO_FUNC[collective]
    three.run(lambda rank: check(three.groups[rank], rank, torch.tensor([rank + 1])))


def test_members_come_and_go(replicas: Callable[..., Replicas]) -> None:
    three = replicas(3)
    for among, total in ((3, 6.0), (2, 3.0), (1, 1.0), (3, 6.0)):
        three.configure(among)
        assert three.sum(among) == [total] * among
        assert [group.size() for group in three.groups[:among]] == [among] * among


def test_aborting_fails_what_waits_on_every_rank_at_once(replicas: Callable[..., Replicas]) -> None:
    two = replicas(2)
    two.configure()
    tensors = [torch.ones(1 << 20) for _ in range(2)]
    waiting = threading.Event()

    def work(rank: int) -> Exception:
        group = two.groups[rank]
        if rank == 1:  # never submits
            waiting.wait(ENOUGH)
            time.sleep(0.1)
            return group.abort()
        begun = group.allreduce([tensors[0]], dist.ReduceOp.SUM)
        waiting.set()
        return error_of(begun.wait)

    began = time.monotonic()
    error = two.run(work)[0]
    assert time.monotonic() - began < ENOUGH / 2
    assert isinstance(error, rueda.PeerLostError)
    assert error.peer == 1
    assert "the process group was aborted" in str(error)
    for group in two.groups:
        told = group.errored()
        assert isinstance(told, RuntimeError)
        assert "aborted" in str(told)
        error_of(lambda group=group: group.allreduce([tensors[0]], dist.ReduceOp.SUM).wait())
    two.configure()
    assert [group.errored() for group in two.groups] == [None, None]
    assert two.sum() == [3.0, 3.0]


def test_the_thread_that_waits_is_told_where_its_own_group_is_aborted(
    replicas: Callable[..., Replicas],
) -> None:
    two = replicas(2)
    two.configure()
    begun = two.groups[0].allreduce([torch.ones(10)], dist.ReduceOp.SUM)
    timer = threading.Timer(0.1, two.groups[0].abort)
    timer.start()
    assert isinstance(error_of(begun.wait), rueda.RuedaError)
    timer.join()


@pytest.mark.parametrize("ask", ["wait", "future"])
def test_a_rank_that_does_not_come_ends_the_world_for_all(
    replicas: Callable[..., Replicas], ask: str
) -> None:
    three = replicas(3, 0.5)
    three.configure()
    tensors = [torch.ones(1 << 20) for _ in range(3)]

    def work(rank: int) -> Exception:
        begun = three.groups[rank].allreduce([tensors[rank]], dist.ReduceOp.SUM)
        return error_of(begun.get_future().wait if ask == "future" else begun.wait)

    errors = three.run(work, among=2)
    assert any("Timed out waiting 500ms" in str(error) for error in errors)
    for group in three.groups[:2]:
        assert "aborted" in str(group.errored())
        error_of(lambda group=group: group.barrier().wait())
    # Nobody writes there any more, whatever the third rank does.
    error_of(lambda: three.groups[2].allreduce([tensors[2]], dist.ReduceOp.SUM).wait())
    assert all(tensor.eq(1).all() for tensor in tensors[:2])
    three.configure(2)
    assert three.sum(2) == [3.0, 3.0]


def test_ranks_that_disagree_are_told_and_the_world_goes_on(
    replicas: Callable[..., Replicas],
) -> None:
    two = replicas(2)
    two.configure()

    def work(rank: int) -> Exception:
        tensor = torch.ones(10 + rank)
        return error_of(two.groups[rank].allreduce([tensor], dist.ReduceOp.SUM).wait)

    assert [type(error) for error in two.run(work)] == [rueda.MismatchError] * 2
    assert two.sum() == [3.0, 3.0]
    assert [group.errored() for group in two.groups] == [None, None]


def test_a_replica_that_does_not_come_to_the_forming_is_an_error(
    replicas: Callable[..., Replicas],
) -> None:
    two = replicas(2, 0.5)
    address = f"127.0.0.1:{two.store.port}/half"
    error_of(lambda: two.groups[0].configure(address, "", 0, 2))
    two.groups[0].set_timeout(timedelta(seconds=ENOUGH))
    two.groups[1].set_timeout(timedelta(seconds=ENOUGH))
    two.configure()
    assert two.sum() == [3.0, 3.0]


def test_a_group_that_is_forgotten_leaves(replicas: Callable[..., Replicas]) -> None:
    two = replicas(2)
    two.configure()
    two.groups[1] = ProcessGroupRueda(timedelta(seconds=ENOUGH))
    gc.collect()
    begun = error_of(lambda: two.groups[0].allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait())
    assert isinstance(begun, rueda.ShutdownError)


def held() -> dict[str, int]:
    """Exhaustible resources. Mappings level off and are counted by the caller."""
    kinds = {kind: len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")}
    shared = [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]
    return kinds | {"shm": len(shared)}


def test_forming_anew_leaks_nothing(replicas: Callable[..., Replicas]) -> None:
    three = replicas(3)

    def rounds(count: int) -> tuple[dict[str, int], int]:
        for number in range(count):
            three.configure(2 + number % 2)
            three.sum(2 + number % 2)
        three.configure()
        gc.collect()
        return held(), Path("/proc/self/maps").read_text().count("\n")

    first, mappings = rounds(5)
    last, grown = rounds(40)
    # A joined thread is listed for a moment longer, in the first count as in the last.
    assert last["fd"] <= first["fd"]
    assert last["shm"] <= first["shm"]
    assert last["task"] <= first["task"] + 3
    assert grown < mappings + 50


VICTIM = """
    import os, signal, sys, torch, torch.distributed as dist
    from rueda.torch.torchft import ProcessGroupRueda

    port, rank = sys.argv[1], int(sys.argv[2])
    group = ProcessGroupRueda()
    group.configure(f"127.0.0.1:{port}/one", "", rank, 3)
    group.allreduce([torch.ones(3)], dist.ReduceOp.SUM).wait()
    print("formed", flush=True)
    tensor = torch.ones(1 << 22)
    store = dist.TCPStore("127.0.0.1", int(port))
    store.set(f"formed {rank}", "")
    if rank == 2:
        store.wait(["formed 0", "formed 1"])  # who has its own sum need not have given all of the others'
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.allreduce([tensor], dist.ReduceOp.SUM).wait()
    except Exception as error:
        assert "rank 2" in str(error), error
        assert "aborted" in str(group.errored())
    group.configure(f"127.0.0.1:{port}/two", "", rank, 2)
    if os.fork() == 0:  # what is the parent's is not touched in a child, nor by its end
        try:
            group.allreduce([torch.ones(1)], dist.ReduceOp.SUM)
        except Exception as error:
            print(type(error).__name__, flush=True)
        os._exit(0)
    os.wait()
    tensor = torch.ones(1 << 22)
    group.allreduce([tensor], dist.ReduceOp.SUM).wait()
    print(tensor[0].item(), flush=True)
"""


def test_survivors_of_a_killed_replica_go_on() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        subprocess.Popen(
            command(VICTIM, [str(store.port), str(rank)]),
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=ENOUGH)[0] for rank in ranks]
    assert ranks[2].returncode == -signal.SIGKILL
    assert outputs[:2] == ["formed\nNotInitializedError\n2.0\n"] * 2


@pytest.mark.parametrize(
    ("suite", "part"), [("manager_integ_test", "0/1"), ("local_sgd_integ_test", "0/3")]
)
def test_torchfts_own_suites_pass(suite: str, part: str) -> None:
    """Every third test of the second suite, whose tests are similar."""
    pytest.importorskip("parameterized", reason="torchft's tests need it")
    done = subprocess.run(
        [sys.executable, str(SUITES), suite, "rueda", part],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert done.stdout.splitlines()[-1].startswith("passed ")
