"""Finds where the ranks of a world began to differ. Pure: records in, findings out.

Like Rueda, this matches operations by process set and name, in any order: the third allreduce of 'w' in set 0 on one
rank matches the third on all others. A rank diverges if it has not submitted an operation that others wait for, or has
submitted a different one under that name. So does a rank that shut down, as other records say, while the others wait,
and one that submitted an operation only after others had given it up. If an operation stalled though all ranks with a
record had submitted it, those without one are to blame.

A record proves that its rank had not submitted an operation only up to the time of writing. A record that a rank wrote
at an earlier stall, before it was killed, says nothing about what came later. And if the loss of another rank ended
the world, a rank that was merely behind the others is not to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median

from .records import Name, Operation, Record, WorldRecords

# Collectives whose first extent may differ between ranks.
_UNEVEN = ("allgather", "alltoall")


# Error codes of operations that waited too long for other ranks.
WAITED_IN_VAIN = ("stalled", "timeout")


@dataclass(frozen=True)
class Divergence:
    """An operation on which the ranks of its process set disagree."""

    kind: str  # "missing": some ranks did not submit it in time; "mismatch": it was not the same
    operation: Operation  # as the lowest of `ranks` submitted it
    ranks: tuple[int, ...]  # that submitted it, and were not too late
    missing: tuple[int, ...] = ()  # that did not submit it, or too late
    late: Mapping[int, int] = field(default_factory=dict)
    # By rank of `missing`: how long after others had given it up, in microseconds.
    fields: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    # By field name: each value, and the ranks that had it.
    error: str | None = None  # for "mismatch": what the ranks were told, if they were


@dataclass(frozen=True)
class RankSummary:
    """The state of one rank."""

    rank: int
    host: str
    pid: int
    why: str
    submitted: int
    open: tuple[Operation, ...]
    last_done: Operation | None
    last_failed: Operation | None
    lateness_ms: (
        float | None
    )  # median delay of its submissions after the first rank's; None: unknown


@dataclass(frozen=True)
class Analysis:
    """The findings from the records of a world."""

    world: WorldRecords
    summaries: tuple[RankSummary, ...]
    without_record: tuple[int, ...]  # not even a damaged one
    left: tuple[int, ...]  # ranks that had shut down, by the records of others
    divergences: tuple[Divergence, ...]  # the first one first
    cut_short: tuple[Divergence, ...]  # "missing", but only because the world failed first
    outdated: tuple[int, ...]  # ranks whose records are older than operations of others
    not_compared: tuple[Operation, ...]  # not done on some rank, and not distinguishable by name
    reordered: tuple[Operation, Operation, int, int] | None  # the first place, and two ranks


Key = tuple[int, int, str, int]


def _key(operation: Operation) -> Key:
    return (*operation.named, operation.of_name)


def _is_same(one: Operation, other: Operation) -> bool:
    is_counted = one.of_name > 0 and other.of_name > 0
    return _key(one) == _key(other) if is_counted else one.named == other.named


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


def _has_begun(by_rank: Mapping[int, Operation]) -> bool:
    """Whether the operation started anywhere, so that all ranks had submitted it."""
    return any(operation.started is not None for operation in by_rank.values())


def _uncounted(records: Mapping[int, Record]) -> dict[Name, bool]:
    """Names that some rank stopped counting because it had too many: for each, whether it is unique all the same."""
    names = {
        named
        for record in records.values()
        for named, operations in record.by_name.items()
        if operations[-1].of_name == 0
    }
    return {
        named: all(len(record.by_name.get(named, ())) <= 1 for record in records.values())
        for named in names
    }


Matched = dict[Key, dict[int, Operation]]


def _match(records: Mapping[int, Record]) -> tuple[Matched, tuple[Operation, ...]]:
    """The operation of each rank, by key; and operations that are not distinguishable and not done."""
    uncounted = _uncounted(records)
    matched: Matched = defaultdict(dict)
    left_out: dict[Name, Operation] = {}
    for rank, record in sorted(records.items()):
        for operation in record.operations:
            if operation.collective == "join":  # concerns only its own rank
                continue
            named = operation.named
            if uncounted.get(named, True):
                key = (*named, 0) if named in uncounted else _key(operation)
                matched[key][rank] = operation
            elif operation.stage != "done":
                left_out.setdefault(named, operation)
    return matched, tuple(left_out.values())


class _Missing:
    """Finds ranks that have not submitted what others have, and whether the world's failure is the reason."""

    def __init__(self, records: Mapping[int, Record], matched: Matched) -> None:
        self.outdated: set[int] = set()  # ranks whose records are too old to judge by
        self.left = {record.left for record in records.values() if record.left is not None}
        self._records = records
        self._matched = matched
        self._ahead: dict[tuple[int, int], Sequence[int]] = {}
        self._passed: dict[tuple[int, int, int], float] = {}

    def late(self, by_rank: Mapping[int, Operation]) -> dict[int, int]:
        """The ranks that submitted an operation after others had given it up: by how much, in microseconds."""
        given_up = {
            rank: operation.ended
            for rank, operation in by_rank.items()
            if operation.code in WAITED_IN_VAIN and operation.ended is not None
        }
        late: dict[int, int] = {}
        for rank, operation in by_rank.items():
            for other, ended in given_up.items():
                if operation.submitted > ended + self._at_most_ahead(rank, other):
                    after = operation.submitted - ended - self._by_how_much_ahead(rank, other)
                    late[rank] = max(after, late.get(rank, 0))
        return late if len(late) < len(by_rank) else {}

    def of(self, by_rank: Mapping[int, Operation]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the ranks that others wait for in vain, and those that were cut short.

        Ranks that were late are neither.
        """
        missing: list[int] = []
        cut_short: list[int] = []
        has_it, operation = next(iter(by_rank.items()))
        # The ranks waited in vain before the world failed; a rank that gave up may have caused that failure.
        was_stalled = any(each.code in WAITED_IN_VAIN for each in by_rank.values())
        for rank in _members(self._records, operation.set):
            record = self._records.get(rank)
            if record is None and rank in self.left and not _has_begun(by_rank):
                missing.append(rank)
            if record is None or rank in by_rank or _has_joined(record, operation.set):
                continue
            # None: unknown.
            if record.has_submitted(operation, self._by_how_much_ahead(rank, has_it)) is not False:
                continue
            if self._is_older(rank, by_rank):
                self.outdated.add(rank)
            elif not was_stalled and self._was_cut_short(rank, has_it, operation):
                cut_short.append(rank)
            else:
                missing.append(rank)
        return tuple(missing), tuple(cut_short)

    def without_record(self, by_rank: Mapping[int, Operation]) -> tuple[int, ...]:
        """The ranks that others can only have waited for in vain if all ranks with a record had submitted it."""
        was_stalled = any(each.code in WAITED_IN_VAIN for each in by_rank.values())
        if not was_stalled or _has_begun(by_rank):
            return ()
        operation = next(iter(by_rank.values()))
        members = _members(self._records, operation.set)
        for rank in members:
            record = self._records.get(rank)
            if record is None or rank in by_rank or _has_joined(record, operation.set):
                continue
            if record.has_submitted(operation) is not True:
                return ()
        return tuple(rank for rank in members if rank not in self._records)

    def _is_older(self, rank: int, by_rank: Mapping[int, Operation]) -> bool:
        """Whether a rank's record is older than all submissions of an operation, and so says nothing about it."""
        written = self._records[rank].written
        return all(
            written < operation.submitted + self._by_how_much_ahead(rank, other)
            for other, operation in by_rank.items()
        )

    def _was_cut_short(self, rank: int, other: int, operation: Operation) -> bool:
        record = self._records[rank]
        if record.occasion != "failure" or record.lost == rank:
            return False
        return operation.number > self._has_passed(rank, other, operation.set)

    def _has_passed(self, rank: int, other: int, set_id: int) -> float:
        """The number on `other` of the last operation that `rank` submitted too; infinity if `rank` is ahead."""
        key = (rank, other, set_id)
        if key not in self._passed:
            numbers: list[float] = [0]
            for by_rank in self._matched.values():
                operation = by_rank.get(rank)
                if operation is None or operation.set != set_id:
                    continue
                if other in by_rank:
                    numbers.append(by_rank[other].number)
                elif self._records[other].has_submitted(operation) is False:
                    numbers.append(inf)
            self._passed[key] = max(numbers)
        return self._passed[key]

    def _by_how_much_ahead(self, rank: int, other: int) -> int:
        """How far the clock of `rank`'s host is ahead, from operations that ended on both at about the same time."""
        if self._records[rank].host == self._records[other].host:
            return 0
        apart = self._apart(rank, other)
        return int(median(apart)) if apart else 0

    def _at_most_ahead(self, rank: int, other: int) -> float:
        """The most that the clock of `rank`'s host can be ahead; infinity if nothing shows how the clocks differ."""
        if self._records[rank].host == self._records[other].host:
            return 0
        return max(self._apart(rank, other), default=inf)

    def _apart(self, rank: int, other: int) -> Sequence[int]:
        """How much later operations ended on `rank` than on `other`, by the clocks of their hosts."""
        key = (rank, other)
        if key not in self._ahead:
            self._ahead[key] = [
                here.ended - there.ended
                for by_rank in self._matched.values()
                if (here := by_rank.get(rank)) is not None
                and (there := by_rank.get(other)) is not None
                and here.stage == there.stage == "done"
                and here.ended is not None
                and there.ended is not None
            ]
        return self._ahead[key]


def _divergences(
    absent: _Missing, matched: Matched
) -> tuple[tuple[Divergence, ...], tuple[Divergence, ...]]:
    """Returns the divergences, and those that are none because the world failed first."""
    found: list[Divergence] = []
    cut_short: list[Divergence] = []
    told: dict[str, tuple[int, str]] = {}  # by error of a mismatch: the set and name it is told of
    # By number, not by time: ranks of one program count alike, whatever their clocks say.
    for by_rank in sorted(matched.values(), key=_number):
        first = next(iter(by_rank.values()))
        refused = next((each for each in by_rank.values() if each.code == "mismatch"), None)
        error = refused.error if refused is not None else None
        # All operations of a group fail with the error of one of them, even those that some ranks do not have.
        place = (first.set, first.name)
        is_told = error is not None and told.setdefault(error, place) != place
        fields = _differences(by_rank)
        if fields or (refused is not None and not is_told):
            ranks = tuple(by_rank)
            found.append(Divergence("mismatch", first, ranks, fields=fields, error=error))
        if fields or refused is not None:
            continue
        # If an operation is done anywhere, all have agreed on it, if only by having joined.
        if any(operation.stage == "done" for operation in by_rank.values()):
            continue
        late = absent.late(by_rank)
        in_time = {rank: each for rank, each in by_rank.items() if rank not in late}
        first, ranks = next(iter(in_time.values())), tuple(in_time)
        missing, cut = absent.of(by_rank)
        missing = tuple(sorted({*missing, *late})) or absent.without_record(in_time)
        if missing:
            found.append(Divergence("missing", first, ranks, missing, late))
        elif cut:
            cut_short.append(Divergence("missing", first, ranks, cut))
    return tuple(found), tuple(cut_short)


def _number(by_rank: Mapping[int, Operation]) -> int:
    return min(operation.number for operation in by_rank.values())


def _silent(records: Mapping[int, Record]) -> set[int]:
    """Ranks that wrote a record on an earlier occasion, but not when the world failed."""
    if not any(record.occasion == "failure" for record in records.values()):
        return set()
    return {rank for rank, record in records.items() if record.occasion not in ("failure", None)}


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
            if first.set == other.set and not _is_same(first, other):
                return first, other, ranks[0], rank
    return None


def _lateness(matched: Mapping[Key, Mapping[int, Operation]]) -> dict[int, float]:
    """In ms, by the hosts' clocks without correction."""
    late: dict[int, list[int]] = defaultdict(list)
    for by_rank in matched.values():
        if len(by_rank) < 2:
            continue
        first = min(operation.submitted for operation in by_rank.values())
        for rank, operation in by_rank.items():
            late[rank].append(operation.submitted - first)
    return {rank: median(values) / 1000 for rank, values in late.items()}


def _last(record: Record, stage: str) -> Operation | None:
    reached = [operation for operation in record.operations if operation.stage == stage]
    return max(reached, key=lambda operation: operation.number, default=None)


def _summary(record: Record, lateness: float | None) -> RankSummary:
    return RankSummary(
        rank=record.rank,
        host=record.host,
        pid=record.pid,
        why=record.why,
        submitted=record.forgotten + len(record.operations),
        open=tuple(operation for operation in record.operations if operation.is_open),
        last_done=_last(record, "done"),
        last_failed=_last(record, "failed"),
        lateness_ms=lateness,
    )


def compare(world: WorldRecords) -> Analysis:
    """Compares the records of a world."""
    matched, not_compared = _match(world.records)
    absent = _Missing(world.records, matched)
    divergences, cut_short = _divergences(absent, matched)
    lateness = _lateness(matched)
    return Analysis(
        world=world,
        summaries=tuple(
            _summary(record, lateness.get(rank)) for rank, record in sorted(world.records.items())
        ),
        without_record=tuple(
            rank
            for rank in range(world.size)
            if rank not in world.records and rank not in world.damaged_ranks
        ),
        left=tuple(sorted(absent.left)),
        divergences=divergences,
        cut_short=cut_short,
        outdated=tuple(sorted(absent.outdated | _silent(world.records))),
        not_compared=not_compared,
        reordered=_reordered(world.records),
    )
