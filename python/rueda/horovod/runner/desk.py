"""Where ranks fetch the function that they are to call, and leave what came of it.

Each conversation is a connection of its own, which begins with both sides proving that they know the key: nothing is
unpickled before.
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

from rueda.errors import InitializationError, RuedaError
from rueda.failures import report

__all__ = ["DESK", "Desk", "deliver", "fetch", "take_address"]

DESK = "HOROVOD_RUN_DESK"
"""The variable that tells the ranks: address, port and key. It goes to other hosts as all of HOROVOD's do."""

_FETCH = b"function"
_TAKEN = b"taken"
_LONGEST_WORD = 64

# Seconds for which somebody who has not proved anything may say nothing.
_PATIENCE_WITH_STRANGERS = 30
# Seconds for which a rank waits for the caller: the desk may lack descriptors while all ranks come at once.
_PATIENCE_WITH_DESK = 120
# Seconds until the desk tries again where it lacks descriptors or threads.
_PAUSE = 0.1


class Desk:
    """The caller's side, at a free port of ``address``, for as long as the block runs."""

    def __init__(self, address: str, content: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._key = secrets.token_bytes(32)
        self._content = content
        self._outcomes: dict[int, bytes] = {}
        try:
            self._listener = socket.create_server((address, 0), family=family, backlog=512)
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
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept()
        self._listener.close()
        self._server.join()

    def outcomes(self) -> dict[int, Any]:
        """What ranks have left so far, in the order in which it came.

        What cannot be unpickled here is the failure of the rank that has left it.
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
            except RuntimeError:  # there are too many threads
                accepted.close()
                self._closing.wait(_PAUSE)

    def _talk(self, accepted: socket.socket) -> None:
        # Whoever does not know the key, or goes away, has said nothing.
        with (
            suppress(AuthenticationError, EOFError, OSError, ValueError),
            Connection(accepted.detach()) as connection,
        ):
            _limit_silence(connection, _PATIENCE_WITH_STRANGERS)
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
    except Exception as error:  # whatever imports and constructors raise
        told = f"what it has returned or raised cannot be unpickled here: {type(error).__name__}: {error}"
        return report(rank, RuedaError(told))


def _limit_silence(connection: Connection, seconds: int) -> None:
    """From now on, reading and writing raise OSError where nothing moves for so long; 0: they wait for ever."""
    shared = socket.socket(fileno=connection.fileno())
    try:
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            shared.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", seconds, 0))
    finally:
        shared.detach()


def take_address() -> str:
    """What :attr:`Desk.told` is, out of the environment, where what a rank starts must not find it."""
    return os.environ.pop(DESK)


@contextmanager
def _connected(told: str) -> Iterator[Connection]:
    address, port, key = told.split()
    proof = bytes.fromhex(key)
    try:
        made = socket.create_connection((address, int(port)), _PATIENCE_WITH_DESK)
        made.settimeout(None)
        connection = Connection(made.detach())
        _limit_silence(connection, _PATIENCE_WITH_DESK)
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
                f"{_PATIENCE_WITH_DESK} s"
            ) from error
        _limit_silence(connection, 0)
        yield connection


def fetch(told: str) -> bytes:
    """The content of the desk."""
    with _connected(told) as connection:
        connection.send_bytes(_FETCH)
        return connection.recv_bytes()


def deliver(told: str, rank: int, outcome: bytes) -> None:
    """Returns once the caller has it."""
    with _connected(told) as connection:
        connection.send_bytes(b"%d" % rank)
        connection.send_bytes(outcome)
        connection.recv_bytes(_LONGEST_WORD)
