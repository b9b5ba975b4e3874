"""The user whose process is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


def user_of(connection: socket.socket) -> int:
    """The effective user id of the process that connected or listens."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(peer)[1])
