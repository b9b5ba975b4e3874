"""Tells the launcher, while this process waits to join, that it still runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from rueda.attendance import Attendance
from rueda.errors import InitializationError

__all__ = ["still_waiting"]

# Between two messages; seconds. After three seconds without one, the launcher tells the ranks not to wait.
_PAUSE = 0.5


@contextlib.contextmanager
def still_waiting(here: Attendance) -> Iterator[None]:
    """Within it, a thread tells the launcher twice a second that this process waits.

    Ranks would otherwise wait for a process that is stopped, or whose host is, until they give up all that wait.

    Raises :class:`rueda.InitializationError` if the thread cannot be started.
    """
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(_PAUSE):
            session = here.session
            if session is not None and session.has_room():
                session.send(waits=here.number)

    thread = threading.Thread(target=tell, name="rueda-waiting", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the system refuses: no memory, or too many threads
        raise InitializationError(
            f"a process that waits to join a job needs a thread, which cannot be started: {error}"
        ) from error
    try:
        yield
    finally:
        is_over.set()
        thread.join()
