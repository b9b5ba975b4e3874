"""Numbers of 64 bits by which ranks see whether tensors are equal to the bit.

A tensor's bytes are taken as words of 64 bits, and each block of words times a row of random odd weights, modulo 2^64:
so the order of additions does not matter, one changed word always changes the number, and several do but for one case
in about 2^63. The numbers of the blocks are words again, and so on until one is left.

The extension computes the same of memory of the CPU (``csrc/reduce/fingerprint.h``), of all of a model's tensors in one
call: operations of torch take longer than that for those of a small model.
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
    """A tensor's elements in their order as bytes: its own memory where that is possible, otherwise a copy."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).view(-1)
    return flat.resolve_neg().view(torch.uint8)


def block_hashes(tensor: torch.Tensor) -> torch.Tensor:
    """One number for each :data:`BLOCK_BYTES` of a tensor, and one for the rest, on the CPU."""
    return _of_rows(bits_of(tensor)).cpu()


def combined(hashes: torch.Tensor) -> int:
    """One number for several."""
    while hashes.numel() > 1:
        hashes = _of_rows(hashes.view(torch.uint8))
    return int(hashes[0]) if hashes.numel() else 0


def numbers_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """One number for each tensor."""
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
    """One number for a tensor."""
    return numbers_of([tensor])[0]


def number_of_words(words: Sequence[int]) -> int:
    """One number for several."""
    return number_of(torch.tensor(words, dtype=torch.int64, device="cpu"))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in their order in memory of the CPU, with the bits that they have."""
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
    """With zeros to whole words, which change no number."""
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
    return (rows * weights).sum(1)  # of integers, a GPU has no product with a matrix


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """The same on every rank, whatever the application has seeded: splitmix64 of their numbers, made odd."""
    mask = (1 << 64) - 1
    weights = []
    for number in range(1, WORDS + 1):
        word = number * 0x9E3779B97F4A7C15 & mask
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        word = (word ^ word >> 31) | 1
        weights.append(word - (1 << 64) if word >> 63 else word)
    return torch.tensor(weights, dtype=torch.int64, device=device)
