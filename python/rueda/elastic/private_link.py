"""Messages between members of a job and processes about to join it, in a separate world."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rueda import _native
from rueda.attendance import secret
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.handles import Handle
from rueda.messages import Messages
from rueda.numpy_arrays import NumpyAdapter
from rueda.process_sets import ProcessSet

__all__ = ["PrivateLink"]

_messages = Messages(NumpyAdapter())

# Time limits for meeting, and for a message to get through; seconds.
_MEETING = 10
_TIMEOUT = 120.0
_MAX_HEADER = 1 << 26

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]


class PrivateLink:
    """A world of the members, with their ranks, and of those who join, with the ranks that follow.

    Its ranks have proved to each other that they know the job's secret (docs/security.md). The constructor blocks until
    all are there; any thread may call it. ``listener``: a descriptor on the rank that opens it, otherwise -1.
    ``members``: how many ranks have the state.

    Raises :class:`rueda.InitializationError`. All methods raise :class:`rueda.PeerLostError`,
    :class:`rueda.ShutdownError` or :class:`rueda.TimeoutError`, which names the rank that did not respond.
    """

    def __init__(self, rank: int, size: int, address: str, listener: int, members: int) -> None:
        self._members = members
        self._number = _native.open_world(
            rank,
            size,
            address,
            secret(),
            listener,
            {"init_timeout": str(_MEETING), "recovery": "off", "stall_warning": "0"},
        )
        self._set = ProcessSet(range(size))
        self._set.process_set_id = self._number

    def send(self, header: Any, payload: Bytes, targets: Sequence[int]) -> None:
        """Sends a message to each target; returns once they have it."""
        head = np.frombuffer(bytearray(pickle.dumps(header)), np.uint8)
        sizes = np.array([head.size, payload.size], np.int64)
        handles = [
            _messages.send(part, target, 0, self._set)
            for target in targets
            for part in (sizes, head, payload)
            if part.size
        ]
        awaited = [target for target in targets for part in (sizes, head, payload) if part.size]
        for target, handle in zip(awaited, handles, strict=True):
            what = f"take a message of {payload.size} bytes"
            self._await(handle, target, what, _TIMEOUT)

    def receive(self, source: int, timeout: float | None = None) -> tuple[Any, Handle[int], Bytes]:
        """The next message's header, and its payload, which is valid once the handle is done.

        ``timeout``: how long the message may take to begin, in seconds; by default as long as both ranks live.
        """
        sizes = np.empty(2, np.int64)
        begun = _messages.recv(sizes, source, 0, self._set)
        self._await(begun, source, "begin a message", timeout)
        if not 0 < sizes[0] <= _MAX_HEADER or sizes[1] < 0:
            raise ValueError(f"a message of {sizes[0]} and {sizes[1]} bytes")
        head = np.empty(int(sizes[0]), np.uint8)
        begun = _messages.recv(head, source, 0, self._set)
        self._await(begun, source, f"send {head.size} bytes of a message", _TIMEOUT)
        payload = np.empty(int(sizes[1]), np.uint8)
        handle = (
            _messages.recv(payload, source, 0, self._set)
            if payload.size
            else Handle(list, lambda _: source, None)
        )
        return pickle.loads(head.tobytes()), handle, payload

    def confirm(self, count: int, target: int) -> None:
        """Confirms that ``count`` messages have been processed."""
        begun = _messages.send(np.array([count], np.int64), target, 1, self._set)
        self._await(begun, target, "take a confirmation", _TIMEOUT)

    def begin_confirmation(self, source: int) -> tuple[Handle[int], npt.NDArray[np.int64]]:
        """The next confirmed count, valid once the handle is done."""
        count = np.zeros(1, np.int64)
        return _messages.recv(count, source, 1, self._set), count

    def _await(self, handle: Handle[T], peer: int, what: str, timeout: float | None) -> T:
        """The handle's result; on a timeout, the error says which rank failed to do what."""
        try:
            return handle.result(timeout)
        except RuedaTimeoutError as error:
            if error.reason != "deadline":
                raise
            who = "member" if peer < self._members else "newcomer"
            raise RuedaTimeoutError(
                f"rank {peer} ({who}) of the {self._set.size()} ranks that transfer the state did not {what} within "
                f"{timeout:g} s",
                peer,
                reason="deadline",
            ) from error

    def close(self, cause: str = "") -> None:
        """Leaves it; with a cause, ends it for all. Pending operations fail. Any thread may call it."""
        _native.close_world(self._number, cause)
