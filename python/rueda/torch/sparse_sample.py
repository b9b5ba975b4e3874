"""Estimates from samples how many rows the ranks have together, and their distribution.

A rank's sample has its keys with the smallest hashes. So the samples of several ranks together are a sample of the
union, in which a key that many ranks have counts once (Bar-Yossef et al., "Counting distinct elements in a data
stream", RANDOM 2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["SAMPLE_KEYS", "UnionSample", "sample_of", "union_sample"]

SAMPLE_KEYS = 256
_MULTIPLIERS = (-7046029254386353131, -4417276706812531889)  # odd; Steele et al., OOPSLA 2014
_LARGEST_HASH = 2**63 - 1


class UnionSample(NamedTuple):
    """A sample of the rows of all ranks together."""

    keys: torch.Tensor  # some of the union's, ascending
    rows: int  # estimated number of rows in the union

    def boundaries(self, parts: int) -> torch.Tensor:
        """Where to cut the keys so that parts have about as many of the union."""
        places = [len(self.keys) * part // parts for part in range(1, parts)]
        return self.keys[places]


def _hashes(keys: torch.Tensor) -> torch.Tensor:
    hashed = keys * _MULTIPLIERS[0]
    hashed = (hashed ^ (hashed >> 32)) * _MULTIPLIERS[1]
    return (hashed ^ (hashed >> 29)) & _LARGEST_HASH


def sample_of(keys: torch.Tensor) -> torch.Tensor:
    """Of distinct keys, those with the smallest hashes; all keys if they are few."""
    if len(keys) <= SAMPLE_KEYS:
        return keys
    chosen = torch.topk(_hashes(keys), SAMPLE_KEYS, largest=False, sorted=False).indices
    return keys[chosen]


def union_sample(samples: Sequence[torch.Tensor], rows: Sequence[int], extent: int) -> UnionSample:
    """``samples``: some or all of each rank's keys; ``rows``: each rank's number of keys."""
    parts = [sample for sample, count in zip(samples, rows, strict=True) if len(sample) < count]
    keys = torch.unique(torch.cat([*samples]))
    if not parts:
        return UnionSample(keys, len(keys))
    # Up to this hash, all samples are complete.
    limit = min(int(_hashes(part).max()) for part in parts)
    keys = keys[_hashes(keys) <= limit]
    estimate = round((len(keys) - 1) * (_LARGEST_HASH / limit))
    return UnionSample(keys, max(*rows, min(estimate, sum(rows), extent)))
