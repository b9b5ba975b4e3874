"""The server from which ranks fetch their function and to which they deliver its outcome.

Each exchange uses its own connection. Both sides first prove that they know the key; nothing is unpickled before that.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from types import TracebackType
from typing import Any

from rueda.endpoints import endpoint_of
from rueda.error_texts import describe
from rueda.errors import InitializationError, RuedaError
from rueda.failures import report

__all__ = ["DESK", "Desk", "deliver", "fetch", "take_address"]

DESK = "HOROVOD_RUN_DESK"
"""The variable that holds address, port and key; like all HOROVOD_* variables, it is sent to other hosts."""

_FETCH = b"function"
_TAKEN = b"taken"
_LONGEST_WORD = 64

# Seconds for which a peer that has not authenticated may stay silent.
_HANDSHAKE_TIMEOUT = 30
# Seconds for which a rank waits for the caller: the desk may run out of descriptors if all ranks connect at once.
_DESK_TIMEOUT = 120
# Seconds until the desk retries when it is out of descriptors or threads.
_PAUSE = 0.1


class Desk:
    """The caller's side, a context manager: listens on a free port of ``address`` within its block."""

    def __init__(self, address: str, content: bytes) -> None:
        self._key = secrets.token_bytes(32)
        self._content = content
        self._outcomes: dict[int, bytes] = {}
        try:
            family, where = endpoint_of(address, 0)
            self._listener = socket.create_server(where, family=family, backlog=512)
        except OSError as error:
            raise InitializationError(
                f"horovod.run() cannot listen at {address}: {error.strerror}"
            ) from error
        self.told = f"{address} {self._listener.getsockname()[1]} {self._key.hex()}"
        self._closing = threading.Event()
        self._server = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Desk:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._listener.close()
        self._server.join()

    def outcomes(self) -> dict[int, Any]:
        """Returns the outcomes delivered so far by rank, in order of arrival.

        An outcome that cannot be unpickled here counts as a failure of its rank.
        """
        return {rank: _unpickled(rank, content) for rank, content in self._outcomes.items()}

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                self._closing.wait(_PAUSE)
                continue
            try:
                threading.Thread(target=self._talk, args=(accepted,), daemon=True).start()
            except RuntimeError:  # too many threads
                accepted.close()
                self._closing.wait(_PAUSE)

    def _talk(self, accepted: socket.socket) -> None:
        # Ignore peers that do not know the key or disconnect.
        with (
            suppress(AuthenticationError, EOFError, OSError, ValueError),
            Connection(accepted.detach()) as connection,
        ):
            _limit_silence(connection, _HANDSHAKE_TIMEOUT)
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            _limit_silence(connection, 0)
            word = connection.recv_bytes(_LONGEST_WORD)
            if word == _FETCH:
                connection.send_bytes(self._content)
                return
            self._outcomes[int(word)] = connection.recv_bytes()
            connection.send_bytes(_TAKEN)


def _unpickled(rank: int, content: bytes) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(content)
    except Exception as error:  # imports and constructors may raise anything
        told = describe(type(error), error)
        return report(
            rank, RuedaError(f"what it returned or raised cannot be unpickled here: {told}")
        )


def _limit_silence(connection: Connection, seconds: int) -> None:
    """Makes reads and writes raise OSError after so many seconds without progress; 0: no limit."""
    shared = socket.socket(fileno=connection.fileno())
    try:
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            shared.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", seconds, 0))
    finally:
        shared.detach()


def take_address() -> str:
    """Removes :attr:`Desk.told` from the environment, to hide it from child processes, and returns it."""
    return os.environ.pop(DESK)


@contextmanager
def _connected(told: str) -> Iterator[Connection]:
    address, port, key = told.split()
    proof = bytes.fromhex(key)
    try:
        made = socket.create_connection((address, int(port)), _DESK_TIMEOUT)
        made.settimeout(None)
        connection = Connection(made.detach())
        _limit_silence(connection, _DESK_TIMEOUT)
    except OSError as error:
        raise InitializationError(
            f"this rank cannot reach the process that has called horovod.run(), at {address}: {error}"
        ) from error
    with connection:
        try:
            answer_challenge(connection, proof)
            deliver_challenge(connection, proof)
        except BlockingIOError as error:
            raise InitializationError(
                f"the process that has called horovod.run(), at {address}, does not answer within "
                f"{_DESK_TIMEOUT} s"
            ) from error
        _limit_silence(connection, 0)
        yield connection


def fetch(told: str) -> bytes:
    """Returns the desk's content."""
    with _connected(told) as connection:
        connection.send_bytes(_FETCH)
        return connection.recv_bytes()


def deliver(told: str, rank: int, outcome: bytes) -> None:
    """Delivers the outcome; returns once the caller has it."""
    with _connected(told) as connection:
        connection.send_bytes(b"%d" % rank)
        connection.send_bytes(outcome)
        connection.recv_bytes(_LONGEST_WORD)
