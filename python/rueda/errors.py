"""What Rueda raises. Every class is a :class:`RuedaError`; the same class is raised on every rank."""

from __future__ import annotations

import builtins

__all__ = [
    "DuplicateNameError",
    "InitializationError",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "RuedaError",
    "ShutdownError",
    "StalledError",
    "TimeoutError",
    "TransportError",
    "UnsupportedError",
]


class RuedaError(RuntimeError):
    """Base class of everything that Rueda raises.

    Programs that decide by more than the class look at the attributes, never at the text, whose words may change:

    - ``peer``: the rank that caused the error, or ``None`` where no single rank did.
    - ``tensor``: the name of the operation that failed, where ranks differ, some are missing, one refuses, or one is
      lost; of a batch of several the first.
    - ``field``, ``values``: what ranks disagree about (``"shape"``, ``"dtype"``, ``"op"``, ``"operation"``,
      ``"root rank"``, ...), and its values as the text has them, first that of most ranks.
    - ``reason``: ``"deadline"`` where the caller's own time limit has passed, ``"gradient_misfit"`` where a gradient
      no longer fits its bucket or is not wanted on some rank, ``"not_finite"`` where a compressed allreduce met a NaN,
      an infinity or a number that its codec cannot hold, ``"ended"`` where the process of a lost rank has ended for
      certain, ``"refused"`` where its host, or a firewall before it, says that nobody is there, ``"unreachable"`` where
      nothing answers: in these two it may be running; ``"rendezvous_closed"`` where :func:`rueda.rendezvous.close` has
      told a cause, ``"corrupted"`` where a part of the state that a newcomer received is not what was sent;
      ``None`` otherwise.

    Example::

        >>> try:
        ...     rueda.allreduce(np.ones(2, bool), op=rueda.Average, name="flags")
        ... except rueda.RuedaError as error:
        ...     print(type(error).__name__, error.peer)
        UnsupportedError 0
    """

    # The extension makes errors without calling the constructor, and sets all of these.
    peer: int | None
    reason: str | None
    tensor: str | None
    field: str | None
    values: tuple[str, ...]

    def __init__(
        self,
        message: str = "",
        peer: int | None = None,
        *,
        reason: str | None = None,
        tensor: str | None = None,
        field: str | None = None,
        values: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.peer = peer
        self.reason = reason
        self.tensor = tensor
        self.field = field
        self.values = values


class InvalidArgumentError(RuedaError, ValueError):
    """A value that can never work, such as a non-contiguous array for an in-place operation.

    Example::

        >>> rueda.add_process_set([rueda.size()])
        Traceback (most recent call last):
            ...
        rueda.errors.InvalidArgumentError: ...
    """


class UnsupportedError(RuedaError, TypeError):
    """An unsupported combination, such as an average of booleans.

    Example::

        >>> rueda.allreduce(np.ones(2, bool), op=rueda.Average)
        Traceback (most recent call last):
            ...
        rueda.errors.UnsupportedError: ...
    """


class MismatchError(RuedaError):
    """Ranks disagree about a tensor; the message names the tensor, the ranks and both values.

    Example::

        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.MismatchError as error:
        ...     print(error.tensor, error.field, error.values)  # gradient shape ('[3]', '[4]')
    """


class DuplicateNameError(RuedaError):
    """A second submission under a name that is still pending.

    Wait for the first one's handle, or give each its own name.

    Example::

        >>> first = rueda.allreduce_async(np.ones(3), name="gradient")
        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.DuplicateNameError as error:
        ...     print(error.tensor)  # gradient
    """


class StalledError(RuedaError):
    """Some ranks never submitted the tensor; the message names the ranks that did and those that did not.

    Example::

        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.StalledError as error:
        ...     print(error, error.peer)
    """


class TimeoutError(RuedaError, builtins.TimeoutError):
    """A transfer or a handshake made no progress before its deadline.

    Example::

        >>> try:
        ...     total = rueda.allreduce_async(np.ones(3), name="gradient").result(timeout=60)
        ... except rueda.TimeoutError as error:
        ...     print(error, error.peer)
    """


class PeerLostError(RuedaError):
    """A rank died or raised; the message says why, if that is known.

    Under ``rueda run`` without MPI the text of a rank that is gone also tells its exit code or the signal that has
    ended it, once the launcher has said so: the first ``str()`` of the error waits for that, half a second at most,
    and not at all where :func:`rueda.recover` is possible, which tells it by itself.

    Example::

        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.PeerLostError as error:
        ...     print(error, error.peer)
    """

    _ending: str | None = None  # what is known of it; None before it was asked for

    def __str__(self) -> str:
        text = super().__str__()
        if self._ending is None:
            from rueda.endings import manner_of  # which imports this module

            self._ending = manner_of(text)
        return text + self._ending


class ShutdownError(RuedaError):
    """This rank or a peer has shut down.

    Example::

        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.ShutdownError as error:
        ...     print(error, error.peer)
    """


class NotInitializedError(RuedaError):
    """:func:`rueda.init` has not been called.

    Example::

        >>> try:
        ...     number = rueda.rank()
        ... except rueda.NotInitializedError as error:
        ...     print(error, error.peer)
    """


class InitializationError(RuedaError):
    """The world could not be formed.

    Example::

        >>> try:
        ...     rueda.init()
        ... except rueda.InitializationError as error:
        ...     print(error, error.peer)
    """


class TransportError(RuedaError):
    """Bytes could not be moved.

    Example::

        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.TransportError as error:
        ...     print(error, error.peer)
    """


class InternalError(RuedaError):
    """A bug in Rueda; please report it with its message.

    Example::

        >>> issubclass(rueda.InternalError, rueda.RuedaError)
        True
    """
