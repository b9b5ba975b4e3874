"""Where the ranks of a world began to differ. Pure: records in, findings out.

Rueda matches operations by process set and name, in any order, so that is how they are matched here: the third
allreduce of 'w' in set 0 on one rank is the third on all others. A rank diverges where it has not submitted what
others wait for, or has submitted something else under that name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from .records import Operation, Record, WorldRecords

# What may differ in its first extent.
_UNEVEN = ("allgather", "alltoall")


@dataclass(frozen=True)
class Divergence:
    """An operation on which the ranks of its process set do not agree."""

    kind: str  # "missing": some ranks never submitted it; "mismatch": `fields` differ
    operation: Operation  # as the lowest rank that has it
    ranks: tuple[int, ...]  # have submitted it
    missing: tuple[int, ...] = ()  # have not, although they left a record
    fields: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    # by name of the field: each value, and the ranks that had it


@dataclass(frozen=True)
class RankSummary:
    """What one rank was at."""

    rank: int
    host: str
    pid: int
    why: str
    submitted: int
    open: tuple[Operation, ...]
    last_done: Operation | None
    lateness_ms: (
        float | None
    )  # median time by which it submitted later than the first; None: unknown


@dataclass(frozen=True)
class Analysis:
    """What the records of a world tell."""

    world: WorldRecords
    summaries: tuple[RankSummary, ...]
    without_record: tuple[int, ...]
    divergences: tuple[Divergence, ...]  # the first one first
    reordered: tuple[Operation, Operation, int, int] | None  # the first place, and two ranks


Key = tuple[int, int, str, int]


def _key(operation: Operation) -> Key:
    return (operation.set, operation.generation, operation.name, operation.of_name)


def _fields(operation: Operation) -> Iterator[tuple[str, str]]:
    yield "collective", operation.collective
    if operation.collective == "barrier":
        return
    yield "dtype", operation.dtype
    shape = operation.shape
    uneven = operation.collective in _UNEVEN and len(shape) > 0
    yield (
        "shape",
        "x".join(["?" if uneven else str(shape[0]), *map(str, shape[1:])] if shape else []),
    )
    if operation.op is not None:
        yield "op", operation.op
    if operation.root is not None:
        yield "root", str(operation.root)


def _differences(by_rank: Mapping[int, Operation]) -> dict[str, dict[str, tuple[int, ...]]]:
    values: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, operation in by_rank.items():
        for name, value in _fields(operation):
            values[name][value].append(rank)
    return {
        name: {value: tuple(ranks) for value, ranks in of_field.items()}
        for name, of_field in values.items()
        if len(of_field) > 1
    }


def _members(records: Mapping[int, Record], set_id: int) -> tuple[int, ...]:
    ranks = {rank for record in records.values() for rank in record.sets.get(set_id, ())}
    return tuple(sorted(ranks))


def _has_joined(record: Record, set_id: int) -> bool:
    return any(
        operation.collective == "join" and operation.set == set_id and operation.is_open
        for operation in record.operations
    )


def _by_key(records: Mapping[int, Record]) -> dict[Key, dict[int, Operation]]:
    matched: dict[Key, dict[int, Operation]] = defaultdict(dict)
    for rank, record in sorted(records.items()):
        for operation in record.operations:
            # A join is of its rank alone, and what is not counted cannot be told from others of its name.
            if operation.collective != "join" and operation.of_name > 0:
                matched[_key(operation)][rank] = operation
    return matched


def _divergence(
    records: Mapping[int, Record], by_rank: Mapping[int, Operation]
) -> Divergence | None:
    first = next(iter(by_rank.values()))
    fields = _differences(by_rank)
    if fields:
        return Divergence("mismatch", first, tuple(by_rank), fields=fields)
    # What is done anywhere was agreed on by all, were it only by having joined.
    if any(operation.stage == "done" for operation in by_rank.values()):
        return None
    missing = tuple(
        rank
        for rank in _members(records, first.set)
        if (record := records.get(rank)) is not None
        and not record.has_submitted(first)
        and not _has_joined(record, first.set)
    )
    return Divergence("missing", first, tuple(by_rank), missing) if missing else None


def _divergences(
    records: Mapping[int, Record], matched: Mapping[Key, Mapping[int, Operation]]
) -> tuple[Divergence, ...]:
    found = [
        (min(operation.number for operation in by_rank.values()), divergence)
        for by_rank in matched.values()
        if (divergence := _divergence(records, by_rank)) is not None
    ]
    # Ranks of one program count alike, whatever their clocks say.
    found.sort(key=lambda entry: entry[0])
    return tuple(divergence for _, divergence in found)


def _reordered(records: Mapping[int, Record]) -> tuple[Operation, Operation, int, int] | None:
    numbered = {
        rank: {operation.number: operation for operation in record.operations}
        for rank, record in sorted(records.items())
    }
    ranks = list(numbered)
    for number in sorted(set.intersection(*(set(operations) for operations in numbered.values()))):
        first = numbered[ranks[0]][number]
        for rank in ranks[1:]:
            other = numbered[rank][number]
            if first.set == other.set and _key(first) != _key(other):
                return first, other, ranks[0], rank
    return None


def _lateness(matched: Mapping[Key, Mapping[int, Operation]]) -> dict[int, float]:
    """In ms, by the clocks of the hosts as they are."""
    late: dict[int, list[int]] = defaultdict(list)
    for by_rank in matched.values():
        if len(by_rank) < 2:
            continue
        first = min(operation.submitted for operation in by_rank.values())
        for rank, operation in by_rank.items():
            late[rank].append(operation.submitted - first)
    return {rank: median(values) / 1000 for rank, values in late.items()}


def _summary(record: Record, lateness: float | None) -> RankSummary:
    done = [operation for operation in record.operations if operation.stage == "done"]
    return RankSummary(
        rank=record.rank,
        host=record.host,
        pid=record.pid,
        why=record.why,
        submitted=record.forgotten + len(record.operations),
        open=tuple(operation for operation in record.operations if operation.is_open),
        last_done=max(done, key=lambda operation: operation.number, default=None),
        lateness_ms=lateness,
    )


def compare(world: WorldRecords) -> Analysis:
    """Lays the records of a world side by side."""
    matched = _by_key(world.records)
    lateness = _lateness(matched)
    return Analysis(
        world=world,
        summaries=tuple(
            _summary(record, lateness.get(rank)) for rank, record in sorted(world.records.items())
        ),
        without_record=tuple(rank for rank in range(world.size) if rank not in world.records),
        divergences=_divergences(world.records, matched),
        reordered=_reordered(world.records),
    )
