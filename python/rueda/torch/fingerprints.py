"""64-bit fingerprints by which ranks check whether tensors are bitwise equal.

A tensor's bytes are read as 64-bit words, and each block of words is multiplied by a row of random odd weights, modulo
2^64. So the order of additions does not matter, a change of one word always changes the fingerprint, and a change of
several does except in about one of 2^63 cases. The blocks' fingerprints are words again, and so on until one is left.

For CPU memory, the extension computes the same (``csrc/reduce/fingerprint.h``), for all of a model's tensors in one
call: for a small model, torch operations take longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from rueda import _native

__all__ = [
    "BLOCK_BYTES",
    "bits_of",
    "block_hashes",
    "combined",
    "number_of",
    "number_of_words",
    "numbers_of",
]

WORDS = 4096
BLOCK_BYTES = 8 * WORDS


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements, in order, as bytes: its own memory if possible, otherwise a copy."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).view(-1)
    return flat.resolve_neg().view(torch.uint8)


def block_hashes(tensor: torch.Tensor) -> torch.Tensor:
    """One fingerprint for each :data:`BLOCK_BYTES` of a tensor, and one for the rest, on the CPU."""
    return _of_rows(bits_of(tensor)).cpu()


def combined(hashes: torch.Tensor) -> int:
    """Combines fingerprints into one."""
    while hashes.numel() > 1:
        hashes = _of_rows(hashes.view(torch.uint8))
    return int(hashes[0]) if hashes.numel() else 0


def numbers_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """One fingerprint for each tensor."""
    plain = [_is_plain(tensor) for tensor in tensors]
    pieces = [
        (tensor.data_ptr(), tensor.numel() * tensor.element_size())
        for tensor, is_plain in zip(tensors, plain, strict=True)
        if is_plain
    ]
    found = iter(_native.fingerprints(pieces))
    return [
        next(found) if is_plain else combined(block_hashes(tensor))
        for tensor, is_plain in zip(tensors, plain, strict=True)
    ]


def number_of(tensor: torch.Tensor) -> int:
    """The fingerprint of a tensor."""
    return numbers_of([tensor])[0]


def number_of_words(words: Sequence[int]) -> int:
    """One fingerprint for several."""
    return number_of(torch.tensor(words, dtype=torch.int64, device="cpu"))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements are in CPU memory, in order and with their actual bits."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def _of_rows(content: torch.Tensor) -> torch.Tensor:
    whole = content.numel() // BLOCK_BYTES * BLOCK_BYTES
    parts = []
    if whole:
        parts.append(_times_weights(_words(content[:whole]).view(-1, WORDS)))
    if whole < content.numel():
        parts.append(_times_weights(_words(_filled_up(content[whole:])).view(1, -1)))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device="cpu")


def _filled_up(content: torch.Tensor) -> torch.Tensor:
    """Pads with zeros to whole words, which changes no fingerprint."""
    missing = -content.numel() % 8
    return torch.nn.functional.pad(content, (0, missing)) if missing else content


def _words(content: torch.Tensor) -> torch.Tensor:
    if content.storage_offset() % 8 or content.data_ptr() % 8:
        content = content.clone()
    return content.view(torch.int64)


def _times_weights(rows: torch.Tensor) -> torch.Tensor:
    weights = _weights(rows.device)[: rows.shape[1]]
    if rows.is_cpu:
        return torch.mv(rows, weights)
    return (rows * weights).sum(1)  # a GPU has no matrix product for integers


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """The same on every rank, regardless of the application's seeds: splitmix64 of 1, 2, 3, ..., made odd."""
    mask = (1 << 64) - 1
    weights = []
    for number in range(1, WORDS + 1):
        word = number * 0x9E3779B97F4A7C15 & mask
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        word = (word ^ word >> 31) | 1
        weights.append(word - (1 << 64) if word >> 63 else word)
    return torch.tensor(weights, dtype=torch.int64, device=device)
