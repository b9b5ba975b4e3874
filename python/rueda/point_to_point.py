"""Messages between two ranks: arrays that one sends and another receives.

No other rank takes part, and a message waits for nothing but its own two sides. Messages of one sender, tag and process
set arrive in the order in which they were sent; those of other senders and tags do not wait for each other.
"""

from __future__ import annotations

import numpy.typing as npt

from rueda.handles import Handle
from rueda.messages import Messages
from rueda.numpy_arrays import Array, NumpyAdapter
from rueda.process_sets import ProcessSet, global_process_set

__all__ = ["recv", "recv_async", "send", "send_async"]

_messages = Messages(NumpyAdapter())


def send(
    array: npt.ArrayLike,
    target_rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    timeout: float | None = None,
) -> None:
    """Sends an array to the rank ``target_rank``, which receives it with :func:`recv`.

    Returns when ``array`` may be written again: up to 4096 bytes are on their way at once, more are taken by the
    receiver, for which this waits. Two ranks that send each other more need :func:`send_async` on one side. Where 1 MiB
    of small messages already waits at the receiver, this waits for it as well.

    ``array``: any shape, strides and size, of a dtype that Rueda has. ``target_rank``: of the world, and a member of
    ``process_set``; may be this rank, with one side asynchronous. ``tag``: a whole number, the same on both sides.
    ``timeout``: in seconds; by default this waits as long as both ranks live.

    Raises, on this rank and at once, :class:`rueda.InvalidArgumentError` for a rank outside the set and
    :class:`rueda.UnsupportedError` for a dtype that Rueda has not; on both ranks
    :class:`rueda.MismatchError` where dtype or number of elements differ (not on the sender of one that went ahead);
    :class:`rueda.TimeoutError`, after which the message is still on its way and ``array`` must stay as it is; and
    :class:`rueda.PeerLostError` or :class:`rueda.ShutdownError` where the other rank is gone.

    Example::

        >>> numbers = np.zeros(2)
        >>> receiving = rueda.recv_async(numbers, source_rank=rueda.rank())
        >>> rueda.send(np.array([1.0, 2.0]), target_rank=rueda.rank())
        >>> receiving.result(), numbers
        (0, array([1., 2.]))
    """
    send_async(array, target_rank, tag, process_set).result(timeout)


def send_async(
    array: npt.ArrayLike,
    target_rank: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Handle[None]:
    """:func:`send` that returns a handle immediately. ``array`` must not be written before it has completed.

    Example::

        >>> sending = rueda.send_async(np.array([1.0, 2.0]), target_rank=rueda.rank(), tag=7)
        >>> rueda.recv(np.zeros(2), tag=7)
        0
        >>> sending.result()
    """
    return _messages.send(array, target_rank, tag, process_set)


def recv(
    array: Array,
    source_rank: int | None = None,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    timeout: float | None = None,
) -> int:
    """Receives into ``array`` what a rank sends with :func:`send`; returns the sender's rank.

    ``array``: a contiguous, writeable ``numpy.ndarray`` of the dtype and the number of elements that are sent.
    Its shape does not matter. ``source_rank``: of the world, and a member of ``process_set``; by default whoever sends
    first. ``tag`` and ``timeout`` as for :func:`send`.

    Raises as :func:`send`, and :class:`rueda.InvalidArgumentError` where ``array`` cannot be written in place. After
    :class:`rueda.TimeoutError` the receive goes on: the next message that it fits is written to ``array``.

    Example::

        >>> sending = rueda.send_async(np.array([1.0, 2.0]), target_rank=rueda.rank())
        >>> numbers = np.zeros(2)
        >>> rueda.recv(numbers)  # from any rank
        0
        >>> numbers
        array([1., 2.])
    """
    return recv_async(array, source_rank, tag, process_set).result(timeout)


def recv_async(
    array: Array,
    source_rank: int | None = None,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Handle[int]:
    """:func:`recv` that returns a handle immediately. ``array`` must not be read or written before it has completed.

    Example::

        >>> numbers = np.zeros(2)
        >>> receiving = rueda.recv_async(numbers, tag=3)
        >>> rueda.send(np.array([1.0, 2.0]), target_rank=rueda.rank(), tag=3)
        >>> receiving.result()
        0
    """
    return _messages.recv(array, source_rank, tag, process_set)
