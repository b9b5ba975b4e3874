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
    """Base of everything that Rueda raises.

    ``peer`` is the rank that caused the error, or ``None`` where no single rank did.

    Example::

        try:
            rueda.allreduce(gradient, name="layer1")
        except rueda.RuedaError as error:
            print(error, error.peer)
    """

    peer: int | None

    def __init__(self, message: str = "", peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class InvalidArgumentError(RuedaError, ValueError):
    """A value that can never work, such as an array that is not contiguous for an operation in place."""


class UnsupportedError(RuedaError, TypeError):
    """A combination that is refused, such as the average of booleans."""


class MismatchError(RuedaError):
    """Ranks disagree about a tensor; the text names the tensor, the ranks and both values."""


class DuplicateNameError(RuedaError):
    """A second submission under a name that is still pending."""


class StalledError(RuedaError):
    """Some ranks never submitted the tensor; the text names those that did and those that did not."""


class TimeoutError(RuedaError, builtins.TimeoutError):
    """A transfer or a handshake made no progress before its deadline."""


class PeerLostError(RuedaError):
    """A rank died or raised; the text tells the cause where it is known."""


class ShutdownError(RuedaError):
    """This rank or a peer has shut down."""


class NotInitializedError(RuedaError):
    """:func:`rueda.init` has not been called."""


class InitializationError(RuedaError):
    """The world could not be formed."""


class TransportError(RuedaError):
    """Bytes could not be moved."""


class InternalError(RuedaError):
    """A bug in Rueda."""
