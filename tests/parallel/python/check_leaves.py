"""Allreduces of partial sums of leaves: all ranks get the bits that each computes by itself."""

from __future__ import annotations

import os

import numpy as np
import rueda
from parallel import raises, run, still_works


def value(leaf: int, size: int, dtype: str) -> np.ndarray:
    return (np.random.default_rng([leaf, size]).standard_normal(size) * 100).astype(dtype)


def partials(leaves: rueda.Leaves, size: int, dtype: str) -> np.ndarray:
    sums = leaves.sums()
    for leaf in leaves.own:
        sums.add(value(leaf, size, dtype))
    return sums.partials((size,), dtype)


def expected(count: int, size: int, dtype: str) -> np.ndarray:
    """The root; a left part has the largest power of two of leaves less than the whole."""

    def node(first: int, count: int) -> np.ndarray:
        if count == 1:
            return value(first, size, dtype)
        left = 1 << ((count - 1).bit_length() - 1)
        return node(first, left) + node(first + left, count - left)

    return node(0, count)


def same(result: np.ndarray, wanted: np.ndarray) -> None:
    assert result.dtype == wanted.dtype
    assert result.tobytes() == wanted.tobytes(), np.flatnonzero(result != wanted)[:5]


def check_bits_are_those_of_the_tree() -> None:
    for count in (1, 2, 6, 8, 13):
        leaves = rueda.Leaves(count)
        for dtype in ("float32", "float64", "float16"):
            for size in (0, 1, 1000, 100_001):
                given = partials(leaves, size, dtype)
                root = expected(count, size, dtype)
                total = rueda.allreduce_leaves_async(given, leaves, op=rueda.Sum)
                mean = rueda.allreduce_leaves_async(given, leaves, f"{count}.{dtype}.{size}")
                same(total.result(), root)
                same(mean.result(), root / np.array(count, dtype))


def check_bits_do_not_depend_on_who_computes_what() -> None:
    random = np.random.default_rng(1)
    root = expected(16, 5000, "float32")
    for _ in range(10):
        leaves = rueda.Leaves(16, ranks=random.integers(rueda.size(), size=16).tolist())
        same(
            rueda.allreduce_leaves(
                partials(leaves, 5000, "float32"), leaves, "dealt", op=rueda.Sum
            ),
            root,
        )


def check_repeated_and_fused() -> None:
    leaves = rueda.Leaves(8)
    for _ in range(5):
        handles = [
            rueda.allreduce_leaves_async(
                partials(leaves, size, "float32"), leaves, f"part.{size}", op=rueda.Sum
            )
            for size in (3, 500, 40_000, 7)
        ]
        for handle, size in zip(handles, (3, 500, 40_000, 7), strict=True):
            same(handle.result(), expected(8, size, "float32"))


def check_registered_memory() -> None:
    leaves = rueda.Leaves(8)
    given = rueda.empty((len(leaves.partials), 70_000), np.float32)
    given[...] = partials(leaves, 70_000, "float32")
    same(
        rueda.allreduce_leaves(given, leaves, op=rueda.Sum),
        expected(8, 70_000, "float32"),
    )


def check_other_operations_and_types() -> None:
    leaves = rueda.Leaves(8)
    given = partials(leaves, 100, "int32")
    same(rueda.allreduce_leaves(given, leaves, op=rueda.Sum), expected(8, 100, "int32"))
    ordinary = rueda.allreduce(np.ones(3), name="beside", op=rueda.Sum)
    np.testing.assert_array_equal(ordinary, rueda.size())
    scaled = rueda.allreduce_leaves(given * 1.0, leaves, op=rueda.Sum, postscale_factor=2.0)
    np.testing.assert_array_equal(scaled, 2.0 * expected(8, 100, "int32"))


def check_bytes_are_those_of_the_ring() -> None:
    """If each rank has one partial sum, and a transport carries the data."""
    ranks = rueda.size()
    if os.environ.get("RUEDA_ALGORITHM") != "ring" or ranks == 1:
        return
    size = 240_000
    leaves = rueda.Leaves(4 * ranks)
    given = partials(leaves, size, "float32")
    before = rueda.metrics()["allreduce_payload_bytes_sent"]
    rueda.allreduce_leaves(given, leaves, name="counted")
    sent = rueda.metrics()["allreduce_payload_bytes_sent"] - before
    assert len(leaves.partials) == 1
    assert abs(sent - 2 * (ranks - 1) / ranks * given.nbytes) <= 8 * ranks, sent


