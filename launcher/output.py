"""The ranks' output: shown on the terminal with a prefix, and copied to one file per rank."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Literal

from .errors import LaunchError
from .failure import FailureWatch
from .interleaving import Interleaving
from .lines import LineAssembler
from .sink import OUTPUT_LOST, Sink, say, standard_error, standard_output
from .writer import Writer

Stream = Literal["stdout", "stderr"]


def open_rank_files(directory: Path | None, ranks: int, here: range) -> dict[int, Sink]:
    """Opens `directory/rank.N` for every rank in `here`. N is zero-padded so that files list in order."""
    if directory is None:
        return {}
    width = len(str(ranks - 1))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return {rank: _open_rank_file(directory / f"rank.{rank:0{width}}") for rank in here}
    except OSError as error:
        raise LaunchError(
            f"--output-filename: cannot write to '{error.filename}': {error.strerror}"
        ) from error


def _open_rank_file(path: Path) -> Sink:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        # Non-blocking, so that opening a named pipe does not wait for a reader.
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(error.errno, "it is a pipe that nobody reads", str(path)) from error
    os.set_blocking(descriptor, True)
    return Sink(descriptor, f"'{path}'")


class RankOutput:
    """Handles the ranks' output: prefixes whole lines, copies them to files, passes them to the failure watch.

    A write error is reported once for the files and once per standard stream, and the job goes on.
    `loss` is then the sentence to print at the end. `writer` does all writing; when it is done,
    everything is written and all errors are known.
    """

    def __init__(
        self, ranks: int, directory: Path | None, prefix: bool, here: range | None = None
    ) -> None:
        """`ranks`: of the job. `here`: ranks whose files are written here; all by default."""
        self._directory = directory
        self._files = open_rank_files(directory, ranks, range(ranks) if here is None else here)
        self._prefix = prefix
        self._assemblers: dict[tuple[int, Stream], LineAssembler] = {}
        self._shown: dict[Stream, Interleaving] = {
            "stdout": Interleaving(),
            "stderr": Interleaving(),
        }
        self._files_are_reported = False
        self.loss = ""
        self.writer = Writer()
        self.watch = FailureWatch()

    def write(self, rank: int, stream: Stream, chunk: bytes) -> None:
        """Handles a piece of a rank's output."""
        if self._directory is not None:
            if rank not in self._files:
                self._open_file_of(rank, self._directory)
            self.writer.put(len(chunk), lambda: self._write_file(self._files[rank], chunk))
        assembler = self._assemblers.setdefault((rank, stream), LineAssembler())
        self._show(rank, stream, assembler.feed(chunk))

    def show(self, stream: Stream, text: bytes) -> None:
        """Writes to the launcher's own standard output or error."""
        self._put(stream, self._shown[stream].end_line() + text)

    def say(self, text: str) -> None:
        """Prints a line of the launcher's own while the job runs, without waiting for a reader."""
        self._end_line("stderr")
        self.writer.put(len(text), lambda: say(text))

    def finish(self) -> None:
        """Shows unfinished lines and closes the files."""
        for (rank, stream), assembler in self._assemblers.items():
            self._show(rank, stream, assembler.finish())
        if self._prefix:  # otherwise the ranks' bytes are passed on as they are
            self._end_line("stderr")  # the launcher may say something yet
        self.writer.put(0, self._close_files)

    def _open_file_of(self, rank: int, directory: Path) -> None:
        """Opens the file of a process that joined later."""
        path = directory / f"rank.{rank}"
        try:
            self._files[rank] = _open_rank_file(path)
        except OSError as error:
            lost = Sink(os.open(os.devnull, os.O_WRONLY), f"'{path}'")
            lost.error = error
            self._files[rank] = lost
            self.writer.put(0, lambda: self._report_file(lost))

    def _put(self, stream: Stream, text: bytes) -> None:
        sink = standard_output if stream == "stdout" else standard_error
        self.writer.put(len(text), lambda: self._write_stream(sink, text))

    def _end_line(self, stream: Stream) -> None:
        if end := self._shown[stream].end_line():
            self._put(stream, end)

    def _write_stream(self, sink: Sink, text: bytes) -> None:
        if sink.write(text):
            self._report(sink)

    def _write_file(self, file: Sink, chunk: bytes) -> None:
        if file.write(chunk):
            self._report_file(file)

    def _close_files(self) -> None:
        for file in self._files.values():
            try:
                os.close(file.descriptor)
            except OSError as error:  # network file systems may report a full disk only now
                file.error = file.error or error
                self._report_file(file)

    def _report_file(self, file: Sink) -> None:
        if not self._files_are_reported:
            self._files_are_reported = True
            self._report(file)

    def _report(self, sink: Sink) -> None:
        self.loss = self.loss or sink.explain()
        say(f"{sink.explain()}; the job goes on, but its output there is incomplete")

    def _show(self, rank: int, stream: Stream, lines: list[bytes]) -> None:
        if not lines:
            return
        if stream == "stderr":
            for line in lines:
                self.watch.see(rank, line.decode(errors="replace").rstrip("\r\n"))
        prefix = f"[{rank}]<{stream}>: ".encode() if self._prefix else b""
        self._put(stream, self._shown[stream].add(rank, prefix, lines))


def ended_well(output: RankOutput) -> tuple[int, str]:
    """Exit code and last line for a job whose ranks have all exited with 0."""
    if not output.loss:
        return 0, ""
    return OUTPUT_LOST, f"all ranks exited with 0, but output was lost: {output.loss}"


def ended_by(number: signal.Signals, is_abandoned: bool = False) -> tuple[int, str]:
    """Exit code and last line for a job that ended because of a signal to the launcher.

    `is_abandoned`: nobody has sent it, but the launcher's first process was killed.
    """
    if number == signal.SIGPIPE:  # nobody would read a message
        return 128 + number, ""
    if is_abandoned:
        return 128 + number, "the launcher was killed; all ranks are gone"
    return 128 + number, f"ended by {number.name}; all ranks are gone"
