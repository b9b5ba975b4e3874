"""Compares records to find where ranks began to differ."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.analyze.comparison import Analysis, compare
from rueda.launcher.analyze.records import (
    Operation,
    Record,
    WorldRecords,
    read_folder,
    read_record,
)
from rueda.launcher.analyze.report import as_json, json_text_of, lines_of

from .conftest import Rueda

SECOND = 1_000_000


class Rank:
    """Records like a rank's; operations are in set 0 by default."""

    def __init__(self, rank: int, size: int, capacity: int = 1000) -> None:
        self.rank, self.size, self.capacity = rank, size, capacity
        self.operations: list[Operation] = []
        self.counts: dict[int, dict[str, int]] = {}
        self.generations: dict[int, int] = {}
        self.sets: dict[int, tuple[int, ...]] = {0: tuple(range(size))}

    def do(self, name: str, stage: str = "done", set: int = 0, **fields: Any) -> None:
        names = self.counts.setdefault(set, {})
        names[name] = names.get(name, 0) + 1
        number = len(self.operations) + 1
        values = {
            "collective": "allreduce",
            "dtype": "float32",
            "shape": (4,),
            "op": "sum",
            "submitted": number * SECOND,
        } | fields
        self.operations.append(
            Operation(
                number=number,
                set=set,
                name=name,
                generation=self.generations.get(set, 0),
                of_name=names[name],
                stage=stage,
                **values,
            )
        )

    def forget_names(self, names: str) -> None:
        """Forgets these names, like a rank that has seen too many others since."""
        for index, operation in enumerate(self.operations):
            if operation.name in names.split():
                self.operations[index] = replace(operation, of_name=0)
                self.counts[operation.set].pop(operation.name, None)

    def record(self, written: int = 100 * SECOND, **fields: Any) -> Record:
        ended = [operation for operation in self.operations if not operation.is_open]
        forgotten = max(0, len(ended) - self.capacity)
        gone = set(map(id, ended[:forgotten]))
        return Record(
            rank=self.rank, size=self.size, host="here", pid=100 + self.rank, written=written,
            why="a test", forgotten=forgotten, sets=self.sets, generations=self.generations, counts=self.counts,
            operations=tuple(o for o in self.operations if id(o) not in gone), **fields,
        )  # fmt: skip


def ranks_of(size: int, capacity: int = 1000) -> list[Rank]:
    return [Rank(rank, size, capacity) for rank in range(size)]


def analyse(ranks: list[Rank]) -> Analysis:
    return analyse_records([rank.record() for rank in ranks])


def analyse_records(records: list[Record]) -> Analysis:
    return compare(WorldRecords(Path("here"), 0, {record.rank: record for record in records}))


def text_of(analysis: Analysis) -> str:
    return "\n".join(lines_of([analysis]))


def test_ranks_that_do_the_same_do_not_diverge() -> None:
    ranks = ranks_of(3)
    for rank in ranks:
        rank.do("a")
        rank.do("b", "running")
    analysis = analyse(ranks)
    assert analysis.divergences == ()
    assert analysis.reordered is None
    assert "No divergence" in text_of(analysis)
    assert "it waited for allreduce 'b' (running)" in text_of(analysis)


def test_the_first_operation_that_a_rank_has_not_submitted() -> None:
    ranks = ranks_of(3)
    for rank in ranks:
        rank.do("a")
        if rank.rank != 1:
            rank.do("b", "submitted")
            rank.do("c", "submitted")
    first, second = analyse(ranks).divergences
    assert (first.kind, first.operation.name, first.ranks, first.missing) == (
        "missing",
        "b",
        (0, 2),
        (1,),
    )
    assert second.operation.name == "c"
    text = text_of(analyse(ranks))
    assert "First divergence: allreduce 'b' was submitted by ranks 0 and 2;" in text
    assert "rank 1 wrote its record 98.000 s later; it waited for no collective" in text
    assert "its last operation was allreduce 'a'" in text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("stalled", "it had waited in vain for allreduce 'c'"),
        ("timeout", "it had waited in vain for allreduce 'c'"),
        (
            "peer lost",
            "it waited for no collective; its last operation was allreduce 'c', which failed (peer lost)",
        ),
        (None, "it waited for no collective; its last operation was allreduce 'c', which failed"),
    ],
)
def test_a_last_operation_that_failed_is_told(code: str | None, said: str) -> None:
    ranks = ranks_of(2)
    for rank in ranks:
        rank.do("a", "failed", code="mismatch")
        rank.do("b")
    assert "its last operation was allreduce 'b'\n" in text_of(analyse(ranks))
    ranks[0].do("d", "failed", code=code)
    ranks[1].do("c", "failed", code=code)
    analysis = analyse(ranks)
    text = text_of(analysis)
    assert f"3 submitted, 0.0 ms late in the median; {said}\n" in text
    assert f"rank 1 wrote its record 97.000 s later; {said}\n" in text
    last = as_json([analysis])["worlds"][0]["ranks"]["1"]["last_failed"]  # type: ignore[index]
    assert (last["name"], last["code"]) == ("c", code)


