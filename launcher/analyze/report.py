"""The output of `rueda analyze`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby

from .comparison import WAITED_IN_VAIN, Analysis, Divergence, RankSummary
from .records import Operation, Record

# How many divergences are described in full.
MAX_DIVERGENCES = 5
MAX_OPEN = 3


def escaped(line: str) -> str:
    """`line` without characters of a record that a terminal would obey or that cannot be encoded."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in line
    )


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {_listed([str(rank) for rank in ranks])}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _ranks_in_ranges(ranks: Sequence[int]) -> str:
    """As in: rank 1; ranks 1 and 2; ranks 3, 5 and 7-12. For ascending ranks, of which there may be very many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts: list[str] = []
    for _, group in groupby(enumerate(ranks), key=lambda place: place[1] - place[0]):
        run = [rank for _, rank in group]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    return f"ranks {_listed(parts)}"


def _of_set(operation: Operation) -> str:
    return f" in process set {operation.set}" if operation.set else ""


def _divergence_lines(analysis: Analysis, divergence: Divergence) -> Iterator[str]:
    operation = divergence.operation
    if divergence.kind == "mismatch":
        is_told = divergence.fields or divergence.error
        yield f"{operation}{_of_set(operation)} is not the same on all ranks{':' if is_told else '.'}"
        if not divergence.fields and divergence.error:
            yield f"  {divergence.error}"
        for name, values in divergence.fields.items():
            told = ", ".join(
                f"{value or 'scalar'} on {_ranks(ranks)}" for value, ranks in values.items()
            )
            yield f"  {name}: {told}"
        return
    yield f"{operation}{_of_set(operation)} was submitted by {_ranks(divergence.ranks)};"
    records = analysis.world.records
    if not any(rank in records or rank in analysis.left for rank in divergence.missing):
        yield f"  {_without_record(analysis, divergence.missing)}"
        return
    verb = "was" if len(divergence.missing) == 1 else "were"
    yield f"  {_ranks(divergence.missing)} {verb} missing:"
    for rank in divergence.missing:
        if rank not in records:
            yield f"  rank {rank} had shut down: its program ended, or left Rueda, before this operation"
            continue
        place = _place_of(_summary_of(analysis, rank))
        if rank in divergence.late:
            after = f"{divergence.late[rank] / 1e6:.3f} s after others had given it up"
            yield f"  rank {rank} submitted it {after}; {place}"
            continue
        later = (records[rank].written - operation.submitted) / 1e6
        when = f"{later:.3f} s later" if later >= 0 else f"{-later:.3f} s before"
        yield f"  rank {rank} wrote its record {when}; {place}"


def _without_record(analysis: Analysis, ranks: Sequence[int]) -> str:
    if len(ranks) > 1:
        return f"{_ranks(ranks)} left no record that can be read; the others waited in vain for at least one of them."
    left = (
        "a record that cannot be read" if ranks[0] in analysis.world.damaged_ranks else "no record"
    )
    return f"rank {ranks[0]} left {left}; the others waited for it in vain."


def _summary_of(analysis: Analysis, rank: int) -> RankSummary:
    return next(summary for summary in analysis.summaries if summary.rank == rank)


def _place_of(summary: RankSummary) -> str:
    if summary.open:
        named = ", ".join(
            f"{operation} ({operation.stage})" for operation in summary.open[:MAX_OPEN]
        )
        more = len(summary.open) - MAX_OPEN
        return f"it waited for {named}" + (f" and {more} more" if more > 0 else "")
    done, failed = summary.last_done, summary.last_failed
    if failed is not None and (done is None or failed.number > done.number):
        if failed.code in WAITED_IN_VAIN:
            return f"it had waited in vain for {failed}"
        code = "" if failed.code is None else f" ({failed.code})"
        return f"it waited for no collective; its last operation was {failed}, which failed{code}"
    if done is not None:
        return f"it waited for no collective; its last operation was {done}"
    return "it had completed no operation"


def _rank_line(summary: RankSummary) -> str:
    late = (
        "" if summary.lateness_ms is None else f", {summary.lateness_ms:.1f} ms late in the median"
    )
    return (
        f"rank {summary.rank} ({summary.host}, pid {summary.pid}): {summary.submitted} submitted{late}; "
        f"{_place_of(summary)}"
    )


def _outdated_line(records: Mapping[int, Record], rank: int) -> str:
    occasion = records[rank].occasion
    has_failed = any(record.occasion == "failure" for record in records.values())
    if has_failed and occasion in ("stall", "request"):
        written = "from an earlier stall" if occasion == "stall" else "from an earlier request"
        return (
            f"rank {rank}: its record is {written}; it wrote none when the world failed. "
            "It was killed, or had ended before."
        )
    return (
        f"rank {rank}: its record is older than those of other ranks and does not show what it "
        "submitted later."
    )


def _without_record_lines(analysis: Analysis) -> Iterator[str]:
    """A line for each rank of which others tell why it left no record, and one for the rest."""
    left = set(analysis.left)
    rest = [rank for rank in analysis.without_record if rank not in left]
    for rank in analysis.without_record:
        if rank in left:
            yield f"rank {rank}: no record. {_has_shut_down(analysis, rank)}"
        elif rank == rest[0]:
            why = (
                "It was killed, or its host's files are not here."
                if len(rest) == 1
                else "They were killed, or their hosts' files are not here."
            )
            yield f"{_ranks_in_ranges(rest)}: no record. {why}"


def _has_shut_down(analysis: Analysis, rank: int) -> str:
    told_by = [n for n, record in sorted(analysis.world.records.items()) if record.left == rank]
    return f"By the record of {_ranks(told_by)}, it had shut down."


def _world_lines(analysis: Analysis) -> Iterator[str]:
    world = analysis.world
    if world.epoch:
        yield f"The world of epoch {world.epoch}:"
    written = datetime.fromtimestamp(min(record.written for record in world.records.values()) / 1e6)
    readable = " that can be read" if world.damaged_ranks else ""
    left = f"{len(world.records)} of {world.size} ranks left a record{readable}"
    yield f"{left}, the first at {written:%Y-%m-%d %H:%M:%S}."
    for path, why in world.damaged.items():
        yield f"'{path}' cannot be read: {why}"
    for reason in dict.fromkeys(record.why for _, record in sorted(world.records.items())):
        ranks = [rank for rank, record in sorted(world.records.items()) if record.why == reason]
        yield f"Reason given by {_ranks(ranks)}: {reason}"
    yield ""
    for summary in analysis.summaries:
        yield _rank_line(summary)
    for rank in analysis.outdated:
        yield _outdated_line(world.records, rank)
    yield from _without_record_lines(analysis)
    yield ""
    yield from _verdict_lines(analysis)


def _agreement_lines(analysis: Analysis) -> Iterator[str]:
    if analysis.not_compared:
        yield (
            f"No divergence was found, but {_count_of(len(analysis.not_compared), 'operation')} that had not ended "
            f"could not be compared, the first {analysis.not_compared[0]}: its name was used several times, after "
            "too many other names for its uses to be counted."
        )
    else:
        as_far = ", as far as their records go" if analysis.outdated or analysis.cut_short else ""
        yield f"No divergence: all ranks that left a record have submitted the same operations{as_far}."
    if analysis.cut_short:
        cut = analysis.cut_short[0]
        records = analysis.world.records
        waited = max(records[rank].written for rank in cut.missing) - cut.operation.submitted
        yield (
            f"The failure came before all ranks had submitted {cut.operation}{_of_set(cut.operation)}: "
            f"{_ranks(cut.ranks)} had, {max(0, waited) / 1e6:.3f} s earlier; {_ranks(cut.missing)} had not reached it."
        )


def _count_of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _verdict_lines(analysis: Analysis) -> Iterator[str]:
    found = analysis.divergences
    for count, divergence in enumerate(found[:MAX_DIVERGENCES]):
        lines = list(_divergence_lines(analysis, divergence))
        yield ("First divergence: " if count == 0 else "Then: ") + lines[0]
        yield from lines[1:]
    if len(found) > MAX_DIVERGENCES:
        yield f"And {len(found) - MAX_DIVERGENCES} more; --json lists them."
    if not found:
        yield from _agreement_lines(analysis)
    if analysis.reordered is not None:
        first, other, rank, other_rank = analysis.reordered
        yield (
            f"The order differs, which Rueda allows: number {first.number} was {first} on rank {rank}, "
            f"{other} on rank {other_rank}."
        )


def lines_of(analyses: Sequence[Analysis]) -> Iterator[str]:
    """Text for people, one world after another."""
    for count, analysis in enumerate(analyses):
        if count:
            yield ""
        yield from map(escaped, _world_lines(analysis))


def _operation_json(operation: Operation | None) -> dict[str, object] | None:
    return None if operation is None else dataclasses.asdict(operation)


def _divergence_json(divergence: Divergence) -> dict[str, object]:
    return {
        "kind": divergence.kind,
        "operation": _operation_json(divergence.operation),
        "ranks": divergence.ranks,
        "missing": divergence.missing,
        "late": {str(rank): after / 1e6 for rank, after in divergence.late.items()},
        "fields": divergence.fields,
        "error": divergence.error,
    }


def _world_json(analysis: Analysis) -> dict[str, object]:
    reordered = analysis.reordered
    return {
        "epoch": analysis.world.epoch,
        "size": analysis.world.size,
        "folder": str(analysis.world.folder),
        "ranks": {
            str(summary.rank): {
                "host": summary.host,
                "pid": summary.pid,
                "why": summary.why,
                "occasion": analysis.world.records[summary.rank].occasion,
                "submitted": summary.submitted,
                "lateness_ms": summary.lateness_ms,
                "last_done": _operation_json(summary.last_done),
                "last_failed": _operation_json(summary.last_failed),
                "open": [_operation_json(operation) for operation in summary.open],
            }
            for summary in analysis.summaries
        },
        "without_record": analysis.without_record,
        "left": analysis.left,
        "damaged": analysis.world.damaged,
        "outdated": analysis.outdated,
        "divergences": [_divergence_json(divergence) for divergence in analysis.divergences],
        "cut_short": [_divergence_json(divergence) for divergence in analysis.cut_short],
        "not_compared": [_operation_json(operation) for operation in analysis.not_compared],
        "reordered": reordered
        and {
            "operations": [_operation_json(operation) for operation in reordered[:2]],
            "ranks": reordered[2:],
        },
    }


def as_json(analyses: Sequence[Analysis]) -> dict[str, object]:
    """Schema 1, as `rueda analyze --help` documents it."""
    return {
        "schema": 1,
        "diverged": any(analysis.divergences for analysis in analyses),
        "worlds": [_world_json(analysis) for analysis in analyses],
    }


def json_text_of(analyses: Sequence[Analysis]) -> str:
    """The JSON text of `as_json`. What cannot be encoded, or a terminal would obey, is escaped."""
    text = json.dumps(as_json(analyses), indent=2, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)
