"""The store at which the ranks of a job meet, in the process that starts them.

It exists before and after the ranks, and learns how they end. Ranks that wait for an ended rank are told so
immediately.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
from collections.abc import Callable
from typing import Any

from rueda.peer_user import user_of

from ..strangers import MAX_PENDING, Acceptor, Rejections
from ..version import installed_version
from .words import (
    MAX_FRAME,
    MAX_PENDING_FRAME,
    Nonsense,
    Proofs,
    Verb,
    Words,
    fresh_word,
    is_word,
)
from .world import World, error

# The address that the launcher serves. Tells ranks that rank 0 need not serve it; csrc/membership/launch.h.
STORE_VARIABLE = "RUEDA_RENDEZVOUS_STORE"

# Seconds within which a connection must prove which rank it belongs to.
_HANDSHAKE = 10.0
_READ = 1 << 20
# Seconds to wait after a rank leaves: it may have ended, and how it ended becomes known a moment later.
_MOMENT = 0.1


class _Client:
    """A connection. It becomes a rank's once the rank has proved that it knows the secret."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.read = bytearray()
        self.unsent = bytearray()
        self.hello: Words | None = None
        self.word = b""
        self.rank = -1
        self.world: World | None = None
        self.is_open = True
        self.is_refused = False  # it has got its last answer
        self.is_read = False
        self.timer: asyncio.TimerHandle | None = None


