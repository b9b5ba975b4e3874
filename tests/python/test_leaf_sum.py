"""A tensor's sum over a rank's leaves, also with parts kept from an interrupted step."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

native = pytest.importorskip("rueda._native")
torch = pytest.importorskip("torch")

from rueda.torch.leaf_sum import LeafSum, leaves_of  # noqa: E402


class Bucket:
    """Counts a sum's reports."""

    def __init__(self) -> None:
        self.completed = 0
        self.refused = ""

    def complete_one(self) -> None:
        self.completed += 1

    def refuse(self, why: str) -> None:
        self.refused = why


def leaves(count: int, own: list[int]) -> SimpleNamespace:
    """The part of Leaves that LeafSum uses, without a world."""
    merges, partials = native.schedule_of_parts(count, [(leaf, 1) for leaf in own])
    return SimpleNamespace(count=count, own=tuple(own), merges=merges, partials=partials)


class Sum:
    """A sum over the leaves ``own``, and the places of its partial sums."""

    def __init__(self, count: int, own: list[int], kept: dict) -> None:
        division = leaves(count, own)
        self.bucket = Bucket()
        self.places = [torch.full((2,), torch.nan) for _ in division.partials]
        self.sum = LeafSum(torch.zeros(2), self.bucket, self.places, division, kept)

    def bits(self) -> list[list[int]]:
        return [place.view(torch.int32).tolist() for place in self.places]


def result_of(leaf: int) -> torch.Tensor:
    """Values whose sums depend on the order."""
    chance = random.Random(leaf)
    return torch.tensor([chance.uniform(-1, 1) * 10 ** chance.randint(-6, 6) for _ in range(2)])


@given(st.data())
def test_what_is_kept_gives_the_bits_of_an_undisturbed_sum(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 24))
    every = st.sets(st.integers(0, count - 1))
    own = sorted(data.draw(every))
    more = sorted(data.draw(every).union(own))
    kept: dict = {}
    originals = {}
    for division in (own, more, more):  # the last one resumes a step already resumed once
        resumed = Sum(count, division, kept)
        assert set(resumed.sum.missing) == set(division) - leaves_of(kept)
        resumed.sum.take_kept()
        for leaf in resumed.sum.missing[: data.draw(st.integers(0, count))]:
            assert resumed.sum.next_leaf == leaf
            resumed.sum.add(result_of(leaf))
        kept = resumed.sum.nodes()
        for node, value in originals.items():
            assert torch.equal(value[0], value[1]), node  # kept values are never overwritten
        originals |= {(*node, division is own): (v, v.clone()) for node, v in kept.items()}
    last = Sum(count, more, kept)
    last.sum.take_kept()
    for leaf in last.sum.missing:
        last.sum.add(result_of(leaf))
    alone = Sum(count, more, {})
    for leaf in more:
        alone.sum.add(result_of(leaf))
    assert last.bits() == alone.bits()
    assert last.bucket.completed == alone.bucket.completed == (1 if more else 0)
    assert last.sum.next_leaf is None


@given(st.integers(2, 16), st.data())
def test_sums_of_leaves_that_others_have_now_are_not_used(count: int, data: st.DataObject) -> None:
    first = Sum(count, list(range(count)), {})
    for leaf in range(count):
        first.sum.add(result_of(leaf))
    own = sorted(data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1)))
    resumed = Sum(count, own, first.sum.nodes())
    assert list(resumed.sum.missing) == own


def test_sparse_results_are_refused_and_not_counted() -> None:
    refusing = Sum(2, [0, 1], {})
    refusing.sum.add(torch.zeros(2).to_sparse())
    assert "layout" in refusing.bucket.refused
    assert refusing.sum.next_leaf == 0


@pytest.mark.parametrize("parts", [[(1, 2)], [(0, 4), (3, 1)], [(0, 16)], [(-1, 1)], [(3, 0)]])
def test_parts_that_are_no_nodes_of_the_tree_are_an_error(parts: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="not a node"):
        native.schedule_of_parts(8, parts)
