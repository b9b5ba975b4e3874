"""The launcher's piped input for rank 0: one piece at a time, the next once the previous one was read."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import IO

PIECE = 1 << 16


class RankInput:
    """On rank 0's host: writes the pieces to the rank's standard input."""

    def __init__(self, pipe: IO[bytes], on_taken: Callable[[], None]) -> None:
        self._pipe: IO[bytes] | None = pipe
        self._on_taken = on_taken
        self._rest = b""
        os.set_blocking(pipe.fileno(), False)

    def give(self, piece: bytes) -> None:
        """Writes a piece in the background. An empty piece is the end."""
        if self._pipe is None:
            return
        if not piece:
            self._close()
            return
        self._rest = piece
        asyncio.get_running_loop().add_writer(self._pipe.fileno(), self._write)

    def _write(self) -> None:
        assert self._pipe is not None
        try:
            self._rest = self._rest[os.write(self._pipe.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except OSError:  # the rank does not read any more
            self._close()
            return
        if not self._rest:
            asyncio.get_running_loop().remove_writer(self._pipe.fileno())
            self._on_taken()

    def _close(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_writer(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None


class PipedInput:
    """In the launcher: reads standard input in a thread, as asyncio cannot wait for reads from files."""

    def __init__(self, on_piece: Callable[[bytes], None]) -> None:
        """`on_piece` is called in the loop's thread. An empty piece is the end."""
        self._on_piece = on_piece
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def more(self) -> None:
        """The last piece has been read."""
        self._wanted.release()

    def _run(self) -> None:
        piece = b"."
        while piece:
            self._wanted.acquire()
            try:
                piece = os.read(0, PIECE)
            except OSError:
                piece = b""
            try:
                self._loop.call_soon_threadsafe(self._on_piece, piece)
            except RuntimeError:  # the job has ended
                return
