"""The ranks of one contender: started once, asleep in read() between their turns."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rueda.launcher.errors import LaunchError
from rueda.launcher.processes import become_killable, descendants, kill_all, reap
from rueda.peer_user import user_of

from .wire import Message, receive, send

_HUGE_PAGE = 2 << 20
_ANSWER_WITHIN = 300.0
_TAIL = 20  # lines of a failed group's output that the error quotes


class GroupFailed(LaunchError):
    """Ranks of a contender died or do not answer."""

    exit_code = 1


@dataclass(frozen=True)
class Command:
    """A process to start."""

    argv: Sequence[str]
    environment: Mapping[str, str]


class Listener:
    """The socket that ranks connect to. Turns away processes of other users."""

    def __init__(self) -> None:
        self.address = f"rueda-bench-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + self.address)
        self._socket.listen(128)

    def accept(self, timeout: float) -> socket.socket | None:
        """The next connection; None after `timeout` seconds or if another user's process connected."""
        self._socket.settimeout(timeout)
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            return None
        if user_of(connection) != os.geteuid():
            connection.close()
            return None
        return connection

    def close(self) -> None:
        self._socket.close()


@dataclass
class Group:
    """The ranks of one contender."""

    name: str
    token: str  # with which its ranks say which group they belong to
    log: Path
    connections: list[socket.socket] = field(default_factory=list)  # by rank
    facts: dict[str, str] = field(default_factory=dict)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return len(self.connections)

    def ask(
        self, values: Sequence[Mapping[str, object]], payloads: Sequence[bytes]
    ) -> list[Message]:
        """Sends each rank a message and returns the answers, by rank. Raises GroupFailed."""
        try:
            for connection, value, payload in zip(self.connections, values, payloads, strict=True):
                send(connection, value, payload)
        except OSError as error:
            raise self.failed("a rank has died") from error
        answers: dict[int, Message] = {}
        deadline = time.monotonic() + _ANSWER_WITHIN
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(self.connections):
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(answers) < self.ranks:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    silent = sorted(set(range(self.ranks)) - set(answers))
                    raise self.failed(f"no answer from rank {', '.join(map(str, silent))}")
                for key, _ in ready:
                    connection = self.connections[key.data]
                    try:
                        answers[key.data] = receive(connection)
                    except EOFError as error:
                        raise self.failed(f"rank {key.data} has died") from error
                    selector.unregister(connection)
        return [answers[rank] for rank in range(self.ranks)]

    def failed(self, why: str) -> GroupFailed:
        """The error, with the last lines that the ranks printed."""
        time.sleep(0.3)  # launchers such as mpirun report a moment later
        lines = self.log.read_text(errors="replace").strip().splitlines()
        tail = "".join(f"\n  | {line}" for line in lines[-_TAIL:])
        return GroupFailed(f"{self.name}: {why}{tail or '; it has printed nothing'}")

    def start(self, commands: Sequence[Command]) -> None:
        """Starts the processes. Their output goes to the log."""
        driver = os.getpid()
        with self.log.open("ab") as log:
            for command in commands:
                try:
                    process = subprocess.Popen(
                        command.argv,
                        env=dict(command.environment),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        preexec_fn=lambda: become_killable(driver, signal.SIGTERM),
                    )
                except OSError as error:
                    reason = f"cannot run '{command.argv[0]}': {error.strerror}"
                    raise GroupFailed(f"{self.name}: {reason}") from error
                self._processes.append(process)

    def join(
        self, listener: Listener, ranks: int, processors: Sequence[int], room: int, within: float
    ) -> None:
        """Waits until all ranks have connected, and hands them their shared area.

        `room`: bytes for each rank in it; `within`: seconds. Raises GroupFailed.
        """
        by_rank: dict[int, socket.socket] = {}
        deadline = time.monotonic() + within
        waiting: list[socket.socket] = []
        try:
            while len(by_rank) < ranks:
                self._check_start()
                if time.monotonic() > deadline:
                    raise self.failed(f"its ranks have not joined within {within:.0f} s")
                connection = listener.accept(0.05)
                if connection is not None:
                    waiting.append(connection)
                for other in list(waiting):
                    if not _has_spoken(other):
                        continue
                    waiting.remove(other)
                    try:
                        hello = receive(other)
                    except EOFError as error:
                        raise self.failed("a rank has died while joining") from error
                    if hello.values["group"] != self.token:  # from a group that was given up
                        other.close()
                        continue
                    by_rank[hello.number("rank")] = other
                    self.facts.update(
                        (name.removeprefix("fact."), value)
                        for name, value in hello.values.items()
                        if name.startswith("fact.")
                    )
        finally:
            self.connections = [by_rank[rank] for rank in sorted(by_rank)]
        room = -(-room // _HUGE_PAGE) * _HUGE_PAGE
        self._hand_over(_HUGE_PAGE + ranks * room, processors)

    def _check_start(self) -> None:
        ended = [process.returncode for process in self._processes if process.poll() is not None]
        if ended:
            raise self.failed(f"a process ended with status {ended[0]} before its ranks had joined")

    def _hand_over(self, area: int, processors: Sequence[int]) -> None:
        descriptor = os.memfd_create("rueda-bench")
        try:
            os.ftruncate(descriptor, area)
            for connection in self.connections:
                socket.send_fds(connection, [b"."], [descriptor])
                send(connection, {"processors": ",".join(map(str, processors))})
        except OSError as error:
            raise self.failed("a rank has died while joining") from error
        finally:
            os.close(descriptor)

    def let_go(self) -> None:
        """Closes the connections, at which sleeping ranks exit."""
        for connection in self.connections:
            connection.close()

    def end(self, within: float = 5.0) -> None:
        """Lets the ranks go, and kills those that have not exited after `within` seconds."""
        self.let_go()
        self._await(within)
        for process in self._processes:
            if process.poll() is None:
                process.terminate()  # mpirun then ends its ranks and removes their files
        self._await(3.0)
        for process in self._processes:
            if process.poll() is None:
                kill_all({process.pid} | descendants(process.pid), signal.SIGKILL)
        self._await(1.0)

    def _await(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def _has_spoken(connection: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))


def end_all(groups: Sequence[Group], within: float) -> None:
    """Ends every group, by force after `within` seconds, and every other process they left."""
    for group in groups:
        group.let_go()
    deadline = time.monotonic() + within
    for group in groups:
        group.end(max(0.0, deadline - time.monotonic()))
    left = descendants(os.getpid())
    kill_all(left, signal.SIGKILL)
    reap(left)
