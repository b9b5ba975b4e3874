"""The launcher's process on one host: `python -m rueda.launcher.remote.host`, started by the launcher.

It runs the ranks of its host and reports to the launcher. When the connection ends, or the launcher has been
silent for too long, it ends the ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from socket import gethostname
from socket import socket as Listener

from .. import arrivals
from ..builtin import why_not_started
from ..endings import Endings
from ..environment import choice_of
from ..errors import LaunchError
from ..failure import Failure
from ..guardian import guard
from ..interruptions import RELAYED
from ..output import Stream
from ..sink import standard_error
from ..store.server import Store
from ..supervisor import Child, Supervisor
from ..writer import Writer
from .channel import Channel, LauncherIsGone
from .frames import Frame, Kind, pack
from .host_job import HostJob, Prepared, prepare
from .rank_input import RankInput
from .session_relay import SessionRelay

_OUTPUT = {"stdout": Kind.OUT, "stderr": Kind.ERR}
# Heartbeats of each side within the longest permitted silence.
BEATS_IN_SILENCE = 4
# Seconds between checks for a signal.
_LOOK = 0.5


class HostRun:
    """One run of a host's part of a job."""

    def __init__(
        self,
        job: HostJob,
        prepared: Prepared,
        meeting: dict[str, str],
        channel: Channel,
        relay: int,
    ) -> None:
        """`meeting`: where the ranks meet, and their secret. `relay`: the result of guardian.guard()."""
        self._job = job
        self._prepared = prepared
        self._meeting = meeting
        self._channel = channel
        self._relay = relay
        self._writer = Writer()
        self._heard_at = time.monotonic()
        self._input: RankInput | None = None
        self._children: dict[int, Child] = {}
        self._socket: arrivals.ArrivalSocket | None = None  # while ranks may be started
        # For all hosts: once asked, the launcher reports the ends on the others.
        self._endings = Endings(lambda: self._tell(Kind.ENDINGS))
        self._sessions = SessionRelay(self._tell, self._endings)
        self._store: Store | None = None  # on the first host
        self._recovers = choice_of("RUEDA_RECOVERY", prepared.environment) == "on"
        self._is_over = asyncio.Event()  # no rank on any host needs the store any more

    async def run(self) -> None:
        """Runs the ranks to their end."""
        async with Supervisor(self._job.grace, self._writer, self._relay) as supervisor:
            await self._run_ranks(supervisor)
            self._tell(Kind.END)
            await supervisor.written()
            asyncio.get_running_loop().remove_reader(self._channel.input)

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        """Runs the ranks until they are gone. Listens to the launcher beyond that."""
        asyncio.get_running_loop().add_reader(self._channel.input, self._hear, supervisor)
        self._beat(supervisor)
        on_session = self._sessions.accept if self._job.most else self._endings.accept
        say = supervisor.until_ending(self._say)
        most = max(len(self._job.identities), self._job.most)
        async with arrivals.ArrivalSocket(self._tell_arrival, say, on_session, most) as socket:
            with contextlib.ExitStack() as closing:
                if self._prepared.listener is not None:
                    self._store = self._open_store(self._prepared.listener, say)
                    closing.callback(self._store.close)
                self._socket = socket
                await self._start_all(supervisor, socket)
                if self._job.most:
                    supervisor.start_writer(self._writer)
                    await self._until_over(supervisor)
                self._socket = None
                await supervisor.wait()
                if self._store is not None:  # ranks of other hosts may still need it
                    await self._until_over(supervisor)
            socket.catch_up()
            self._sessions.close()
            self._endings.close()

    async def _until_over(self, supervisor: Supervisor) -> None:
        """Waits until the launcher says that the job is over, or a signal ends this part of it."""
        while not self._is_over.is_set() and not supervisor.ending:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), _LOOK)

    def _open_store(self, listener: Listener, say: Callable[[str], None]) -> Store:
        """Opens the store at which the ranks of all hosts meet."""
        secret = self._meeting["RUEDA_SECRET"]
        return Store(
            listener,
            self._job.size,
            secret,
            say,
            lambda rank: self._tell(Kind.MISSED, rank=rank),
        )

    async def _start_all(self, supervisor: Supervisor, socket: arrivals.ArrivalSocket) -> None:
        for number in range(len(self._job.identities)):
            rank = self._job.first + number
            try:
                child = self._start(supervisor, socket, rank, self._job.identities[number])
            except OSError as error:
                program, count = self._prepared.command[0], len(self._job.identities)
                self._refuse(why_not_started(program, number, count, error))
                supervisor.end_after(0)
                return
            if number == 0:
                self._after_first(child)
            await supervisor.give_way()
            if supervisor.ending:
                return

    def _start(
        self,
        supervisor: Supervisor,
        socket: arrivals.ArrivalSocket,
        rank: int,
        identity: dict[str, str],
    ) -> Child:
        variables = {**identity, **self._meeting, arrivals.VARIABLE: socket.address}

        def on_output(stream: Stream, chunk: bytes) -> None:
            self._hand_on(stream, chunk, rank)

        def on_exit(status: int) -> None:
            socket.catch_up()  # it may have reported something just before
            child = self._children.pop(rank)
            process_id = child.process.pid
            how = Failure(rank, status, gethostname(), cause=child.cause)
            self._endings.note(process_id, how)
            self._tell(Kind.EXIT, f"{status} {process_id} {child.cause}".encode(), rank)
            if status != 0 and self._recovers and not supervisor.ending:
                child.end_rest(self._job.grace)  # now, since the job may go on

        self._children[rank] = supervisor.spawn(
            self._prepared.command,
            {**self._prepared.environment, **variables},
            on_output,
            on_exit,
            stdin=subprocess.PIPE if rank == 0 and self._job.reads_input else subprocess.DEVNULL,
        )
        return self._children[rank]

    def _start_joiner(self, supervisor: Supervisor, number: int, identity: dict[str, str]) -> None:
        """Starts an additional process, unless the job is ending."""
        if self._socket is None or supervisor.ending:
            return
        try:
            self._start(supervisor, self._socket, number, identity)
        except OSError as error:
            count = len(self._children)
            why = why_not_started(self._prepared.command[0], count, count + 1, error)
            self._tell(Kind.UNSTARTED, why.encode(), number)

    def _after_first(self, child: Child) -> None:
        """Sets up rank 0, which alone gets the launcher's piped input."""
        if child.process.stdin is not None:
            self._input = RankInput(child.process.stdin, lambda: self._tell(Kind.TAKEN))

    def _hand_on(self, stream: Stream, chunk: bytes, rank: int) -> None:
        """Sends the launcher a piece of a rank's output."""
        self._tell(_OUTPUT[stream], chunk, rank)

    def _say(self, text: str) -> None:
        """Prints a line, which the launcher shows with the name of this host."""
        line = f"{text}\n".encode(errors="backslashreplace")

        def write() -> None:
            standard_error.write(line)

        self._writer.put(len(line), write)

    def _refuse(self, why: str) -> None:
        """Reports that the ranks cannot start."""
        self._tell(Kind.REFUSED, why.encode())

    def _tell(self, kind: Kind, payload: bytes = b"", rank: int = 0) -> None:
        frame = pack(kind, payload, rank)
        self._writer.put(len(frame), lambda: self._write(frame))

    def _write(self, frame: bytes) -> None:
        self._channel.output.write(frame)

    def _tell_arrival(self, words: bytes) -> None:
        self._tell(Kind.ARRIVAL, words)

    def _beat(self, supervisor: Supervisor) -> None:
        """Sends heartbeats, and checks those of the launcher."""
        if time.monotonic() - self._heard_at > self._job.silence:
            self._lose_launcher(supervisor)
            return
        self._tell(Kind.ALIVE)
        pause = self._job.silence / BEATS_IN_SILENCE
        asyncio.get_running_loop().call_later(pause, self._beat, supervisor)

    def _hear(self, supervisor: Supervisor) -> None:
        try:
            frames = self._channel.read()
        except LauncherIsGone:
            self._lose_launcher(supervisor)
            return
        self._heard_at = time.monotonic()
        try:
            for frame in frames:
                self._obey(supervisor, frame)
        except (ValueError, KeyError, TypeError, AttributeError):  # not from a launcher
            self._lose_launcher(supervisor)

    def _obey(self, supervisor: Supervisor, frame: Frame) -> None:
        if frame.kind == Kind.SIGNAL:
            number, by_user = map(int, frame.payload.split())
            if number in RELAYED:
                supervisor.relay(signal.Signals(number))
                return
            if by_user:  # so unread output is not needed any more
                supervisor.interrupted_by = supervisor.interrupted_by or signal.Signals(number)
            supervisor.end(signal.Signals(number))
            self._is_over.set()
        elif frame.kind == Kind.OVER:
            self._is_over.set()
        elif frame.kind == Kind.LOST and self._store is not None:
            self._store.lose(frame.rank, frame.payload.decode(errors="replace"))
        elif frame.kind == Kind.JOINER:
            self._start_joiner(supervisor, frame.rank, frame.json())
        elif frame.kind == Kind.STOP:
            self._stop(supervisor, frame)
        elif frame.kind == Kind.SESSION:
            self._sessions.take(frame)
        elif frame.kind == Kind.ENDINGS:
            self._endings.learn(frame.json()["ended"])
        elif frame.kind == Kind.INPUT and self._input is not None:
            self._input.give(frame.payload)

    def _stop(self, supervisor: Supervisor, frame: Frame) -> None:
        """Ends a process of this host; one whose process ID is told may do so by itself first."""
        if frame.payload:
            if (child := supervisor.find(int(frame.payload))) is not None:
                child.end_silent(self._job.grace, supervisor.until_ending(self._say))
        elif frame.rank in self._children:
            self._children[frame.rank].end(self._job.grace)

    def _lose_launcher(self, supervisor: Supervisor) -> None:
        asyncio.get_running_loop().remove_reader(self._channel.input)
        self._is_over.set()
        if supervisor.interrupted_by is None:
            supervisor.interrupt(signal.SIGTERM)


def main() -> None:
    """Follows the launcher's orders until the job is done or the launcher is gone."""
    channel = Channel.of_standard_streams()
    channel.greet()
    try:
        job = HostJob.from_json(channel.expect(Kind.JOB).json())
        relay = guard(job.grace)  # before a listener exists, which its processes would inherit
        prepared = prepare(job)
        channel.say(Kind.PREPARED, {"rendezvous": prepared.rendezvous})
        meeting = channel.expect(Kind.START).json()
    except LauncherIsGone:
        sys.exit(1)
    except LaunchError as error:
        channel.say(Kind.REFUSED, error.format_message())
        sys.exit(2)
    asyncio.run(HostRun(job, prepared, meeting, channel, relay).run())
    os._exit(0)  # a thread may still be blocked on output that nobody reads


if __name__ == "__main__":
    main()
