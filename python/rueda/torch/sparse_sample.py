"""Samples of a sparse tensor's rows, from which the ranks estimate how many they have together.

See ``csrc/reduce/key_samples.h``.
"""

from __future__ import annotations

import torch

from rueda import _native

__all__ = ["SAMPLE_KEYS", "sample_of"]

SAMPLE_KEYS = 256


def sample_of(keys: torch.Tensor) -> torch.Tensor:
    """Of distinct keys, those with the smallest hashes, ascending; all keys if they are few."""
    if len(keys) <= SAMPLE_KEYS:
        return keys
    sample = torch.empty(SAMPLE_KEYS, dtype=torch.int64, device="cpu")
    plain = keys.contiguous()
    _native.sample_keys(plain.data_ptr(), len(plain), SAMPLE_KEYS, sample.data_ptr())
    return sample