def test_a_name_that_comes_again_is_told_by_its_count() -> None:
    ranks = ranks_of(2)
    for rank in ranks:
        for _ in range(3):
            rank.do("w")
    ranks[0].do("w", "submitted")
    (divergence,) = analyse(ranks).divergences
    assert divergence.operation.of_name == 4
    assert "'w' (number 4 of this name)" in text_of(analyse(ranks))


@pytest.mark.parametrize(
    ("field", "fields", "told"),
    [
        ("shape", {"shape": (5,)}, "shape: 4 on ranks 0 and 2, 5 on rank 1"),
        ("shape", {"shape": ()}, "shape: 4 on ranks 0 and 2, scalar on rank 1"),
        ("dtype", {"dtype": "int8"}, "dtype: float32 on ranks 0 and 2, int8 on rank 1"),
        ("op", {"op": "max"}, "op: sum on ranks 0 and 2, max on rank 1"),
        (
            "collective",
            {"collective": "broadcast"},
            "collective: allreduce on ranks 0 and 2, broadcast",
        ),
    ],
)
def test_fields_that_differ(field: str, fields: dict[str, Any], told: str) -> None:
    ranks = ranks_of(3)
    for rank in ranks:
        rank.do("a", "failed", **(fields if rank.rank == 1 else {}))
    (divergence,) = analyse(ranks).divergences
    assert divergence.kind == "mismatch"
    assert field in divergence.fields
    assert told in text_of(analyse(ranks))


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_first_extents_may_differ_where_they_may(collective: str) -> None:
    ranks = ranks_of(2)
    for rank in ranks:
        rank.do("a", collective=collective, shape=(rank.rank, 3), op=None)
    assert analyse(ranks).divergences == ()
    ranks[1].do("b", collective=collective, shape=(1, 4), op=None)
    ranks[0].do("b", collective=collective, shape=(1, 3), op=None)
    (divergence,) = analyse(ranks).divergences
    assert divergence.fields["shape"] == {"?x3": (0,), "?x4": (1,)}


def test_what_is_forgotten_is_not_missing() -> None:
    ranks = [Rank(0, 2), Rank(1, 2, capacity=2)]
    for rank in ranks:
        for count in range(6):
            rank.do(f"of{count}")
    assert analyse(ranks).divergences == ()
    assert ranks[1].record().forgotten == 4


def test_a_rank_that_has_joined_takes_part_in_everything() -> None:
    ranks = ranks_of(2)
    ranks[0].do("a")
    ranks[0].do("b", "running")
    ranks[1].do("join", "submitted", collective="join", op=None, shape=())
    assert analyse(ranks).divergences == ()


def test_after_a_join_operations_are_counted_anew() -> None:
    """Before it, each rank may have sat out different operations."""
    ranks = ranks_of(2)
    for rank, count in zip(ranks, (5, 3), strict=True):
        for _ in range(count):
            rank.do("w")
        rank.do("join", collective="join", op=None, shape=())
        rank.counts.clear()
        rank.generations[0] = 1
        rank.do("w")
    assert analyse(ranks).divergences == ()
    ranks[0].do("w", "submitted")
    (divergence,) = analyse(ranks).divergences
    assert (divergence.operation.generation, divergence.operation.of_name) == (1, 2)
    assert divergence.missing == (1,)


