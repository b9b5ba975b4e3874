"""Messages between two ranks: one sends an array, the other receives it.

No other rank takes part, and a message waits only for its own two sides. Messages from one sender with the same tag and
process set arrive in the order in which they were sent. Those of different senders or tags do not wait for each other.
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

    Returns when ``array`` may be written again. Up to 4096 bytes are sent ahead immediately; for larger messages this
    waits for the receiver. Two ranks that send each other larger messages need :func:`send_async` on one side. If 1 MiB
    of small messages is already waiting at the receiver, this waits for it as well.

    ``array``: any shape, strides and size, of a dtype that Rueda supports. ``target_rank``: a world rank and member of
    ``process_set``; may be this rank, if one side is asynchronous. ``tag``: a whole number, the same on both sides.
    ``timeout``: in seconds; by default this waits as long as both ranks live. A message whose other side does not come
    for ``RUEDA_STALL_WARNING`` seconds is reported, with the line at which the other rank is.

    Raises :class:`rueda.InvalidArgumentError` for a rank outside the set and :class:`rueda.UnsupportedError` for an
    unsupported dtype, immediately and on this rank only. Raises on both ranks
    :class:`rueda.MismatchError` if dtype or number of elements differ (not on the sender of a message sent ahead);
    :class:`rueda.TimeoutError`, after which the message is still in flight and ``array`` must not be changed; and
    :class:`rueda.PeerLostError` or :class:`rueda.ShutdownError` if the other rank is gone.

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

    ``array``: a contiguous, writeable ``numpy.ndarray`` with the dtype and number of elements that are sent. Its shape
    does not matter. ``source_rank``: a world rank and member of ``process_set``; by default the first to send.
    ``tag`` and ``timeout`` as for :func:`send`.

    Raises as :func:`send`, and :class:`rueda.InvalidArgumentError` if ``array`` cannot be written in place. After
    :class:`rueda.TimeoutError` the receive stays active: the next matching message is written to ``array``.

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
