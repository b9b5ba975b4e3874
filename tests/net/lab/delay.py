"""A delay line: forwards frames between two interfaces, each after the same delay.

python delay.py PORT TAP SECONDS, in the switch's namespace: PORT is the switch's end of the host's
link, TAP takes its place at the switch. This kernel has no netem. Good for about 100 Mbit/s. Hosts
must have their offloads turned off: a frame of 64 KiB or without a checksum cannot be forwarded.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x1002
_ALL_PROTOCOLS = 3
_MAX_FRAME = 1 << 16
# Frames read per look at the clock.
_BATCH = 64
# Frames in flight in one direction, like a router's buffer; more are dropped.
_MAX_WAITING = 20_000

Send = Callable[[bytes], object]


class Direction:
    """The frames in flight in one direction."""

    def __init__(self, send: Send, delay: float) -> None:
        self._send = send
        self._delay = delay
        self._waiting: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float:
        """When the next frame is due."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def take(self, frame: bytes, now: float) -> None:
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append((now + self._delay, frame))

    def deliver(self, now: float) -> None:
        """Sends all frames that are due."""
        while self.due <= now:
            frame = self._waiting.popleft()[1]
            try:
                self._send(frame)
            except OSError:  # the interface is full or down: the frame is lost
                continue


def open_tap(name: str) -> int:
    """Attaches to a TAP interface; creates it if it does not exist."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return descriptor


def open_port(name: str) -> socket.socket:
    """Opens an interface to receive and send its frames."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    port.bind((name, 0))
    port.setblocking(False)
    return port


def relay(port: socket.socket, tap: int, delay: float) -> None:
    """Forwards frames in both directions for ever."""
    to_switch = Direction(lambda frame: os.write(tap, frame), delay)
    to_host = Direction(port.send, delay)
    poll = select.epoll()
    poll.register(port, select.EPOLLIN)
    poll.register(tap, select.EPOLLIN)
    while True:
        pause = min(to_switch.due, to_host.due) - time.monotonic()
        ready = [entry[0] for entry in poll.poll(-1 if pause == float("inf") else max(0.0, pause))]
        now = time.monotonic()
        to_switch.deliver(now)
        to_host.deliver(now)
        if port.fileno() in ready:
            _read_port(port, to_switch, now)
        if tap in ready:
            _read_tap(tap, to_host, now)


def _read_port(port: socket.socket, onward: Direction, now: float) -> None:
    for _ in range(_BATCH):
        try:
            frame, sender = port.recvfrom(_MAX_FRAME)
        except BlockingIOError:
            return
        if sender[2] != socket.PACKET_OUTGOING:  # a frame that this line sent itself
            onward.take(frame, now)


def _read_tap(tap: int, onward: Direction, now: float) -> None:
    for _ in range(_BATCH):
        try:
            onward.take(os.read(tap, _MAX_FRAME), now)
        except BlockingIOError:
            return


if __name__ == "__main__":
    tap = open_tap(sys.argv[2])
    print("ready", flush=True)
    relay(open_port(sys.argv[1]), tap, float(sys.argv[3]))
