"""Folders that go when a command ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import LaunchError

__all__ = ["require_temporary_files", "temporary_folder"]


def require_temporary_files(instead: str = "") -> None:
    """Raises LaunchError where there is no room for any, as where all of a container is read-only.

    `instead`: what else to do about it.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        raise LaunchError(
            "no folder for temporary files can be written: name one in TMPDIR" + instead
        ) from None


@contextmanager
def temporary_folder(prefix: str, instead: str) -> Iterator[Path]:
    """A new one. Raises LaunchError as require_temporary_files() does."""
    require_temporary_files(instead)
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        yield Path(folder)
