"""Where the ranks' output goes: to the terminal with a prefix, and to one file per rank."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO, Literal

from .errors import LaunchError
from .failure import FailureWatch
from .lines import LineAssembler

Stream = Literal["stdout", "stderr"]


def open_rank_files(directory: Path | None, ranks: int) -> list[BinaryIO]:
    """Opens `directory/rank.N` for every rank, N padded with zeros to list in order."""
    if directory is None:
        return []
    width = len(str(ranks - 1))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return [(directory / f"rank.{r:0{width}}").open("wb", buffering=0) for r in range(ranks)]
    except OSError as error:
        raise LaunchError(
            f"--output-filename: cannot write to '{error.filename}': {error.strerror}"
        ) from error


class RankOutput:
    """Takes what ranks write: prefixes whole lines, copies to files, shows the failure watch."""

    def __init__(self, ranks: int, directory: Path | None, prefix: bool) -> None:
        self._files = open_rank_files(directory, ranks)
        self._prefix = prefix
        self._assemblers: dict[tuple[int, Stream], LineAssembler] = {}
        self.watch = FailureWatch()

    def write(self, rank: int, stream: Stream, chunk: bytes) -> None:
        """Takes a piece of a rank's output."""
        if self._files:
            self._files[rank].write(chunk)
        assembler = self._assemblers.setdefault((rank, stream), LineAssembler())
        self._show(rank, stream, assembler.feed(chunk))

    def finish(self) -> None:
        """Shows unfinished lines and closes the files."""
        for (rank, stream), assembler in self._assemblers.items():
            self._show(rank, stream, assembler.finish())
        for file in self._files:
            file.close()

    def _show(self, rank: int, stream: Stream, lines: list[bytes]) -> None:
        if not lines:
            return
        if stream == "stderr":
            for line in lines:
                self.watch.see(rank, line.decode(errors="replace").rstrip("\r\n"))
        prefix = f"[{rank}]<{stream}>: ".encode() if self._prefix else b""
        write_terminal(stream, b"".join(prefix + line for line in lines))


def write_terminal(stream: Stream, text: bytes) -> None:
    """Writes to the launcher's own standard output or error.

    Where nobody reads any more (`rueda run … | head`), the job is asked to end.
    """
    target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    try:
        target.write(text)
        target.flush()
    except BrokenPipeError:
        # Python flushes once more at exit; let that go nowhere instead of failing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), target.fileno())
        os.kill(os.getpid(), signal.SIGTERM)
