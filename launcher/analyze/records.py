"""The records that ranks leave in the folder that RUEDA_FLIGHT_RECORDER names.

The engine writes them (`csrc/coordinator/flight_recorder.cpp`): `rank<R>.json` of the first world of a job, and
`epoch<N>/rank<R>.json` of each world that was formed after ranks were lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

FORMAT = 1
STAGES = ("submitted", "running", "done", "failed")
OCCASIONS = ("request", "stall", "failure")

# What a damaged file may not ask for: more lines than anybody reads, dates that there are not.
_MAX_RANKS = 1 << 20
_MAX_TIME = 1 << 56
_MAX_NUMBER = 1 << 63


class RecordsError(Exception):
    """There is nothing that can be analysed; the text says why and what to do."""


# Process set, its generation, and the operation's name.
Name = tuple[int, int, str]


@dataclass(frozen=True)
class Operation:
    """One operation as one rank saw it. Times are microseconds since 1970, None for what never came."""

    number: int  # counts what the rank has submitted to any process set, from 1
    set: int
    name: str
    generation: int  # of the set: how often its members had joined
    of_name: int  # counts those of this name in it, from 1; 0 where that is unknown
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
        """What is told apart without counting."""
        return (self.set, self.generation, self.name)

    @property
    def is_open(self) -> bool:
        """Whether the rank still waited for it."""
        return self.stage in ("submitted", "running")

    def __str__(self) -> str:
        again = f" (number {self.of_name} of this name)" if self.of_name > 1 else ""
        return f"{self.collective} '{self.name}'{again}"


@dataclass(frozen=True)
class Record:
    """What one rank has written."""

    rank: int
    size: int
    host: str
    pid: int
    written: int  # microseconds since 1970
    why: str
    forgotten: int  # how many operations that had ended are no longer there
    sets: dict[int, tuple[int, ...]]  # the world ranks of each process set
    generations: dict[int, int]  # by set; 0 where there is none
    counts: dict[int, dict[str, int]]  # by set and name, how many were submitted in its generation
    operations: tuple[Operation, ...]  # by number
    occasion: str | None = None  # one of OCCASIONS: what it was written upon; None: it is not told
    lost: int | None = None  # of a failure: the rank that the world has lost

    @cached_property
    def by_name(self) -> Mapping[Name, tuple[Operation, ...]]:
        """The operations that are remembered, but for joins, by number."""
        found: dict[Name, list[Operation]] = {}
        for operation in self.operations:
            if operation.collective != "join":
                found.setdefault(operation.named, []).append(operation)
        return {named: tuple(operations) for named, operations in found.items()}

    @cached_property
    def _leaves_out_names(self) -> bool:
        """Whether names came that it does not count, as there were too many before."""
        return any(operations[-1].of_name == 0 for operations in self.by_name.values())

    def has_submitted(self, operation: Operation, ahead: int = 0) -> bool | None:
        """Also where it is forgotten; None where that cannot be told.

        Of an earlier generation all members have taken part in everything. `ahead`: by how much this record's clock is
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
        """Whether an operation may have ended that another rank submitted at that time.

        None ends before all ranks have submitted it, and what ended first is forgotten first.
        """
        return self.forgotten > 0 and (self._first_end is None or self._first_end >= submitted)

    @cached_property
    def _first_end(self) -> int | None:
        """Of what is remembered."""
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
        """How many ranks the world had."""
        return max(record.size for record in self.records.values())


def _check(entry: Mapping[str, Any], numbers: str, texts: str, optional: str) -> None:
    """That the fields are of their types. Raises ValueError, and KeyError where one is not there."""
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
    """One file. Raises ValueError, with a sentence, where it is none of Rueda's or is damaged, and OSError."""
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


def _read_world(folder: Path, epoch: int) -> WorldRecords | None:
    records: dict[int, Record] = {}
    damaged: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if not re.fullmatch(r"rank\d+\.json", path.name):
            continue
        try:
            record = read_record(path)
        except (OSError, ValueError) as error:
            damaged[str(path)] = getattr(error, "strerror", None) or str(error)
        else:
            records[record.rank] = record
    if not records and not damaged:
        return None
    return WorldRecords(folder, epoch, records, damaged)


def read_folder(folder: Path) -> list[WorldRecords]:
    """The worlds that have left records in `folder`, in their order.

    Raises:
        RecordsError: it does not exist, or has no record that can be read.
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
            "ranks write when their world fails or stalls, or where rueda.write_flight_record() is called"
        )
    readable = [world for world in found if world.records]
    if not readable:
        files = "; ".join(
            f"{name}: {why}" for world in found for name, why in world.damaged.items()
        )
        raise RecordsError(f"'{folder}' has no record that can be read: {files}")
    return readable