def test_only_members_of_a_set_can_be_missing() -> None:
    ranks = ranks_of(3)
    for rank in ranks[:2]:
        rank.sets[7] = (0, 1)
    ranks[0].do("a", "submitted", set=7)
    (divergence,) = analyse(ranks).divergences
    assert divergence.missing == (1,)
    assert "'a' in process set 7 was submitted by rank 0;" in text_of(analyse(ranks))


def test_a_rank_without_a_record() -> None:
    ranks = ranks_of(3)
    for rank in ranks:
        rank.do("a", "running")
    analysis = analyse([ranks[0], ranks[2]])
    assert analysis.without_record == (1,)
    assert analysis.divergences == ()
    assert "rank 1: no record. It was killed" in text_of(analysis)


def broken_world() -> list[Rank]:
    """Of four ranks, the second left no record while others waited for 'b'."""
    ranks = ranks_of(4)
    del ranks[1]
    for rank in ranks:
        rank.do("a")
    for rank in ranks[:2]:
        rank.do("b", "failed")
    return ranks


def failed(ranks: list[Rank], lost: int = 1) -> list[Record]:
    return [rank.record(occasion="failure", lost=lost) for rank in ranks]


def test_who_had_not_come_as_far_when_the_world_failed_is_not_to_blame() -> None:
    analysis = analyse_records(failed(broken_world()))
    assert analysis.divergences == ()
    (cut,) = analysis.cut_short
    assert (cut.operation.name, cut.ranks, cut.missing) == ("b", (0, 2), (3,))
    text = text_of(analysis)
    assert (
        "No divergence: all ranks that left a record have submitted the same operations, as far as"
        in text
    )
    assert "ranks 0 and 2 had, 98.000 s earlier; rank 3 had not reached it" in text


def test_who_did_something_else_when_the_world_failed_is_to_blame() -> None:
    ranks = broken_world()
    ranks[2].do("c", "failed")
    first, second = analyse_records(failed(ranks)).divergences
    assert (first.operation.name, first.missing) == ("b", (3,))
    assert (second.operation.name, second.missing) == ("c", (0, 2))
    ranks[0].do("c", "failed")  # for which the last rank skipped 'b'
    first = analyse_records(failed(ranks)).divergences[0]
    assert (first.operation.name, first.missing) == ("b", (3,))


def test_who_was_waited_for_in_vain_is_to_blame_whoever_ended_the_world_then() -> None:
    ranks = broken_world()
    ranks[0].operations[-1] = replace(ranks[0].operations[-1], code="stalled")
    analysis = analyse_records(failed(ranks, lost=0))
    assert analysis.cut_short == ()
    (divergence,) = analysis.divergences
    assert (divergence.operation.name, divergence.missing) == ("b", (3,))


def test_who_ended_the_world_is_to_blame_for_what_it_had_not_come_to() -> None:
    (divergence,) = analyse_records(failed(broken_world(), lost=3)).divergences
    assert (divergence.operation.name, divergence.missing) == ("b", (3,))


def given_up(late_by: int, stage: str = "submitted") -> list[Rank]:
    """Ranks 1 and 2 gave 'b' up 5 s after 1970; rank 0 submitted it later by `late_by` microseconds."""
    ranks = ranks_of(3)
    for rank in ranks:
        rank.do("a", ended=SECOND + 10)
    ranks[0].do("b", stage, submitted=5 * SECOND + late_by)
    for rank in ranks[1:]:
        rank.do("b", "failed", code="stalled", ended=5 * SECOND)
    return ranks


def test_who_came_after_the_others_had_given_up_is_to_blame() -> None:
    analysis = analyse(given_up(27 * SECOND))
    (divergence,) = analysis.divergences
    assert (divergence.kind, divergence.ranks, divergence.missing) == ("missing", (1, 2), (0,))
    text = text_of(analysis)
    assert "First divergence: allreduce 'b' was submitted by ranks 1 and 2;" in text
    assert "rank 0 submitted it 27.000 s after others had given it up; it waited for" in text
    world = json.loads(json_text_of([analysis]))["worlds"][0]
    assert world["divergences"][0]["late"] == {"0": 27.0}
    # Also if it then gave up itself.
    (divergence,) = analyse(given_up(SECOND, "failed")).divergences
    assert divergence.missing == (0,)


def test_who_came_before_the_others_had_given_up_is_not_to_blame() -> None:
    assert analyse(given_up(-1)).divergences == ()


