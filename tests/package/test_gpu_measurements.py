"""What benchmarks/gpu/measure.py makes of measurements, and of what could not be measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "gpu" / "measure.py"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "measure", module)  # dataclasses looks there for annotations
    spec.loader.exec_module(module)
    return module


def reporting(monkeypatch: pytest.MonkeyPatch, measure: ModuleType, **values: object) -> None:
    output = f"a warning\n{measure.RESULT}{json.dumps(values)}\n"
    monkeypatch.setattr(measure, "run", lambda line, extra=None: output)


def verdicts(rows: list) -> list[bool | None]:
    return [row.met for row in rows]


def test_kernels_are_compared_with_the_copy(measure, monkeypatch):
    lines = [("copy", 1.0), ("pack", 1.25), ("unpack", 1.1), ("cast", 1.12)]
    output = "".join(f"161\t{what}\t4000000000\t{seconds}\n" for what, seconds in lines)
    monkeypatch.setattr(measure, "run", lambda line, extra=None: output)
    rows = measure.kernels()
    assert verdicts(rows) == [None, False, True, False]
    assert "80% of the copy" in rows[1].value


@pytest.mark.parametrize(
    ("engine", "met"), [(19e-6, [True, True]), (22e-6, [False, True]), (26e-6, [False, False])]
)
def test_overhead_is_a_difference(measure, monkeypatch, engine, met):
    from_python = {
        "what": "one tensor",
        "bytes": 4096,
        "raw_host": 10e-6,
        "engine_host": engine,
        "raw_stream": 1e-6,
        "engine_stream": 3e-6,
    }

    def run(line, extra=None):
        if line[0].endswith("nccl_overhead"):
            return f"allreduce\t4096\t{10e-6}\t{engine}\nall-to-all\t4096\t{10e-6}\t{engine}\n"
        return f"{measure.RESULT}{json.dumps(from_python)}\n"

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setenv("RUEDA_NCCL_LIBRARY", "libnccl.so.2")
    rows = measure.overhead()
    # Allowed overhead: 10 µs from C++, 15 µs from Python, none on the stream; all-to-all has no
    # bar.
    assert verdicts(rows) == [met[0], None, met[1], False]
    assert rows[-1].value == "2.0 µs over 1.0 µs"


def test_the_price_of_a_launch_thread_is_told_for_each_way(measure, monkeypatch):
    seconds = "\t".join(f"{each:.9f}" for each in (4e-6, 36e-6, 12e-6))
    monkeypatch.setenv("RUEDA_NCCL_LIBRARY", "libnccl.so.2")
    monkeypatch.setattr(measure, "run", lambda line, extra=None: f"all-to-all\t4096\t{seconds}\n")
    assert [(row.what, row.value, row.met) for row in measure.launch_thread()] == [
        ("all-to-all of one rank, 4 KiB: NCCL, blocking", "4.0 µs", None),
        ("all-to-all of one rank, 4 KiB: NCCL, non-blocking", "36.0 µs", None),
        ("all-to-all of one rank, 4 KiB: Rueda", "12.0 µs", None),
    ]


@pytest.mark.parametrize(("staged", "met"), [(2.4, True), (2.6, False)])
def test_staging_is_compared_with_the_slower_part(measure, monkeypatch, staged, met):
    reporting(monkeypatch, measure, bytes=1 << 24, staged=staged, copies=1.0, ring=2.0)
    assert verdicts(measure.staging()) == [met]


@pytest.mark.parametrize(("ours", "met"), [(0.110, True), (0.112, False)])
def test_training_is_compared_with_ddp_over_nccl(measure, monkeypatch, ours, met):
    values = {"plain": 0.1, "rueda": ours, "ddp": 0.11, "ddp_over_rueda": 0.1}
    reporting(
        monkeypatch, measure, parameters=85_000_000, tensors=144, nccl_calls_per_step=3.0, **values
    )
    rows = measure.training()
    assert verdicts(rows) == [None, None, True, met]
    assert rows[1].value == "-9.1%"


def test_rows_are_recorded_for_whoever_runs_the_sections(measure, monkeypatch, tmp_path):
    record = tmp_path / "record"
    monkeypatch.setenv("RUEDA_TEST_RECORD", str(record))
    measure.record_rows([measure.Row("a", "1 µs", "10 µs", True), measure.Row("b", "2 µs")])
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(line["what"], line["met"]) for line in lines] == [("a", True), ("b", None)]


def test_a_program_that_fails_or_says_nothing_is_no_measurement(measure, monkeypatch):
    failing = [sys.executable, "-c", "print('out of memory'); raise SystemExit(3)"]
    with pytest.raises(measure.SectionFailed, match="out of memory"):
        measure.run(failing)
    with pytest.raises(measure.SectionFailed, match="no such program"):
        measure.run(["no such program"])
    monkeypatch.setattr(measure, "run", lambda line, extra=None: "nothing of interest\n")
    with pytest.raises(measure.SectionFailed, match="reported nothing"):
        measure.training()
