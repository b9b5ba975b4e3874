"""Reads the records that ranks leave in the folder RUEDA_FLIGHT_RECORDER.

The engine writes them (`csrc/coordinator/flight_recorder.cpp`): `rank<R>.json` for the first world of a job, and
`epoch<N>/rank<R>.json` for each world that formed after ranks were lost.
"""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

FORMAT = 1
STAGES = ("submitted", "running", "done", "failed")
OCCASIONS = ("request", "stall", "failure")

# The name of a rank's file.
_FILE = re.compile(r"rank(\d+)\.json")

# Limits against damaged files, which could cause too many lines or invalid dates.
_MAX_RANKS = 1 << 20
_MAX_TIME = 1 << 56
_MAX_NUMBER = 1 << 63

# Why a world has failed if one of its ranks left it by shutting down, as at the end of its program.
_HAS_SHUT_DOWN = re.compile(r"\brank (\d+)(?: \([^()]*\))? has shut down$")


class RecordsError(Exception):
    """Nothing can be analysed. The text says why and what to do."""


# Process set, its generation, and the operation's name.
Name = tuple[int, int, str]


@dataclass(frozen=True)
class Operation:
    """One operation on one rank. Times are microseconds since 1970, or None if that never happened."""

    number: int  # counts the rank's submissions to all process sets, from 1
    set: int
    name: str
    generation: int  # how often the set's members had joined
    of_name: int  # counts operations of this name in the generation, from 1; 0: unknown
    collective: str
    dtype: str
    shape: tuple[int, ...]
    stage: str  # one of STAGES
    submitted: int
    started: int | None = None
    ended: int | None = None
    op: str | None = None
    root: int | None = None
    code: str | None = None  # of the error, e.g. "stalled"
    error: str | None = None

    @property
    def named(self) -> Name:
        """The key without the count."""
        return (self.set, self.generation, self.name)

    @property
    def is_open(self) -> bool:
        """Whether the rank was still waiting for it."""
        return self.stage in ("submitted", "running")

    def __str__(self) -> str:
        again = f" (number {self.of_name} of this name)" if self.of_name > 1 else ""
        return f"{self.collective} '{self.name}'{again}"


@dataclass(frozen=True)
class Record:
    """The record of one rank."""

    rank: int
    size: int
    host: str
    pid: int
    written: int  # microseconds since 1970
    why: str
    forgotten: int  # number of completed operations that are no longer in the record
    sets: dict[int, tuple[int, ...]]  # the world ranks of each process set
    generations: dict[int, int]  # by set; 0 if missing
    counts: dict[int, dict[str, int]]  # submissions in the set's generation, by set and name
    operations: tuple[Operation, ...]  # by number
    occasion: str | None = None  # why it was written, one of OCCASIONS; None: unknown
    lost: int | None = None  # for a failure: the rank that the world lost

    @property
    def left(self) -> int | None:
        """The rank that ended this rank's world by shutting down."""
        match = _HAS_SHUT_DOWN.search(self.why) if self.occasion == "failure" else None
        return self.lost if match is not None and int(match[1]) == self.lost else None

    @cached_property
    def by_name(self) -> Mapping[Name, tuple[Operation, ...]]:
        """The recorded operations except joins, in order of their numbers."""
        found: dict[Name, list[Operation]] = {}
        for operation in self.operations:
            if operation.collective != "join":
                found.setdefault(operation.named, []).append(operation)
        return {named: tuple(operations) for named, operations in found.items()}

    @cached_property
    def _leaves_out_names(self) -> bool:
        """Whether it has names that it does not count, because there were too many."""
        return any(operations[-1].of_name == 0 for operations in self.by_name.values())

    def has_submitted(self, operation: Operation, ahead: int = 0) -> bool | None:
        """Whether the rank has submitted the operation, even if it is forgotten. None: unknown.

        All members took part in every operation of an earlier generation. `ahead`: how far this record's clock is
        ahead of that of `operation`.
        """
        generation = self.generations.get(operation.set, 0)
        if generation != operation.generation:
            return generation > operation.generation
        count = self.counts.get(operation.set, {}).get(operation.name, 0)
        if operation.of_name > 0 and (count > 0 or not self._leaves_out_names):
            return count >= operation.of_name
        if operation.named in self.by_name:
            return True
        return None if self._may_have_forgotten(operation.submitted + ahead) else False

    def _may_have_forgotten(self, submitted: int) -> bool:
        """Whether an operation that another rank submitted at that time may have ended and been forgotten.

        No operation ends before all ranks have submitted it, and those that ended first are forgotten first.
        """
        return self.forgotten > 0 and (self._first_end is None or self._first_end >= submitted)

    @cached_property
    def _first_end(self) -> int | None:
        """The earliest end among the recorded operations."""
        ended = (operation.ended for operation in self.operations)
        return min((end for end in ended if end is not None), default=None)


