"""The launcher's end of the connection to one host."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..arrivals import names_of
from ..errors import LaunchError
from ..failure import Failure
from ..interruptions import RELAYED
from ..lines import LineAssembler
from ..output import Stream
from ..placement import HostShare
from ..supervisor import Child, Supervisor
from .frames import Frame, FrameReader, HelloReader, Kind, NotOurs, pack, pack_json
from .ssh import why_not_reached

# Seconds for a host, after SIGKILL to its ranks, to report that they are gone.
_KILLED_WITHIN = 5.0
_OF_A_RANK = (Kind.OUT, Kind.ERR, Kind.EXIT, Kind.UNSTARTED)


class Connection:
    """Starts the process on the host, and communicates with it.

    `on_frame` gets the process's frames about its ranks. `on_text` gets what ssh and the process write to
    standard error once it runs. `on_lost` is called if the connection ends before all ranks are known to be
    gone. `on_change` is called after every step of the start.
    """

    def __init__(
        self,
        share: HostShare,
        argv: Sequence[str],
        on_frame: Callable[[Connection, Frame], None],
        on_text: Callable[[Connection, bytes], None],
        on_lost: Callable[[Connection], None],
        on_change: Callable[[], None],
    ) -> None:
        self.share = share
        self.name = share.host.name
        self.ranks = list(share.ranks)  # all ranks ever started there
        self.facts: dict[str, str] = {}
        self.rendezvous: str | None = None  # where rank 0 can be found; set once the host is ready
        self.refusal = ""  # why the host cannot start its ranks
        self.lost = ""  # how the connection ended, if it ended too early
        self.is_asked = False  # to run its part of a job, which is then fixed
        self.ended = False  # all processes of the job on the host are gone
        self.heard_at = time.monotonic()
        self._argv = list(argv)
        self._on_frame = on_frame
        self._on_text = on_text
        self._on_lost = on_lost
        self._on_change = on_change
        self._pass_fds: Sequence[int] = ()  # inherited by the process
        self._hello = HelloReader()
        self._frames = FrameReader()
        self._lines = LineAssembler()  # of standard error, once the ranks have started
        self._said = b""  # the latest part of standard error
        self._supervisor: Supervisor | None = None
        self._child: Child | None = None
        self._socket: socket.socket | None = None
        self._unsent = bytearray()
        self._started = False
        self._killed = False

    @property
    def title(self) -> str:
        """What messages call the host."""
        return self.name

    @property
    def is_opened(self) -> bool:
        """Whether an attempt to reach the host has been made."""
        return self._child is not None

    @property
    def is_greeted(self) -> bool:
        """Whether the process on the host has said hello."""
        return self._hello.facts is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come from the host."""
        return self.ended or bool(self.lost)

    def open(self, supervisor: Supervisor) -> None:
        """Starts the process. Raises LaunchError."""
        self._supervisor = supervisor
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        try:
            self._child = supervisor.spawn(
                self._argv,
                dict(os.environ),
                self._take,
                lambda status: self._on_change(),
                stdin=theirs.fileno(),
                pass_fds=self._pass_fds,
                on_signal=self._signal,
                on_end=self._finish,
            )
        except OSError as error:
            raise LaunchError(
                f"host '{self.title}': cannot run '{self._argv[0]}': {error.strerror}; name another "
                "program that reaches hosts with --ssh"
            ) from error
        finally:
            theirs.close()

    def send(self, kind: Kind, payload: bytes = b"", rank: int = 0) -> None:
        """Sends a frame as soon as the host can take it."""
        self._send(pack(kind, payload, rank))

    def send_json(self, kind: Kind, value: dict[str, Any], rank: int = 0) -> None:
        """Sends a frame that carries JSON."""
        self.is_asked = self.is_asked or kind == Kind.JOB
        self._started = self._started or kind == Kind.START
        self._send(pack_json(kind, value, rank))

    def assign(self, share: HostShare) -> None:
        """Assigns other ranks to the host, before any has started."""
        self.share = share
        self.ranks = list(share.ranks)

    def start_joiner(self, number: int, variables: dict[str, str]) -> None:
        """Starts one more process there, once the host is ready."""
        self.ranks.append(number)
        self.send_json(Kind.JOINER, variables, number)

    def give_up(self, why: str) -> None:
        """Ends the connection. The processes on the host then end on their own."""
        if not self.is_over:
            self.lost = why
            self._close()
            if self._child is not None:
                self._child.kill(signal.SIGKILL)
            self._on_lost(self)

    def explain_failed_start(self) -> str:
        """A sentence about a host that was lost before its ranks were started."""
        # Without hello, `lost` is a predicate, otherwise a clause: see why_not_reached().
        return f"host '{self.title}'{':' if self.is_greeted else ''} {self.lost}"

    def explain_loss(self) -> str:
        """A sentence about the lost host."""
        if not self.ranks:
            return f"host '{self.title}' was lost: {self.lost}"
        first, last = self.ranks[0], self.ranks[-1]
        whose = f"ranks {first} to {last}"
        if last - first != len(self.ranks) - 1 or first == last:
            whose = names_of(set(self.ranks))
        return f"host '{self.title}', with {whose}, was lost: {self.lost}"

    def _send(self, data: bytes) -> None:
        if self._socket is None:
            return
        self._unsent += data
        asyncio.get_running_loop().add_writer(self._socket, self._flush)
        self._flush()

    def _flush(self) -> None:
        if self._socket is None:
            return
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:  # the process's exit will be noticed
            self._unsent.clear()
        asyncio.get_running_loop().remove_writer(self._socket)

    def _close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket)
            self._socket.close()
            self._socket = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        if number in RELAYED:
            if self._started:
                self.send(Kind.SIGNAL, f"{int(number)} 0".encode())
            return
        if not self._started or self._killed:
            self._close()
            self._child.kill(number if number == signal.SIGKILL else signal.SIGTERM)
            return
        assert self._supervisor is not None
        by_user = self._supervisor.interrupted_by is not None
        self.send(Kind.SIGNAL, f"{int(number)} {int(by_user)}".encode())
        if number == signal.SIGKILL:
            self._killed = True
            loop = asyncio.get_running_loop()
            loop.call_later(
                _KILLED_WITHIN, self.give_up, "its ranks were killed, but it has not confirmed that"
            )

    def _take(self, stream: Stream, chunk: bytes) -> None:
        self.heard_at = time.monotonic()
        if stream == "stderr":
            self._said = (self._said + chunk)[-4096:]
            for line in self._lines.feed(chunk) if self._started else ():
                self._on_text(self, line)
            return
        if not self.is_greeted:
            if not self._hello.feed(chunk):
                return
            self.facts = self._hello.facts or {}
            chunk, self._hello.rest = self._hello.rest, b""
            self._on_change()
        try:
            for frame in self._frames.feed(chunk):
                self._handle(frame)
        except (NotOurs, ValueError):
            self.give_up("it has sent an invalid message")

    def _handle(self, frame: Frame) -> None:
        """Handles a frame. Raises NotOurs or ValueError if it is invalid."""
        if frame.kind in _OF_A_RANK and frame.rank not in self.ranks:
            raise NotOurs
        if frame.kind == Kind.PREPARED:
            self.rendezvous = str(frame.json().get("rendezvous", ""))
            self._on_change()
        elif frame.kind == Kind.REFUSED:
            self.refusal = frame.payload.decode(errors="replace")
            self._on_change()
            self._on_frame(self, frame)
        elif frame.kind == Kind.END:
            self.ended = True
        elif frame.kind != Kind.ALIVE and not self.is_over:
            self._on_frame(self, frame)

    def _finish(self) -> None:
        """The process has exited, and all of its output has been read."""
        self._close()
        assert self._child is not None
        status = self._child.process.returncode
        if self._started and status == 0:  # its END may be in output that was not read
            self.ended = True
        if not self.is_over:
            self.lost = self._why_ended(status)
            self._on_lost(self)
        self._on_change()

    def _why_ended(self, status: int) -> str:
        said = self._said.decode(errors="replace")
        if not self.is_greeted:
            # The output of a login script may also say why.
            return why_not_reached(
                self._argv[0], status, said or self._hello.before.decode(errors="replace")
            )
        last_line = said.strip().rpartition("\n")[2]
        program = os.path.basename(self._argv[0])
        how = Failure(0, status).describe_status()
        return f"{program} ended: {how}" + (f"; it said: {last_line}" if last_line else "")
