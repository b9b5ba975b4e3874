"""The parts of `rueda bench` that start nothing."""

from __future__ import annotations

import importlib.util
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rueda.bench import subcommands, tuning, values
from rueda.bench.collectives import COLLECTIVES, REDUCTION
from rueda.bench.contenders import Contender, Missing, find_peer
from rueda.bench.explain import algorithm_table
from rueda.bench.group import Group, GroupFailed
from rueda.bench.limits import LIMITS
from rueda.bench.mpi_libraries import IntelMpi, OpenMpi, find_intel_mpi
from rueda.bench.plan import Entry, Plan
from rueda.bench.ranks.frame import Values
from rueda.bench.report import Report
from rueda.bench.samples import Block, Samples, block_of
from rueda.bench.sizes import format_size, parse_size, size_sequence
from rueda.bench.tables import (
    Table,
    markdown,
    microseconds,
    ratio_tables,
    summary_table,
    times_table,
)
from rueda.bench.tuning import settings
from rueda.bench.turns import Turn
from rueda.bench.wire import Message, receive, send
from rueda.launcher.errors import LaunchError


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4), ("64K", 65536), ("1m", 2**20), ("2G", 2**31), ("1 MiB", 2**20), ("8kB", 8192)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4", "1.5M", "4T", "four"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="is not a size"):
        parse_size(text)


def test_sizes_are_written() -> None:
    assert [format_size(s) for s in (0, 4, 1024, 1536, 2**28, 2**31)] == [
        "0", "4", "1 Ki", "1536", "256 Mi", "2 Gi",
    ]  # fmt: skip


def test_sizes_grow_by_the_factor_to_the_last() -> None:
    assert size_sequence(4, 256, 4, element=4) == [4, 16, 64, 256]
    assert size_sequence(4, 255, 4, element=4) == [4, 16, 64]


def test_sizes_are_made_of_whole_parts() -> None:
    sizes = size_sequence(4, 100, 2, element=4, parts=3)
    assert sizes == [12, 24, 36, 72]
    assert all(size % 12 == 0 for size in sizes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((8, 4, 2, 4), "comes first"),
        ((6, 64, 2, 4), "multiple of 4"),
        ((4, 64, 1, 4), "at least 2"),
    ],
)
def test_senseless_sequences_are_refused(arguments: tuple[int, int, int, int], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        size_sequence(*arguments)


def test_bus_bandwidth_is_counted_as_by_nccl_tests() -> None:
    factors = {name: row.bus_factor(4) for name, row in COLLECTIVES.items()}
    assert factors == {
        "allreduce": 1.5, "allgather": 0.75, "broadcast": 1.0, "reduce_scatter": 0.75,
        "alltoall": 0.75,
    }  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("rank", [0, 2])
def test_results_are_those_of_a_simulation(name: str, rank: int) -> None:
    """Compares the blocks of an expected result with the collectives written out in NumPy."""
    ranks, count, root = 3, 12, 1
    collective = COLLECTIVES[name]
    part = count // ranks
    length = part if collective.input_is_part else count
    inputs = [100 * r + np.arange(length) for r in range(ranks)]
    expected = {
        "allreduce": sum(inputs),
        "allgather": np.concatenate(inputs),
        "broadcast": inputs[root],
        "reduce_scatter": sum(inputs)[part * rank : part * (rank + 1)],  # type: ignore[index]
        "alltoall": np.concatenate([x[part * rank : part * (rank + 1)] for x in inputs]),
    }[name]
    given = {r: inputs[r] for r in range(ranks)} | {REDUCTION: sum(inputs)}
    blocks = collective.result(rank, ranks, count, root)
    built = np.concatenate([given[who][first : first + n] for who, first, n in blocks])
    assert (built == expected).all()


NUMPY_DTYPES = [dtype for dtype in values.DTYPES if dtype != "bfloat16"]
UFUNCS = {
    "sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply,
    "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (dtype, op)
        for dtype in NUMPY_DTYPES
        for op in UFUNCS
        if not (op.startswith("bit") and np.dtype(dtype).kind in "fc")
    ],
)
def test_reductions_are_exact_in_every_dtype(dtype: str, op: str, ranks: int) -> None:
    inputs = [np.frombuffer(values.table(r, ranks, op, dtype), dtype) for r in range(ranks)]
    total = inputs[0]
    for other in inputs[1:]:
        total = UFUNCS[op](total, other, dtype=dtype)
    assert total.tobytes() == values.table(REDUCTION, ranks, op, dtype)
    assert len(set(total.tolist())) > 1