@pytest.mark.parametrize(
    ("ahead", "late_by", "is_late"),
    [(100, 101, True), (100, 100, False), (0, 27, True), (None, 27, False)],
)
def test_clocks_of_hosts_that_differ_do_not_make_a_rank_late(
    ahead: int | None, late_by: int, is_late: bool
) -> None:
    """`ahead`: by how many seconds the end of a common operation shows it; None: there is none."""
    ranks = given_up(late_by * SECOND)
    for rank in ranks:
        (end,) = (o.ended for o in rank.operations if o.name == "a")
        assert end is not None
        if rank.rank == 0:
            end = None if ahead is None else end + ahead * SECOND
        rank.operations[0] = replace(rank.operations[0], ended=end)
    records = [rank.record() for rank in ranks]
    analysis = analyse_records([replace(records[0], host="there"), *records[1:]])
    assert [d.missing for d in analysis.divergences] == ([(0,)] if is_late else [])


def refused(rank: Rank, names: str, error: str) -> None:
    for name in names.split():
        rank.do(name, "failed", code="mismatch", error=error)


def test_what_was_refused_for_a_difference_that_is_not_recorded() -> None:
    ranks = ranks_of(3)
    error = "'s': compression differs between ranks: none on ranks 0 and 2, int8 on rank 1"
    for rank in ranks:
        rank.do("a")
        refused(rank, "s s", error)
    analysis = analyse(ranks)
    first, second = analysis.divergences
    assert (first.kind, first.operation.name, first.error) == ("mismatch", "s", error)
    assert second.operation.of_name == 2
    assert f"First divergence: allreduce 's' is not the same on all ranks:\n  {error}\n" in text_of(
        analysis
    )


def test_groups_that_differ_are_one_difference() -> None:
    ranks = ranks_of(3)
    error = "'g.0': group differs between ranks: g of 3 on ranks 0 and 2, g of 2 on rank 1"
    for rank in ranks:
        refused(rank, "g.0 g.1" if rank.rank == 1 else "g.0 g.1 g.2", error)
    (divergence,) = analyse(ranks).divergences
    assert (divergence.kind, divergence.operation.name) == ("mismatch", "g.0")
    assert "missing" not in text_of(analyse(ranks))


def without_record(*gone: int, **fields: Any) -> list[Rank]:
    """Four ranks of which `gone` left no record, and 'b' stalled."""
    ranks = [rank for rank in ranks_of(4) if rank.rank not in gone]
    for rank in ranks:
        rank.do("a")
        rank.do("b", "failed", **{"code": "stalled"} | fields)
    return ranks


def test_who_left_no_record_is_to_blame_if_the_others_waited_in_vain() -> None:
    analysis = analyse(without_record(1))
    (divergence,) = analysis.divergences
    assert (divergence.ranks, divergence.missing) == ((0, 2, 3), (1,))
    text = text_of(analysis)
    assert "First divergence: allreduce 'b' was submitted by ranks 0, 2 and 3;" in text
    assert "  rank 1 left no record; the others waited for it in vain." in text
    text = text_of(analyse(without_record(1, 3)))
    assert "ranks 1 and 3 left no record that can be read; the others waited in vain for" in text


def test_who_left_no_record_is_not_to_blame_if_others_may_be() -> None:
    assert analyse(without_record(1, code="peer lost")).divergences == ()
    assert analyse(without_record(1, started=3 * SECOND)).divergences == ()
    ranks = without_record(1)
    ranks[1].operations.pop()
    ranks[1].counts[0].pop("b")
    (divergence,) = analyse(ranks).divergences
    assert divergence.missing == (2,)
    records = [rank.record() for rank in ranks]
    records[1] = ranks[1].record(written=SECOND, occasion="stall")  # too old to tell
    analysis = analyse_records(records)
    assert (analysis.divergences, analysis.outdated) == ((), (2,))


def left_early(stage: str, why: str = "rank 0 has shut down", **fields: Any) -> Analysis:
    """The first of three ranks shut down after 'a'. The others had submitted 'b'."""
    ranks = ranks_of(3)[1:]
    for rank in ranks:
        rank.do("a")
        rank.do("b", stage, **fields)
    return analyse_records(
        [replace(rank.record(occasion="failure", lost=0), why=why) for rank in ranks]
    )


