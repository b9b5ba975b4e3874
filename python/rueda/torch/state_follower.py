"""A newcomer's side of following the members while they train, before it joins them: see state_feed.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from rueda import _native
from rueda.elastic.private_link import PrivateLink
from rueda.torch.buckets import ALIGNMENT
from rueda.torch.fingerprints import bits_of
from rueda.torch.layouts import laid_out
from rueda.torch.replay import Shadow
from rueda.torch.state_messages import Ahead, Outline, Part, Rest, part_bounds
from rueda.torch.state_pieces import digest
from rueda.torch.state_shares import divide_step, join_shares, put_share, share_size

__all__ = ["Follower", "warm_up"]

_log = logging.getLogger("rueda")


def warm_up() -> None:
    """Takes an optimizer step: torch imports much at the first one, which would otherwise delay others later."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device="cpu"))], lr=0.0).step()


class Follower:
    """Receives the state from all members and replays their steps. Starts immediately, in its own thread.

    ``rank`` of ``size``: of this process among members and newcomers. ``members``: how many of these have the state.
    """

    def __init__(self, rank: int, size: int, members: int, address: str) -> None:
        self._members = members
        self._link: PrivateLink | None = None
        self._outline: Outline | None = None
        self._tensors: list[torch.Tensor] = []  # of the state, contiguous until it is complete
        self._bytes: list[torch.Tensor] = []  # the same memory
        self._shadow: Shadow | None = None
        self._gradients: list[torch.Tensor] = []  # of all parameters; the memory stays the same
        self._ahead: list[tuple[int, ...]] = []  # the parameters of each Ahead of this step
        self._is_complete = False
        self._is_over = False
        self._thread = threading.Thread(
            target=self._run, args=(rank, size, address), name="rueda-follower", daemon=True
        )
        self._thread.start()

    def finish(self, timeout: float) -> Shadow | None:
        """Waits up to ``timeout`` seconds for everything; ``None`` if that fails, which only costs time later."""
        self._thread.join(timeout)
        if self._is_complete:
            return self._shadow
        self.abort()
        return None

    def abort(self) -> None:
        """Gives up."""
        self._is_over = True
        link = self._link
        if link is not None:
            link.close("the newcomer has given up")

    def _run(self, rank: int, size: int, address: str) -> None:
        link = None
        try:
            link = PrivateLink(rank, size, address, -1, self._members)
            self._link = link
            count = 0
            while not self._is_over:
                headers, shares = self._receive(link)
                count += 1
                last = headers[0] is None
                if not last:
                    self._take(headers, shares)
                self._is_complete = last
                for member in range(self._members):
                    link.confirm(count, member)
                if last:
                    return
        except Exception as error:  # of any class: other ranks send the state later
            if not self._is_over and not self._is_complete:
                _log.info("the state could not be received in the background: %s", error)
        finally:
            self._is_over = True
            if link is not None:
                link.close()

    def _receive(self, link: PrivateLink) -> tuple[list[Any], list[torch.Tensor]]:
        """Receives a message from each member, concurrently; raises ValueError if one differs from what was sent."""
        begun = [link.receive(member) for member in range(self._members)]
        headers, shares = [], []
        for member, ((header, expected), handle, payload) in enumerate(begun):
            handle.result()
            share = torch.from_numpy(payload)
            if digest(share) != expected:
                raise ValueError(f"the message from member {member} was corrupted on its way")
            headers.append(header)
            shares.append(share)
        return headers, shares

    def _take(self, headers: list[Any], shares: list[torch.Tensor]) -> None:
        first = headers[0]
        if isinstance(first, Outline):
            self._outline = first
            self._tensors = [
                torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in first.outset.kinds
            ]
            self._bytes = [bits_of(tensor) for tensor in self._tensors]
        elif isinstance(first, Part) and all(header == first for header in headers):
            self._take_part(first.number, shares)
        elif isinstance(first, Ahead) and all(header == first for header in headers):
            join_shares(self._contents(first.parameters), shares)
            self._ahead.append(first.parameters)
        elif isinstance(first, Rest) and self._shadow is not None:
            if any(_outline_of(header) != _outline_of(first) for header in headers):
                raise ValueError("the members' gradients differ")
            self._take_rest(first, shares)
            pairs = zip(self._gradients, first.step.has, strict=True)
            self._shadow.take(first.step, [gradient for gradient, has in pairs if has])
        else:
            raise ValueError(f"messages of {', '.join(type(each).__name__ for each in headers)}")

    def _take_part(self, number: int, shares: Sequence[torch.Tensor]) -> None:
        assert self._outline is not None
        parts = self._outline.parts
        sizes = [content.numel() for content in self._bytes]
        for member, share in enumerate(shares):
            size = share_size(sizes, member, len(shares))
            bounds = part_bounds(size, number, parts)
            put_share(self._bytes, share, member, len(shares), *bounds)
        if number == parts - 1:
            self._bytes = []
            for place, strides in enumerate(self._outline.outset.strides):
                self._tensors[place] = laid_out(self._tensors[place], strides)
            self._shadow = Shadow(self._outline.outset, self._tensors)
            self._gradients = _memory_for(self._shadow.parameters)

    def _take_rest(self, header: Rest, shares: Sequence[torch.Tensor]) -> None:
        """Completes the gradients of a step."""
        ahead, self._ahead = self._ahead, []
        _, rest = divide_step(ahead, header.step.has)
        for member, share in enumerate(shares):
            begin = 0
            for parameters in (rest, *(ahead[each] for each in header.changed)):
                contents = self._contents(parameters)
                sizes = [content.numel() for content in contents]
                end = begin + share_size(sizes, member, len(shares))
                put_share(contents, share[begin:end], member, len(shares))
                begin = end
            if begin != share.numel():
                raise ValueError("a step does not have the expected number of bytes")

    def _contents(self, parameters: Sequence[int]) -> list[torch.Tensor]:
        return [bits_of(self._gradients[number]) for number in parameters]


def _outline_of(header: Any) -> tuple[list[bool], tuple[int, ...]] | None:
    return (header.step.has, header.changed) if isinstance(header, Rest) else None


def _memory_for(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Contiguous tensors like these, in memory from which buckets are made once it is free again."""
    aligned = [-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in parameters]
    memory = torch.frombuffer(_native.allocate(max(1, sum(aligned))), dtype=torch.uint8)
    return [
        memory[end - size : end - size + each.nbytes].view(each.dtype).view(each.shape)
        for each, size, end in zip(parameters, aligned, accumulate(aligned), strict=True)
    ]
