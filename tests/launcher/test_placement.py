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


def test_without_hosts_all_ranks_are_on_this_one() -> None:
    (share,) = place(3, ())
    assert (share.host.is_local, list(share.ranks)) == (True, [0, 1, 2])
