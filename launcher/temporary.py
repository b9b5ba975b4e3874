"""Folders that are removed when a command ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import LaunchError

__all__ = ["require_temporary_files", "temporary_folder"]


def require_temporary_files(instead: str = "") -> None:
    """Raises LaunchError if no temporary file can be created, for example in a read-only container.

    `instead`: another remedy, for the message.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        raise LaunchError(
            "no folder for temporary files can be written: name one in TMPDIR" + instead
        ) from None


@contextmanager
def temporary_folder(prefix: str, instead: str) -> Iterator[Path]:
    """A new folder, removed afterwards. Raises LaunchError like require_temporary_files()."""
    require_temporary_files(instead)
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        yield Path(folder)