@pytest.mark.parametrize("why", ["rank 0 has shut down", "rank 0 (vm, pid 7) has shut down"])
@pytest.mark.parametrize("stage", ["submitted", "failed"])
def test_who_shut_down_while_others_waited_is_to_blame(stage: str, why: str) -> None:
    analysis = left_early(stage, why)
    (divergence,) = analysis.divergences
    assert (divergence.kind, divergence.operation.name) == ("missing", "b")
    assert (divergence.ranks, divergence.missing) == ((1, 2), (0,))
    text = text_of(analysis)
    assert "rank 0: no record. By the record of ranks 1 and 2, it had shut down." in text
    assert "First divergence: allreduce 'b' was submitted by ranks 1 and 2;" in text
    assert "rank 0 was missing:" in text
    assert "No divergence" not in text
    written = as_json([analysis])
    assert written["diverged"]
    assert json.loads(json.dumps(written))["worlds"][0]["left"] == [0]


def test_who_shut_down_is_not_to_blame_for_what_it_took_part_in() -> None:
    assert left_early("running", started=3 * SECOND).divergences == ()
    assert left_early("done", started=3 * SECOND, ended=4 * SECOND).divergences == ()


def test_who_was_killed_without_a_record_is_not_taken_to_have_shut_down() -> None:
    analysis = left_early("submitted", "rank 0 is gone: connection closed")
    assert (analysis.left, analysis.divergences) == ((), ())
    assert "rank 0: no record. It was killed" in text_of(analysis)


def test_a_record_of_an_earlier_stall_tells_nothing_of_what_came_later() -> None:
    ranks = ranks_of(3)
    for rank in ranks:
        rank.do("a")
    stall = ranks[1].record(written=2 * SECOND, occasion="stall")
    for rank in (ranks[0], ranks[2]):
        for _ in range(3):
            rank.do("b")
        rank.do("b", "failed")
    others = failed([ranks[0], ranks[2]])
    analysis = analyse_records([*others, stall])
    assert analysis.divergences == ()
    assert analysis.outdated == (1,)
    text = text_of(analysis)
    assert (
        "rank 1: its record is from an earlier stall; it wrote none when the world failed" in text
    )
    # A rank that did not do what others had submitted by then is to blame.
    ranks[1].do("c", "submitted")
    late = ranks[1].record(written=50 * SECOND, occasion="stall")
    found = analyse_records([*others, late]).divergences
    assert [(d.operation.name, d.missing) for d in found] == [("c", (0, 2)), ("b", (1,))]


def test_clocks_that_differ_do_not_make_a_record_older() -> None:
    ranks = ranks_of(2)
    for rank in ranks:
        for count in range(3):
            rank.do("a", ended=rank.rank * -1000 * SECOND + (count + 2) * SECOND)
    ranks[0].do("b", "submitted")
    records = [ranks[0].record(), replace(ranks[1].record(-990 * SECOND), host="there")]
    (divergence,) = analyse_records(records).divergences
    assert divergence.missing == (1,)


def test_records_that_were_asked_for_at_different_times() -> None:
    ranks = ranks_of(2)
    for rank in ranks:
        rank.do("a")
    early = ranks[1].record(written=SECOND, occasion="request")
    ranks[0].do("b", "submitted")
    analysis = analyse_records([ranks[0].record(occasion="request"), early])
    assert analysis.divergences == ()
    assert "rank 1: its record is older than those of other ranks" in text_of(analysis)


def many_names(capacity: int) -> list[Rank]:
    ranks = ranks_of(2, capacity)
    for rank in ranks:
        for step in range(20):
            number = len(rank.operations) + 1
            rank.do(f"step{step}", ended=number * SECOND + 1)
    return ranks


def test_operations_whose_names_were_too_many_to_count() -> None:
    ranks = many_names(capacity=5)
    ranks[0].do("only0", "submitted")
    ranks[1].do("only1", "running")
    for rank in ranks:
        rank.do("both", "submitted")
        rank.forget_names("only0 only1 both step15 step16 step17 step18 step19")
    first, second = analyse(ranks).divergences
    assert {(first.operation.name, first.missing), (second.operation.name, second.missing)} == {
        ("only0", (1,)),
        ("only1", (0,)),
    }


