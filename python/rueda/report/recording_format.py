"""The file in which a rank leaves its recording: ``rankR.report``, or ``rankR.epochE.report`` if it joined a job.

A line of JSON, the header, then rows of 32 bytes as things happen: what, a key, bytes, and from when to when, in
nanoseconds of the monotonic clock. A file that was cut short is read up to its last whole row.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "EVAL",
    "FORMAT",
    "MAIN",
    "NO_ALLREDUCE",
    "ON_GPU",
    "ROW",
    "Header",
    "Kind",
    "Recording",
    "RecordingError",
    "Rows",
    "file_of",
    "rank_name",
    "ranks_text",
    "read_folder",
    "read_recording",
]

FORMAT = 1
ROW = struct.Struct("<BBHIqqq")  # kind, flags, reserved, key, bytes, begin, end
Rows = npt.NDArray[np.void]
# Nanoseconds by which a row may be written after one that ended later: a thread may be stopped on its way.
_OUT_OF_ORDER = 3_600_000_000_000
_LATEST = 1 << 60  # 36 years after a host was started: a later time is damage
_TYPE = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("reserved", "<u2"),
        ("key", "<u4"),
        ("bytes", "<i8"),
        ("begin", "<i8"),
        ("end", "<i8"),
    ]
)
_MOST_RANKS = (1 << 20) - 1  # a larger world is damage
_MOST_WORLDS = (1 << 31) - 1  # as is a later one
# Flags.
MAIN = 1  # in the thread that trains
EVAL = 2  # input for no training: gradients are off
ON_GPU = 4  # of a submission: the tensor is on a GPU
NO_ALLREDUCE = 8  # of a submission: it sends tensors otherwise


class Kind(IntEnum):
    """What a row tells."""

    SUBMIT = (
        1  # an operation is handed in; the key is of its name, and it ends where the call returns
    )
    WAIT = 2  # the training thread is blocked until that operation is done
    DONE = 3  # an operation has been found done by another thread, for whoever waits in torch's C++
    INPUT = 4  # the training thread waits for the next batch
    STEP = 5  # an optimizer has stepped
    MARK = 6  # rueda.report.step()
    WORLD = 7  # a world was formed: bytes is its size, and from bit 32 on its epoch
    OWN = 8  # the recorder itself was at work
    PULL = 9  # the training thread waits for a table that waits until others have come as far
    END = 10  # of the process
    BEGIN = 11  # of the recording
    CALL = 12  # SUBMIT and WAIT in one: a blocking call. Read as these two


class RecordingError(Exception):
    """There is nothing that can be reported on; the text says why and what to do."""


@dataclass(frozen=True)
class Header:
    """Who has recorded, as of its first world.

    - ``clock``: ranks where it is the same share a monotonic clock; ``run``: "" where unknown.
    - ``epoch``: the number of that world: 0, or that of the world that the process joined.
    """

    rank: int
    size: int
    local_size: int
    hosts: int
    host: str
    pid: int
    clock: str
    run: str
    began: float  # seconds since 1970
    command: list[str]
    links: list[tuple[str, float, float]] = field(default_factory=list)  # kind, µs, Gbit/s
    options: dict[str, str] = field(default_factory=dict)
    epoch: int = 0

    def line(self) -> bytes:
        """As it is written."""
        return json.dumps({"rueda_report": FORMAT, **asdict(self)}).encode() + b"\n"


@dataclass(frozen=True)
class Recording:
    """Of one rank. ``rows`` have the columns kind, flags, key, bytes, begin and end."""

    header: Header
    rows: Rows
    is_whole: bool  # the process has come to its end

    def of(self, *kinds: Kind) -> Rows:
        """The rows of these kinds, in their order."""
        return self.rows[np.isin(self.rows["kind"], kinds)]


def file_of(folder: Path, rank: int, epoch: int = 0) -> Path:
    """Where the recording of a process is that was this rank first, in the world with this number."""
    return folder / (f"rank{rank}.epoch{epoch}.report" if epoch else f"rank{rank}.report")


def rank_name(rank: int, epoch: int) -> str:
    """What a report calls the process that was this rank first, in the world with this number."""
    return f"{rank} (world {epoch})" if epoch else str(rank)


def read_recording(path: Path) -> Recording:
    """Raises RecordingError where it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"'{path}' cannot be read: {error.strerror}") from error
    line, _, rows = content.partition(b"\n")
    try:
        described: dict[str, Any] = json.loads(line)
        version = described.pop("rueda_report")
        if version != FORMAT:
            raise RecordingError(
                f"'{path}' is a recording of another version of Rueda (format {version}, not {FORMAT})"
            )
        known = {each.name for each in fields(Header)}
        header = Header(**{name: value for name, value in described.items() if name in known})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordingError(f"'{path}' is not a recording, or its head is damaged") from error
    if impossible := _impossible_field(header):
        raise RecordingError(f"'{path}' is damaged: its head has an impossible '{impossible}'")
    table = np.frombuffer(rows[: len(rows) // ROW.size * ROW.size], _TYPE)
    if not np.isin(table["kind"], list(Kind)).all():
        raise RecordingError(f"'{path}' is damaged: it has rows of an unknown kind")
    if not _has_possible_times(table):
        raise RecordingError(f"'{path}' is damaged: it has rows of impossible times")
    is_whole = bool((table["kind"] == Kind.END).any())  # writing it may be told behind it
    table = _calls_in_two(table)
    return Recording(header, table, is_whole)


def _impossible_field(header: Header) -> str:
    """The name of a field with a value that no rank writes; "" if there is none."""
    if not _is_integer(header.size, 1, _MOST_RANKS):
        return "size"
    possible = {
        "rank": _is_integer(header.rank, 0, header.size - 1),
        "local_size": _is_integer(header.local_size, 1, header.size),
        "hosts": _is_integer(header.hosts, 1, header.size),
        "host": isinstance(header.host, str),
        "pid": _is_integer(header.pid, 1, 1 << 31),
        "clock": isinstance(header.clock, str),
        "run": isinstance(header.run, str),
        "began": _is_number(header.began),
        "command": _is_list_of_texts(header.command),
        "links": isinstance(header.links, list) and all(map(_is_link, header.links)),
        "options": isinstance(header.options, dict)
        and _is_list_of_texts(list(header.options.values())),
        "epoch": _is_integer(header.epoch, 0, _MOST_WORLDS),
    }
    return next((name for name, is_possible in possible.items() if not is_possible), "")


def _is_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object) -> bool:
    """Whether it is finite and not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_link(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and all(map(_is_number, value[1:]))
    )


def _has_possible_times(table: Rows) -> bool:
    """The first row begins the recording. Others begin after it, and are written when they end.

    That is one hour out of their order at most.
    """
    begin, end = table["begin"], table["end"]
    if not len(table):
        return True
    later = np.minimum.accumulate(end[::-1])[::-1]
    return bool(
        table["kind"][0] == Kind.BEGIN
        and 0 <= begin[0] == end[0]
        and (begin <= end).all()
        and (end < _LATEST).all()
        and (begin >= begin[0]).all()
        and (end[:-1].astype(float) - later[1:] <= _OUT_OF_ORDER).all()
    )


def _calls_in_two(table: Rows) -> Rows:
    calls = table["kind"] == Kind.CALL
    if not calls.any():
        return table
    whole = np.repeat(table, np.where(calls, 2, 1))
    first = np.cumsum(np.where(calls, 2, 1))[calls] - 2
    whole["kind"][first] = Kind.SUBMIT
    whole["end"][first] = whole["begin"][first]
    whole["kind"][first + 1] = Kind.WAIT
    whole["bytes"][first + 1] = 0
    return whole


def read_folder(folder: Path) -> tuple[list[Recording], list[str]]:
    """The recordings of one run, by the world that they begin in and by rank, and sentences on what is missing.

    Raises:
        RecordingError: there is none that can be read, or they are of several runs.
    """
    try:
        paths = sorted(
            p for p in folder.iterdir() if re.fullmatch(r"rank\d+(\.epoch\d+)?\.report", p.name)
        )
    except OSError as error:
        raise RecordingError(f"'{folder}' cannot be read: {error.strerror}") from error
    if not paths:
        raise RecordingError(
            f"'{folder}' has no recording (rank0.report, ...): record one with "
            f"`rueda report -np N --out {folder} COMMAND`, or by RUEDA_REPORT={folder} in the environment of the ranks"
        )
    notes: list[str] = []
    found: dict[tuple[int, int], dict[Path, Recording]] = {}  # by epoch and rank, then by file
    for path in paths:
        try:
            recording = read_recording(path)
        except RecordingError as error:
            notes.append(str(error))
            continue
        if not len(recording.rows):
            notes.append(
                f"'{path}' has nothing but its head: its process was killed, or could not write, in its first second"
            )
            continue
        header = recording.header
        found.setdefault((header.epoch, header.rank), {})[path] = recording
    if not found:
        raise RecordingError(f"no recording in '{folder}' can be read: {'; '.join(notes)}")
    recordings = [_one_of(found[place], notes) for place in sorted(found)]
    _require_one_run(folder, recordings)
    size = max((each.header.size for each in recordings if not each.header.epoch), default=0)
    missing = [rank for rank in range(size) if (0, rank) not in found]
    if missing:
        notes.append(
            f"there is no recording of {ranks_text(missing)}: the report is about the rest"
        )
    for recording in recordings:
        if not recording.is_whole:
            notes.append(
                f"the recording of rank {rank_name(recording.header.rank, recording.header.epoch)} is cut short: its "
                "process was killed, or could not write any further"
            )
    return recordings, notes


def _one_of(files: dict[Path, Recording], notes: list[str]) -> Recording:
    """Of those that say that they are of the same process, the one whose name says so too, or else the first."""
    header = next(iter(files.values())).header
    own = file_of(next(iter(files)).parent, header.rank, header.epoch)
    chosen = own if own in files else min(files)
    notes += [
        f"'{path}' is left out: it says that it is the recording of rank "
        f"{rank_name(header.rank, header.epoch)}, as does {chosen.name}"
        for path in files
        if path != chosen
    ]
    return files[chosen]


def ranks_text(ranks: Sequence[int | str]) -> str:
    """As in: rank 1; ranks 1, 2 and 5."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _require_one_run(folder: Path, recordings: Sequence[Recording]) -> None:
    first = recordings[0].header
    # Then those that came later have met another number of ranks.
    has_grown = any((each.rows["kind"] == Kind.WORLD).sum() > 1 for each in recordings)
    for recording in recordings[1:]:
        other = recording.header
        differs = None
        same_job = other.run == first.run != ""
        # One that joined has met the world as it was then.
        is_alike = other.size == first.size or bool(other.epoch)
        if not is_alike and not (same_job and has_grown):
            differs = f"rank {other.rank} was one of {other.size} ranks, rank {first.rank} one of {first.size}"
        elif other.run != first.run:
            differs = f"ranks {first.rank} and {other.rank} were started by different jobs"
        elif other.command != first.command and other.run == "":
            differs = f"ranks {first.rank} and {other.rank} ran different commands"
        if differs:
            raise RecordingError(
                f"'{folder}' has recordings of different runs: {differs}; record each run into a folder of its own"
            )
