"""How members divide what they send to a newcomer: each sends about as many bytes, and every byte is sent once.

A newcomer is sent the state, and then the gradients of each optimizer step. Those of a step are sent in batches while
they are being reduced, and the rest when the optimizer is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

__all__ = ["divide_step", "join_shares", "put_share", "share_of", "share_size"]

# Shares of the concatenated bytes begin at multiples of this.
_ALIGNMENT = 64


def _bounds(total: int, member: int, members: int) -> tuple[int, int]:
    def bound(number: int) -> int:
        return total if number == members else total * number // members // _ALIGNMENT * _ALIGNMENT

    return bound(member), bound(member + 1)


def share_size(sizes: Sequence[int], member: int, members: int) -> int:
    """The bytes of a member's share of contents with these sizes in bytes."""
    begin, end = _bounds(sum(sizes), member, members)
    return end - begin


def _parts_of(
    contents: Sequence[torch.Tensor], member: int, members: int
) -> Iterator[torch.Tensor]:
    """A member's share of these bytes, as views of them, in order."""
    begin, end = _bounds(sum(content.numel() for content in contents), member, members)
    offset = 0
    for content in contents:
        first, last = max(begin - offset, 0), min(end - offset, content.numel())
        if first < last:
            yield content[first:last]
        offset += content.numel()


def share_of(contents: Sequence[torch.Tensor], member: int, members: int) -> torch.Tensor:
    """A member's share of these bytes, copied into one tensor."""
    size = share_size([content.numel() for content in contents], member, members)
    share = torch.empty(size, dtype=torch.uint8, device="cpu")
    begin = 0
    for part in _parts_of(contents, member, members):
        share[begin : begin + part.numel()].copy_(part)
        begin += part.numel()
    return share


def put_share(
    contents: Sequence[torch.Tensor],
    share: torch.Tensor,
    member: int,
    members: int,
    begin: int = 0,
    end: int | None = None,
) -> None:
    """The inverse: copies bytes ``begin`` to ``end`` of a member's share, by default all, to their place.

    Raises ValueError if there are not so many.
    """
    size = share_size([content.numel() for content in contents], member, members)
    if not 0 <= begin <= size or begin + share.numel() != (size if end is None else end):
        raise ValueError("a share does not have the expected number of bytes")
    offset = -begin  # of the next part, in ``share``
    for part in _parts_of(contents, member, members):
        first, last = max(offset, 0), min(offset + part.numel(), share.numel())
        if first < last:
            part[first - offset : last - offset].copy_(share[first:last])
        offset += part.numel()


def join_shares(contents: Sequence[torch.Tensor], shares: Sequence[torch.Tensor]) -> None:
    """The inverse for all members: fills ``contents``. Raises ValueError for shares of the wrong size."""
    for member, share in enumerate(shares):
        put_share(contents, share, member, len(shares))


def divide_step(
    batches: Sequence[Sequence[int]], has: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """What of a step the batches sent ahead contain, and what is left.

    ``batches``: the parameters of each, by number. ``has``: which parameters have a gradient. Returns the numbers of
    the batches all of whose parameters have one (the others do not count), and the parameters with a gradient that are
    in none of these.
    """
    valid = [
        number for number, batch in enumerate(batches) if all(has[parameter] for parameter in batch)
    ]
    sent = {parameter for number in valid for parameter in batches[number]}
    return valid, [number for number, it_has in enumerate(has) if it_has and number not in sent]
