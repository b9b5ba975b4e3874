"""Messages between two ranks: tensors that one sends and another receives.

No other rank takes part, and a message waits for nothing but its own two sides. Messages of one sender, tag and process
set arrive in the order in which they were sent; those of other senders and tags do not wait for each other.
"""

from __future__ import annotations

import torch

from rueda.handles import Handle
from rueda.messages import Messages
from rueda.process_sets import ProcessSet, global_process_set
from rueda.torch.tensors import TorchAdapter

__all__ = ["recv", "recv_async", "send", "send_async"]

_messages = Messages(TorchAdapter())


def send(
    tensor: torch.Tensor,
    target_rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    timeout: float | None = None,
) -> None:
    """Sends a tensor to the rank ``target_rank``, which receives it with :func:`recv`.

    Returns when ``tensor`` may be written again: up to 4096 bytes are on their way at once, more are taken by the
    receiver, for which this waits. Two ranks that send each other more need :func:`send_async` on one side. Where 1 MiB
    of small messages already waits at the receiver, this waits for it as well.

    ``tensor``: dense, in the CPU's memory; any shape, strides and size. ``target_rank``: of the world, and a member of
    ``process_set``; may be this rank, with one side asynchronous. ``tag``: a whole number, the same on both sides.
    ``timeout``: in seconds; by default this waits as long as both ranks live.

    Raises, on this rank and at once, :class:`rueda.InvalidArgumentError` for a rank outside the set and
    :class:`rueda.UnsupportedError` for a tensor that is sparse, on another device or of another dtype; on both ranks
    :class:`rueda.MismatchError` where dtype or number of elements differ (not on the sender of one that went ahead);
    :class:`rueda.TimeoutError`, after which the message is still on its way and ``tensor`` must stay as it is; and
    :class:`rueda.PeerLostError` or :class:`rueda.ShutdownError` where the other rank is gone.

    Example::

        >>> numbers = torch.zeros(2)
        >>> receiving = rueda.torch.recv_async(numbers, source_rank=rueda.rank())
        >>> rueda.torch.send(torch.tensor([1.0, 2.0]), target_rank=rueda.rank())
        >>> receiving.result(), numbers
        (0, tensor([1., 2.]))
    """
    send_async(tensor, target_rank, tag, process_set).result(timeout)


def send_async(
    tensor: torch.Tensor,
    target_rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Handle[None]:
    """:func:`send` that returns a handle immediately. ``tensor`` must not be written before it has completed.

    Example::

        >>> sending = rueda.torch.send_async(torch.tensor([1.0, 2.0]), target_rank=rueda.rank(), tag=7)
        >>> rueda.torch.recv(torch.zeros(2), tag=7)
        0
        >>> sending.result()
    """
    return _messages.send(tensor, target_rank, tag, process_set)


def recv(
    tensor: torch.Tensor,
    source_rank: int | None = None,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    timeout: float | None = None,
) -> int:
    """Receives into ``tensor`` what a rank sends with :func:`send`; returns the sender's rank.

    ``tensor``: a contiguous tensor in the CPU's memory of the dtype and the number of elements that are sent.
    Its shape does not matter. ``source_rank``: of the world, and a member of ``process_set``; by default whoever sends
    first. ``tag`` and ``timeout`` as for :func:`send`.

    Raises as :func:`send`, and :class:`rueda.InvalidArgumentError` where ``tensor`` cannot be written in place. After
    :class:`rueda.TimeoutError` the receive goes on: the next message that it fits is written to ``tensor``.

    Example::

        >>> sending = rueda.torch.send_async(torch.tensor([1.0, 2.0]), target_rank=rueda.rank())
        >>> numbers = torch.zeros(2)
        >>> rueda.torch.recv(numbers)  # from any rank
        0
        >>> numbers
        tensor([1., 2.])
    """
    return recv_async(tensor, source_rank, tag, process_set).result(timeout)


def recv_async(
    tensor: torch.Tensor,
    source_rank: int | None = None,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Handle[int]:
    """:func:`recv` that returns a handle immediately. ``tensor`` must not be read or written before it has completed.

    Example::

        >>> numbers = torch.zeros(2)
        >>> receiving = rueda.torch.recv_async(numbers, tag=3)
        >>> rueda.torch.send(torch.tensor([1.0, 2.0]), target_rank=rueda.rank(), tag=3)
        >>> receiving.result()
        0
    """
    return _messages.recv(tensor, source_rank, tag, process_set)
