from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.hosts import Host, total_slots
from rueda.launcher.placement import identity, place

hosts = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(
    lambda slots: [Host(f"h{index}", count) for index, count in enumerate(slots)]
)


@given(st.integers(1, 60), hosts)
def test_the_ranks_of_a_host_follow_one_another(ranks: int, given_hosts: list[Host]) -> None:
    shares = place(ranks, given_hosts)
    assert [rank for share in shares for rank in share.ranks] == list(range(ranks))
    names = [host.name for host in given_hosts]
    assert [share.host.name for share in shares] == names[: len(shares)]
    if ranks <= total_slots(given_hosts):
        assert all(share.count <= share.host.slots for share in shares)
        assert all(share.count == share.host.slots for share in shares[:-1])
    else:
        counts = [share.count for share in shares]
        assert max(counts) - min(counts) <= 1


@given(st.integers(1, 60), hosts)
def test_a_rank_is_told_its_place_among_others(ranks: int, given_hosts: list[Host]) -> None:
    shares = place(ranks, given_hosts)
    told = [identity(shares, rank) for rank in range(ranks)]
    crossing: dict[int, list[int]] = {}
    for share in shares:
        for local, rank in enumerate(share.ranks):
            assert int(told[rank]["RUEDA_LOCAL_RANK"]) == local
            assert int(told[rank]["RUEDA_LOCAL_SIZE"]) == share.count
            crossing.setdefault(local, []).append(rank)
    for group in crossing.values():
        assert [int(told[rank]["RUEDA_CROSS_RANK"]) for rank in group] == list(range(len(group)))
        assert {int(told[rank]["RUEDA_CROSS_SIZE"]) for rank in group} == {len(group)}
    assert [int(one["RUEDA_RANK"]) for one in told] == list(range(ranks))
    assert {one["RUEDA_SIZE"] for one in told} == {str(ranks)}


@given(st.integers(1, 60), hosts, st.lists(st.sampled_from(["", "m", "n"]), min_size=6, max_size=6))
def test_a_machine_under_several_names_counts_once(
    ranks: int, given_hosts: list[Host], ids: list[str]
) -> None:
    shares = place(ranks, given_hosts)
    names = [share.host.name for share in shares for _ in share.ranks]
    machines = {host.name: each for host, each in zip(given_hosts, ids, strict=False) if each}
    of = [machines.get(name, name) for name in names]
    local = [of[:rank].count(machine) for rank, machine in enumerate(of)]
    for rank in range(ranks):
        told = identity(shares, rank, machines)
        peers = [machine for machine in dict.fromkeys(of) if of.count(machine) > local[rank]]
        assert (int(told["RUEDA_RANK"]), int(told["RUEDA_SIZE"])) == (rank, ranks)
        assert int(told["RUEDA_LOCAL_RANK"]) == local[rank]
        assert int(told["RUEDA_LOCAL_SIZE"]) == of.count(of[rank])
        assert int(told["RUEDA_CROSS_RANK"]) == peers.index(of[rank])
        assert int(told["RUEDA_CROSS_SIZE"]) == len(peers)


def test_without_hosts_all_ranks_are_on_this_one() -> None:
    (share,) = place(3, ())
    assert (share.host.is_local, list(share.ranks)) == (True, [0, 1, 2])
