"""Secret rendezvous addresses at which a subset of a job's processes meets."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from rueda.errors import InitializationError

__all__ = ["Meeting", "meeting_of", "random_meeting"]


class Meeting(NamedTuple):
    """A rendezvous address, and the secret with which its ranks authenticate."""

    address: str
    secret: str


def random_meeting() -> Meeting:
    """Returns a new, unguessable meeting."""
    return Meeting(f"unix:@rueda-{secrets.token_hex(16)}", secrets.token_hex(32))


def meeting_of(members: str) -> Meeting:
    """Returns the meeting for these members of the launcher's job: the same in each of them.

    It is derived from the job's secret and rendezvous if the launcher has set both. Otherwise, as under mpirun, the
    first member writes a random one to a file that only this user can read.

    Raises :class:`rueda.InitializationError` if no private directory can hold the file.
    """
    secret, rendezvous = os.environ.get("RUEDA_SECRET"), os.environ.get("RUEDA_RENDEZVOUS")
    if secret and rendezvous:  # several jobs may share a secret
        return _derived(secret, f"{rendezvous}/{members}")
    job = os.environ.get("PMIX_NAMESPACE") or _parent()
    name = hashlib.sha256(f"{job}/{members}".encode()).hexdigest()[:32]
    return _left_in(_private_folder() / f"rueda-meeting-{name}")


def _derived(secret: str, text: str) -> Meeting:
    def word(purpose: str) -> str:
        return hmac.new(secret.encode(), f"{purpose}/{text}".encode(), "sha256").hexdigest()

    return Meeting(f"unix:@rueda-{word('address')[:32]}", word("secret"))


def _left_in(path: Path) -> Meeting:
    """Reads the meeting from the file, or creates the file atomically if it does not exist."""
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError):
            address, secret = path.read_text().split()
            return Meeting(address, secret)
        own = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(" ".join(random_meeting()))
            with contextlib.suppress(FileExistsError):  # another member was first
                os.link(own, path)
                atexit.register(_remove, path, os.getpid())
        finally:
            own.unlink()
    raise InitializationError(f"another program keeps removing {path}")


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # in a forked child the file is the parent's
        with contextlib.suppress(OSError):
            path.unlink()


def _private_folder() -> Path:
    """Returns a directory that only this user can access."""
    # The first one belongs to the job; mpirun removes it with its contents.
    for variable in ("PMIX_SERVER_TMPDIR", "XDG_RUNTIME_DIR"):
        folder = os.environ.get(variable)
        if folder and _is_private(Path(folder)):
            return Path(folder)
    own = Path(tempfile.gettempdir()) / f"rueda-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        own.mkdir(mode=0o700)
    if not _is_private(own):
        raise InitializationError(
            f"{own} is not a folder of this user alone (mode 0700): remove it, or set TMPDIR to a folder of your own"
        )
    return own


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and stat.S_IMODE(found.st_mode) & 0o077 == 0
        and os.access(folder, os.W_OK | os.X_OK)
    )


def _parent() -> str:
    """Identifies the launcher by PID and start time, since PIDs are reused."""
    parent = os.getppid()
    try:
        # pid (name) state ppid ... starttime; the name may contain spaces and parentheses.
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    return f"{parent}/{started}"
