"""A launcher for jobs whose ranks come and go; the tests make its decisions."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from typing import IO, Any

from forked import Rank, start
from launching import Ended, command, environment

_TIMEOUT = 120.0

# For programs, which import the modules it uses: retries across losses and joins until all ranks
# find that the world is as expected.
UNTIL = """
def until(is_reached):
    is_new = "RUEDA_JOINER" in os.environ  # it comes where the others are after update()
    while True:
        time.sleep(0.002)
        try:
            if not is_new:
                rueda.elastic.update()
            is_new = False
            if rueda.allreduce(np.array([is_reached()], np.int32), "reached", rueda.Min)[0]:
                return
        except rueda.PeerLostError:
            rueda.recover()
"""


class ElasticJob:
    """Processes of one program, numbered in the order they start. Use as a context manager.

    ``members``: the members of the newest world, as its first rank reports them.
    """

    def __init__(self, program: str, size: int, **variables: str) -> None:
        self._program = program
        self._name = f"rueda-test-{uuid.uuid4().hex}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = self._address()
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.listen(64)
        self._variables = {
            "RUEDA_ELASTIC": "1",
            "RUEDA_RECOVERY": "on",
            "RUEDA_LAUNCHER": address,
            "RUEDA_SECRET": uuid.uuid4().hex,
            # Otherwise each job measures for as long as many of them train.
            "RUEDA_ALGORITHM": "flat:0-16K;direct:16K-",
            **variables,
        }
        self._lock = threading.Condition()
        self._sessions: dict[int, socket.socket] = {}
        self._ready: list[int] = []
        self._leaving: list[int] = []
        self._gone: list[int] = []
        self._beginners = range(size)
        self.members: list[int] = []
        self.worlds: list[list[int]] = []
        self.refused: list[dict[str, Any]] = []
        self.processes: dict[int, tuple[Rank, IO[bytes]]] = {}
        threading.Thread(target=self._accept, daemon=True).start()
        for rank in range(size):
            self._start(
                rank,
                {
                    "RUEDA_RANK": str(rank),
                    "RUEDA_SIZE": str(size),
                    "RUEDA_RENDEZVOUS": self._rendezvous(),
                },
            )

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *_: object) -> None:
        for process, file in self.processes.values():
            process.kill()
            process.wait()
            file.close()
        self._socket.close()

    # --- Location: on this host

    def _address(self) -> str:
        """The address at which the launcher listens."""
        return f"@{self._name}-launcher"

    def _rendezvous(self) -> str:
        """The address at which the first ranks meet."""
        return f"unix:@{self._name}"

    def _command(self, number: int, program: str) -> list[str]:
        """The command line of a process."""
        return command(program)

    # --- What tests decide

    def start_joiner(self, program: str | None = None) -> int:
        """Starts one more process; returns its number."""
        number = len(self.processes)
        self._start(number, {"RUEDA_JOINER": str(number)}, program)
        return number

    def let_leave(self, *numbers: int) -> None:
        """Tells members to leave."""
        with self._lock:
            self._leaving = list(numbers)
            self._tell(leaving=self._leaving)

    def tell_only(self, number: int, **message: Any) -> None:
        """Sends a message to one process only, once every started process is connected."""
        with self._lock:
            assert self._lock.wait_for(
                lambda: len(self._sessions) == len(self.processes), _TIMEOUT
            ), self.outputs()
            self._say(number, **message)

    def kill(self, number: int) -> None:
        """Kills a process."""
        self.processes[number][0].kill()

    def await_world(self, *numbers: int) -> None:
        """Returns once the newest world consists of these processes, in this order."""
        with self._lock:
            arrived = self._lock.wait_for(lambda: self.members == list(numbers), _TIMEOUT)
        assert arrived, f"the worlds were {self.worlds}\n{self.outputs()}"

    def await_ready(self, *numbers: int) -> None:
        """Returns once these processes wait to join."""
        with self._lock:
            arrived = self._lock.wait_for(lambda: set(numbers) <= set(self._ready), _TIMEOUT)
        assert arrived, f"{self._ready} wait to join\n{self.outputs()}"

    def await_refusal(self) -> dict[str, Any]:
        """Returns the job's report of joiners that did not arrive."""
        with self._lock:
            assert self._lock.wait_for(lambda: self.refused, _TIMEOUT), self.outputs()
        return self.refused[-1]

    def ended(self) -> dict[int, Ended]:
        """Waits for all processes to end."""
        deadline = time.monotonic() + _TIMEOUT
        for process, _ in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"a process hangs\n{self.outputs()}") from None
        return {
            number: Ended(process.returncode, self._output(number))
            for number, (process, _) in self.processes.items()
        }

    def outputs(self) -> str:
        """The output of all processes."""
        return "\n".join(f"--- {n}\n{self._output(n)}" for n in self.processes)

    # --- What a launcher does

    def _start(self, number: int, identity: dict[str, str], program: str | None = None) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        line = self._command(number, program or self._program)
        process = start(line, number, file, environment({**self._variables, **identity}))
        self.processes[number] = (process, file)

    def _output(self, number: int) -> str:
        file = self.processes[number][1]
        file.seek(0)
        return file.read().decode(errors="replace")

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        number = -1
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                if not line.startswith(b"{"):
                    continue  # `waiting` and `met`, see launcher/arrivals.py
                message = json.loads(line)
                with self._lock:
                    if "hello" in message:
                        number = message["hello"]
                        self._sessions[number] = connection
                    self._take(number, message)
                    self._lock.notify_all()
        with self._lock:
            self._sessions.pop(number, None)
            # Also one that was refused and has said again that it waits: others may wait for it.
            if not any(number in world for world in [[-1], self._beginners, *self.worlds]):
                self._ready = [each for each in self._ready if each != number]
                self._gone.append(number)
                self._tell(joiners=self._ready, gone=self._gone)

    def _take(self, number: int, message: dict[str, Any]) -> None:
        if "ready" in message and number not in self._ready:
            self._ready.append(number)
        if "ready" in message or "hello" in message:
            self._tell(joiners=self._ready, leaving=self._leaving, gone=self._gone)
        if door := message.get("door"):
            for joiner, rank in door["joiners"].items():
                self._say(int(joiner), enter={**door, "rank": rank})
        if door := message.get("follow"):
            for joiner, rank in door["joiners"].items():
                self._say(int(joiner), follow={**door, "rank": rank})
        if formed := message.get("formed"):
            self.members = formed["members"]
            self.worlds.append(self.members)
            self._ready = [each for each in self._ready if each not in self.members]
        if refused := message.get("refused"):
            self.refused.append(refused)
            self._ready = [each for each in self._ready if each not in refused["joiners"]]
            self._tell(joiners=self._ready)

    def _tell(self, **message: Any) -> None:
        for number in list(self._sessions):
            self._say(number, **message)

    def _say(self, number: int, **message: Any) -> None:
        with contextlib.suppress(OSError, KeyError):
            self._sessions[number].sendall(json.dumps(message).encode() + b"\n")
