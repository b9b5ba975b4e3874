"""Writes to file descriptors so that nothing is lost silently."""

from __future__ import annotations

import errno
import os
import select
import sys

# What the launcher exits with where the ranks did well, but not all of their output was written:
# EX_IOERR of sysexits.h.
OUTPUT_LOST = 74


class Sink:
    """A descriptor that takes everything, however slowly, or remembers why it did not.

    Waits for a non-blocking descriptor. Writing goes on after an error, so that a full disk that is
    made room on takes what comes then.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        """`name`: as people know it, e.g. "standard output"."""
        self.descriptor = descriptor
        self.name = name
        self.error: OSError | None = None  # the first that lost something
        self.nobody_reads = False  # a pipe whose other end is closed

    def write(self, data: bytes) -> bool:
        """Writes all of `data`; returns whether the first error occurred in it."""
        rest = memoryview(data)
        try:
            while rest and not self.nobody_reads:
                rest = rest[self._write_some(rest) :]
        except BrokenPipeError:
            self.nobody_reads = True
        except OSError as error:
            is_first = self.error is None
            self.error = self.error or error
            return is_first
        return False

    def explain(self) -> str:
        """E.g. "cannot write to standard output: No space left on device"."""
        reason = self.error.strerror if self.error is not None else os.strerror(errno.EPIPE)
        return f"cannot write to {self.name}: {reason}"

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLOUT)
            poll.poll()
            return 0


standard_output = Sink(1, "standard output")
standard_error = Sink(2, "standard error")


def is_unread() -> bool:
    """Whether nobody reads what this process says any more."""
    return standard_output.nobody_reads or standard_error.nobody_reads


def say(text: str) -> None:
    """A line of the launcher's own on standard error."""
    line = f"rueda: {text}\n"
    if sys.stderr is sys.__stderr__:
        standard_error.write(line.encode(errors="backslashreplace"))
    else:  # somebody collects it
        sys.stderr.write(line)


def open_missing_streams() -> None:
    """Gives standard streams that were closed (`>&-`) /dev/null, so that no other file gets their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