@dataclass(frozen=True)
class WorldRecords:
    """The records of one world, by rank."""

    folder: Path
    epoch: int
    records: dict[int, Record]
    damaged: dict[str, str] = field(default_factory=dict)  # files that could not be read, and why

    @property
    def size(self) -> int:
        """The number of ranks of the world. The records that are read from a folder agree on it."""
        return max(record.size for record in self.records.values())

    @cached_property
    def damaged_ranks(self) -> frozenset[int]:
        """The ranks that left a file, of which none could be read."""
        names = (_FILE.fullmatch(Path(path).name) for path in self.damaged)
        return frozenset(int(name[1]) for name in names if name is not None) - self.records.keys()


def _check(entry: Mapping[str, Any], numbers: str, texts: str, optional: str) -> None:
    """Checks the types of the fields. Raises ValueError, or KeyError if one is missing."""
    for name in numbers.split():
        if name in entry or name not in optional.split():
            _number(entry[name], name)
    for name in texts.split():
        if (name in entry or name not in optional.split()) and not isinstance(entry[name], str):
            raise ValueError(f"'{name}' is {entry[name]!r}")


def _number(value: Any, name: str, limit: int = _MAX_NUMBER) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"'{name}' is {value!r}")
    return value


def _one_of(value: Any, choices: tuple[str, ...], name: str) -> None:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}")


def _numbers(values: Any, name: str, limit: int = _MAX_NUMBER) -> tuple[int, ...]:
    return tuple(_number(value, name, limit) for value in values)


def _operation(entry: dict[str, Any]) -> Operation:
    _check(
        entry,
        "number set generation of_name submitted started ended root",
        "name collective dtype op code error",
        optional="started ended op root code error",
    )
    _one_of(entry["stage"], STAGES, "stage")
    return Operation(**{**entry, "shape": _numbers(entry["shape"], "shape")})


def _record(content: dict[str, Any]) -> Record:
    _check(content, "pid forgotten", "host why", optional="")
    _number(content["written"], "written", _MAX_TIME)
    _number(content["size"], "size", _MAX_RANKS)
    _number(content["rank"], "rank", content["size"])
    if (occasion := content.get("occasion")) is not None:
        _one_of(occasion, OCCASIONS, "occasion")
    if (lost := content.get("lost")) is not None:
        _number(lost, "lost", _MAX_RANKS)
    fields = {
        "sets": {
            int(key): _numbers(ranks, "sets", _MAX_RANKS) for key, ranks in content["sets"].items()
        },
        "generations": {
            int(key): _number(count, "generations") for key, count in content["generations"].items()
        },
        "counts": {
            int(key): {name: _number(count, "counts") for name, count in names.items()}
            for key, names in content["counts"].items()
        },
        "operations": tuple(_operation(entry) for entry in content["operations"]),
    }
    return Record(**{**content, **fields})


