"""What the launcher and its process on a host say to each other.

The process on the host begins with one line of text, hello(), so that what a login script prints before it
and a version that speaks otherwise are recognised. Then both sides send frames: a kind, a rank, a length,
and as many bytes.
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
# No frame that either side sends is longer; a job's variables and command line fit.
_MAX_PAYLOAD = 64 << 20
_MAX_HELLO = 64 << 10  # of its line


class Kind(Enum):
    """What a frame is about; its payload."""

    # To the host
    JOB = b"j"  # JSON, see host.HostJob
    START = b"s"  # JSON: where the ranks meet, and their secret
    SIGNAL = b"k"  # the number of a signal for all ranks, and 1 where the user has sent it to end the job
    VERDICT = b"v"  # JSON: the exit code of the job, and why it ended; to the launchers of nodes
    LOST = b"l"  # how the rank has ended; to the first host
    OVER = b"y"  # all ranks of the job are gone; to the first host
    INPUT = b"i"  # bytes for rank 0's standard input; none at its end
    JOINER = (
        b"n"  # JSON: variables of a process that is to be started, whose number stands for the rank
    )
    STOP = b"q"  # a process is to end, and is killed where it does not
    # From the host
    PREPARED = b"p"  # JSON: where the ranks will meet, on the first host
    REFUSED = b"f"  # why the job cannot be started there
    OUT = b"o"  # bytes that the rank wrote to standard output
    ERR = b"e"  # and to standard error
    ARRIVAL = b"a"  # what the library told the launcher
    MISSED = b"m"  # the rank has ended without which the first world cannot be formed
    EXIT = b"x"  # the status of the rank as of subprocess, and the number of its process
    TAKEN = b"t"  # the bytes of INPUT have been taken
    UNSTARTED = b"u"  # why a process cannot be started
    END = b"z"  # all processes of the job on this host are gone
    # Both ways
    ENDINGS = b"w"  # the question how others have ended; JSON: what endings.py says of that
    SESSION = b"c"  # JSON: what is said in a session, whose number stands for the rank; nothing at its end
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
    """Bytes that are no frames."""


def pack(kind: Kind, payload: bytes = b"", rank: int = 0) -> bytes:
    """A frame as it is sent."""
    return _HEAD.pack(kind.value, rank, len(payload)) + payload


def pack_json(kind: Kind, value: dict[str, Any], rank: int = 0) -> bytes:
    """A frame that carries JSON."""
    return pack(kind, json.dumps(value).encode(), rank)


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Adds a chunk and returns the frames that it completes. Raises NotOurs."""
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
    """The first line from a host. Its form must not change: it tells versions apart."""
    return _MARK + json.dumps(facts).encode() + b"\n"


class HelloReader:
    """Finds hello() behind what a login script may have printed."""

    def __init__(self) -> None:
        self.before = b""  # what else was printed
        self.rest = b""  # what came after it
        self.facts: dict[str, str] | None = None

    def feed(self, chunk: bytes) -> bool:
        """Adds a chunk; returns whether the line has been found."""
        self.rest += chunk
        while self.facts is None and b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            text, mark, facts = line.partition(_MARK)
            if not mark:
                self.before = (self.before + line + b"\n")[-4096:]
                continue
            self.before += text
            self.facts = _facts(facts)
        if self.facts is None:  # a line that does not end is none of ours
            self.rest = self.rest[-_MAX_HELLO:]
        return self.facts is not None


def _facts(text: bytes) -> dict[str, str]:
    try:
        return {str(name): str(fact) for name, fact in read_object(text).items()}
    except ValueError:
        return {}