def test_a_name_that_one_rank_has_counted_and_another_not() -> None:
    ranks = many_names(capacity=100)
    for rank in ranks:
        rank.do("both", "submitted")
    ranks[0].forget_names("both")
    analysis = analyse(ranks)
    assert analysis.divergences == ()
    assert analysis.reordered is None
    assert analysis.not_compared == ()


def test_names_that_were_too_many_to_count_and_come_again_cannot_be_compared() -> None:
    ranks = many_names(capacity=100)
    for rank in ranks:
        rank.do("x")
        rank.do("x", "submitted")
        rank.forget_names("x")
    analysis = analyse(ranks)
    assert analysis.divergences == ()
    assert [operation.name for operation in analysis.not_compared] == ["x"]
    text = text_of(analysis)
    assert (
        "No divergence was found, but 1 operation that had not ended could not be compared" in text
    )


def test_what_may_have_been_forgotten_is_not_missing_where_names_were_too_many() -> None:
    ranks = many_names(capacity=0)
    ranks[0].do("x", "running")
    ranks[0].forget_names("x")
    ranks[1].do("y", "submitted")
    ranks[1].forget_names("y")
    ranks[1].capacity = 0
    assert [d.operation.name for d in analyse(ranks).divergences] == []


def test_another_order_is_told_and_is_no_divergence() -> None:
    ranks = ranks_of(2)
    for rank in ranks:
        for name in ("a", "b", "c") if rank.rank == 0 else ("a", "c", "b"):
            rank.do(name)
    analysis = analyse(ranks)
    assert analysis.divergences == ()
    assert "number 2 was allreduce 'b' on rank 0, allreduce 'c' on rank 1" in text_of(analysis)


@given(st.data())
def test_a_planted_divergence_is_found(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    names = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=20))
    capacity = data.draw(st.integers(0, 30))
    left_out = data.draw(st.integers(0, len(names) - 1))
    culprits = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    ranks = ranks_of(size, capacity)
    for rank in ranks:
        for count, name in enumerate(names):
            if count >= left_out and rank.rank in culprits:
                continue
            rank.do(name, "done" if count < left_out else "submitted")
    first = analyse(ranks).divergences[0]
    assert first.kind == "missing"
    assert first.missing == tuple(sorted(culprits))
    assert first.operation.number == left_out + 1


def write(folder: Path, rank: Rank, **changes: Any) -> Path:
    record = rank.record()
    operations = [{k: v for k, v in vars(o).items() if v is not None} for o in record.operations]
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{rank.rank}.json"
    content = {"rueda_flight_record": 1, **vars(record), "operations": operations, **changes}
    path.write_text(json.dumps(content))
    return path


def test_files_and_the_command(rueda: Rueda, tmp_path: Path) -> None:
    ranks = ranks_of(2)
    for rank in ranks:
        rank.do("a")
    ranks[0].do("b", "submitted")
    for rank in ranks:
        write(tmp_path / "dump", rank)
    ran = rueda("analyze", "dump")
    assert ran.code == 1, ran
    assert "First divergence: allreduce 'b' was submitted by rank 0;" in ran.out
    ran = rueda("analyze", "dump", "--json")
    assert ran.code == 1, ran
    report = json.loads(ran.out)
    assert (report["schema"], report["diverged"]) == (1, True)
    (world,) = report["worlds"]
    assert world["divergences"][0]["operation"]["name"] == "b"
    assert world["divergences"][0]["missing"] == [1]
    assert world["ranks"]["1"]["last_done"]["name"] == "a"
    ranks[1].do("b")
    write(tmp_path / "dump", ranks[1])
    ran = rueda("analyze", "dump")
    assert ran.code == 0, ran


