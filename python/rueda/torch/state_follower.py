"""A newcomer's side of following the members while they train, before it joins them: see state_feed.py."""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch

from rueda.elastic.private_link import PrivateLink
from rueda.torch.fingerprints import bits_of
from rueda.torch.replay import Outset, Shadow, Taken
from rueda.torch.state_feed import join_shares
from rueda.torch.state_pieces import digest

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
        self._shadow: Shadow | None = None
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
        if isinstance(first, Outset):
            tensors = [
                torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in first.kinds
            ]
            join_shares([bits_of(tensor) for tensor in tensors], shares)
            self._shadow = Shadow(first, tensors)
        elif isinstance(first, Taken) and self._shadow is not None:
            gradients = [
                torch.empty_like(parameter, memory_format=torch.contiguous_format)
                for parameter, has in zip(self._shadow.parameters, first.has, strict=True)
                if has
            ]
            join_shares([bits_of(each) for each in gradients], shares)
            self._shadow.take(first, gradients)
        else:
            raise ValueError(f"a message of {type(first).__name__}")
