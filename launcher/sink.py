"""Writes to file descriptors without losing anything silently."""

from __future__ import annotations

import errno
import os
import select
import sys

# The launcher's exit code if the ranks succeeded, but not all of their output could be written:
# EX_IOERR of sysexits.h.
OUTPUT_LOST = 74


class Sink:
    """Writes everything to a descriptor, however slow it is, or remembers the error.

    Waits if the descriptor is non-blocking. Keeps writing after an error, so that later output is
    written once a full disk has space again.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        """`name`: for messages, such as "standard output"."""
        self.descriptor = descriptor
        self.name = name
        self.error: OSError | None = None  # the first error that lost output
        self.nobody_reads = False  # it is a pipe whose other end is closed

    def write(self, data: bytes) -> bool:
        """Writes all of `data`. Returns whether the sink's first error occurred in this call."""
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
        """For example "cannot write to standard output: No space left on device"."""
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
    """Whether nobody reads this process's standard output or error any more."""
    return standard_output.nobody_reads or standard_error.nobody_reads


def unread_streams() -> list[int]:
    """The descriptors of standard output and error that are pipes, or sockets, whose other end is closed."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return [found for found, events in poll.poll(0) if events & (select.POLLERR | select.POLLHUP)]


def discard(descriptor: int) -> None:
    """From now on writes to it are lost. After an error, so that what Python flushes at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def say(text: str) -> None:
    """Prints a line of the launcher's own on standard error."""
    line = f"rueda: {text}\n"
    if sys.stderr is sys.__stderr__:
        standard_error.write(line.encode(errors="backslashreplace"))
    else:  # sys.stderr was replaced
        sys.stderr.write(line)


def open_missing_streams() -> None:
    """Opens /dev/null for standard streams that were closed (`>&-`), so that no other file gets their numbers.

    Processes that inherit the streams get it as well. So do sys.stdin, sys.stdout and sys.stderr, which are None then.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8", errors="replace")  # noqa: SIM115
            setattr(sys, name, stream)
