"""Writes down what a rank does and waits for, where ``RUEDA_REPORT`` names a folder."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path

from rueda.report.recording_format import MAIN, ROW, Header, Kind, file_of

__all__ = ["VARIABLE", "Recorder", "put_aside", "recorder"]

VARIABLE = "RUEDA_REPORT"
# Rows are written when so many bytes have come together, or after so many nanoseconds.
_BUFFER = 1 << 16
_INTERVAL = 1_000_000_000
# Of one rank's file: two million rows. What comes after is not recorded, and the report says so.
_LIMIT = 64 << 20
# Where the ranks of `rueda run` meet: the same for those that are started later to join, and on all hosts.
_MEETING = "RUEDA_RENDEZVOUS_STORE"
# What tells one run's ranks from another's, whoever else has started them.
_RUN_VARIABLES = (
    "RUEDA_RENDEZVOUS",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_PORT",
)

now = time.monotonic_ns


class Recorder:
    """One process's. Rows are kept in at most 64 KiB until they are written; a file has at most 64 MiB.

    Any thread may add rows. An error of the file, as a full disk, is said once on standard error; recording ends then
    and the training goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._rows = bytearray()
        self._written = 0
        self._flushed = now()
        self._file: int | None = None
        self._over = False
        self._pid = os.getpid()
        self._depth = 0  # of optimizers' steps within each other
        self.training_thread = threading.get_ident()
        self.add(Kind.BEGIN, self._flushed, self._flushed)
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._give_up)

    def add(
        self, kind: Kind, begin: int, end: int, key: int = 0, size: int = 0, flags: int = 0
    ) -> None:
        """A row. Takes about a microsecond."""
        if self._over:
            return
        if threading.get_ident() == self.training_thread:
            flags |= MAIN
        row = ROW.pack(kind, flags, 0, key, size, begin, end)
        with self._lock:
            self._rows += row
            if len(self._rows) >= _BUFFER or end - self._flushed > _INTERVAL:
                self._flush()

    def is_training_thread(self) -> bool:
        """Whether the caller is the thread whose waits count."""
        return threading.get_ident() == self.training_thread

    def begin_step(self) -> None:
        """An optimizer begins to step, perhaps within the step of another that is laid around it."""
        self._depth += 1

    def end_step(self) -> None:
        """It has."""
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            at = now()
            self.add(Kind.STEP, at, at)

    def enter_world(self, began: int, header: Header) -> None:
        """A world was formed by the calling thread since ``began``. The first one gives the file its name."""
        self.training_thread = threading.get_ident()
        self._depth = 0
        if self._file is None and not self._over:
            self._open(header)
        size = header.size | header.epoch << 32
        self.add(Kind.WORLD, began, now(), size=size, key=header.rank)

    def end(self) -> None:
        """Of the process: nothing is recorded any more."""
        if self._over or os.getpid() != self._pid:
            return
        at = now()
        self.add(Kind.END, at, at)
        with self._lock:
            if self._file is not None:
                self._flush()
        self._over = True

    def run(self) -> str:
        """What tells this run from others; "" where nothing does."""
        names = (_MEETING,) if os.environ.get(_MEETING) else _RUN_VARIABLES
        told = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16] if told else ""

    def _open(self, header: Header) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = file_of(self._folder, header.rank, header.epoch)
            if not header.epoch:  # or files may be of this run
                put_aside(self._folder, header.rank, header.size)
            _put_aside(path)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            _write(self._file, header.line())
        except OSError as error:
            self._fail(error)

    def _flush(self) -> None:
        """Under the lock."""
        began = now()
        if self._file is None:  # no world yet
            self._flushed = began
            if len(self._rows) > _LIMIT:
                self._over = True
            return
        try:
            _write(self._file, self._rows)
        except OSError as error:
            self._fail(error)
            return
        self._written += len(self._rows)
        self._rows.clear()
        self._flushed = now()
        is_main = threading.get_ident() == self.training_thread
        self._rows += ROW.pack(Kind.OWN, is_main * MAIN, 0, 0, 0, began, self._flushed)
        if self._written > _LIMIT:
            self._over = True
            self._say(f"the recording has {_LIMIT >> 20} MiB and ends here; the training goes on")

    def _fail(self, error: OSError) -> None:
        self._over = True
        self._rows.clear()
        where = f"'{error.filename}'" if error.filename else f"a file in '{self._folder}'"
        self._say(
            f"cannot write {where}: {error.strerror}. The recording for `rueda report` ends here; the training goes on"
        )

    @staticmethod
    def _say(sentence: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"rueda: {VARIABLE}: {sentence}\n")

    def _give_up(self) -> None:
        self._over = True
        self._lock = threading.Lock()  # another thread may have held it
        self._rows.clear()


def put_aside(folder: Path, rank: int = 0, size: int = 0) -> None:
    """What an earlier run has left that a rank of so many replaces: its own, and rank 0 what none of them replaces.

    Without arguments all of it. No process has joined this run yet. Raises OSError.
    """
    for path in folder.iterdir():
        match = re.fullmatch(r"rank(\d+)(\.epoch\d+)?\.report", path.name)
        if not match:
            continue
        is_own = int(match[1]) == rank
        is_nobodys = bool(match[2]) or int(match[1]) >= size
        if is_own or (rank == 0 and is_nobodys):
            _put_aside(path)


def _put_aside(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_suffix(".previous"))


def _write(file: int, data: bytes | bytearray) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        rest.release()


def clock() -> str:
    """The same where processes share a monotonic clock."""
    parts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/time"):
        with contextlib.suppress(OSError):
            parts.append(os.readlink(path) if "ns" in path else Path(path).read_text().strip())
    return "/".join(parts[1:] or parts)


# The process's recorder, from the first call on: None within where nothing is to be recorded.
_recorders: list[Recorder | None] = []


def recorder() -> Recorder | None:
    """That of this process; None where ``RUEDA_REPORT`` names no folder."""
    if not _recorders:
        folder = os.environ.get(VARIABLE)
        _recorders.append(Recorder(Path(folder)) if folder else None)
    return _recorders[0]
