"""Every rank: Horovod's init() with process sets, on a subset of ranks, after shutdown."""

from __future__ import annotations

import os
import sys

import parallel
import rueda
import rueda.horovod as lazy
import rueda.horovod.torch as hvd
import torch


def total() -> float:
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def check_init_twice() -> None:
    hvd.init()
    hvd.init()
    assert total() == hvd.size()
    assert lazy.size() == hvd.size()
    assert lazy.allreduce is hvd.allreduce
    with parallel.raises(AttributeError, "no attribute 'nonsense'"):
        _ = lazy.nonsense
    hvd.shutdown()
    assert not hvd.is_initialized()
    child = os.fork()
    if child == 0:
        os._exit(hvd.is_initialized())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with parallel.raises(ValueError, "use hvd.init()"):
        hvd.size()


def check_process_sets(size: int) -> None:
    first = hvd.ProcessSet([0])
    if size == 1:  # these are all ranks
        with parallel.raises(ValueError, "duplicate"):
            hvd.init(process_sets=[first])
    else:
        hvd.init(process_sets=[first])
        assert first.process_set_id is not None
        assert first.included() == (hvd.rank() == 0)
        again, other = hvd.ProcessSet([0]), hvd.ProcessSet([1])
        hvd.init(process_sets=[again, other])  # as Horovod: they stand for those that exist
        assert again.process_set_id == first.process_set_id != other.process_set_id
        if hvd.rank() < 2:
            own = (again, other)[hvd.rank()]
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=own).item() == 1
        with parallel.raises(ValueError, "number 1 is a duplicate"):
            hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
        with parallel.raises(ValueError, "duplicate"):
            hvd.init(process_sets=[hvd.ProcessSet(range(size))])
    with parallel.raises(ValueError, "'static'"):
        hvd.init(process_sets="static")
    hvd.init(process_sets="dynamic")
    hvd.shutdown()
    assert first.process_set_id is None
    assert first.size() is None
    if size > 1:
        assert again.process_set_id is None


def check_some_of_the_ranks(launched: tuple[int, int]) -> None:
    me, size = launched
    with parallel.raises(ValueError, "ranks from 0 to"):
        hvd.init(comm=[0, size])
    with parallel.raises(ValueError, "twice"):
        hvd.init(comm=[0, 0])
    with parallel.raises(ValueError, "mpi4py"):
        hvd.init(comm="all")
    parts = [list(range(size - 1, 0, -1)), [0]] if size > 1 else [[0]]
    mine = next(part for part in parts if me in part)
    if size > 1:
        with parallel.raises(ValueError, f"lacks this process's rank, {me}"):
            hvd.init(comm=next(part for part in parts if me not in part))
    hvd.init(comm=mine)
    assert (hvd.rank(), hvd.size()) == (mine.index(me), len(mine))
    assert hvd.local_size() == len(mine)
    assert total() == len(mine)
    assert hvd.allgather_object(me) == mine
    hvd.shutdown()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (me, size)
    assert total() == size
    hvd.shutdown()


def check_communicators(launched: tuple[int, int]) -> None:
    """Only if MPI has started the ranks."""
    from mpi4py import MPI

    me, size = launched
    hvd.init(comm=MPI.COMM_WORLD)
    assert (hvd.rank(), hvd.size()) == (me, size)
    hvd.shutdown()
    half = MPI.COMM_WORLD.Split(me % 2, me)
    hvd.init(comm=half)
    assert (hvd.rank(), hvd.size()) == (me // 2, half.Get_size())
    assert total() == half.Get_size()
    hvd.shutdown()
    even = hvd.ProcessSet(MPI.COMM_WORLD.Split(0 if me % 2 == 0 else 1, me))
    hvd.init(process_sets=[even])
    assert even.ranks == list(range(0, size, 2))
    assert even.included() == (me % 2 == 0)
    if even.included():
        result = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=even)
        assert result.item() == len(even.ranks)
    hvd.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    who = hvd.rank(), hvd.size()
    assert hvd.mpi_enabled() == ("OMPI_COMM_WORLD_SIZE" in os.environ)
    hvd.shutdown()
    check_init_twice()
    check_process_sets(who[1])
    check_some_of_the_ranks(who)
    if "mpi4py" in sys.argv:
        check_communicators(who)
    assert not rueda.is_initialized()
    print("ok")
