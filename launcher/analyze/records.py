"""The records that ranks leave in the folder that RUEDA_FLIGHT_RECORDER names.

The engine writes them (`csrc/coordinator/flight_recorder.cpp`): `rank<R>.json` of the first world of a job, and
`epoch<N>/rank<R>.json` of each world that was formed after ranks were lost.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
STAGES = ("submitted", "running", "done", "failed")


class RecordsError(Exception):
    """There is nothing that can be analysed; the text says why and what to do."""


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
    error: str | None = None

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

    def has_submitted(self, operation: Operation) -> bool:
        """Also where it is forgotten. Of an earlier generation all members have taken part in everything."""
        generation = self.generations.get(operation.set, 0)
        if generation != operation.generation:
            return generation > operation.generation
        return self.counts.get(operation.set, {}).get(operation.name, 0) >= operation.of_name


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


def _operation(entry: dict[str, Any]) -> Operation:
    if entry["stage"] not in STAGES:
        raise ValueError(f"unknown stage {entry['stage']!r}")
    return Operation(**{**entry, "shape": tuple(entry["shape"])})


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
        content["sets"] = {int(key): tuple(ranks) for key, ranks in content["sets"].items()}
        content["generations"] = {int(key): int(n) for key, n in content["generations"].items()}
        content["counts"] = {int(key): names for key, names in content["counts"].items()}
        content["operations"] = tuple(_operation(entry) for entry in content["operations"])
        return Record(**content)
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
