"""Every rank: persistent allreduces in worlds of several hosts, within a host and across all."""

from __future__ import annotations

import parallel
import rueda
import rueda.torch as rt
import torch
from check_hosts import own_host, sent_through_networks, sets_of_hosts

STEPS = 5


def sums_over(ranks: list[int], size: int, process_set: rueda.ProcessSet) -> None:
    """Runs one operation several times, each with other values."""
    tensor = torch.empty(size)
    operation = rt.PersistentAllreduce(tensor, op=rt.Sum, process_set=process_set)
    for step in range(STEPS):
        tensor.copy_(torch.arange(size) % 50 + step + rueda.rank())
        operation.start()
        operation.wait()
        one = (torch.arange(size) % 50 + step) * len(ranks) + sum(ranks)
        assert torch.equal(tensor, one.float()), (size, step)


def check_a_hosts_own_set_reduces_in_memory() -> None:
    mine = sets_of_hosts()[rueda.cross_rank()]
    for size in (0, 1, 14, 4097):
        sums_over(own_host(), size, mine)
    counted, earlier = rueda.metrics(), sent_through_networks()
    size = 1 << 20
    sums_over(own_host(), size, mine)
    assert sent_through_networks() - earlier < size  # a quarter of one of five tensors
    assert rueda.metrics()["allreduce_messages_sent"] == counted["allreduce_messages_sent"]


def check_the_world_reduces_across_hosts() -> None:
    for size in (0, 1, 14, 4097, 300_001):
        sums_over(list(range(rueda.size())), size, rueda.global_process_set)


if __name__ == "__main__":
    parallel.run(globals())
