"""Files in which commands leave their results."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from .errors import LaunchError

__all__ = ["require_file", "write_file"]


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


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, which may also be a pipe or a terminal. Text becomes UTF-8. Raises LaunchError.

    A new file is there only once it is complete, and an existing one is replaced only then: after an error or Ctrl-C
    everything is as it was. A file that must stay the same file, such as one with several hard links, or for which the
    disk has no second place, is written in place: a full disk does not change it either, but Ctrl-C may.
    """
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    try:
        try:
            before = os.stat(path)
        except FileNotFoundError:
            before = None
        # So that a link stays a link. Other paths stay as they are, as the folders above may be hidden from this user.
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        is_replaced = _is_replaceable(path, before) and _replace(target, data, before)
        if before is None and not is_replaced:
            _create(target, data)
        elif not is_replaced:
            _overwrite(path, data)
    except OSError as error:
        raise LaunchError(f"cannot write '{path}': {error.strerror}") from error


def _is_replaceable(path: Path, found: os.stat_result | None) -> bool:
    """Whether another file can take the place of this one, if there is one, so that nobody notices."""
    return found is None or (
        stat.S_ISREG(found.st_mode)
        and found.st_nlink == 1
        and os.access(path, os.W_OK)  # a read-only file is no less so if its folder is writable
        and not _is_open_here(found)
    )


def _attributes(path: Path) -> dict[str, bytes | None]:
    """A file's access list and attributes of users; None for a value that this user may not read.

    Those of security modules and of Lustre's layout come by themselves.
    """
    found: dict[str, bytes | None] = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(path):
            if name.startswith(("security.", "lustre.", "trusted.")):
                continue
            found[name] = None
            with contextlib.suppress(OSError):
                found[name] = os.getxattr(path, name)
    return found


def _is_open_here(found: os.stat_result) -> bool:
    """Whether this process has opened the file: what follows must go there, too, as to /dev/stdout or /dev/fd/3."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(int(name)), found):
                    return True
    return False


def _replace(path: Path, data: bytes, before: os.stat_result | None) -> bool:
    """Puts a file in the place of the one before, if any. Returns False if only writing in place can do.

    For example in a folder without permission to create files, in which the file itself may be writable, on a file
    that is a mount point, or on a disk that has no space for both files. Raises OSError, as on a full disk if the file
    must grow.
    """
    # Not formed from the file's name, which may be as long as names can be.
    part = path.with_name(f".rueda-{secrets.token_hex(8)}.part")
    try:
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            if before is not None and not _take_after(descriptor, before):
                return False
            # What a folder's default access list gives to new files, the one before need not have.
            if before is not None and _attributes(part) != _attributes(path):
                return False
            file.write(data)
    except OSError as error:
        if before is not None and _has_room(before, len(data), error):
            return False
        raise
    else:
        try:
            part.replace(path)
        except OSError:
            return False
        return True
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _has_room(before: os.stat_result, size: int, error: OSError) -> bool:
    """Whether, after this error, so many bytes fit into the file before, whose blocks are its own already."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return is_full and size <= min(before.st_size, 512 * before.st_blocks)


def _take_after(descriptor: int, before: os.stat_result) -> bool:
    """Gives a file the mode of another. Returns False if it cannot have the same mode or owner."""
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
        return False
    if own.st_mode != before.st_mode:
        try:
            os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
        except OSError:
            return False
    return True


def _create(path: Path, data: bytes) -> None:
    """Writes a new file where no other can be renamed to it, as on some network file systems."""
    file = path.open("xb")
    try:
        with file:
            file.write(data)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _overwrite(path: Path, data: bytes) -> None:
    """Writes into what is there. A regular file stays as it is if there is no space."""
    descriptor = os.open(path, os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as file:
        found = os.fstat(descriptor)
        is_regular = stat.S_ISREG(found.st_mode)
        if is_regular and len(data) > found.st_size:
            _reserve(descriptor, found.st_size, len(data))
        file.write(data)
        if is_regular:
            file.truncate()


def _reserve(descriptor: int, size: int, needed: int) -> None:
    """Takes space for a file to grow from ``size`` to ``needed`` bytes. Raises OSError if there is none."""
    try:
        os.posix_fallocate(descriptor, size, needed - size)
    except OSError as error:
        os.ftruncate(descriptor, size)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        # Otherwise this file system cannot tell before.
