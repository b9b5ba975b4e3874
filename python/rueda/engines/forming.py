"""What a rank that an engine has placed does beside when it forms its world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["Forming", "plainly"]

Forming = Callable[[], AbstractContextManager[dict[str, str]]]
"""Called on a rank, which forms its world within it, with the options that it gives."""


@contextmanager
def plainly() -> Iterator[dict[str, str]]:
    """Nothing."""
    yield {}