def test_worlds_after_a_loss_are_told_apart(tmp_path: Path) -> None:
    for epoch, size in ((0, 3), (2, 2)):
        folder = tmp_path / f"epoch{epoch}" if epoch else tmp_path
        for rank in ranks_of(size):
            write(folder, rank)
    (tmp_path / "rank0.previous.json").write_text("{}")
    (tmp_path / "epochs").mkdir()
    worlds = read_folder(tmp_path)
    assert [(world.epoch, world.size) for world in worlds] == [(0, 3), (2, 2)]
    text = "\n".join(lines_of([compare(world) for world in worlds]))
    assert "The world of epoch 2:" in text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "not a flight record"),
        ('{"rank": 1}', "not a flight record"),
        ('{"rueda_flight_record": 2}', "another version of Rueda"),
        ('{"rueda_flight_record": 1}', "damaged flight record: 'pid'"),
        (
            '{"rueda_flight_record": 1, "sets": {}, "generations": {}, "counts": {}, "operations": [{}]}',
            "damaged",
        ),
    ],
)
def test_files_that_are_none(rueda: Rueda, tmp_path: Path, content: str, why: str) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "rank0.json").write_text(content)
    ran = rueda("analyze", "dump")
    assert ran.code == 2, ran
    assert "has no record that can be read" in " ".join(ran.err.split())
    assert why in " ".join(ran.err.split())
    rank = Rank(1, 2)
    rank.do("a")
    write(dump, rank)
    ran = rueda("analyze", "dump")
    assert ran.code == 0, ran
    assert "rank0.json' cannot be read: " in ran.out
    assert "1 of 2 ranks left a record" in ran.out


def test_a_damaged_record_is_not_called_missing(tmp_path: Path) -> None:
    for rank in without_record(1):
        write(tmp_path, rank)
    (tmp_path / "rank1.json").write_text('{"rueda_flight_record": 1')
    (world,) = read_folder(tmp_path)
    analysis = compare(world)
    assert analysis.without_record == ()
    text = text_of(analysis)
    assert "3 of 4 ranks left a record that can be read, the first" in text
    assert "rank 1: no record" not in text
    assert "rank 1 left a record that cannot be read; the others waited for it in vain." in text


@pytest.mark.parametrize(("left_out", "named"), [(0, 1), (3, 1), (0, 3)])
def test_a_record_of_another_rank_than_its_file_says(
    tmp_path: Path, left_out: int, named: int
) -> None:
    for rank in without_record(left_out):
        write(tmp_path, rank)
    copy = json.loads((tmp_path / f"rank{named}.json").read_text()) | {"host": "elsewhere"}
    (tmp_path / f"rank{left_out}.json").write_text(json.dumps(copy))
    (world,) = read_folder(tmp_path)
    assert world.records[named].host != "elsewhere"
    analysis = compare(world)
    assert analysis.without_record == ()
    text = text_of(analysis)
    why = f"it says that it is the record of rank {named}, as does rank{named}.json"
    assert f"rank{left_out}.json' cannot be read: {why}" in text
    assert f"rank {left_out}: no record" not in text
    (tmp_path / f"rank{named}.json").unlink()
    (world,) = read_folder(tmp_path)  # as if the file had been renamed
    assert world.records[named].host == "elsewhere"
    assert world.damaged == {}


@pytest.mark.parametrize(
    ("sizes", "size", "others"),
    [
        ({0: 1_000_000, 1: 4, 2: 4, 3: 4}, 4, [0]),
        ({0: 4, 1: 1_000_000}, 4, [1]),  # as many say one as the other
        ({0: 2, 3: 4}, 4, [0]),  # 2 ranks would leave out rank 3
        ({0: 2, 1: 2, 2: 4, 3: 4, 7: 8}, 4, [0, 1, 7]),
    ],
)
def test_a_record_of_another_number_of_ranks_is_damaged(
    tmp_path: Path, sizes: dict[int, int], size: int, others: list[int]
) -> None:
    for number, told in sizes.items():
        rank = Rank(number, 4)
        rank.do("a")
        write(tmp_path, rank, size=told)
    (world,) = read_folder(tmp_path)
    assert world.size == size
    assert sorted(world.damaged_ranks) == others
    assert sorted(world.records) == sorted(sizes.keys() - others)
    analysis = compare(world)
    absent = set(range(size)) - sizes.keys()
    assert analysis.without_record == tuple(sorted(absent))
    text = text_of(analysis)
    for number in others:
        why = f"it says that the world had {sizes[number]} ranks, others say {size}: it is damaged, or left from"
        assert f"rank{number}.json' cannot be read: {why} another job" in text