@pytest.mark.parametrize("ranks", [2, 4, 11, 12, 16, 100, 127])
def test_averages_are_exact(ranks: int) -> None:
    inputs = [
        np.frombuffer(values.table(r, ranks, "average", "int8"), "int8") for r in range(ranks)
    ]
    total = sum(x.astype(int) for x in inputs)
    assert 0 < total.max() <= 127  # type: ignore[attr-defined]
    assert (total % ranks == 0).all()  # type: ignore[attr-defined]
    assert (total // ranks).astype("int8").tobytes() == values.table(
        REDUCTION, ranks, "average", "int8"
    )


def test_sums_of_many_ranks_are_exact() -> None:
    assert max(np.frombuffer(values.table(REDUCTION, 200, "sum", "int8"), "int8")) <= 127
    inputs = [np.frombuffer(values.table(r, 200, "sum", "int8"), "int8") for r in range(200)]
    assert 0 < sum(x.astype(int) for x in inputs).max() <= 127  # type: ignore[attr-defined]


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    halves = np.frombuffer(values.as_bytes(np.array([1, 3, 127, 254]), "bfloat16"), np.uint16)
    assert (halves.astype(np.uint32) << 16).view(np.float32).tolist() == [1, 3, 127, 254]


def layout(dtype: str = "float32", ranks: int = 2, count: int = 5000) -> Values:
    blocks, tables = values.expectation(COLLECTIVES["allreduce"], 0, ranks, count, 0, "sum", dtype)
    message = Message({"period": str(values.period(dtype)), "expected": blocks}, tables)
    return Values(message, values.element_size(dtype))


def reduced(ranks: int, count: int, iteration: int) -> np.ndarray:
    """Returns a correct allreduce result."""
    period = values.period("float32")
    table = np.frombuffer(values.table(REDUCTION, ranks, "sum", "float32"), np.float32)
    return table[(np.arange(count) + 37 * iteration) % period].copy()


def test_a_right_result_has_nothing_wrong() -> None:
    for iteration in (0, 1, 100):
        right = reduced(2, 5000, iteration)
        assert layout().count_wrong(right.view(np.uint8), iteration) == 0


def test_one_wrong_element_is_counted() -> None:
    result = reduced(2, 5000, 3)
    result[[0, 4999]] += 1
    assert layout().count_wrong(result.view(np.uint8), 3) == 2


def test_the_result_of_the_call_before_is_wrong() -> None:
    stale = reduced(2, 5000, 3)
    assert layout().count_wrong(stale.view(np.uint8), 4) > 4000


def test_inputs_are_laid_out_as_ranks_expect_them() -> None:
    buffer = np.zeros(5000 * 4, np.uint8)
    layout().write(buffer, 2)
    table = np.frombuffer(values.table(0, 2, "sum", "float32"), np.float32)
    expected = table[(np.arange(5000) + 74) % values.period("float32")]
    assert (buffer.view(np.float32) == expected).all()


def test_a_call_lasts_from_the_last_entry_to_the_last_return() -> None:
    first = np.array([100, 1000]), np.array([400, 1300])
    second = np.array([150, 990]), np.array([300, 1500])
    block = block_of([first, second], steps=1, wrong=3)
    assert block.durations == pytest.approx([250e-9, 500e-9])
    assert block.interval == pytest.approx(850e-9)
    assert block.wrong == 3
    assert block_of([first, second], steps=10, wrong=0).durations[0] == pytest.approx(25e-9)


def samples(*microseconds: float, wrong: int = 0) -> Samples:
    made = Samples()
    made.add(Block(np.array(microseconds) * 1e-6, wrong, 1e-6))
    return made


def test_medians_and_spread_are_over_all_rounds() -> None:
    made = samples(1, 2, 3)
    made.add(Block(np.array([10e-6, 20e-6]), 1, 1e-6))
    row = made.as_json()
    assert row["time_us"] == pytest.approx(3)
    assert row["min_us"] == pytest.approx(1)
    assert row["round_medians_us"] == pytest.approx([2, 15])
    assert (row["calls"], row["wrong"]) == (5, 1)


