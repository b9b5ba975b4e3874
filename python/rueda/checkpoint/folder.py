"""Folders of checkpoints: which are complete, how one becomes so, and which may be removed.

A checkpoint is written into a folder whose name begins with a dot, and becomes complete by being renamed to
``NUMBER-step-STEP``. Numbers count up, so the newest has the highest, whatever its step. Removal also begins with a
rename. So a folder with such a name is complete, whenever a process was killed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rueda.errors import InvalidArgumentError

__all__ = [
    "Checkpoint",
    "absolute",
    "available",
    "itself",
    "latest",
    "make",
    "publish",
    "remove",
    "remove_leftovers",
    "retain",
    "sync",
    "temporary",
]

_COMPLETE = re.compile(r"(\d{6,})-step-(\d+)", re.ASCII)
_WRITING, _REMOVING = ".writing-", ".removing-"
_log = logging.getLogger("rueda")
_warned_of: set[Path] = set()  # folders with something that cannot be removed


def absolute(folder: str | os.PathLike[str]) -> Path:
    """A folder as the application names it. Raises InvalidArgumentError for an empty name, as of an unset variable."""
    if not os.fspath(folder):
        raise InvalidArgumentError("the folder's name is empty: '.' is the present folder")
    return Path(os.path.abspath(folder))


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A complete checkpoint.

    ``number``: counts the checkpoints of a folder in the order of their publication, from 1. ``step``: as given to
    :func:`save`. ``path``: the folder, which torch can read.

    Example::

        >>> import pathlib
        >>> rueda.checkpoint.Checkpoint(1, 500, pathlib.Path("runs/7/000001-step-500")).step
        500
    """

    number: int
    step: int
    path: Path


def itself(folder: Path, step: int) -> Checkpoint:
    """The checkpoint that a folder is. ``number``: 0 if it no longer has a checkpoint's name."""
    match = _COMPLETE.fullmatch(folder.name)
    return Checkpoint(int(match[1]) if match else 0, step, folder)


def available(folder: str | os.PathLike[str]) -> list[Checkpoint]:
    """The complete checkpoints in a folder, oldest first; empty if the folder does not exist. Files do not count.

    Not collective: it only reads the folder. Raises ``OSError`` if the folder cannot be read.

    Example::

        >>> rueda.checkpoint.available("/nowhere")
        []
    """
    return [each for each in _named(folder) if each.path.is_dir()]


def _named(folder: str | os.PathLike[str]) -> list[Checkpoint]:
    """Everything with a checkpoint's name, also files."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    matches = [match for match in map(_COMPLETE.fullmatch, names) if match]
    return sorted(Checkpoint(int(m[1]), int(m[2]), Path(folder, m[0])) for m in matches)


def latest(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """The checkpoint that was completed last, or ``None``. As :func:`available`.

    Example::

        >>> rueda.checkpoint.latest("/nowhere") is None
        True
    """
    complete = available(folder)
    return complete[-1] if complete else None


def temporary(folder: Path, step: int, token: int) -> Path:
    """Where a checkpoint is written; ``token`` is unique to this attempt."""
    return folder / f"{_WRITING}step-{step}-{token:016x}"


def make(folder: Path) -> None:
    """Creates a folder and its parents if they are missing; syncs those that it has created to disk.

    Several processes may create the same ones at the same time.
    """
    try:
        _make_one(folder)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make(folder.parent)
        _make_one(folder)  # still an error where folders cannot be created, as in /proc


def _make_one(folder: Path) -> None:
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        sync(folder.parent)


def publish(written: Path, step: int) -> Checkpoint:
    """Atomically makes a folder that is on disk the newest checkpoint; the new name is not synced to disk yet."""
    folder = written.parent
    while True:
        named = _named(folder)
        number = named[-1].number + 1 if named else 1
        path = folder / f"{number:06}-step-{step}"
        try:
            written.rename(path)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                continue  # another job has published one meanwhile
            raise
        return Checkpoint(number, step, path)


def retain(folder: Path, keep: int) -> None:
    """Removes all but the ``keep`` newest. Warns of those that cannot be removed."""
    _try_to_remove(folder, [each.path for each in available(folder)[:-keep]])


def remove_leftovers(written: Path) -> None:
    """Removes what killed processes have left next to ``written``. No other job may be writing there.

    Warns of what cannot be removed, such as another user's.
    """
    with suppress(FileNotFoundError):
        names = os.listdir(written.parent)
        left = [each for each in names if each.startswith((_WRITING, _REMOVING))]
        _try_to_remove(written.parent, [written.parent / n for n in left if n != written.name])


def _try_to_remove(folder: Path, paths: Iterable[Path]) -> None:
    """Removes all that can be removed; warns once for each folder, as every save tries again."""
    for path in paths:
        try:
            remove(path)
        except OSError as error:
            if folder not in _warned_of:
                _warned_of.add(folder)
                _log.warning(
                    "%s: %s cannot be removed and takes up space: %s; that is not told again for this folder",
                    folder,
                    path.name,
                    error,
                )


def remove(path: Path) -> None:
    """Removes a checkpoint, complete or not: first renames it, so that it can be neither found nor published.

    Raises ``OSError`` if it, or a part of it, remains.
    """
    gone = path
    if not path.name.startswith(_REMOVING):
        gone = path.with_name(f"{_REMOVING}{path.name.removeprefix('.')}")
        with suppress(FileNotFoundError):
            path.rename(gone)
    if gone.is_symlink():  # somebody has moved the checkpoint, and keeps it
        gone.unlink(missing_ok=True)
    failures: list[BaseException] = []
    shutil.rmtree(gone, onerror=lambda act, where, info: failures.append(info[1]))
    if failures and os.path.lexists(gone):
        raise failures[0]


def sync(folder: Path) -> None:
    """Syncs a folder's directory entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
