"""Rueda's exceptions. Every class is a :class:`RuedaError`; every rank raises the same class."""

from __future__ import annotations

import builtins
import sys

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

    Programs that need more than the class should use the attributes, never the text, whose wording may change:

    - ``peer``: the rank that caused the error, or ``None`` if no single rank did.
    - ``tensor``: the name of the operation that failed, if ranks differ, some are missing, one refuses, or one is
      lost; for a batch of several operations, the first.
    - ``field``, ``values``: what ranks disagree about (``"shape"``, ``"dtype"``, ``"op"``, ``"operation"``,
      ``"root rank"``, ...), and the values as in the text, starting with that of most ranks.
    - ``reason``: ``"deadline"`` if the caller's own time limit has passed, ``"gradient_misfit"`` if a gradient no
      longer fits its bucket or is not wanted on some rank, ``"not_finite"`` if a compressed allreduce found a NaN, an
      infinity or a number that its codec cannot represent, ``"ended"`` if the process of a lost rank has certainly
      ended, ``"refused"`` if its host, or a firewall in front of it, says that nothing listens, ``"unreachable"`` if
      nothing answers (in these two cases it may be running), ``"rendezvous_closed"`` if
      :func:`rueda.rendezvous.close` was given a cause, ``"corrupted"`` if a part of the state that a newcomer received
      is not what was sent; ``None`` otherwise.

    Example::

        >>> try:
        ...     rueda.allreduce(np.ones(2, bool), op=rueda.Average, name="flags")
        ... except rueda.RuedaError as error:
        ...     print(type(error).__name__, error.peer)
        UnsupportedError 0
    """

    # Whether it would only happen again in another world, so that loops which go on after failures raise it.
    recurs = False
    # Whether it is known to be of an operation that was begun in a world that has ended: see note_other_world().
    is_outdated = False

    # The extension creates errors without calling the constructor, and sets all of these.
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


def error_in(error: BaseException) -> RuedaError | None:
    """Rueda's error behind an exception: itself, or what a compatible API has translated; ``None`` without any."""
    if isinstance(error, RuedaError):
        return error
    told = getattr(error, "translated_from", None)
    return told if isinstance(told, RuedaError) else None


def note_other_world(error: RuedaError) -> None:
    """Adds to the error that it tells nothing of the world in which this process is now; once."""
    if error.is_outdated:
        return
    error.is_outdated = True
    if sys.version_info >= (3, 11):
        error.add_note(_OTHER_WORLD)
    else:
        error.args = (f"{RuntimeError.__str__(error)}; {_OTHER_WORLD}",)


_OTHER_WORLD = (
    "this is not about the world that this rank is in now: the operation belongs to another one, which has ended. "
    "Handles that are pending when a rank is lost or the world changes are void: drop them (docs/reliability.md)"
)


class InvalidArgumentError(RuedaError, ValueError):
    """A value that can never work, such as a non-contiguous array for an in-place operation.

    Example::

        >>> rueda.add_process_set([rueda.size()])
        Traceback (most recent call last):
            ...
        rueda.errors.InvalidArgumentError: ...
    """

    recurs = True


class UnsupportedError(RuedaError, TypeError):
    """An unsupported combination, such as an average of booleans.

    Example::

        >>> rueda.allreduce(np.ones(2, bool), op=rueda.Average)
        Traceback (most recent call last):
            ...
        rueda.errors.UnsupportedError: ...
    """

    recurs = True


class MismatchError(RuedaError):
    """Ranks disagree about a tensor; the message names the tensor, the ranks and both values.

    Example::

        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.MismatchError as error:
        ...     print(error.tensor, error.field, error.values)  # gradient shape ('[3]', '[4]')
    """

    recurs = True


class DuplicateNameError(RuedaError):
    """A second submission under a name that is still pending.

    Wait for the handle of the first submission, or use different names.

    Example::

        >>> first = rueda.allreduce_async(np.ones(3), name="gradient")
        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.DuplicateNameError as error:
        ...     print(error.tensor)  # gradient
    """

    recurs = True


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

    Under ``rueda run`` without MPI, the text also gives the exit code of a rank that is gone, or the signal that ended
    it. The first ``str()`` of the error waits up to half a second for the launcher to report it. It does not wait where
    :func:`rueda.recover` is possible, which reports it itself.

    Example::

        >>> try:
        ...     total = rueda.allreduce(np.ones(3), name="gradient")
        ... except rueda.PeerLostError as error:
        ...     print(error, error.peer)
    """

    _ending: str | None = None  # how the lost rank ended, as text; None before the first str()

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

    recurs = True


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
    """A rank has no memory left, as the message then says, or a bug in Rueda: please report it.

    Example::

        >>> issubclass(rueda.InternalError, rueda.RuedaError)
        True
    """
