"""What a training tells `rueda report`, where that cannot find it by itself.

A training with torch needs nothing of this: steps are those of its optimizer, input is what its ``DataLoader`` makes
it wait for. Where there is neither, say so; outside of a recording both functions do nothing::

    for _ in range(1000):
        with rueda.report.input():
            batch = read()
        gradient = rueda.allreduce(gradient_of(batch))
        rueda.report.step()

docs/report.md tells what is recorded and what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rueda.report.recorder import now, recorder
from rueda.report.recording_format import Kind

__all__ = ["input", "is_active", "step"]


def is_active() -> bool:
    """Whether this run is recorded.

    Example::

        >>> rueda.report.is_active()
        False
    """
    return recorder() is not None


def step() -> None:
    """Ends a step. Where it is called, optimizers are not asked for steps any more: call it once in each.

    Example::

        >>> rueda.report.step()
    """
    recording = recorder()
    if recording is not None:
        at = now()
        recording.add(Kind.MARK, at, at)


@contextmanager
def input() -> Iterator[None]:
    """What runs within is input wait, not compute.

    Example::

        >>> with rueda.report.input():
        ...     batch = list(range(3))
    """
    recording = recorder()
    began = now()
    try:
        yield
    finally:
        if recording is not None:
            recording.add(Kind.INPUT, began, now())