@pytest.fixture
def report() -> Report:
    plan = Plan(COLLECTIVES["allreduce"], 2, (4, 2048), "float32", "sum", 0, 1, 0, 0.1, 0.0, (0, 1))

    def entry(label: str, peer: str, sizes: frozenset[int] = frozenset()) -> Entry:
        contender = Contender(label, lambda setting: [], peer=peer)
        return Entry(label, contender, "private", Group(label, label, Path("log")), sizes)

    made = Report(plan, {"CPU": "a CPU"}, [
        entry("rueda private", ""), entry("openmpi-4", "mpi"), entry("openmpi-5", "mpi"),
        entry("gloo", "gloo"), entry("openmpi-5 ring", "mpi", frozenset({2048})),
    ])  # fmt: skip
    refused = Samples(unsupported="no such thing")
    made.sizes = {
        4: {"rueda private": samples(2), "openmpi-4": samples(6), "openmpi-5": samples(5),
            "gloo": refused, "shared_sum": samples(1.5), "shared_sum_streaming": samples(1)},
        2048: {"rueda private": samples(4), "openmpi-4": samples(8), "openmpi-5": samples(9),
               "gloo": samples(400, wrong=2), "openmpi-5 ring": samples(6)},
    }  # fmt: skip
    made.limits = {"flag_exchange": samples(0.5), "copy_all": samples(1e4)}
    made.tuned = {2048: ("openmpi-5 ring", 5e-6)}
    return made


def test_the_ratio_to_open_mpi_is_that_to_the_fastest(report: Report) -> None:
    (table,) = ratio_tables(report)
    assert table.columns == [
        "bytes", "µs", "Open MPI ÷ it", "gloo ÷ it", "its best ÷ it", "it ÷ flag exchange",
        "limit µs", "limit ÷ it",
    ]  # fmt: skip
    assert table.rows == [
        ["4", "2.00", "2.5", "-", "2.5", "4", "1.00", "0.5"],
        ["2 Ki", "4.00", "2", "100", "1.5", "8", "-", "-"],
    ]


def test_the_summary_names_the_best_setting(report: Report) -> None:
    table = summary_table(report)
    assert table.columns[-2:] == ["its best", "setting of its best"]
    assert [row[-2:] for row in table.rows] == [["5.00", "-"], ["6.00", "openmpi-5 ring"]]


def test_a_size_has_the_columns_of_nccl_tests(report: Report) -> None:
    table = times_table(report, 2048)
    assert table.columns == [
        "size", "count", "type", "op", "contender", "time", "min", "p10", "p90", "algbw", "busbw",
        "wrong",
    ]  # fmt: skip
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["size"], row["count"], row["time"]) == ("2048", "512", "4.00")
    assert (row["algbw"], row["busbw"]) == ("0.51", "0.51")
    assert times_table(report, 4).rows[3][-1] == "no such thing"


def test_wrong_results_are_summed_up(report: Report) -> None:
    assert report.wrong == 2


def test_json_has_what_the_help_promises(report: Report) -> None:
    found = report.as_json()
    assert {"schema", "head", "notes", "collective", "ranks", "dtype", "op", "contenders"} < set(
        found
    )
    limits = found["limits"]
    assert limits["copy_all"]["gbps"] == pytest.approx(2 * (64 << 20) / 0.01 / 1e9)  # type: ignore[index]
    small, large = found["sizes"]  # type: ignore[misc]
    assert small["results"]["gloo"] == {"unsupported": "no such thing"}  # type: ignore[has-type]
    assert large["results"]["rueda private"]["busbw_gbps"] == pytest.approx(0.512)  # type: ignore[has-type]
    assert large["best_setting"] == "openmpi-5 ring"  # type: ignore[has-type]


def test_markdown_has_every_table(report: Report) -> None:
    text = markdown(report)
    assert "- CPU: a CPU" in text
    for title in ("allreduce: medians in µs", "rueda private and its peers", "limits in this run"):
        assert title in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in tables if "Open MPI ÷ it" in line}) == 1


def test_text_tables_are_aligned() -> None:
    lines = Table("title", ["a", "bb"], [["100", "2"]]).as_text().splitlines()
    assert lines == ["# title", "#   a  bb", "  100   2"]


def test_times_have_three_digits() -> None:
    shown = [microseconds(s * 1e-6) for s in (0.1634, 1.634, 16.34, 163.4, 1634)]
    assert shown == ["0.163", "1.63", "16.3", "163", "1634"]


def test_limits_are_rates_of_all_ranks_together() -> None:
    by_name = {limit.name: limit for limit in LIMITS}
    assert by_name["copy_one"].rate(0.01, 4) == pytest.approx((64 << 20) / 0.01 / 1e9)
    assert by_name["add_all"].rate(0.01, 4) == pytest.approx(4 * 3 * (64 << 20) / 0.01 / 1e9)
    assert by_name["flag_exchange"].describe(0.146e-6, 2) == "0.146 µs"


