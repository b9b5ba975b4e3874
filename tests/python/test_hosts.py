"""Worlds of several hosts over MPI."""

import pytest
from hosts import all_checks_on_hosts, check_on_hosts, run_on_hosts
from launching import PARALLEL, find_mpirun
from net.lab.fixture import MakeLab
from one_run import OneRun, each_check_of

pytestmark = pytest.mark.skipif(find_mpirun() is None, reason="there is no MPI")

HOSTS = PARALLEL / "check_hosts.py"
PERSISTENT = PARALLEL / "check_torch_hosts.py"
BUCKETS = PARALLEL / "check_torch_buckets.py"

TORCH_DISTRIBUTED = """
import torch
import torch.distributed as dist
import rueda.torch.c10d
dist.init_process_group("rueda", init_method="rueda://")
rank = dist.get_rank()
for name, ranks in (("world", [0, 1, 2, 3]), ("low", [0, 1]), ("high", [2, 3]), ("across", [1, 2])):
    group = dist.new_group(ranks)
    if rank in ranks:
        for size in (1, 1000, 100_003):
            total = torch.full((size,), float(rank))
            dist.all_reduce(total, group=group)
            assert torch.all(total == sum(ranks)), (name, total)
dist.barrier()
print("done", rank, flush=True)
dist.destroy_process_group()
"""

LOSES_A_RANK = """
import os, signal
import numpy as np
import rueda
rueda.init()
mine = rueda.add_process_set([0, 1]), rueda.add_process_set([2, 3])
rueda.allreduce(np.ones(3), name="x")
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which mpirun ends the others, at about the same time
if rueda.rank() == 3:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    rueda.allreduce(np.ones(3), name="y")
except rueda.PeerLostError as error:
    print("lost", error.peer, flush=True)
"""


@pytest.fixture(scope="module")
def two_hosts() -> OneRun:
    return all_checks_on_hosts(HOSTS, 2, 2)


@each_check_of(HOSTS)
def test_two_hosts_with_two_ranks_each(two_hosts: OneRun, check: str) -> None:
    two_hosts.require(check)


@pytest.fixture(scope="module")
def persistent() -> OneRun:
    pytest.importorskip("torch")
    return all_checks_on_hosts(PERSISTENT, 2, 2)


@each_check_of(PERSISTENT)
def test_persistent_operations(persistent: OneRun, check: str) -> None:
    persistent.require(check)


@pytest.fixture(scope="module")
def buckets() -> OneRun:
    pytest.importorskip("torch")
    return all_checks_on_hosts(BUCKETS, 2, 2)


@each_check_of(BUCKETS)
def test_buckets_of_gradients(buckets: OneRun, check: str) -> None:
    buckets.require(check)


def test_torch_distributed(make_lab: MakeLab) -> None:
    pytest.importorskip("torch")
    ended = check_on_hosts(make_lab(2), TORCH_DISTRIBUTED, 2)
    assert sorted(line for line in ended.output.splitlines() if line.startswith("done")) == [
        f"done {rank}" for rank in range(4)
    ]


def test_mpi_and_tcp_are_both_tried(make_lab: MakeLab) -> None:
    ended = check_on_hosts(make_lab(2), PARALLEL / "check_host_links.py", 2, ["auto"])
    assert ended.output.count("links agree") == 4, ended.output


@pytest.mark.parametrize("wanted", ["mpi", "tcp"])
def test_links_that_are_asked_for_are_used_untried(make_lab: MakeLab, wanted: str) -> None:
    ended = check_on_hosts(make_lab(3), PARALLEL / "check_host_links.py", 1, [wanted])
    assert ended.output.count("links agree") == 3, ended.output


def test_a_rank_that_dies_on_another_host_is_named(make_lab: MakeLab) -> None:
    ended = run_on_hosts(make_lab(2), LOSES_A_RANK, 2)
    assert ended.returncode != 0
    assert "lost 3" in ended.output, ended.output
