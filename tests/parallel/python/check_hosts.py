"""Every rank: worlds of several hosts with equally many, consecutive ranks on each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import parallel
import rueda
from reference import values

FLOAT64 = np.dtype("float64")


def own_host() -> list[int]:
    first = rueda.rank() - rueda.local_rank()
    return list(range(first, first + rueda.local_size()))


def sets_of_hosts() -> list[rueda.ProcessSet]:
    """Process sets of hosts; all ranks create all sets."""
    each = rueda.local_size()
    return [
        rueda.add_process_set(list(range(first, first + each)))
        for first in range(0, rueda.size(), each)
    ]


def sent_through_networks() -> int:
    """Bytes that this host has sent on all interfaces; read while no rank sends."""
    rueda.barrier(name="all have moved")
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    total = sum(int(line.partition(":")[2].split()[8]) for line in lines)
    rueda.barrier(name="all have looked")
    return total


def check_who_is_where() -> None:
    assert rueda.local_size() * rueda.cross_size() == rueda.size()
    assert rueda.cross_size() > 1, "the ranks are on one host"
    assert rueda.rank() == rueda.cross_rank() * rueda.local_size() + rueda.local_rank()


def check_the_world_sums_over_all_hosts() -> None:
    for size in (0, 1, 1000, 100_003):
        mine = values("world", rueda.rank(), (size,), FLOAT64)
        total = rueda.allreduce(mine, name=f"world {size}", op=rueda.Sum)
        expected = sum(values("world", rank, (size,), FLOAT64) for rank in range(rueda.size()))
        np.testing.assert_allclose(total, expected)
        everywhere = rueda.allgather(total.reshape(1, -1), name=f"bits {size}")
        assert all(np.array_equal(row, total) for row in everywhere), "the bits differ"


def check_a_host_has_its_own_sets_in_memory() -> None:
    mine = sets_of_hosts()[rueda.cross_rank()]
    for size in (1, 1000, 100_003):
        for round_ in range(5):
            array = np.full(size, rueda.rank() + round_, np.float32)
            before = rueda.metrics()
            total = rueda.allreduce(array, name=f"host {size}", op=rueda.Sum, process_set=mine)
            after = rueda.metrics()
            assert np.all(total == sum(rank + round_ for rank in own_host()))
            assert after["allreduce_messages_sent"] == before["allreduce_messages_sent"]
            if round_ > 0:
                assert after["plans_replayed"] == before["plans_replayed"] + 1


def check_a_step_costs_each_host_one_message() -> None:
    tensors = [np.ones(300, np.float32) for _ in range(20)]
    for round_ in range(10):
        before = rueda.metrics()
        totals = rueda.grouped_allreduce(tensors, name="step", op=rueda.Sum)
        after = rueda.metrics()
        assert all(np.all(total == rueda.size()) for total in totals)
        if round_ == 0:
            continue
        assert after["plans_replayed"] == before["plans_replayed"] + 1
        # The first rank of each host speaks for its host, and rank 0 decides for all.
        sent = after["control_messages_sent"] - before["control_messages_sent"]
        expected = rueda.cross_size() - 1 if rueda.rank() == 0 else int(rueda.local_rank() == 0)
        assert sent == expected, (round_, sent)


def check_each_link_carries_what_it_has_to() -> None:
    for size in (64 << 20, 4 << 20, 1 << 10):
        tensor = np.full(size // 4, rueda.rank() + 1, np.float32)
        before = rueda.metrics()["allreduce_payload_bytes_sent"]
        rueda.allreduce_(tensor, name=f"link {size}", op=rueda.Sum)
        sent = rueda.metrics()["allreduce_payload_bytes_sent"] - before
        assert np.all(tensor == rueda.size() * (rueda.size() + 1) / 2)
        by_rank = rueda.allgather(np.array([sent]), name=f"sent {size}")
        here = sum(by_rank[rank] for rank in own_host())
        hosts = rueda.cross_size()
        if rueda.choose_algorithm(size).algorithm == "hierarchical":
            # Segments differ by one element.
            assert abs(here - 2 * (hosts - 1) * size / hosts) <= 4096, (size, here)
        else:
            assert rueda.choose_algorithm(size).algorithm == "doubling"
            assert here == size * np.log2(hosts), (size, here)
    assert rueda.choose_algorithm(64 << 20).algorithm == "hierarchical"
    assert rueda.choose_algorithm(1 << 10).algorithm == "doubling"


def check_messages_within_and_across_hosts() -> None:
    for size in (3, 100_003):
        handles = [rueda.send_async(np.full(size, rueda.rank()), to) for to in range(rueda.size())]
        for sender in range(rueda.size()):
            taken = np.empty(size, np.int64)
            assert rueda.recv(taken, sender) == sender
            assert np.all(taken == sender)
        for handle in handles:
            handle.result()


def exchange(receiver: int, sender: int) -> int:
    """Each rank sends 32 MiB to another; returns the bytes that this host sends on its networks."""
    array, taken = np.full(1 << 20, rueda.rank()), np.empty(1 << 20, np.int64)
    before = sent_through_networks()
    for _ in range(4):
        handle = rueda.send_async(array, receiver)
        assert rueda.recv(taken, sender) == sender
        assert np.all(taken == sender)
        handle.result()
    return sent_through_networks() - before


def check_messages_within_a_host_go_through_memory() -> None:
    ranks, each = own_host(), rueda.local_size()
    own = rueda.local_rank()
    assert exchange(ranks[(own + 1) % each], ranks[own - 1]) < 1 << 20
    across = exchange((rueda.rank() + each) % rueda.size(), (rueda.rank() - each) % rueda.size())
    assert across > each * 32 << 20


if __name__ == "__main__":
    parallel.run(globals())