def test_the_algorithms_are_a_table() -> None:
    table = algorithm_table("flat:0-8K;direct:8K-1M;ring:1M-")
    assert [row[:3] for row in table.rows] == [
        ["0", "8 Ki", "flat"], ["8 Ki", "1 Mi", "direct"], ["1 Mi", "…", "ring"],
    ]  # fmt: skip
    assert algorithm_table("auto").rows[0][:3] == ["0", "…", "auto"]
    with pytest.raises(LaunchError, match="table of algorithms"):
        algorithm_table("flat:x-y")


def test_every_setting_of_open_mpi_is_swept_once() -> None:
    assert len({str(s.parameters) for s in settings(5)}) == len(settings(5))
    assert len(settings(5)) == len(settings(4)) + 1


class EndingGroup(Group):
    """Records that it was ended."""

    ended = False

    def end(self, within: float = 5.0) -> None:
        self.ended = True


def test_open_mpis_best_is_chosen_for_each_size(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three settings one is displaced, the second is best at 2 KiB, the third at 4 bytes."""
    mpi = OpenMpi(Path("mpirun"), Path("libmpi.so"), 4, "4.1.4")
    names = [f"{mpi.name} {setting.name}" for setting in settings(4)]
    times = {name: {4: 9.0, 2048: 9.0} for name in names}
    times[names[1]] = {4: 5.0, 2048: 1.0}
    times[names[2]] = {4: 2.0, 2048: 3.0}
    groups: dict[str, EndingGroup] = {}

    def start(contender: Contender) -> Group:
        if contender.name == names[3]:
            raise GroupFailed(f"{contender.name}: a rank has died\n  | why")
        return groups.setdefault(contender.name, EndingGroup(contender.name, "", Path("log")))

    monkeypatch.setattr(tuning, "_medians", lambda plan, group: times[group.name])
    tuned, best, notes = tuning.sweep(report.plan, [mpi], start, lambda what, steps: None)
    assert best == {4: (names[2], 2.0), 2048: (names[1], 1.0)}
    assert {t.contender.name: t.sizes for t in tuned} == {names[1]: {2048}, names[2]: {4}}
    assert {name for name, group in groups.items() if not group.ended} == {names[1], names[2]}
    (note,) = notes
    assert note.startswith(f"{names[3]} was left out: ")


def test_messages_arrive_as_they_were_sent() -> None:
    ours, theirs = socket.socketpair()
    payload = bytes(range(256)) * 40000  # more than a socket's buffer holds
    sender = threading.Thread(
        target=send, args=(ours, {"collective": "allreduce", "text": "two words"}, payload)
    )
    sender.start()
    message = receive(theirs)
    sender.join()
    assert message == Message({"collective": "allreduce", "text": "two words"}, payload)
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs)
    theirs.close()


class AnsweringGroup(Group):
    """Answers like real ranks, with calls of 10 µs."""

    def __init__(self) -> None:
        super().__init__("answers", "answers", Path("log"))
        self.asked: list[int] = []

    def ask(self, requests, payloads):  # type: ignore[no-untyped-def]
        self.asked.append(int(requests[0]["iterations"]))
        calls = np.arange(self.asked[-1], dtype=np.int64) * 1_000_000
        payload = calls.tobytes() + (calls + 10_000).tobytes()
        values = {"took_part": "1", "steps": "1", "wrong": "0"}
        return [Message(values, payload) for _ in requests]


def test_blocks_have_as_many_calls_as_the_time_allows(report: Report) -> None:
    group = AnsweringGroup()
    turn = Turn(report.plan, group, 4).as_collective("private")
    turn.take()
    turn.take()
    # 0.1 s of calls that start 1 ms apart, after a trial.
    assert group.asked == [3, 100, 100]
    assert turn.samples.median == pytest.approx(10e-6)


def test_a_peer_that_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("I_MPI_ROOT", raising=False)
    with pytest.raises(Missing, match=r"pip install impi-rt.*--impi"):
        find_peer("impi", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install torch"):
        find_peer("gloo", None)


def test_an_incomplete_i_mpi_root_hides_no_intel_mpi(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("I_MPI_ROOT", str(tmp_path / "nothing"))
    assert find_intel_mpi(None) is None
    there = IntelMpi(tmp_path / "cache" / "rueda" / "impi")
    for path in (there.launcher, there.library):
        path.parent.mkdir(parents=True)
        path.touch()
    assert find_intel_mpi(None) == there


def test_an_intel_mpi_that_is_named_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"mpiexec\.hydra"):
        find_intel_mpi(tmp_path)


def test_without_home_mpirun_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    given: list[str] = []
    monkeypatch.setattr(subcommands, "provide_home", lambda: given.append("home"))
    for collective in ([], ["latency"], ["train"]):
        CliRunner().invoke(subcommands.make_bench_command(), [*collective, "-np", "0"])
    assert given == ["home"] * 3
