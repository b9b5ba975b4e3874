"""Files in which commands leave their results."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from .errors import LaunchError

__all__ = ["replace_file", "require_file", "write_file"]


def require_file(option: str, path: Path | None) -> None:
    """Call before anything runs. Raises LaunchError if the path is a folder, or no such file can be created."""
    if path is None:
        return
    if os.path.isdir(path):
        raise LaunchError(f"{option} {path}: that is a folder")
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        raise LaunchError(f"{option} {path}: there is no folder '{folder}'")
    if os.path.lexists(path):
        return  # not opened to try, as it may be a pipe
    try:
        # Mere permissions are not enough: in /proc not even root creates files.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        path.unlink()
    except OSError as error:
        raise LaunchError(f"{option} {path}: it cannot be created: {error.strerror}") from error


def write_file(path: Path, text: str) -> None:
    """Writes a file, which may be a pipe or a terminal. Raises LaunchError; then no new file is left."""
    is_new = not os.path.lexists(path)
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        if is_new:
            with contextlib.suppress(OSError):
                path.unlink()
        raise LaunchError(f"cannot write '{path}': {error.strerror}") from error


def replace_file(path: Path, text: str) -> None:
    """Replaces a file atomically: after an error it is unchanged. Raises LaunchError."""
    path = path.resolve()  # so that a link stays a link
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise LaunchError(f"cannot write '{path}': {error.strerror}") from error
