"""Takes connections from those who prove that they know a job's secret; the others are closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from .greeting import MAX_LINE, WITHIN, First, Stranger

# Connections that have not proved themselves yet, beside one for each that is expected; the oldest makes room.
MAX_PENDING = 64
# Seconds without looking for connections, where there is no descriptor for them.
BACK_OFF = 0.1

Facts = dict[str, Any]


class Doorkeeper:
    """Listens in the running loop until it is closed; strangers are limited in number, bytes and time."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        refusal: Callable[[Facts], str],
        take: Callable[[Facts, socket.socket], None],
        reject: Callable[[str], None],
        expected: int = 0,
    ) -> None:
        """`refusal`: why one that knows the secret and says this of itself is not taken, or nothing.

        `take`: gets the connection of one that is. `reject`: hears of the address of one that does not know the secret.
        `expected`: how many may come at once that do.
        """
        self._listener = listener
        self._key = key
        self._refusal = refusal
        self._take = take
        self._reject = reject
        self._most = MAX_PENDING + expected
        self._tasks: dict[asyncio.Task[None], None] = {}  # the oldest first
        listener.setblocking(False)

    def open(self) -> None:
        """Begins to take connections."""
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Listens no more; those who have come stay connected."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            link, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError:  # no descriptor is left; the listener stays readable all the while
            self._drop_oldest()
            loop.remove_reader(self._listener)
            loop.call_later(BACK_OFF, self._accept_again)
            return
        link.setblocking(False)
        if len(self._tasks) >= self._most:
            self._drop_oldest()
        task = loop.create_task(self._hear(link))
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self.open()

    def _drop_oldest(self) -> None:
        """It closes its link when it has its turn."""
        oldest = next(iter(self._tasks), None)
        if oldest is not None:
            oldest.cancel()
            self._forget(oldest)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _hear(self, link: socket.socket) -> None:
        """One conversation: the link is taken afterwards, or closed."""
        taken = False
        try:
            taken = await asyncio.wait_for(self._greet(link), WITHIN)
        except (Stranger, OSError, asyncio.TimeoutError):
            with contextlib.suppress(OSError):
                self._reject(str(link.getpeername()[0]))
        finally:
            if not taken:
                link.close()

    async def _greet(self, link: socket.socket) -> bool:
        loop = asyncio.get_running_loop()
        first = First(self._key)
        await loop.sock_sendall(link, first.challenge(await _read_line(link)))
        facts = first.facts(await _read_line(link))
        if refusal := self._refusal(facts):
            await loop.sock_sendall(link, first.refuse(refusal))
            return False
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await loop.sock_sendall(link, first.admit())
        self._take(facts, link)
        return True


async def _read_line(link: socket.socket) -> bytes:
    """Byte by byte: what comes after the conversation is for others to read. Raises Stranger."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = await asyncio.get_running_loop().sock_recv(link, 1)
        if not piece or len(line) > MAX_LINE:
            raise Stranger
        line += piece
    return bytes(line)