def test_ranks_without_record_are_told_in_one_line() -> None:
    def lines(size: int, *there: int) -> list[str]:
        records = [rank.record() for rank in ranks_of(10) if rank.rank in there]
        analysis = analyse_records([replace(record, size=size) for record in records])
        return [line for line in text_of(analysis).splitlines() if "no record." in line]

    killed = "no record. They were killed, or their hosts' files are not here."
    assert lines(10, *range(9)) == [
        "rank 9: no record. It was killed, or its host's files are not here."
    ]
    assert lines(10, 0, 1, 2, 4) == [f"ranks 3 and 5-9: {killed}"]
    assert lines(10, 0, 1, 4, 6, 7, 8, 9) == [f"ranks 2, 3 and 5: {killed}"]
    assert lines(10, *range(10)) == []
    assert lines(1_000_000, 0) == [f"ranks 1-999999: {killed}"]


def test_who_shut_down_is_told_apart_from_who_was_killed() -> None:
    ranks = [rank for rank in ranks_of(6) if rank.rank in (1, 3)]
    why = "rank 2 has shut down"
    records = [replace(rank.record(occasion="failure", lost=2), why=why) for rank in ranks]
    told = [line for line in text_of(analyse_records(records)).splitlines() if "no record." in line]
    assert told == [
        "ranks 0, 4 and 5: no record. They were killed, or their hosts' files are not here.",
        "rank 2: no record. By the record of ranks 1 and 3, it had shut down.",
    ]


def test_files_that_would_make_the_reader_wait(rueda: Rueda, tmp_path: Path) -> None:
    rank = Rank(0, 2)
    rank.do("a")
    os.mkfifo(write(tmp_path / "dump", rank).with_name("rank1.json"))
    ran = rueda("analyze", "dump")
    assert ran.code == 0, ran
    assert "rank1.json' cannot be read: not a regular file" in ran.out


def test_characters_that_cannot_be_printed(rueda: Rueda, tmp_path: Path) -> None:
    rank = Rank(0, 1)
    rank.do("\x1b[2J\ud800\x9b é")
    write(tmp_path / "dump", rank, why="of\ntwo lines")
    ran = rueda("analyze", "dump")
    assert ran.code == 0, ran
    assert "its last operation was allreduce '\\x1b[2J\\ud800\\x9b é'" in ran.out
    assert "Reason given by rank 0: of\\ntwo lines\n" in ran.out
    ran = rueda("analyze", "dump", "--json")
    assert ran.code == 0, ran
    assert "\x9b" not in ran.out
    last = json.loads(ran.out)["worlds"][0]["ranks"]["0"]["last_done"]
    assert last["name"] == rank.operations[0].name


@pytest.mark.parametrize(("folder", "why"), [("none", "No such file"), (".", "has no records")])
def test_folders_without_records(rueda: Rueda, folder: str, why: str) -> None:
    ran = rueda("analyze", folder)
    assert ran.code == 2
    assert why in " ".join(ran.err.split())


ODD = (None, -1, 1.5, True, "x", [], {}, [1], {"a": 1}, {"0": ["a"]}, [["a"]], 2**70, float("nan"))


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_fields_of_a_wrong_type(tmp_path: Path, odd: Any) -> None:
    """They mark the file as damaged, or the record can be compared and printed."""
    ranks = ranks_of(2)
    for rank in ranks:
        rank.do("a", root=0, started=SECOND, ended=SECOND, code="stalled", error="e")
        rank.do("b", "running")
        rank.generations[0] = 0
    content = json.loads(write(tmp_path, ranks[0]).read_text())
    content |= {"occasion": "failure", "lost": 1}
    whole = read_folder(tmp_path)[0].records[0]
    places = [(content, name) for name in content if name != "rueda_flight_record"]
    places += [(operation, name) for operation in content["operations"] for name in operation]
    places += [(content[name], "0") for name in ("sets", "generations", "counts")]
    places += [(content["counts"]["0"], "a"), (content["sets"]["0"], 1), (content["operations"], 1)]
    for holder, name in places:
        before = holder[name]
        holder[name] = odd
        (tmp_path / "rank0.json").write_text(json.dumps(content))
        holder[name] = before
        try:
            record = read_record(tmp_path / "rank0.json")
        except ValueError:
            continue
        worlds = [WorldRecords(tmp_path, 0, {0: record, 1: replace(whole, rank=1)})]
        analyses = [compare(world) for world in worlds]
        assert list(lines_of(analyses))
        json.dumps(as_json(analyses))
