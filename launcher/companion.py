"""Runs `rueda run` as part of other commands. It ends when they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from .processes import become_killable, children

__all__ = ["INTERRUPTED", "run_to_end", "signals_as_exits", "start"]

INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_as_exits() -> Iterator[None]:
    """Within this context, signals that end this process raise SystemExit, so that it can clean up."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in _ENDING
        if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts `rueda run ARGUMENTS`. `options`: those of Popen.

    It ends its ranks when it is ended itself, which also happens when this process is killed.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "rueda.launcher", "run", *arguments],
        preexec_fn=partial(become_killable, os.getpid(), signal.SIGTERM),
        **options,
    )


def run_to_end(arguments: Sequence[str], **options: Any) -> int:
    """Runs `rueda run ARGUMENTS` and returns its exit code. `options`: those of Popen.

    Ctrl-C interrupts the run, and 130 is returned once it has ended. A second one raises KeyboardInterrupt.
    """
    with signals_as_exits():
        process = start(arguments, **options)
        try:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # SIGINT also for its ranks; but while it only begins, Python would print a traceback.
                has_begun = bool(children(process.pid))
                process.send_signal(signal.SIGINT if has_begun else signal.SIGTERM)
                process.wait()
                return INTERRUPTED
        except BaseException:
            process.terminate()
            process.wait()
            raise
