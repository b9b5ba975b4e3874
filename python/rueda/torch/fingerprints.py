"""Numbers of 64 bits by which ranks see whether tensors are equal to the bit.

A tensor's bytes are taken as words of 64 bits, and each block of words times a row of random odd weights, modulo 2^64:
so the order of additions does not matter, one changed word always changes the number, and several do but for one case
in about 2^63. The numbers of the blocks are words again, and so on until one is left.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["BLOCK_BYTES", "bits_of", "block_hashes", "combined"]

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


def _of_rows(content: torch.Tensor) -> torch.Tensor:
    whole = content.numel() // BLOCK_BYTES * BLOCK_BYTES
    parts = []
    if whole:
        parts.append(_times_weights(_words(content[:whole]).view(-1, WORDS)))
    if whole < content.numel():
        parts.append(_times_weights(_words(_filled_up(content[whole:])).view(1, -1)))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


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
