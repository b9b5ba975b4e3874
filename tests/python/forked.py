"""Forks ranks from a Python that has imported torch or NumPy: see forkserver.py."""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

# Variables that take effect when Python starts or imports torch. A rank that sets its own is
# started normally.
_TOO_EARLY = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "GLIBC_", "MALLOC_", "CUDA_")
# Exceptions: torch sets the first itself once any test of this process compiles; ranks read the
# second.
_LATE_ENOUGH = ("TORCHINDUCTOR_CACHE_DIR", "PYTHONPATH")
# By what a program imports, the server to fork it from. Anything that imports Rueda needs NumPy,
# and rueda.checkpoint needs torch.
_IMPORTS = {
    base: re.compile(rf"(?:^|;)\s*(?:import|from) [\w., ]*\b(?:{modules})\b", re.MULTILINE)
    for base, modules in (("torch", r"torch|horovod|rueda\.checkpoint"), ("numpy", "numpy|rueda"))
}
# The ranks of a world are forked from these servers in turn, so that neighbours hash strings
# differently: behaviour that depends on the order of a set then differs between them.
_SERVERS = 2
_FORKING_LIMIT = 120.0  # seconds for a server to import its modules and fork
_PR_SET_CHILD_SUBREAPER = 36
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_servers: dict[tuple[str, int], tuple[socket.socket, subprocess.Popen[bytes]]] = {}


class ForkedRank:
    """A child of this process with the interface of ``subprocess.Popen``."""

    def __init__(self, server: socket.socket, request: dict[str, Any], output: IO[bytes]) -> None:
        self.args = request["program"]
        self.returncode: int | None = None
        server.settimeout(_FORKING_LIMIT)
        with _adopting():
            # A server that times out is unusable for the next rank too, which would get this rank's
            # answer.
            try:
                socket.send_fds(server, [json.dumps(request).encode()], [output.fileno()] * 2)
                told = server.recv(64)
            except TimeoutError:
                _forget(server)
                raise AssertionError("the process that forks ranks does not answer") from None
        assert told, "the process that forks ranks has ended"
        self.pid = int(told)

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it ends."""
        if self.returncode is None:
            process = os.pidfd_open(self.pid)
            ended = select.select([process], [], [], timeout)[0]
            os.close(process)
            if not ended:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.poll()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)


@contextmanager
def _adopting() -> Iterator[None]:
    """Makes this process adopt grandchildren whose parents end in the meantime."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


Rank = subprocess.Popen[bytes] | ForkedRank


def start(
    line: Sequence[str],
    number: int,
    output: IO[bytes],
    environment: Mapping[str, str],
    folder: Path | None = None,
    needs_torch: bool | None = None,
) -> Rank:
    """Starts ``line``, made by ``launching.command()``, in a session of its own.

    ``number``: the index of the process in its world. ``needs_torch``: by default derived from the
    program.
    """
    if base := _base_of(line, environment, needs_torch):
        program, *arguments = line[1:] if line[1] != "-c" else line[2:]
        request = {
            "number": number,
            "program": program,
            "is_path": line[1] != "-c",
            "arguments": arguments,
            "folder": str(folder or Path.cwd()),
            "environment": dict(environment),
        }
        return ForkedRank(_server(base, number % _SERVERS), request, output)
    return subprocess.Popen(
        line,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that processes the rank starts end with it
    )


def line_to_launch(line: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns the line for a launcher to start instead of ``line``: see ``launched()``."""
    if _base_of(line, environment, None) != "torch":
        return list(line)
    program, *arguments = (Path(line[1]), *line[2:]) if line[1] != "-c" else line[2:]
    return launched(program, arguments)


def launched(program: str | Path, arguments: Sequence[str] = ()) -> list[str]:
    """A launcher's command line for a rank that needs torch: see launched_rank.py.

    Only for launchers that do not set variables that Python or torch read at start.
    """
    for number in range(_SERVERS):
        _server("torch", number)
    here = str(Path(__file__).with_name("launched_rank.py"))
    begin = ["-c"] if isinstance(program, str) else []
    return [sys.executable, "-S", here, _folder("torch"), *begin, str(program), *arguments]


def _base_of(
    line: Sequence[str], environment: Mapping[str, str], needs_torch: bool | None
) -> str | None:
    """Which server forks the rank; None if it needs its own Python or imports neither."""
    if line[0] != sys.executable or line[1] == "-m":
        return None
    if _early(environment) != _early(_ENVIRONMENT):
        return None
    if needs_torch:
        return "torch"
    text = _text_of(line)
    return next((base for base, imports in _IMPORTS.items() if imports.search(text)), None)


def _text_of(line: Sequence[str]) -> str:
    return line[2] if line[1] == "-c" else Path(line[1]).read_text()


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(_TOO_EARLY) and name not in _LATE_ENOUGH
    }


@cache
def _folder(base: str) -> str:
    """The folder in which the servers listen; they remove it when they end."""
    return tempfile.mkdtemp(prefix=f"forking-{base}-")


def end_servers() -> None:
    """Ends the servers after the last test, so that their CPU time is counted."""
    for server, _ in _servers.values():
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # even if a test's child still has it open
        server.close()
    for _, process in _servers.values():
        try:
            process.wait(_FORKING_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _servers.clear()


def _forget(server: socket.socket) -> None:
    for which, (each, process) in list(_servers.items()):
        if each is server:
            server.close()
            process.kill()
            process.wait()
            del _servers[which]


def _server(base: str, number: int) -> socket.socket:
    which = base, number
    if which not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = Path(_folder(base)) / str(number)
        path.unlink(missing_ok=True)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            numbers = [theirs.fileno(), listener.fileno()]
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("forkserver.py")),
                    base,
                    *map(str, numbers),
                ],
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
            )
        _servers[which] = ours, process  # the server ends when this process does
    return _servers[which][0]
