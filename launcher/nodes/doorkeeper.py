"""Accepts connections from peers that prove that they know a job's secret, and closes all others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from ..strangers import MAX_PENDING, Acceptor, Rejections
from .greeting import MAX_LINE, WITHIN, First, Stranger

Facts = dict[str, Any]


class Doorkeeper:
    """Listens in the running loop until closed. Limits strangers in number, bytes and time."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        refusal: Callable[[Facts], str],
        take: Callable[[Facts, socket.socket], None],
        say: Callable[[str], None],
        expected: int = 0,
        secret: str = "the job's secret (RUEDA_SECRET)",
    ) -> None:
        """`refusal`: why a peer with these facts, which knows the secret, is not admitted, or "".

        `take`: gets the connection of an admitted peer. `say`: prints a line, such as about a peer without the secret.
        `expected`: how many legitimate peers may come at once. `secret`: what its users know it as.
        """
        self._listener = listener
        self._key = key
        self._secret = secret
        self._refusal = refusal
        self._take = take
        self._rejections = Rejections("", say)
        self._most = MAX_PENDING + expected
        # Handshakes with their links and hosts, oldest first.
        self._tasks: dict[asyncio.Task[None], tuple[socket.socket, str]] = {}
        self._acceptor = Acceptor(listener, self._accept, self._rejections, self._drop_oldest)

    def open(self) -> None:
        """Starts to accept connections."""
        self._acceptor.open()

    def close(self) -> None:
        """Stops listening. Admitted peers stay connected."""
        self._acceptor.close()
        for task in self._tasks:
            task.cancel()

    def drop_copies(self) -> None:
        """In a forked child: closes the copies of all sockets, which its parent keeps."""
        self._listener.close()
        for link, _ in self._tasks.values():
            link.close()

    def _accept(self, link: socket.socket, address: tuple[Any, ...]) -> None:
        link.setblocking(False)
        if len(self._tasks) >= self._most:
            self._drop_oldest()
        host = str(address[0]).removeprefix("::ffff:")
        task = asyncio.get_running_loop().create_task(self._hear(link, host))
        self._tasks[task] = link, host
        task.add_done_callback(self._forget)

    def _drop_oldest(self) -> None:
        """Cancels the oldest handshake. It closes its link later, so fewer are accepted at once than may be pending."""
        oldest = next(iter(self._tasks), None)
        if oldest is not None:
            self._rejections.of_one_that("had to make room for others", self._tasks[oldest][1])
            oldest.cancel()
            self._forget(oldest)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _hear(self, link: socket.socket, host: str) -> None:
        """One handshake. Afterwards the link is handed over or closed."""
        taken = False
        try:
            taken = await asyncio.wait_for(self._greet(link), WITHIN)
        except asyncio.TimeoutError:
            self._rejections.of_one_that("said nothing for too long", host)
        except (Stranger, OSError):
            self._rejections.of_one_that(f"does not know {self._secret}", host)
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
    """Reads byte by byte, because what follows the handshake is for other readers. Raises Stranger."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = await asyncio.get_running_loop().sock_recv(link, 1)
        if not piece or len(line) > MAX_LINE:
            raise Stranger
        line += piece
    return bytes(line)
