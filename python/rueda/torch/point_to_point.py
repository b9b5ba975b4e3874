"""Messages between two ranks: one sends a tensor, the other receives it.

No other rank takes part, and a message waits only for its own two sides. Messages from one sender with the same tag and
process set arrive in the order in which they were sent. Those of different senders or tags do not wait for each other.
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

    Returns when ``tensor`` may be written again. Up to 4096 bytes are sent ahead immediately; for larger messages this
    waits for the receiver. Two ranks that send each other larger messages need :func:`send_async` on one side. If 1 MiB
    of small messages is already waiting at the receiver, this waits for it as well.

    ``tensor``: dense, in CPU memory; any shape, strides and size. ``target_rank``: a world rank and member of
    ``process_set``; may be this rank, if one side is asynchronous. ``tag``: a whole number, the same on both sides.
    ``timeout``: in seconds; by default this waits as long as both ranks live.

    Raises :class:`rueda.InvalidArgumentError` for a rank outside the set and :class:`rueda.UnsupportedError` for a
    tensor that is sparse, on another device or of an unsupported dtype, immediately and on this rank only. Raises on
    both ranks :class:`rueda.MismatchError` if dtype or number of elements differ (not on the sender of a message sent
    ahead); :class:`rueda.TimeoutError`, after which the message is still in flight and ``tensor`` must not be changed;
    and :class:`rueda.PeerLostError` or :class:`rueda.ShutdownError` if the other rank is gone.

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

    ``tensor``: a contiguous tensor in CPU memory with the dtype and number of elements that are sent. Its shape does
    not matter. ``source_rank``: a world rank and member of ``process_set``; by default the first to send.
    ``tag`` and ``timeout`` as for :func:`send`.

    Raises as :func:`send`, and :class:`rueda.InvalidArgumentError` if ``tensor`` cannot be written in place. After
    :class:`rueda.TimeoutError` the receive stays active: the next matching message is written to ``tensor``.

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
