"""Ranks that another engine has started: they are given an address, and meet there."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
import rueda
from launching import Job, alone
from rueda import rendezvous

# A file carries the address, instead of an engine's own messages.
HERE = """
    import os, pathlib, sys, time, numpy as np, rueda
    rank, size = int(os.environ["MY_RANK"]), int(os.environ["MY_SIZE"])
    def told(name, value=None):
        path = pathlib.Path(os.environ["MY_FOLDER"]) / name
        if value is not None:
            path.with_suffix(".part").write_text(value)
            path.with_suffix(".part").rename(path)
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return path.read_text()
"""


def job(program: str, size: int, folder: Path, extra: dict[str, str] | None = None) -> Job:
    """Ranks that know nothing of each other; inherited launcher variables must not matter."""
    return Job(
        # Each process gets its number by order of arrival.
        HERE.replace('int(os.environ["MY_RANK"])', 'int(os.environ.pop("RUEDA_RANK"))') + program,
        size,
        extra={"MY_SIZE": str(size), "MY_FOLDER": str(folder), **(extra or {})},
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_meet_at_an_address_that_they_are_told(size: int, tmp_path: Path) -> None:
    program = """
    for turn in range(3):  # each world has an address of its own
        opened = rueda.rendezvous.open(size) if rank == 0 else None
        with rueda.world(rank, size, told(f"address{turn}", opened), log_level="error"):
            assert (rueda.rank(), rueda.size()) == (rank, size)
            total = rueda.allreduce(np.full(5, rank + turn), op=rueda.Sum)
            assert total.tolist() == [sum(range(size)) + size * turn] * 5
            assert rueda.options()["log_level"] == "error"
        assert not rueda.is_initialized()
    print("done")
    """
    with job(program, size, tmp_path) as started:
        ended = started.wait(60)
    assert [(e.returncode, e.output) for e in ended] == [(0, "done\n")] * size


def test_a_rank_that_has_left_its_world_early_does_not_train_alone(tmp_path: Path) -> None:
    program = """
    address = told("address", rueda.rendezvous.open(2) if rank == 0 else None)
    for name in ("RUEDA_SIZE", "RUEDA_RENDEZVOUS"):  # as where no launcher has started the process
        os.environ.pop(name, None)
    with rueda.world(rank, 2, address):
        rueda.shutdown()
        try:
            rueda.init()
        except rueda.InvalidArgumentError as error:
            assert not rueda.is_initialized()
            print(error)
    """
    with job(program, 2, tmp_path) as started:
        ended = started.wait(60)
    for rank, each in enumerate(ended):
        assert each.returncode == 0, ended
        assert f"rank {rank} of 2 has left the world of its rueda.world() block" in each.output


def test_an_exception_that_is_swallowed_reaches_the_others(tmp_path: Path) -> None:
    program = """
    opened = rueda.rendezvous.open(size) if rank == 0 else None
    try:
        with rueda.world(rank, size, told("address", opened)):
            rueda.barrier()
            if rank == 1:
                raise KeyError("the cause")
            rueda.allreduce(np.ones(3), name="never")
    except KeyError:
        told("over", "")
        print("swallowed")
    except rueda.PeerLostError as error:
        print("told of", error)
        told("over")  # that process lives on
    assert not rueda.is_initialized()
    """
    with job(program, 3, tmp_path) as started:
        ended = started.wait(60)
    assert [e.returncode for e in ended] == [0, 0, 0], ended
    assert ended[1].output == "swallowed\n"
    for rank in (0, 2):
        assert "told of" in ended[rank].output
        assert "KeyError: 'the cause'" in ended[rank].output


def test_a_retried_rank_enters_no_old_world(tmp_path: Path) -> None:
    program = """
    first = told("first", rueda.rendezvous.open(size) if rank == 0 else None)
    if rank == 0:
        rueda.rendezvous.close(first)
    second = told("second", rueda.rendezvous.open(size) if rank == 0 else None)
    if rank == 1:
        where = second.partition("@")[2]
        old = first.partition("@")[0] + "@" + where  # even at the same port
        try:
            rueda.init(rank=rank, size=size, rendezvous=old, init_timeout=5)
        except rueda.InitializationError as error:
            assert "secret" in str(error), error
            print("kept out")
    rueda.init(rank=rank, size=size, rendezvous=second)
    rueda.barrier()
    """
    with job(program, 2, tmp_path) as started:
        ended = started.wait(60)
    assert [e.returncode for e in ended] == [0, 0], ended
    assert "kept out" in ended[1].output


def test_ranks_that_have_served_other_jobs_before_agree_on_names(tmp_path: Path) -> None:
    """Reused processes of Spark or Dask have made optimizers in worlds that others were not in."""
    pytest.importorskip("torch")
    program = """
    import torch, rueda.torch
    def train(steps):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = rueda.torch.DistributedOptimizer(optimizer, model.named_parameters())
        for _ in range(steps):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
        return optimizer
    if rank == 0:
        for _ in range(2):
            with rueda.world(0, 1):
                train(1)
    address = told("address", rueda.rendezvous.open(2) if rank == 0 else None)
    with rueda.world(rank, 2, address, stall_error=20):
        train(2)
        train(2)
        print("right")
    """
    with job(program, 2, tmp_path) as ranks:
        ended = ranks.wait(90)
        assert all("right" in rank.output for rank in ended), ranks.report()


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    program = """
    opened = rueda.rendezvous.open(3) if rank == 0 else None
    try:
        rueda.init(rank=rank, size=3, rendezvous=told("address", opened), init_timeout=1)
    except rueda.InitializationError as error:
        print(error)
    """
    with job(program, 2, tmp_path) as started:
        ended = started.wait(60)
    assert [e.returncode for e in ended] == [0, 0], ended
    # The first rank to time out names it; a rank that hears from that one reports that it has left.
    assert any("rank 2" in each.output for each in ended), ended
    assert all(each.output for each in ended), ended


def test_who_waits_for_a_rank_that_is_lost_is_told(tmp_path: Path) -> None:
    """Rank 0 waits for one that never comes; then rank 1 for rank 0, which no longer listens."""
    program = """
    import threading
    address = told("address", rueda.rendezvous.open(2) if rank == 0 else None)
    main = threading.get_ident()
    def give_up():
        while sys._current_frames()[main].f_code is not rueda.rendezvous.enter.__code__:
            time.sleep(0.01)
        rueda.rendezvous.close(address, f"rank {1 - rank} was killed")
    if rank == 1:
        told("over")
    threading.Thread(target=give_up, daemon=True).start()
    for turn in ("waits", "comes later"):
        try:
            rueda.init(rank=rank, size=2, rendezvous=address)
        except rueda.InitializationError as error:
            print(turn, error, error.reason)
    told("over", "")
    with rueda.world(0, 1):  # nothing is left of it
        rueda.barrier()
    """
    with job(program, 2, tmp_path) as started:
        ended = started.wait(60)
    for rank, each in enumerate(ended):
        cause = f"rank {1 - rank} was killed"
        told = f"{cause} rendezvous_closed"
        assert each.output == f"waits {told}\ncomes later {told}\n", ended
        assert each.returncode == 0


class ClosedMeanwhile(dict[str, socket.socket]):
    """Another thread closes the rendezvous before or after rank 0 takes its listener here."""

    def __init__(self, listeners: dict[str, socket.socket], before: bool) -> None:
        super().__init__(listeners)
        self.before = before
        self.is_looking = False

    def pop(self, address: str, *default: Any) -> Any:
        found = None if self.before else super().pop(address, *default)
        if not self.is_looking:
            self.is_looking = True
            rueda.rendezvous.close(address, "rank 1 was lost")
        return super().pop(address, *default) if self.before else found


@pytest.mark.parametrize("before", [True, False])
def test_a_rendezvous_that_is_closed_while_rank_0_enters(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = rueda.rendezvous.open(2, interface="127.0.0.1")
    listener = rendezvous._listeners.pop(address)
    listeners = ClosedMeanwhile({address: listener}, before)
    monkeypatch.setattr(rendezvous, "_listeners", listeners)
    with pytest.raises(rueda.InitializationError, match="rank 1 was lost"):
        rendezvous.meeting_of(0, 2, address)
    assert listener.fileno() == -1
    assert not listeners


def test_causes_are_kept_without_secrets_and_not_for_ever() -> None:
    for number in range(100):
        rueda.rendezvous.close(rendezvous.new_address("tcp", f"host:{number}", 2), "lost")
    last = rendezvous.new_address("tcp", "host:1", 2)
    rueda.rendezvous.close(last, "lost")
    assert len(rendezvous._causes) == rendezvous._MAX_CAUSES
    assert last not in f"{rendezvous._causes}"
    with pytest.raises(rueda.InitializationError, match="lost"):
        rendezvous.meeting_of(1, 2, last)


def test_the_address_of_a_reception_is_not_closed() -> None:
    address = rendezvous.new_address("reception", "host:1", 2)
    for cause in (None, "lost"):
        with pytest.raises(rueda.InvalidArgumentError, match="a reception's address"):
            rueda.rendezvous.close(address, cause)
    assert rendezvous.meeting_of(1, 2, address).is_reception


def test_bad_input_is_told_at_once() -> None:
    ended = alone(
        """
        import rueda
        def told(call):
            try:
                call()
            except rueda.InvalidArgumentError as error:
                print(error)
            else:
                raise AssertionError
        init = rueda.init
        address = rueda.rendezvous.open(2, interface="127.0.0.1")
        told(lambda: init(rank=0, size=3, rendezvous=address))
        told(lambda: init(rank=1, size=2, rendezvous=address))
        told(lambda: init(rank=2, size=2, rendezvous=address))
        told(lambda: init(rank=0, size=2))
        told(lambda: init(rank=0, rendezvous=address))
        told(lambda: init(size=2))
        told(lambda: init(rank="0", size=2, rendezvous=address))
        told(lambda: init(rank=0, size=2, rendezvous="tcp:127.0.0.1:80"))
        told(lambda: init(rank=0, size=2, rendezvous=7))
        rueda.rendezvous.close(address)
        rueda.rendezvous.close(address)
        told(lambda: init(rank=0, size=2, rendezvous=address))
        for size in (0, -1, 1.5, True, "2"):
            told(lambda: rueda.rendezvous.open(size))
        try:
            rueda.rendezvous.open(2, interface="no-such-interface")
        except rueda.InitializationError as error:
            print(error)
        print(repr(address))
        assert not rueda.is_initialized()
        with rueda.world(0, 1):
            told(lambda: init(rank=0, size=1))
            init()
        """
    )
    assert ended.returncode == 0, ended
    for sentence in (
        "the rendezvous was opened for a world of 2, and rank 0 is to enter one of 3",
        "this one is to be rank 1",
        "init(rank=2, size=2): both must be given, and ranks are whole numbers from 0 to size-1",
        "init(rank=0, size=2) needs rendezvous=",
        "init(rank=0, size=None)",
        "init(rank=None, size=2)",
        "rendezvous= is an address that rueda.rendezvous.open() has returned",
        "once for each world: this one has not opened Address('rueda+tcp://...@127.0.0.1:",
        "a rendezvous is for one rank or more, not size=1.5",
        "no-such-interface",
        "this process is in a world already",
    ):
        assert sentence in ended.output, sentence
    assert re.search(r"[0-9a-f]{64}", ended.output) is None  # no secret is sent
