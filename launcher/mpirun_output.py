"""Parses mpirun's output: which rank wrote what, and mpirun's own notices about failed ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .failure import Failure, FailureWatch
from .lines import LineAssembler
from .mpirun_ends import StatusLines
from .output import RankOutput, Stream

_RULE = re.compile(r"\s*-{60,}\s*")
_EXIT_CODE = re.compile(r"Process name: \[[^\s]*,(\d+)\] Exit code: (\d+)")
_PROCESS = r"process rank (\d+) with PID \d+ on node (\S+) "
_SIGNAL = re.compile(_PROCESS + r"exited on signal (\d+)")
_ABORT = re.compile(_PROCESS + r'calling "abort"')
_IMPROPER = re.compile(_PROCESS + r"exiting improperly")
# mpirun's answer to a second signal, which the launcher sends if mpirun takes longer than `--grace` to end its ranks.
_GRACE_TIMEOUT_NOTICE = re.compile(
    r"Abort is in progress\.\.\.hit ctrl-c again to forcibly terminate\s*"
)
_UNFINALISED = "exited without finalising MPI"
_SUPERFLUOUS = re.compile(r"Primary job\s+terminated normally, but \d+ process")


def parse_notice(text: str) -> Failure | None:
    """The failure that a notice from mpirun (Open MPI 4 or 5) reports, or None."""
    text = " ".join(text.split())
    if match := _EXIT_CODE.search(text):
        return Failure(int(match[1]), int(match[2]))
    if match := _SIGNAL.search(text):
        return Failure(int(match[1]), -int(match[3]), match[2])
    if match := _ABORT.search(text):
        return Failure(int(match[1]), 1, match[2], "called MPI_Abort")
    if match := _IMPROPER.search(text):
        return Failure(int(match[1]), 1, match[2], _UNFINALISED)
    return None


def first_failure(failures: Sequence[Failure], watch: FailureWatch, code: int) -> Failure:
    """The first cause among the failures that mpirun reports, in its order. `code`: mpirun's exit code.

    A rank that noticed another's end may be the first to exit, and a rank that handles the loss of another exits
    without finalizing MPI. A notice about that is the cause only if no other cause is reported. Of a rank that mpirun
    does not name, Open MPI's report of the signal that killed it may tell.
    """
    first = next((failure for failure in failures if failure.manner != _UNFINALISED), failures[0])
    is_unfinalised = first.manner == _UNFINALISED
    if watch.is_consequence(first.rank) or is_unfinalised:
        culprit = _culprit(first, watch)
        if culprit is not None:
            told = watch.told_status(culprit)
            if told is None and not is_unfinalised:
                return replace(first, rank=culprit)
            return replace(first, rank=culprit, status=code if told is None else told, manner="")
    return replace(first, status=code) if first.manner else first


def _culprit(first: Failure, watch: FailureWatch) -> int | None:
    """The rank that failed before the one that mpirun names, by what ranks have printed. None: not known."""
    blamed = watch.blamed_by(first.rank)
    raised = watch.raised_on_its_own() if blamed is None else blamed
    is_silent = raised is None and first.manner == _UNFINALISED
    return watch.killed_on_its_own() if is_silent else raised


class Notices:
    """mpirun's own lines, collected into the blocks between two lines of dashes."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self._block: list[str] | None = None
        self._drops_blank = False

    def see(self, line: str) -> str:
        """Takes one line. Returns the text to show: "" if the launcher's own message is better."""
        if not _RULE.fullmatch(line):
            if self._block is None:
                return self._show(line)
            self._block.append(line)
            return ""
        if self._block is None:
            self._block = [line]
            return ""
        return self._close(self._block + [line])

    def finish(self) -> str:
        """Returns the rest of an unfinished block."""
        return self._close(self._block) if self._block is not None else ""

    def _show(self, line: str) -> str:
        was_impatience = self._drops_blank
        self._drops_blank = _GRACE_TIMEOUT_NOTICE.fullmatch(line) is not None
        is_its_end = was_impatience and not line.strip()
        return "" if self._drops_blank or is_its_end else line

    def _close(self, block: list[str]) -> str:
        self._block = None
        text = "".join(block)
        failure = parse_notice(text)
        if failure is not None:
            self.failures.append(failure)
        return "" if failure is not None or _SUPERFLUOUS.search(text) else text


