"""Every rank: torch's fault-tolerance contract, as test_c10d_fault_tolerance.py states it.

torch tests it for gloo and NCCL. It has functions for it from 2.14 on; before, the group's own
methods are called.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import rueda
import torch
import torch.distributed as dist
from parallel import raises
from parallel import run as run_checks
from rueda.objects import broadcast_object
from rueda.torch.c10d import Options, ReconfigurableGroup, ReconfigureOptions

HAS_CONTRACT = hasattr(dist, "_reconfigure")
TIMEOUT = timedelta(seconds=60)


class Group:
    """The default group of all ranks, at first without members; a store exchanges handles."""

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
        folder = broadcast_object(tempfile.mkdtemp() if rueda.rank() == 0 else None, 0)
        self.rank, self.world = rueda.rank(), rueda.size()
        self.store = dist.FileStore(os.path.join(folder, "store"), self.world)
        asked: dict[str, Any] = (
            {"enable_reconfigure": True}
            if HAS_CONTRACT
            else {"pg_options": Options(enable_reconfigure=True)}
        )
        dist.init_process_group(
            "rueda",
            world_size=self.world,
            rank=self.rank,
            store=self.store,
            timeout=timeout,
            **asked,
        )
        group = dist.group.WORLD
        assert isinstance(group, ReconfigurableGroup)
        self.group = group
        assert group.supports_reconfigure
        assert (dist.get_rank(), dist.get_world_size()) == (-1, -1)
        self._told = 0

    def handle(self) -> str:
        if HAS_CONTRACT:
            return dist._get_reconfigure_handle()
        return self.group.get_reconfigure_handle()

    def handles(self) -> list[str]:
        """The handles of all processes, in order."""
        self._told += 1
        self.store.set(f"{self._told}.{self.rank}", self.handle())
        return [self.store.get(f"{self._told}.{peer}").decode() for peer in range(self.world)]

    def reconfigure(
        self, uuid: int, handles: Collection[str], timeout: timedelta = TIMEOUT
    ) -> None:
        if HAS_CONTRACT:
            dist._reconfigure(uuid, handles, timeout=timeout).wait()
        else:
            assert self.group.reconfigure(ReconfigureOptions(uuid, handles, timeout)).wait()
        assert dist.get_world_size() == len(handles)

    def works(self, *members: int) -> None:
        """Checks that exactly these processes form the world, in this order."""
        assert dist.get_rank() == members.index(self.rank)
        total = torch.full((1000,), self.rank + 1.0)
        dist.all_reduce(total)
        assert torch.equal(total, torch.full((1000,), sum(members) + float(len(members))))
        value = torch.full((4,), float(self.rank))
        dist.broadcast(value, group_src=len(members) - 1)
        assert value.tolist() == [float(members[-1])] * 4
        gathered = [torch.empty(1) for _ in members]
        dist.all_gather(gathered, torch.tensor([float(self.rank)]))
        assert torch.cat(gathered).tolist() == [float(member) for member in members]


def with_group(check: Callable[[Group], None], **options: Any) -> None:
    group = Group(**options)
    try:
        check(group)
    finally:
        dist.destroy_process_group()


def check_all_then_messages_and_training() -> None:
    def check(group: Group) -> None:
        group.reconfigure(100, group.handles())
        group.works(*range(group.world))
        right, left = (group.rank + 1) % group.world, (group.rank - 1) % group.world
        received = torch.zeros(4)
        works = [
            group.group.send([torch.full((4,), group.rank + 1.0)], right, 0),
            group.group.recv([received], left, 0),
        ]
        for work in works:
            work.wait()
        assert received.tolist() == [left + 1.0] * 4
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
        model(torch.full((2, 3), group.rank + 1.0)).sum().backward()
        mean = 2 * (group.world + 1) / 2
        torch.testing.assert_close(model.module.weight.grad, torch.full((1, 3), mean))

    with_group(check)


def check_without_the_last_then_without_the_middle() -> None:
    for excluded in (rueda.size() - 1, rueda.size() // 2):

        def check(group: Group, excluded: int = excluded) -> None:
            group.reconfigure(400, group.handles())
            handles = group.handles()
            left = [rank for rank in range(group.world) if rank != excluded]
            if group.rank != excluded:
                group.reconfigure(401, [handles[rank] for rank in left])
                group.works(*left)
            rueda.barrier()

        with_group(check)


def check_each_alone_then_all_then_each_alone() -> None:
    def check(group: Group) -> None:
        group.reconfigure(600 + group.rank, [group.handle()])
        group.works(group.rank)
        group.reconfigure(700, group.handles())
        group.works(*range(group.world))
        group.reconfigure(800 + group.rank, [group.handle()])
        group.works(group.rank)

    with_group(check)


def check_some_join_later() -> None:
    def check(group: Group) -> None:
        handles = group.handles()
        if group.rank < group.world - 1:
            group.reconfigure(900, handles[:-1])
            group.works(*range(group.world - 1))
        group.reconfigure(901, group.handles())
        group.works(*range(group.world))

    with_group(check)


def check_two_worlds_become_one() -> None:
    def check(group: Group) -> None:
        handles = group.handles()
        halves = [0], list(range(1, group.world))
        mine = halves[group.rank > 0]
        group.reconfigure(1000 + (group.rank > 0), [handles[rank] for rank in mine])
        group.works(*mine)
        group.reconfigure(1002, group.handles())
        group.works(*range(group.world))

    with_group(check)


def check_any_order() -> None:
    def check(group: Group) -> None:
        group.reconfigure(1, group.handles()[::-1])
        group.works(*reversed(range(group.world)))
        handles = group.handles()
        group.reconfigure(2, set(handles))
        assert sorted(handles)[dist.get_rank()] == handles[group.rank]
        group.works(*sorted(range(group.world), key=lambda rank: handles[rank]))

    with_group(check)


def check_again_after_an_abort() -> None:
    def check(group: Group) -> None:
        group.reconfigure(1200, group.handles())
        group.works(*range(group.world))
        late = dist.all_reduce(torch.ones(3), async_op=True) if group.rank != 0 else None
        rueda.barrier()
        group.group.abort()
        with raises(rueda.ShutdownError, "aborted"):
            dist.all_reduce(torch.ones(3))
        group.reconfigure(1201, group.handles())
        if late is not None:  # errors of the old world do not affect this one
            try:
                late.wait()
                sys.exit("was done without rank 0")
            except RuntimeError:
                pass
        group.works(*range(group.world))

    with_group(check)


def check_again_after_a_timeout() -> None:
    def check(group: Group) -> None:
        group.reconfigure(1300, group.handles())
        group.group.set_timeout(timedelta(seconds=0.5))
        kinds = torch._C._distributed_c10d.ErrorType
        if group.rank != 0:
            try:
                dist.all_reduce(torch.ones(4))
                sys.exit("was done without rank 0")
            except (
                RuntimeError
            ):  # the first to notice gets TIMEOUT, the others COMM_ERROR: the world is gone
                assert group.group.get_error() in (kinds.TIMEOUT, kinds.COMM_ERROR)
        rueda.barrier()
        group.group.set_timeout(TIMEOUT)
        group.reconfigure(1301, group.handles())
        assert group.group.get_error() == kinds.SUCCESS
        group.works(*range(group.world))

    with_group(check)


def check_who_does_not_come_is_waited_for_no_longer_than_the_timeout() -> None:
    def check(group: Group) -> None:
        handles = group.handles()
        if group.rank != 1:
            with raises(rueda.InitializationError):
                group.group.reconfigure(ReconfigureOptions(1, handles, timedelta(seconds=0.5)))
            with raises(rueda.NotInitializedError, "reconfigure() gives it some"):
                dist.all_reduce(torch.ones(3))
        rueda.barrier()
        group.reconfigure(2, group.handles())
        group.works(*range(group.world))

    with_group(check)


def check_what_makes_no_sense() -> None:
    def check(group: Group) -> None:
        own = group.handle()
        with raises(rueda.NotInitializedError, "has no members"):
            dist.all_reduce(torch.ones(3))
        group.reconfigure(7, [own])
        with raises(rueda.InvalidArgumentError, "uuid 7 was already used"):
            group.reconfigure(7, [own])
        with raises(rueda.InvalidArgumentError, "from before the last reconfigure()"):
            group.reconfigure(8, [own])
        own = group.handle()
        assert own == group.handle()
        others = [handle for handle in group.handles() if handle != own]
        with raises(rueda.InvalidArgumentError, "own handle is not among"):
            group.reconfigure(8, others)
        with raises(rueda.InvalidArgumentError, "twice"):
            group.reconfigure(8, [own, own])
        for nonsense in (
            "",
            "{}",
            "[" * 100_000,
            '{"rueda": 1}',
            own[:-1],
            own.replace('"rueda": 1', '"rueda": 2'),
        ):
            with raises(rueda.InvalidArgumentError, "is not from get_reconfigure_handle()"):
                group.reconfigure(8, [own, nonsense])
        group.works(group.rank)  # nothing has changed
        group.reconfigure(8, [own])
        with raises(rueda.UnsupportedError, "not one that init_process_group"):
            rueda.torch.c10d.renew_process_group()
        kept = group.group
        dist.destroy_process_group()
        with raises(rueda.ShutdownError, "has been destroyed"):
            kept.get_reconfigure_handle()
        with raises(rueda.ShutdownError, "has been destroyed"):
            kept.allreduce([torch.ones(3)], dist.AllreduceOptions())
        dist.init_process_group("rueda")  # for the checks that follow
        assert not dist.group.WORLD.supports_reconfigure

    with_group(check)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_checks(globals())
