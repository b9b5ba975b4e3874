"""A process that relays bytes between its standard streams and a TCP connection, in the role of ssh.

`python relay.py FD`, where FD is the connected socket. Exits with 0 when standard input ends, and with 1 when the
connection ends.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

_PIECE = 1 << 16


def _outwards(link: socket.socket) -> None:
    while piece := os.read(0, _PIECE):
        try:
            link.sendall(piece)
        except OSError:
            return  # the other direction also ends, and reports it
    os._exit(0)


def main() -> None:
    """Relays until one side ends."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.setblocking(True)
    threading.Thread(target=_outwards, args=(link,), daemon=True).start()
    reason = "closed by the other side"
    try:
        while piece := link.recv(_PIECE):
            while piece:
                piece = piece[os.write(1, piece) :]
    except OSError as error:
        reason = error.strerror or str(error)
    os.write(2, f"{reason}\n".encode())
    os._exit(1)


if __name__ == "__main__":
    main()
