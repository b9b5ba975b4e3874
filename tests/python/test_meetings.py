"""Pair exchanges with a late rank: in which round it continues, and what it forgets."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rueda.torch.strategies import meetings  # noqa: E402


class Exchange:
    """The partner's message: its round, and whether it has arrived."""

    def __init__(self, number: int, has_come: bool) -> None:
        self.number, self.has_come = number, has_come

    def wait(self, _: float | None) -> bool:
        return self.has_come

    def result(self) -> dict[str, Any]:
        assert self.has_come, "this would wait for ever"
        return {"round": torch.tensor(self.number)}


class Partner:
    """Replaces a replica: exchanges in order."""

    class process_set:  # noqa: N801 - named after the replica's attribute
        """A set of two ranks."""

        ranks = (0, 1)

    def __init__(self, *exchanges: Exchange, begun: tuple[int, int] = (0, 0)) -> None:
        self.left = list(exchanges)
        self.begun = begun  # rank 0's meetings, by partner
        self.told: list[int] = []  # the rounds it was sent

    def meet(self, tensors: dict[str, Any], _partner: int, _what: str) -> Exchange:
        self.told.append(int(tensors["round"]))
        return self.left.pop(0)

    def gather(self, own: Any, _what: str) -> Any:
        return torch.cat([torch.tensor(self.begun), own])  # as seen by rank 1


@pytest.fixture(autouse=True)
def _rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "rank", lambda: 1)


def test_a_late_rank_counts_the_rounds_that_it_has_missed_once() -> None:
    first = Exchange(13, has_come=False)
    partner: Any = Partner(first, Exchange(14, has_come=True), Exchange(14, has_come=True))
    late = meetings.Meetings()
    assert late.swap(partner, {}, 0, 6, 1.0) is None
    first.has_come = True
    assert late.swap(partner, {}, 0, 7, 1.0) == {}
    assert late.ahead == 7  # round 7 is the others' round 14
    assert (
        late.swap(partner, {}, 0, 8 + late.ahead, 1.0) is None
    )  # now the partner is a round behind
    assert (late.ahead, partner.told) == (7, [6, 13, 15])


def test_what_was_on_its_way_in_a_world_that_is_gone_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old rank 0's late message never comes; the new rank 0 starts without meetings."""
    number = 1
    monkeypatch.setattr(meetings, "world_number", lambda: number)
    mine = meetings.Meetings()
    lost: Any = Partner(Exchange(0, has_come=False))
    assert mine.swap(lost, {}, 0, 3, 1.0) is None
    mine.ahead = 2
    number = 2
    other: Any = Partner(Exchange(6, has_come=True), begun=(0, 1))
    assert mine.swap(other, {}, 0, 6, 1.0) == {}
    assert mine.ahead == 2  # rounds continue
    mine.settle(other, {})  # nothing remains of either
    number = 3
    mine.settle(Partner(begun=(0, 0)), {})  # type: ignore[arg-type] - it asks for no more
    assert (lost.told, other.told) == ([3], [6])


def test_settling_sends_what_a_partner_waits_for() -> None:
    """Rank 0 has begun two meetings, and this rank has attended only the first."""
    partner: Any = Partner(Exchange(1, has_come=True), Exchange(2, has_come=True), begun=(0, 2))
    mine = meetings.Meetings()
    assert mine.swap(partner, {}, 0, 1, 1.0) == {}
    mine.ahead = 4
    mine.settle(partner, {})
    assert (mine.ahead, partner.told) == (0, [1, 0])
