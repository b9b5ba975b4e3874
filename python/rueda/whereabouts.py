"""Tells the engine which line the application is executing, for ranks that wait for this one.

A thread sleeps until the engine asks, which it does when another rank has waited for too long. The thread sees the
stacks of all threads as soon as it gets the GIL, so it also answers while the application sleeps, waits for data or
computes without the GIL. If it cannot get the GIL, the engine says that instead: Python's memory is never read without
the GIL.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import sysconfig
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from rueda import _native

__all__ = ["describe_origin", "describe_place", "start_telling"]

_log = logging.getLogger("rueda")

# What the engine says after "rank 2 is" if this thread does not answer.
_EXCUSE = "in code that has not let go of Python's GIL"

# What a thread's own instructions cause. Blocked, these would end the process without a call of their handlers, such as
# faulthandler's.
_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
}

# The process whose engine gets the answers, and its thread that entered the world.
_process: int | None = None
_worker: threading.Thread | None = None


def start_telling(worker: threading.Thread | None = None) -> None:
    """From now on the engine can ask where ``worker`` is; by default the calling thread."""
    global _process, _worker
    _worker = worker or threading.current_thread()
    if _process == os.getpid():
        return
    try:
        event = _start_thread()
    except (OSError, RuntimeError) as error:  # at a limit; the world itself needs no such thread
        _log.warning(
            "if other ranks wait for this one, they will not be told which line of Python it is at: %s; raise the "
            "limits on open files (ulimit -n), processes (ulimit -u, or the container's pids limit) and virtual memory "
            "(ulimit -v)",
            error,
        )
        return
    _native.guide_whereabouts(event, _EXCUSE)
    _process = os.getpid()


def _start_thread() -> int:
    """Starts the thread that answers, and returns the event through which it is asked."""
    event = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        threading.Thread(
            target=_tell_whenever_asked, args=(event,), name="rueda-where", daemon=True
        ).start()
    except BaseException:
        os.close(event)
        raise
    return event


def _tell_whenever_asked(event: int) -> None:
    # Signals of the application are for its own threads. A handler in Python would run in the main thread in any case.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    while True:
        os.read(event, 8)  # again after a signal, unlike os.eventfd_read()
        question = _native.newest_whereabouts_question()
        try:
            text = _place_of_the_worker()
        except Exception as error:  # such as a source file without a name: answer anyway
            text = f"at a line that cannot be told ({type(error).__name__})"
        _native.answer_whereabouts(question, text)


def _place_of_the_worker() -> str:
    main = threading.main_thread()
    worker = _worker if _worker is not None and _worker.is_alive() else main
    frames = sys._current_frames()
    frame = frames.get(worker.ident or 0)
    if frame is None:
        return "about to end: its thread runs no Python any more"
    name = "" if worker is main else f" in thread {worker.name!r}"
    return describe_place(frame) + name


def describe_place(frame: FrameType) -> str:
    """Where a thread is, to be read after "rank 2 is"; ``frame``: the innermost of its stack.

    Names the two innermost lines of the application. If other libraries run between these and the current function,
    also names the first and the last of their functions.

    Example::

        >>> import sys
        >>> describe_place(sys._getframe()).startswith("at ")
        True
    """
    return _describe(list(traceback.walk_stack(frame)), 2)


def describe_origin(raised: TracebackType | None) -> str:
    """Where an exception comes from, in one line: like :func:`describe_place`, with more lines of the application.

    Example::

        >>> try:
        ...     1 / 0
        ... except ZeroDivisionError as error:
        ...     describe_origin(error.__traceback__).startswith("at ")
        True
    """
    lines = list(traceback.walk_tb(raised))
    return _describe(lines[::-1], 6) if lines else ""


def _describe(stack: list[tuple[FrameType, int]], most: int) -> str:
    """``stack``: innermost frame first, with line numbers; ``most``: how many lines of the application to name."""
    own = [i for i, (frame, _) in enumerate(stack) if _is_of_application(frame)]
    if not own:
        return "at " + _line_of(*stack[0])
    within = stack[: own[0]]
    text = "at " + _line_of(*stack[own[0]])
    if within:
        lines = dict.fromkeys([_line_of(*within[-1]), _line_of(*within[0])])
        text += f" (in {', then '.join(lines)})"
    for i in own[1:most]:
        text += f", called from {_line_of(*stack[i])}"
    return text


def _is_of_application(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<frozen"):
        return False
    parts = Path(file).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    libraries = (sysconfig.get_path("stdlib"), str(Path(__file__).parent))
    return not any(Path(file).is_relative_to(library) for library in libraries)


def _line_of(frame: FrameType, number: int) -> str:
    return f"{_short(frame.f_code.co_filename)}:{number} in {frame.f_code.co_name}"


def _short(file: str) -> str:
    """Relative to the working directory or the module search path if possible; otherwise the whole path."""
    path = Path(file)
    roots = [os.getcwd(), *sys.path, sysconfig.get_path("stdlib")]
    below = [path.relative_to(root) for root in roots if root and path.is_relative_to(root)]
    return str(min(below, key=lambda name: len(name.parts), default=path))