class Demultiplexer:
    """Separates the ranks' output in one of mpirun's two streams, with tagged output.

    Every line starts with a tag `[job,rank]<stream>:`. Open MPI 4 repeats it within a line that was
    written in pieces. Lines without a tag are mpirun's own.
    """

    def __init__(self, ranks: int, separator: bytes) -> None:
        self._ranks = ranks
        self._tag = re.compile(rb"\[1,(\d+)\]<(stdout|stderr)>:" + re.escape(separator))
        self._assembler = LineAssembler(1 << 20)
        self._source: tuple[int, Stream] | None = None

    def feed(self, chunk: bytes) -> Iterator[tuple[tuple[int, Stream] | None, bytes]]:
        """Yields pairs: (rank, stream), or None for mpirun itself; text."""
        for line in self._assembler.feed(chunk):
            yield from self._split(line)

    def finish(self) -> Iterator[tuple[tuple[int, Stream] | None, bytes]]:
        """Yields the rest after the end of the stream."""
        for line in self._assembler.finish():
            yield from self._split(line)

    def _split(self, line: bytes) -> Iterator[tuple[tuple[int, Stream] | None, bytes]]:
        start = 0
        for tag in self._tag.finditer(line):
            rank = int(tag[1])
            if rank >= self._ranks:  # text that only looks like a tag
                continue
            if tag.start() > start:
                yield self._source, line[start : tag.start()]
            self._source = (rank, "stdout" if tag[2] == b"stdout" else "stderr")
            start = tag.end()
        if start < len(line):
            yield self._source, line[start:]
        if line.endswith(b"\n"):  # after a lone carriage return the same rank continues untagged
            self._source = None


class MpirunOutput:
    """Handles mpirun's two streams. Passes the ranks' output to `output`, and returns mpirun's own lines."""

    def __init__(
        self,
        output: RankOutput,
        ranks: int,
        separator: bytes,
        on_status: Callable[[int, int], None] | None = None,
    ) -> None:
        """`on_status`: called with each rank that has ended and its status, if ranks report it; see reporting()."""
        self._output = output
        self._on_status = on_status
        self._status_lines = StatusLines()
        self._streams = {s: Demultiplexer(ranks, separator) for s in ("stdout", "stderr")}
        self._notices = {s: Notices() for s in ("stdout", "stderr")}
        self.ranks_have_written = False

    def write(self, stream: Stream, chunk: bytes) -> list[tuple[Stream, str]]:
        """Takes a chunk. Returns the part of mpirun's own text to show."""
        return self._sort(stream, self._streams[stream].feed(chunk))

    def finish(self) -> list[tuple[Stream, str]]:
        """Returns the rest after both streams have ended."""
        own: list[tuple[Stream, str]] = []
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        for stream in streams:
            own += self._sort(stream, self._streams[stream].finish())
            own.append((stream, self._notices[stream].finish()))
        for rank, text in self._status_lines.finish():
            self._output.write(rank, "stderr", text)
        return [(stream, text) for stream, text in own if text]

    @property
    def failures(self) -> list[Failure]:
        """The failed ranks that mpirun has reported, the first one first."""
        return self._notices["stderr"].failures + self._notices["stdout"].failures

    def _sort(
        self, stream: Stream, pieces: Iterator[tuple[tuple[int, Stream] | None, bytes]]
    ) -> list[tuple[Stream, str]]:
        own: list[tuple[Stream, str]] = []
        for source, text in pieces:
            if source is not None:
                self._write(*source, text)
            elif shown := self._notices[stream].see(text.decode(errors="replace")):
                own.append((stream, shown))
        return own

    def _write(self, rank: int, stream: Stream, text: bytes) -> None:
        """Passes on what a rank has printed, without the line about its exit status."""
        self.ranks_have_written = True
        status = None
        if stream == "stderr" and self._on_status is not None:
            text, status = self._status_lines.take(rank, text)
        if text:
            self._output.write(rank, stream, text)
        if status is not None and self._on_status is not None:
            self._on_status(rank, status)
