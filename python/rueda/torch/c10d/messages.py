"""Point-to-point messages between ranks of a process group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rueda import _native
from rueda.adapter import Refusal, View
from rueda.errors import InvalidArgumentError, RuedaError, UnsupportedError
from rueda.torch.c10d.arguments import overwrite, read, target_of
from rueda.torch.c10d.operations import Operations
from rueda.torch.c10d.placement import ON_HOST, OnGpu, placement_of
from rueda.torch.c10d.work import ReceiveWork, RuedaWork, SendWork
from rueda.torch.compiling import never_compiled
from rueda.torch.profiling import marked

__all__ = ["Messages"]


@never_compiled
class Messages(Operations):
    """send and recv. Messages with the same sender and tag arrive in order and do not delay others.

    Messages of GPU tensors are staged through host memory: a send first waits until the GPU has written the tensor; a
    received message is then copied to the GPU.
    """

    def send(
        self,
        tensors: Sequence[torch.Tensor],
        dstRank: int,  # noqa: N803 - torch's name
        tag: int = 0,
    ) -> RuedaWork:
        """Sends one tensor to a rank of the group; completes when the tensor may be overwritten."""
        tensor, view = self._message(tensors, "send")
        placement = placement_of(view)
        if placement is not ON_HOST:
            tensor, view = read(tensor.cpu())
        target = self._world_rank(dstRank)
        set_id = self._membership.set_id
        with marked("send"):
            work = SendWork(
                f"the send of {list(tensor.shape)} to rank {dstRank} with tag {tag}",
                lambda: [_native.send(view.pointer, view.shape, view.dtype, target, tag, set_id)],
                lambda _: [tensors[0]],
                tensor,
                self._timeout,
                on_fatal=self._fatal_listener(),
                placement=placement,
            )
        return self._begun(work, tensors)

    def recv(
        self,
        tensors: Sequence[torch.Tensor],
        srcRank: int,  # noqa: N803 - torch's name
        tag: int = 0,
    ) -> RuedaWork:
        """Receives one tensor of the same dtype and number of elements from a rank of the group."""
        return self._receive(tensors, self._world_rank(srcRank), f"rank {srcRank}", tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> RuedaWork:
        """:meth:`recv` from whichever rank sends first; ``work.source_rank()`` returns that rank."""
        return self._receive(tensors, -1, "any rank", tag)

    def _receive(
        self, tensors: Sequence[torch.Tensor], source: int, whom: str, tag: int
    ) -> RuedaWork:
        self._message(tensors, "recv")
        try:
            target = target_of(_as_sent(tensors[0]))
        except Refusal as refusal:
            raise _error_for("recv", refusal) from None
        view, received = target.view, target.memory
        placement = ON_HOST
        if view.device >= 0:
            placement = OnGpu(torch.device("cuda", view.device), after_submission=True)
            received, view = read(torch.empty(view.shape, dtype=received.dtype, device="cpu"))
        set_id = self._membership.set_id

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            if placement is not ON_HOST:
                overwrite(target.memory.detach(), received)
            target.give()
            return [tensors[0]]

        with marked("recv"):
            work = ReceiveWork(
                f"the receive of {list(view.shape)} from {whom} with tag {tag}",
                lambda: [_native.recv(view.pointer, view.shape, view.dtype, source, tag, set_id)],
                finish,
                (target, received),
                self._timeout,
                self._membership.ranks.index,
                self._fatal_listener(),
                placement,
            )
        return self._begun(work, tensors)

    def _message(self, tensors: Sequence[torch.Tensor], what: str) -> tuple[torch.Tensor, View]:
        self._require_open()
        if len(tensors) != 1:
            raise InvalidArgumentError(f"{what} takes one tensor, not {len(tensors)}")
        try:
            tensor, view = read(_as_sent(tensors[0]))
        except Refusal as refusal:
            raise _error_for(what, refusal) from None
        return tensor, view


def _error_for(what: str, refusal: Refusal) -> RuedaError:
    """On this rank only. The peer cannot be told: the message is never sent or matched."""
    kind = UnsupportedError if refusal.unsupported else InvalidArgumentError
    return kind(f"{what}: {refusal}")


def _as_sent(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that messages have: floating-point numbers of 8 bits are sent as bytes."""
    dtype = tensor.dtype
    return tensor.view(torch.uint8) if dtype.is_floating_point and dtype.itemsize == 1 else tensor
