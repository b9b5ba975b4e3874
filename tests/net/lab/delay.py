"""A line that takes its time: hands frames on between two interfaces, each after the same delay.

python delay.py PORT TAP SECONDS, in the switch's namespace: PORT is where the host's link ends, TAP what stands for
it at the switch. This kernel has no netem. Good for some 100 Mbit/s; hosts must have their offloads turned off,
since a frame of 64 KiB or without a checksum cannot be handed on.
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
# Taken at once before looking at the clock again.
_BATCH = 64
# What is on its way in one direction, as the buffer of a router would be: more is dropped.
_MAX_WAITING = 20_000

Send = Callable[[bytes], object]


class Direction:
    """Frames on their way to one side."""

    def __init__(self, send: Send, delay: float) -> None:
        self._send = send
        self._delay = delay
        self._waiting: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float:
        """When the next one must go."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def take(self, frame: bytes, now: float) -> None:
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append((now + self._delay, frame))

    def deliver(self, now: float) -> None:
        """Sends all that are due."""
        while self.due <= now:
            frame = self._waiting.popleft()[1]
            try:
                self._send(frame)
            except OSError:  # full, or down: lost
                continue


def open_tap(name: str) -> int:
    """Attaches to a TAP interface, made if it is not there."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return descriptor


def open_port(name: str) -> socket.socket:
    """Hears and sends the frames of an interface."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    port.bind((name, 0))
    port.setblocking(False)
    return port


def relay(port: socket.socket, tap: int, delay: float) -> None:
    """Hands frames on both ways for ever."""
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
        if sender[2] != socket.PACKET_OUTGOING:  # what this line has sent itself
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
