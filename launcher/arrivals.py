"""Learns which ranks have called `rueda.init()`, and notices a rank that never will."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rueda.peer_user import user_of

from .strangers import BACK_OFF, MAX_PENDING, Acceptor, Rejections

# Names the socket to which the library reports a rank's arrival; csrc/membership/launcher_notice.h.
VARIABLE = "RUEDA_LAUNCHER"

# The queue length requested from the kernel. Each rank connects twice.
_BACKLOG = 1 << 16
_MAX_BACKLOG = Path("/proc/sys/net/core/somaxconn")
# Seconds to wait for a rank's message. It sends it in one write, immediately after connecting, unless it is stopped
# or loses its processor in between. Without a session, no rank can join for the rest of the job.
_SILENCE = 30.0


OnSession = Callable[[socket.socket, bytes], None]


class ArrivalSocket:
    """An abstract socket on which the library of each rank reports that the rank has called init().

    Messages wait there while the launcher is busy with the output of the ranks. Only messages of the same user (and
    root) count. A first byte '{' opens a session: `on_session` gets the connection and the bytes read so far. Those
    who say nothing are limited in number and time. Use as an asynchronous context manager.
    """

    def __init__(
        self,
        on_words: Callable[[bytes], None],
        say: Callable[[str], None],
        on_session: OnSession | None = None,
        expected: int = 0,
    ) -> None:
        """`say`: prints a line of the launcher's own. `expected`: how many ranks may come at once."""
        self._on_words = on_words
        self._on_session = on_session
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.address = f"@rueda-launcher-{secrets.token_hex(8)}"
        self._socket.bind(self.address.replace("@", "\0", 1))
        self._socket.listen(_BACKLOG)
        self._rejections = Rejections("the launcher's socket", say)
        self._most = MAX_PENDING + expected
        self._pending: dict[socket.socket, asyncio.TimerHandle] = {}  # silent so far, oldest first
        self._acceptor = Acceptor(self._socket, self._take, self._rejections, self._drop_oldest)

    async def __aenter__(self) -> ArrivalSocket:
        """Starts to listen."""
        self._acceptor.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops."""
        self._acceptor.close()
        for connection in list(self._pending):
            self._forget(connection)
            connection.close()

    def catch_up(self) -> bool:
        """Handles all messages sent so far, at most as many as the kernel queues.

        Returns False if the system lacks the resources to accept them.
        """
        for connection in list(self._pending):
            self._hear(connection)
        return self._acceptor.accept(_most_waiting())

    def _take(self, connection: socket.socket, _: Any) -> None:
        try:
            user = user_of(connection)
        except OSError:
            connection.close()
            return
        if user not in (os.geteuid(), 0):
            self._rejections.of_user(user)
            connection.close()
            return
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        self._pending[connection] = loop.call_later(
            _SILENCE, self._reject, connection, "said nothing for too long"
        )
        loop.add_reader(connection, self._hear, connection)
        self._hear(connection)
        if len(self._pending) > self._most:
            self._drop_oldest()

    def _hear(self, connection: socket.socket) -> None:
        """Handles what a pending connection has said, if anything."""
        if connection not in self._pending:
            return
        try:
            words = connection.recv(256)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        self._forget(connection)
        if self._on_session is not None and words.startswith(b"{"):
            self._on_session(connection, words)
            return
        connection.close()
        if words:
            self._on_words(words)

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._pending), None)
        if oldest is not None:
            self._hear(oldest)  # it may just have said something
            self._reject(oldest, "had to make room for others")

    def _reject(self, connection: socket.socket, why: str) -> None:
        """Drops a connection that is still pending."""
        if connection in self._pending:
            self._forget(connection)
            self._rejections.of_one_that(why)
            connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._pending.pop(connection).cancel()
        asyncio.get_running_loop().remove_reader(connection)


def _most_waiting() -> int:
    """How many connections can be queued at once."""
    with contextlib.suppress(OSError, ValueError):
        return min(_BACKLOG, int(_MAX_BACKLOG.read_text())) + 1
    return _BACKLOG + 1


class Arrivals:
    """Which ranks have arrived, that is, called `rueda.init()`.

    If a rank exits with 0 before it has arrived, the ranks that have arrived wait in vain. `on_absence` is then
    called once, with a sentence. `on_silent`: called with the host name and the process ID of a rank that did not
    answer, and without which the others have gone on; by several of them.
    """

    def __init__(
        self,
        ranks: int,
        on_absence: Callable[[str], None],
        on_silent: Callable[[str, int], None] | None = None,
    ) -> None:
        self._ranks = ranks
        self._on_absence = on_absence
        self._on_silent = on_silent
        self._come: set[int] = set()
        self._left: set[int] = set()  # exited with 0 before they arrived
        self._told = False
        self._have_met = False

    @property
    def anybody_has_come(self) -> bool:
        """Whether a rank has arrived."""
        return bool(self._come)

    @property
    def somebody_waits(self) -> bool:
        """Whether some ranks, but not all, have arrived."""
        return 0 < len(self._come) < self._ranks

    def have_met(self) -> bool:
        """Whether all ranks have formed a world, as far as they have reported."""
        return self._have_met

    def has_come(self, rank: int) -> bool:
        """Whether the rank has called `rueda.init()`."""
        return rank in self._come

    def leave(self, rank: int) -> None:
        """The rank has exited with code 0."""
        if rank not in self._come:
            self._left.add(rank)
            self._judge()

    def take(self, text: bytes) -> None:
        """Handles a message from the library of a rank."""
        words = text.split()
        if len(words) != 3:
            return
        if words[0] == b"silent" and self._on_silent is not None:
            with contextlib.suppress(ValueError):
                self._on_silent(words[1].decode(), int(words[2]))
        if words[0] not in (b"waiting", b"met"):
            return
        with contextlib.suppress(ValueError):
            rank, size = int(words[1]), int(words[2])
            # Ignores worlds of only some of the ranks: these do not wait for the others.
            if size == self._ranks and 0 <= rank < size:
                come = {rank} if words[0] == b"waiting" else set(range(size))
                self._come |= come
                self._left -= come
                self._have_met = self._have_met or words[0] == b"met"
                self._judge()

    def _judge(self) -> None:
        if not self._come or not self._left or self._told:
            return
        self._told = True
        self._on_absence(
            f"{names_of(self._left)} ended with exit code 0 before calling rueda.init(); "
            f"{names_of(self._come)} would wait there for ever"
        )


class LocalArrivals(Arrivals):
    """Arrivals of ranks on this host, received on a socket. Use as an asynchronous context manager."""

    def __init__(
        self,
        ranks: int,
        on_absence: Callable[[str], None],
        say: Callable[[str], None],
        on_session: OnSession | None = None,
        on_silent: Callable[[str, int], None] | None = None,
    ) -> None:
        """`say`: prints a line of the launcher's own."""
        super().__init__(ranks, on_absence, on_silent)
        self._socket = ArrivalSocket(self.take, say, on_session, ranks)
        self._asks_again: dict[int, asyncio.TimerHandle] = {}  # timers, by rank that has exited

    @property
    def address(self) -> str:
        """The address to which the library reports."""
        return self._socket.address

    async def __aenter__(self) -> LocalArrivals:
        """Starts to listen."""
        await self._socket.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops."""
        for timer in self._asks_again.values():
            timer.cancel()
        await self._socket.__aexit__()

    def have_met(self) -> bool:
        if not super().have_met():
            self._socket.catch_up()  # they may have reported it just now
        return super().have_met()

    def have_heard(self) -> bool:
        """Whether a rank has arrived, even if its message was still unread."""
        if not self.anybody_has_come:
            self._socket.catch_up()
        return self.anybody_has_come

    def leave(self, rank: int) -> None:
        if self.has_come(rank):
            return
        if self._socket.catch_up():  # it may have reported just before it exited
            super().leave(rank)
        else:  # its message could not be read yet
            loop = asyncio.get_running_loop()
            self._asks_again[rank] = loop.call_later(BACK_OFF, self.leave, rank)


def names_of(ranks: set[int]) -> str:
    """For example "rank 2", "ranks 0, 1 and 3", "ranks 0, 1, 2 and 5 more"."""
    first, *rest = (str(rank) for rank in sorted(ranks))
    if not rest:
        return f"rank {first}"
    if len(rest) > 3:
        return f"ranks {first}, {rest[0]}, {rest[1]} and {len(rest) - 2} more"
    return f"ranks {', '.join([first, *rest[:-1]])} and {rest[-1]}"
