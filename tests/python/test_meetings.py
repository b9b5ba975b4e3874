"""Exchanges in pairs, of which one rank comes late: in which round it goes on."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rueda.torch.strategies import meetings  # noqa: E402


class Exchange:
    """What the partner has sent: of a round, if it has come."""

    def __init__(self, number: int, has_come: bool) -> None:
        self.number, self.has_come = number, has_come

    def wait(self, _: float | None) -> bool:
        return self.has_come

    def result(self) -> dict[str, Any]:
        return {"round": torch.tensor(self.number)}


class Partner:
    """In the place of a replica: exchanges in their order."""

    prefix = "model"

    def __init__(self, *exchanges: Exchange) -> None:
        self.left = list(exchanges)
        self.told: list[int] = []  # the rounds that it was told

    def meet(self, tensors: dict[str, Any], _partner: int, _tag: int) -> Exchange:
        self.told.append(int(tensors["round"]))
        return self.left.pop(0)


def test_a_late_rank_counts_the_rounds_that_it_has_missed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meetings, "rank", lambda: 1)
    first = Exchange(13, has_come=False)
    partner = Partner(first, Exchange(14, has_come=True), Exchange(14, has_come=True))
    late = meetings.Meetings(partner, 1.0)  # type: ignore[arg-type] - it asks for no more
    assert late.swap({}, 0, 6) is None
    first.has_come = True
    assert late.swap({}, 0, 7) == {}
    assert late.ahead == 7  # round 7 is the others' round 14
    assert late.swap({}, 0, 8 + late.ahead) is None  # the other one is a round behind now
    assert (late.ahead, partner.told) == (7, [6, 13, 15])