def read_record(path: Path) -> Record:
    """Reads one file. Raises OSError, and ValueError with a sentence if it is damaged or not a record of Rueda."""
    # Others, such as a pipe, could make the reader wait.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a regular file")
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(content, dict) or "rueda_flight_record" not in content:
        raise ValueError("not a flight record of Rueda")
    if content.pop("rueda_flight_record") != FORMAT:
        raise ValueError("a flight record of another version of Rueda")
    try:
        return _record(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a damaged flight record: {error}") from error


def _name_of(rank: int, names: Iterable[str]) -> str:
    """Which of several files is the record of this rank: the one of its name, or else the first."""
    own = f"rank{rank}.json"
    return own if own in names else min(names)


def _agreed_size(records: Mapping[int, Record]) -> int:
    """How many ranks most records say that their world had.

    If as many say one number as another, it is the smallest that leaves out no rank with a record.
    """
    votes = Counter(record.size for record in records.values())
    most = max(votes.values())
    sizes = [size for size, count in votes.items() if count == most]
    return min((size for size in sizes if size > max(records)), default=max(sizes))


def _take_out_other_sizes(records: dict[int, Record], names: Mapping[int, str]) -> dict[str, str]:
    """Removes the records whose world had another number of ranks. Returns their files, and what is wrong with each.

    ``names``: the files' names, by rank.
    """
    if not records:
        return {}
    size = _agreed_size(records)
    others = {rank: record.size for rank, record in records.items() if record.size != size}
    problems = {}
    for rank, other in others.items():
        del records[rank]
        had = f"{other} {'rank' if other == 1 else 'ranks'}"
        problems[names[rank]] = (
            f"it says that the world had {had}, others say {size}: it is damaged, or left from another job"
        )
    return problems


def _read_world(folder: Path, epoch: int) -> WorldRecords | None:
    records: dict[int, Record] = {}
    damaged: dict[str, str] = {}
    found: dict[int, dict[str, Record]] = {}  # by rank, then by file
    for path in sorted(folder.iterdir()):
        if not _FILE.fullmatch(path.name):
            continue
        try:
            record = read_record(path)
        except (OSError, ValueError) as error:
            damaged[str(path)] = getattr(error, "strerror", None) or str(error)
        else:
            found.setdefault(record.rank, {})[path.name] = record
    names = {rank: _name_of(rank, files) for rank, files in found.items()}
    for rank, files in found.items():
        name = names[rank]
        records[rank] = files.pop(name)
        why = f"it says that it is the record of rank {rank}, as does {name}"
        damaged |= {str(folder / other): why for other in files}
    other_sizes = _take_out_other_sizes(records, names)
    damaged |= {str(folder / name): why for name, why in other_sizes.items()}
    if not records and not damaged:
        return None
    return WorldRecords(folder, epoch, records, damaged)


def read_folder(folder: Path) -> list[WorldRecords]:
    """The worlds that have left records in `folder`, in order.

    Raises:
        RecordsError: the folder does not exist, or has no readable record.
    """
    try:
        epochs = {
            int(match[1]): path
            for path in folder.iterdir()
            if (match := re.fullmatch(r"epoch(\d+)", path.name)) and path.is_dir()
        }
        worlds = [_read_world(folder, 0)]
        worlds += [_read_world(epochs[number], number) for number in sorted(epochs)]
    except OSError as error:
        raise RecordsError(f"'{folder}' cannot be read: {error.strerror}") from error
    found = [world for world in worlds if world is not None]
    if not found:
        raise RecordsError(
            f"'{folder}' has no records (rank0.json, ...): start the job with RUEDA_FLIGHT_RECORDER={folder}; "
            "ranks write when their world fails or stalls, or when rueda.write_flight_record() is called"
        )
    readable = [world for world in found if world.records]
    if not readable:
        files = "; ".join(
            f"{name}: {why}" for world in found for name, why in world.damaged.items()
        )
        raise RecordsError(f"'{folder}' has no record that can be read: {files}")
    return readable
