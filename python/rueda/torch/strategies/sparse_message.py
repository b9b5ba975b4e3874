"""Encodes the largest elements of tensors as bytes: their positions, and two bits for each value."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from rueda.torch.strategies.named import Named

__all__ = ["CHUNK", "decode_all", "encode_all", "message_bytes"]

# The largest elements are chosen within chunks of this size, so that a position fits in 16 bits for any tensor.
CHUNK = 4096
_PLACE_BYTES = 2
_LEVEL_BYTES = 8


def _chunks(tensor: torch.Tensor, density: float) -> Iterator[tuple[torch.Tensor, int]]:
    """Rows of equal length, and how many elements of each are sent: the whole chunks, then the remainder."""
    whole = tensor.numel() // CHUNK * CHUNK
    for part, length in ((tensor[:whole], CHUNK), (tensor[whole:], tensor.numel() - whole)):
        if part.numel():
            yield part.view(-1, length), math.ceil(density * length)


def _shifts(device: torch.device) -> torch.Tensor:
    """The bit offsets of the four codes in a byte."""
    return torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=device)


def message_bytes(elements: int, density: float) -> int:
    """The length of a tensor's message: 2.25 bytes for each sent element, rounded up, and 8."""
    whole, rest = divmod(elements, CHUNK)
    sent = whole * math.ceil(density * CHUNK) + math.ceil(density * rest)
    return _LEVEL_BYTES + _PLACE_BYTES * sent + -(-sent // 4)


def _encode(tensor: torch.Tensor, density: float) -> torch.Tensor:
    """The message as bytes, on the tensor's device. ``tensor``: flat float32.

    It has the ⌈density · 4096⌉ elements of largest magnitude of each chunk of 4096. Each value is ± one of two levels:
    the mean of the magnitudes above the mean magnitude of all sent elements, and the mean of the others.
    """
    places, values = [], []
    for rows, count in _chunks(tensor, density):
        place = rows.abs().topk(count, dim=1).indices
        places.append(place.flatten())
        values.append(rows.gather(1, place).flatten())
    device = tensor.device
    place = torch.cat(places) if places else torch.empty(0, dtype=torch.int64, device=device)
    value = torch.cat(values) if values else torch.empty(0, dtype=torch.float32, device=device)
    magnitude = value.abs()
    is_large = magnitude > magnitude.mean()
    levels = torch.stack([magnitude[~is_large].mean(), magnitude[is_large].mean()])
    # The mean of no elements is NaN; no element uses that level.
    levels = torch.where(
        torch.stack([(~is_large).any(), is_large.any()]), levels, torch.zeros_like(levels)
    )
    codes = torch.zeros(-(-value.numel() // 4) * 4, dtype=torch.uint8, device=device)
    codes[: value.numel()] = 2 * (value < 0) + is_large
    packed = (codes.view(-1, 4) << _shifts(device)).sum(1)
    return torch.cat(
        [levels.view(torch.uint8), place.to(torch.int16).view(torch.uint8), packed.to(torch.uint8)]
    )


def _decode(message: torch.Tensor, like: torch.Tensor, density: float) -> torch.Tensor:
    """Decodes a message to a flat float32 tensor with as many elements as ``like``."""
    result = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
    sent = sum(rows.shape[0] * count for rows, count in _chunks(result, density))
    levels = message[:_LEVEL_BYTES].clone().view(torch.float32)
    end = _LEVEL_BYTES + _PLACE_BYTES * sent
    place = message[_LEVEL_BYTES:end].clone().view(torch.int16).to(torch.int64)
    codes = (message[end:, None] >> _shifts(like.device)).flatten() & 3
    codes = codes[:sent].to(torch.int64)
    value = levels[codes & 1] * (1 - (codes & 2)).to(torch.float32)
    taken = 0
    for rows, count in _chunks(result, density):
        here = slice(taken, taken + rows.shape[0] * count)
        rows.scatter_(1, place[here].view(-1, count), value[here].view(-1, count))
        taken = here.stop
    return result


def encode_all(tensors: Named, density: float) -> torch.Tensor:
    """One message for all tensors, on the device of the first."""
    parts = [_encode(each, density) for each in tensors.values()]
    return torch.cat([part.to(parts[0].device) for part in parts])


def decode_all(message: torch.Tensor, like: Named, density: float) -> dict[str, torch.Tensor]:
    """The inverse of encode_all()."""
    lengths = [message_bytes(each.numel(), density) for each in like.values()]
    parts = message.split(lengths)  # type: ignore[no-untyped-call]
    return {
        name: _decode(part.to(each.device), each, density)
        for part, (name, each) in zip(parts, like.items(), strict=True)
    }
