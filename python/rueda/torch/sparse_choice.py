"""Chooses the algorithm that sums sparse tensors.

Renggli et al., "SparCML: High-performance sparse communication for machine learning", SC 2019 (arXiv 1802.08021), have
the same three: gather all, split and gather, and dense if sums fill up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rueda import _native
from rueda.adapter import Refusal

__all__ = ["ALGORITHMS", "Exchange", "SparseChoice", "algorithm_number", "choose_sparse_algorithm"]

ALGORITHMS = ("auto", "gather", "split", "dense")
# Rows with keys are sorted and placed one by one, so they take longer per byte than a dense tensor.
KEYED_COST = 1.5


class Exchange(NamedTuple):
    """What one more exchange costs."""

    equal_bytes: int
    """How many bytes could be moved in its time."""
    inline_bytes: int
    """Up to how many bytes of rows are sent with the first exchange, which spares the others."""

    @staticmethod
    def of_world() -> Exchange:
        """That of this world; every rank has the same."""
        return _BY_MEMORY if _native.has_direct_access() else _BY_NETWORK


_BY_NETWORK = Exchange(16 << 10, 1 << 10)
_BY_MEMORY = Exchange(192 << 10, 128 << 10)  # where ranks read each other's memory


class SparseChoice(NamedTuple):
    """The algorithm of a sparse allreduce, and the bytes that the busiest rank receives with each algorithm.

    Example::

        >>> rueda.torch.choose_sparse_algorithm([0, 2], union_rows=2, extent=10, row_bytes=64)
        SparseChoice(algorithm='gather', union_rows=2, gather_bytes=136, split_bytes=102, dense_bytes=650)
    """

    algorithm: str
    """``"gather"``: every rank gets all ranks' rows. ``"split"``: each rank gets a range of them from all, adds these
    up and gives every rank the sums. ``"dense"``: an allreduce of the dense tensor, and of a byte for each row."""
    union_rows: int
    """Distinct rows of all ranks together; estimated, where a rank has more than 256."""
    gather_bytes: int
    split_bytes: int
    dense_bytes: int


def choose_sparse_algorithm(
    rows: Sequence[int],
    union_rows: int,
    extent: int,
    row_bytes: int,
    exchange_bytes: int = _BY_NETWORK.equal_bytes,
) -> SparseChoice:
    """The algorithm that :func:`rueda.torch.sparse_allreduce` uses for such tensors; every rank chooses the same.

    ``rows``: distinct rows of each rank; ``union_rows``: of all together; ``extent``: rows of the dense tensor;
    ``row_bytes``: bytes of one row's values. Chooses the algorithm with the fewest bytes, where rows with keys count
    one and a half times and each exchange as ``exchange_bytes``: 16 KiB by default, 192 KiB if all ranks are on one
    host and read each other's memory.

    Example::

        >>> rows = [100_000] * 4  # of which half are the same on all ranks
        >>> rueda.torch.choose_sparse_algorithm(rows, 250_000, 10_000_000, 64).algorithm
        'split'
    """
    size = max(1, len(rows))
    sent = (4 if extent < 2**31 else 8) + row_bytes
    others = (size - 1) / size
    gather = (sum(rows) - min(rows, default=0)) * sent
    split = round((sum(rows) / size + union_rows) * others * sent)
    dense = round(2 * others * extent * (row_bytes + 1))
    costs = {
        "gather": KEYED_COST * gather,
        "split": KEYED_COST * split + exchange_bytes,
        "dense": dense + exchange_bytes,
    }
    best = min(costs, key=lambda name: costs[name])
    return SparseChoice(best, union_rows, gather, split, dense)


def algorithm_number(name: str) -> int:
    """The number that is sent for an algorithm. Raises Refusal for an unknown name."""
    if name not in ALGORITHMS:
        raise Refusal(f"algorithm={name!r} is not one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS.index(name)
