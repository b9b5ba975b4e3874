"""The protocol between the launcher and its process on a host.

The process on the host first sends a line of text, hello(), so that output of a login script and other
protocol versions are recognized. Then both sides send frames: a kind, a rank, a length, and that many
bytes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rueda.json_objects import read_object

_MARK = b"rueda-host "
_HEAD = struct.Struct("!cII")
# The maximum payload of a frame. A job's variables and command line fit.
_MAX_PAYLOAD = 64 << 20
_MAX_HELLO = 64 << 10  # bytes of the line


class Kind(Enum):
    """The kinds of frames, with their payloads."""

    # To the host
    JOB = b"j"  # JSON, see host.HostJob
    START = b"s"  # JSON: where the ranks meet, and their secret
    SIGNAL = b"k"  # the number of a signal for all ranks, and 1 if the user sent it to end the job
    VERDICT = b"v"  # JSON: the exit code of the job, and why it ended; to the launchers of nodes
    LOST = b"l"  # how the rank has ended; to the first host
    OVER = b"y"  # all ranks of the job are gone; to the first host
    INPUT = b"i"  # bytes for rank 0's standard input; empty at its end
    JOINER = b"n"  # JSON: variables of a process to start; its number is in the rank field
    STOP = b"q"  # a process should end: that of the rank; or the one whose ID is told, if it does not do so by itself
    # From the host
    PREPARED = b"p"  # JSON: where the ranks will meet, on the first host
    REFUSED = b"f"  # why the job cannot start there
    OUT = b"o"  # bytes that the rank wrote to standard output
    ERR = b"e"  # and to standard error
    ARRIVAL = b"a"  # the library's message to the launcher
    MISSED = b"m"  # this rank has ended, and the first world cannot form without it
    EXIT = b"x"  # the rank's status as in subprocess, and its process ID
    TAKEN = b"t"  # the bytes of INPUT have been read
    UNSTARTED = b"u"  # why a process cannot start
    END = b"z"  # all processes of the job on this host are gone
    # In both directions
    ENDINGS = b"w"  # a question how others have ended; JSON: the answer of endings.py
    SESSION = b"c"  # JSON: a session's message, empty at its end; the session's number is in the rank field
    ALIVE = b"h"


@dataclass(frozen=True)
class Frame:
    """One message."""

    kind: Kind
    rank: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The payload of a frame that carries JSON. Raises ValueError."""
        return read_object(self.payload)


class NotOurs(Exception):
    """Bytes that are not frames."""


def pack(kind: Kind, payload: bytes = b"", rank: int = 0) -> bytes:
    """A frame in its wire format."""
    return _HEAD.pack(kind.value, rank, len(payload)) + payload


def pack_json(kind: Kind, value: dict[str, Any], rank: int = 0) -> bytes:
    """A frame that carries JSON."""
    return pack(kind, json.dumps(value).encode(), rank)


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Adds a chunk. Returns the frames that it completes. Raises NotOurs."""
        self._rest += chunk
        frames = []
        start = 0
        while len(self._rest) - start >= _HEAD.size:
            kind, rank, length = _HEAD.unpack_from(self._rest, start)
            if length > _MAX_PAYLOAD:
                raise NotOurs
            begin = start + _HEAD.size
            if len(self._rest) < begin + length:
                break
            start = begin + length
            frames.append(Frame(_kind(kind), rank, bytes(self._rest[begin:start])))
        del self._rest[:start]
        return frames


def _kind(letter: bytes) -> Kind:
    try:
        return Kind(letter)
    except ValueError:
        raise NotOurs from None


def hello(facts: dict[str, str]) -> bytes:
    """The first line from a host. Its format must not change, because it distinguishes versions."""
    return _MARK + json.dumps(facts).encode() + b"\n"


class HelloReader:
    """Finds hello() after any output of a login script."""

    def __init__(self) -> None:
        self.before = b""  # the output before it
        self.rest = b""  # the bytes after it
        self.facts: dict[str, str] | None = None

    def feed(self, chunk: bytes) -> bool:
        """Adds a chunk. Returns whether the line has been found."""
        self.rest += chunk
        while self.facts is None and b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            text, mark, facts = line.partition(_MARK)
            if not mark:
                self.before = (self.before + line + b"\n")[-4096:]
                continue
            self.before += text
            self.facts = _facts(facts)
        if self.facts is None:  # an endless line is not ours
            self.rest = self.rest[-_MAX_HELLO:]
        return self.facts is not None


def _facts(text: bytes) -> dict[str, str]:
    try:
        return {str(name): str(fact) for name, fact in read_object(text).items()}
    except ValueError:
        return {}
