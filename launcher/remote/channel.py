"""The connection to the launcher, seen from the process on a host: its own standard streams."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Any

from ..errors import LaunchError
from ..sink import Sink
from ..version import installed_version
from .address import machine_identity, ssh_connection
from .frames import Frame, FrameReader, Kind, NotOurs, hello, pack_json
from .frames import pack as pack_frame

# Seconds that the launcher may need until all other hosts are ready as well.
_START_WITHIN = 600.0


class LauncherIsGone(Exception):
    """The launcher is gone, so the ranks are not needed any more."""


class Channel:
    """Sends frames to the launcher, and receives frames from it."""

    def __init__(self, descriptor: int, peer: str, timeout: float) -> None:
        """`descriptor`: for both directions. `timeout`: for expect(), in seconds."""
        self.input = descriptor
        self.output = Sink(descriptor, peer)
        self._peer = peer
        self._timeout = timeout
        self._reader = FrameReader()
        self._waiting: list[Frame] = []

    @classmethod
    def of_standard_streams(cls) -> Channel:
        """Takes over standard input and output, so that nothing else in this process uses them."""
        channel = cls(os.dup(0), "the launcher", _START_WITHIN)
        channel.output = Sink(os.dup(1), "the launcher")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)  # for text printed by mistake
        os.close(nothing)
        return channel

    def greet(self) -> None:
        """Sends hello()."""
        client, server = ssh_connection()
        facts = {
            "version": installed_version(),
            "host": socket.gethostname(),
            "machine": machine_identity(),
            "launcher_address": client,
            "own_address": server,
        }
        self.output.write(hello(facts))

    def say(self, kind: Kind, value: dict[str, Any] | str) -> None:
        """Sends a frame immediately. For use before the writer thread exists."""
        if isinstance(value, str):
            self.output.write(pack_frame(kind, value.encode()))
        else:
            self.output.write(pack_json(kind, value))

    def expect(self, kind: Kind) -> Frame:
        """Waits for one kind of frame. Raises LauncherIsGone, LaunchError."""
        deadline = time.monotonic() + self._timeout
        while True:
            while self._waiting:
                frame = self._waiting.pop(0)
                if frame.kind == kind:
                    return frame
                self._look(frame)
            readable, _, _ = select.select([self.input], [], [], deadline - time.monotonic())
            if not readable:
                raise LaunchError(
                    f"{self._peer} did not send the next message within {self._timeout:g} s"
                )
            self._waiting = self.read()

    def _look(self, frame: Frame) -> None:
        """Handles a frame that was not expected."""
        if frame.kind == Kind.SIGNAL:
            raise LauncherIsGone

    def read(self) -> list[Frame]:
        """Reads the frames that have arrived. Raises LauncherIsGone at the end."""
        frames, self._waiting = self._waiting, []
        try:
            chunk = os.read(self.input, 1 << 16)
            if not chunk:
                raise LauncherIsGone
            return frames + self._reader.feed(chunk)
        except (OSError, NotOurs) as error:
            raise LauncherIsGone from error