def check_wrong_number_of_partials() -> None:
    leaves = rueda.Leaves(8)
    wrong = len(leaves.partials) + (rueda.rank() == rueda.size() - 1)
    with raises(
        rueda.InvalidArgumentError,
        "'short'",
        f"rank {rueda.size() - 1}",
        "first extent",
        "8 leaves",
    ):
        rueda.allreduce_leaves(np.ones((wrong, 3)), leaves, name="short")
    still_works()


def check_leaves_differ() -> None:
    if rueda.size() == 1:
        return
    is_last = rueda.rank() == rueda.size() - 1
    leaves = rueda.Leaves(9 if is_last else 8)
    with raises(rueda.MismatchError, "'other'", "leaves", "8 of ranks", "9 of ranks"):
        rueda.allreduce_leaves(np.ones((len(leaves.partials), 3)), leaves, name="other")
    still_works()
    with raises(rueda.MismatchError, "'mixed'", "leaves", "none", "8 of ranks"):
        if is_last:
            rueda.allreduce(np.ones(3), name="mixed")
        else:
            leaves = rueda.Leaves(8)
            rueda.allreduce_leaves(np.ones((len(leaves.partials), 3)), leaves, name="mixed")
    still_works()


def check_numbers_without_sense() -> None:
    for count in (0, -1, 1 << 20, 1.5):
        with raises(rueda.InvalidArgumentError, "leaves"):
            rueda.Leaves(count)  # type: ignore[arg-type]
    with raises(rueda.InvalidArgumentError, "2 ranks", "3 leaves"):
        rueda.Leaves(3, ranks=[0, 0])
    leaves = rueda.Leaves(1, ranks=[rueda.size()])
    with raises(rueda.InvalidArgumentError, "'who'", "leaf 0", f"rank {rueda.size()}"):
        rueda.allreduce_leaves(np.ones((0, 1)), leaves, name="who")
    still_works()


def check_lost_leaves_go_to_those_that_have_fewest() -> None:
    leaves = rueda.Leaves(8)
    if rueda.size() == 1:
        return
    rest = rueda.ProcessSet(range(1, rueda.size()))
    rueda.add_process_set(rest)
    if rest.included():
        after = leaves.without([0], rest)
        assert set(leaves.own) <= set(after.own)
        given = partials(after, 100, "float32")
        same(
            rueda.allreduce_leaves(given, after, name="rest", op=rueda.Sum),
            expected(8, 100, "float32"),
        )
    rueda.remove_process_set(rest)


def check_a_joined_rank() -> None:
    if rueda.size() == 1:
        return
    leaves = rueda.Leaves(8)
    if rueda.rank() > 0:
        with raises(rueda.InvalidArgumentError, "'absent'", "leaves", "rank 0", "joined"):
            rueda.allreduce_leaves(np.ones((len(leaves.partials), 3)), leaves, name="absent")
    rueda.join()
    still_works()


def check_samples_come_once() -> None:
    for items, size in ((100, 4), (7, 3), (64, 8)):
        sampler = rueda.LeafSampler(items, leaves=8, leaf_size=size, seed=3)
        leaves = rueda.Leaves(8)
        own = [batch.samples[leaf] for batch in sampler.epoch(2) for leaf in leaves.own]
        every = rueda.allgather(np.concatenate([np.empty(0, np.int64), *own]))
        assert sorted(every.tolist()) == list(range(items))
        for batch in sampler.epoch(2):
            weights = [batch.weight(leaf) for leaf in range(8)]
            assert abs(sum(weights) - 8) < 1e-9
        assert sum(1 for _ in sampler.epoch(2)) == len(sampler)
    seeds = {rueda.leaf_seed(5, step, leaf) for step in range(100) for leaf in range(100)}
    assert len(seeds) == 10_000


if __name__ == "__main__":
    run(globals())
