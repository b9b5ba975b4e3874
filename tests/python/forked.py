"""Ranks that need torch, forked off a Python that has imported it: see forkserver.py."""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# What decides while Python starts or imports torch; a rank with its own is started as usual.
_TOO_EARLY = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "GLIBC_", "MALLOC_", "CUDA_")
# What torch itself sets once it compiles, in whatever test of this process that was.
_OF_TORCH = "TORCHINDUCTOR_CACHE_DIR"
# What programs need beside it, by a word in them; it is imported when the first of them comes.
_ALSO = {"digits": "sklearn.datasets"}
_IMPORTS_TORCH = re.compile(
    r"(?:^|;)\s*(?:import|from) [\w., ]*\b(?:torch|horovod)\b", re.MULTILINE
)
# Ranks of a world are forked off these in turn, so that neighbours hash texts differently: what depends on the order
# of a set differs between them.
_SERVERS = 2
_PR_SET_CHILD_SUBREAPER = 36
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
_servers: dict[int, socket.socket] = {}


class ForkedRank:
    """A child of this process, as ``subprocess.Popen`` would have it."""

    def __init__(self, server: socket.socket, request: dict[str, Any], output: IO[bytes]) -> None:
        self.args = request["program"]
        self.returncode: int | None = None
        with _adopting():
            socket.send_fds(server, [json.dumps(request).encode()], [output.fileno()])
            told = server.recv(64)
        assert told, "the process that forks ranks has ended"
        self.pid = int(told)

    def poll(self) -> int | None:
        """How it has ended, if it has."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended."""
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
    """Makes children of this process of its grandchildren whose parents end meanwhile."""
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
    """Starts ``line``, which ``launching.command()`` has made, in a session of its own.

    ``number``: which process of its world it is. ``needs_torch`` is read off the program where it is not told.
    """
    if _may_be_forked(line, environment, needs_torch):
        program, *arguments = line[1:] if line[1] != "-c" else line[2:]
        request = {
            "program": program,
            "is_path": line[1] != "-c",
            "arguments": arguments,
            "folder": str(folder or Path.cwd()),
            "environment": dict(environment),
            "modules": _modules_of(line),
        }
        return ForkedRank(_server(number % _SERVERS), request, output)
    return subprocess.Popen(
        line,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that what a rank has started ends with it
    )


def _may_be_forked(
    line: Sequence[str], environment: Mapping[str, str], needs_torch: bool | None
) -> bool:
    if line[0] != sys.executable or _early(environment) != _early(_ENVIRONMENT):
        return False
    if needs_torch is None:
        return bool(_IMPORTS_TORCH.search(_text_of(line)))
    return needs_torch


def _text_of(line: Sequence[str]) -> str:
    return line[2] if line[1] == "-c" else Path(line[1]).read_text()


def _modules_of(line: Sequence[str]) -> list[str]:
    return sorted({module for word, module in _ALSO.items() if word in _text_of(line)})


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(_TOO_EARLY) and name != _OF_TORCH
    }


def _server(which: int) -> socket.socket:
    if which not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("forkserver.py")),
                    str(theirs.fileno()),
                ],
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        _servers[which] = ours  # it ends when this process does
    return _servers[which]