class Store:
    """Answers the ranks at one address, for one world after another. Use within a running loop."""

    def __init__(
        self,
        listener: socket.socket,
        size: int,
        secret: str,
        say: Callable[[str], None],
        on_failure: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`say`: prints a line of the launcher's own.

        `on_failure`: called if the first world cannot form because this rank is lost.
        """
        self._size = size
        self._proofs = Proofs(secret)
        self._on_failure = on_failure
        self._lost: dict[int, str] = {}
        self._blamed: set[int] = set()  # ranks that left while others waited for them
        self._worlds: list[World] = []  # that have ranks in them
        self._timers: dict[World, asyncio.TimerHandle] = {}  # for worlds that ranks have left
        self._has_formed = False
        self._pending: list[_Client] = []  # in the order of arrival
        self._clients: set[_Client] = set()
        self._loop = asyncio.get_running_loop()
        self._rejections = Rejections("rendezvous", say)
        self._acceptor = Acceptor(listener, self._take, self._rejections, self._drop_oldest_pending)
        self._acceptor.open()

    def close(self) -> None:
        """Stops answering."""
        self._on_failure = lambda _: None
        self._acceptor.close()
        for client in list(self._clients):
            self._drop(client)

    def lose(self, rank: int, how: str) -> None:
        """A rank has ended for good. `how` goes into the others' errors."""
        self._lost[rank] = how
        if rank in self._blamed:
            self._report(rank)
        for world in list(self._worlds):
            self._settle(world)

    def is_needed(self, rank: int) -> bool:
        """Whether other ranks wait for this rank, and no world has formed yet."""
        is_one = rank < self._size and not self._has_formed
        return is_one and any(rank not in world.arrived for world in self._worlds)

    # --- Connections

    def _take(self, connection: socket.socket, _: Any) -> None:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif (user := user_of(connection)) != os.geteuid():
            self._rejections.of_user(user)
            connection.close()
            return
        if len(self._pending) >= MAX_PENDING + self._size:
            self._drop_oldest_pending()
        connection.setblocking(False)
        client = _Client(connection)
        self._clients.add(client)
        self._pending.append(client)
        client.timer = self._loop.call_later(
            _HANDSHAKE, self._reject, client, "said nothing for too long"
        )
        self._listen_to(client)

    def _drop_oldest_pending(self) -> None:
        if not self._pending:
            return
        oldest = self._pending[0]
        self._receive(oldest)  # it may just have sent its proof
        if oldest in self._pending:
            self._reject(oldest, "had to make room for others")

    def _reject(self, client: _Client, why: str) -> None:
        """Drops a connection that has not proved whose it is. Reports that, unless it was refused before."""
        if client.is_open and client.rank < 0 and not client.is_refused:
            self._rejections.of_one_that(why)
        self._drop(client)

    def _drop(self, client: _Client) -> None:
        if not client.is_open:
            return
        client.is_open = False
        self._clients.discard(client)
        self._no_longer_pending(client)
        self._loop.remove_reader(client.connection)
        self._loop.remove_writer(client.connection)
        client.connection.close()
        world = client.world
        if world is not None:
            world.leave(client.rank)
            self._settle(world)

    def _no_longer_pending(self, client: _Client) -> None:
        if client in self._pending:
            self._pending.remove(client)
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None

    def _listen_to(self, client: _Client) -> None:
        if not client.is_read:
            client.is_read = True
            self._loop.add_reader(client.connection, self._receive, client)

    def _receive(self, client: _Client) -> None:
        if not client.is_open:
            return
        most = _READ if client.rank >= 0 else MAX_PENDING_FRAME + 8 - len(client.read)
        try:
            piece = client.connection.recv(max(1, most))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        client.read += piece
        self._try_to_answer(client)
        if not piece:
            self._reject(client, "ended before it proved that it knows the job's secret")

    def _try_to_answer(self, client: _Client) -> None:
        try:
            self._answer_all(client)
        except Nonsense:
            self._reject(client, "sent an invalid message")

    def _answer_all(self, client: _Client) -> None:
        # Reads nothing from a client that does not read its answers.
        while client.is_open and not client.is_refused and not client.unsent:
            limit = MAX_FRAME if client.rank >= 0 else MAX_PENDING_FRAME
            question = Words.take_from(client.read, limit)
            if question is None:
                return
            if client.world is None:
                self._greet(client, question)
            elif answer := client.world.answer(client.rank, question):
                self._reply(client, answer)
            else:
                self._settle(client.world)

    def _reply(self, client: _Client, words: Words) -> None:
        if client.is_open:
            client.unsent += words.frame()
            self._write(client)

    def _refuse(self, client: _Client, words: Words) -> None:
        """Sends the last answer to a client that is not a rank. A client gets one attempt."""
        client.is_refused = True
        self._reply(client, words)

    def _write(self, client: _Client) -> None:
        try:
            sent = client.connection.send(client.unsent)
            del client.unsent[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(client)
            return
        if client.unsent and client.is_read:
            client.is_read = False
            self._loop.remove_reader(client.connection)
            self._loop.add_writer(client.connection, self._go_on, client)
        elif not client.unsent and client.is_refused:
            self._drop(client)

    def _go_on(self, client: _Client) -> None:
        """The socket has room for more of an answer."""
        self._write(client)
        if client.unsent or not client.is_open:
            return
        self._loop.remove_writer(client.connection)
        self._listen_to(client)
        self._try_to_answer(client)

    # --- Identification

    def _greet(self, client: _Client, question: Words) -> None:
        if question.verb == Verb.HELLO:
            self._challenge(client, question)
        elif question.verb == Verb.PROVE:
            self._admit(client, question)
        else:
            self._rejections.of_one_that("sent an invalid message")
            self._refuse(client, error("say hello first"))

    def _challenge(self, client: _Client, question: Words) -> None:
        if client.hello is not None:
            self._rejections.of_one_that("sent an invalid message")
            self._refuse(client, error("said hello twice"))
        elif not is_word(question.key):
            self._rejections.of_one_that("runs another version of Rueda")
            self._refuse(
                client,
                error(
                    f"rank {question.rank} runs another version of Rueda than the launcher, "
                    f"which is {installed_version()}"
                ),
            )
        else:
            client.hello, client.word = question, fresh_word()
            proof = self._proofs.of_store(question, client.word)
            self._reply(client, Words(Verb.CHALLENGE, key=client.word, value=proof))

    def _admit(self, client: _Client, question: Words) -> None:
        hello = client.hello
        if hello is None or not hmac.compare_digest(
            question.value, self._proofs.of_rank(hello, client.word)
        ):
            self._rejections.of_one_that("does not know the job's secret")
            self._refuse(client, error("the job's secret (RUEDA_SECRET) is another one"))
        elif hello.size != self._size:
            self._refuse(
                client,
                error(
                    f"rank {hello.rank} was told that there are {hello.size} ranks, and the launcher has "
                    f"started {self._size}"
                ),
            )
        elif hello.rank >= self._size:
            self._refuse(client, error(f"there is no rank {hello.rank} among {self._size}"))
        elif any(hello.rank in world.present for world in self._worlds):
            self._refuse(client, Words(Verb.LATER))  # another process has the same rank
        else:
            self._enter(client, hello.rank)

    def _enter(self, client: _Client, rank: int) -> None:
        """Lets the rank into the first world in which it has not been yet."""
        self._no_longer_pending(client)
        world = next((each for each in self._worlds if rank not in each.arrived), None)
        if world is None:
            world = World(self._size)
            self._worlds.append(world)
        world.enter(rank)
        client.rank, client.world = rank, world
        self._reply(client, Words(Verb.OK))

    # --- Waiting ranks

    def _settle(self, world: World) -> None:
        """Answers waiting ranks if a change allows that."""
        if not world.present:
            self._end(world)
        elif not world.at_barrier:
            return
        elif answer := world.end_of_wait(self._lost):
            self._release(world, answer)
            if answer.verb == Verb.LOST:
                self._report(answer.rank)
        elif world.left and world not in self._timers:
            self._timers[world] = self._loop.call_later(_MOMENT, self._give_up, world)

    def _give_up(self, world: World) -> None:
        del self._timers[world]
        if world.at_barrier and world.left:
            self._blamed |= world.left
            self._release(world, world.give_up())

    def _release(self, world: World, answer: Words) -> None:
        waiting = [c for c in self._clients if c.world is world and c.rank in world.at_barrier]
        world.at_barrier.clear()
        for client in waiting:
            self._reply(client, answer)

    def _end(self, world: World) -> None:
        """No rank is in the world any more."""
        if timer := self._timers.pop(world, None):
            timer.cancel()
        if world in self._worlds:
            self._worlds.remove(world)
            self._has_formed = self._has_formed or world.has_formed

    def _report(self, rank: int) -> None:
        if not self._has_formed:
            self._on_failure(rank)


def open_local(address: str) -> socket.socket:
    """Listens on unix:@name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address.removeprefix("unix:").replace("@", "\0", 1))
    listener.listen(socket.SOMAXCONN)
    return listener
