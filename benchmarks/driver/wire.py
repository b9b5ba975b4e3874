"""Messages between the driver and the ranks; benchmarks/worker/message.h is the C++ counterpart.

A message consists of the lengths of its two parts, then lines `name value`, then a payload of bytes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from rueda.peer_user import user_of

_LENGTHS = struct.Struct("=QQ")


@dataclass(frozen=True)
class Message:
    """Named values, then bytes."""

    values: dict[str, str] = field(default_factory=dict)
    payload: bytes = b""

    def number(self, name: str) -> int:
        return int(self.values[name])


def connect_to_driver(connection: socket.socket, address: str) -> None:
    """Connects a rank to the driver. Raises OSError if another user's process listens there."""
    connection.connect("\0" + address)
    if user_of(connection) != os.geteuid():
        raise PermissionError(errno.EPERM, "the driver's socket is another user's")


def send(connection: socket.socket, values: Mapping[str, object], payload: bytes = b"") -> None:
    """Sends a message. Raises OSError if the other side is gone."""
    lines = "".join(f"{name} {value}\n" for name, value in values.items()).encode()
    connection.sendall(_LENGTHS.pack(len(lines), len(payload)) + lines + payload)


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def receive(connection: socket.socket) -> Message:
    """Waits for a message. Raises EOFError if the other side has closed the connection."""
    try:
        lines, payload = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
        text = _exactly(connection, lines).decode()
        values = dict(line.split(" ", 1) for line in text.splitlines())
        return Message(values, _exactly(connection, payload))
    except ConnectionResetError as error:
        raise EOFError from error
