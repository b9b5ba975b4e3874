"""Measures on this machine's GPU what docs/gpu.md sets bars for, and prints a table.

    build/gpu/venv/bin/python benchmarks/gpu/measure.py --section overhead

`make bench-gpu` builds what it needs and runs all sections. Medians of rounds after a warm-up; nothing is estimated.
Exit status 77 where nothing can be measured here. With RUEDA_TEST_DEVICE=cpu it rehearses, over the doubles of the
driver and NCCL and on tensors of the CPU: everything runs that can, and the numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "gpu" / "benchmarks" / "gpu"
REHEARSAL = os.environ.get("RUEDA_TEST_DEVICE") == "cpu"
LIMIT = 140.0  # seconds that one program may take
SKIPPED = 77
MULTI_RANK = 23000  # 2.30.0, as Horovod writes it: it allows two ranks on one card
RESULT = "RESULT "


@dataclass(frozen=True)
class Row:
    """A line of the table; ``bar`` is empty where something is measured for comparison only."""

    what: str
    value: str
    bar: str = ""
    met: bool | None = None


class SectionFailed(Exception):
    """A program ended with an error or wrote no result; its output says why."""


def run(line: list[str], extra: dict[str, str] | None = None) -> str:
    """Standard output of a program that must succeed."""
    try:
        ended = subprocess.run(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
            env={**os.environ, **(extra or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SectionFailed(str(error)) from None
    if ended.returncode:
        raise SectionFailed(ended.stdout)
    return ended.stdout


class NothingToMeasure(Exception):
    """What a section needs is not there; the text says what."""


def world(
    script: str,
    size: int,
    backend: str,
    arguments: Sequence[str] = (),
    extra: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Runs ranks and returns what they have reported."""
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "--no-prefix", "-np", str(size)]
    output = run(
        [*line, sys.executable, str(HERE / script), *arguments],
        {"RUEDA_GPU_BACKEND": backend, **(extra or {})},
    )
    results = [
        json.loads(line.removeprefix(RESULT))
        for line in output.splitlines()
        if line.startswith(RESULT)
    ]
    if not results:
        raise SectionFailed(f"{script} reported nothing:\n{output}")
    return results


def rate(bytes_: float, seconds: float) -> str:
    return f"{bytes_ / seconds / 1e9:.1f} GB/s"


def size(bytes_: float) -> str:
    return f"{bytes_ / 1024:.0f} KiB" if bytes_ < 1 << 20 else f"{bytes_ / (1 << 20):.0f} MiB"


def kernels() -> list[Row]:
    """Rates of the batch kernels; moved bytes are those read and those written."""
    rows = []
    copy = 0.0
    for line in run([str(BUILD / "kernel_rates"), *(["small"] if REHEARSAL else [])]).splitlines():
        tensors, what, moved, seconds = line.split("\t")
        speed = int(moved) / float(seconds)
        if what == "copy":
            copy = speed
            rows.append(Row(f"copy of {tensors}", f"{speed / 1e9:.0f} GB/s"))
        else:
            rows.append(
                Row(
                    f"{what}: {tensors}",
                    f"{speed / 1e9:.0f} GB/s, {speed / copy:.0%} of the copy",
                    "90%",
                    speed >= 0.9 * copy,
                )
            )
    return rows


def overhead() -> list[Row]:
    """Host time over NCCL called directly, from C++ and from Python; of the latter also the stream's time."""
    rows = []
    for what, bytes_, raw, engine in nccl_overhead():
        title = f"C++, {what} of {size(int(bytes_))}: host"
        bar = 10 if what == "allreduce" else None
        rows.append(_over(title, float(raw), float(engine), bar))
    if REHEARSAL:
        return [*rows, Row("Python", "left out: a rehearsal has no GPU that torch can use")]
    for result in world("rank_overhead.py", 1, "nccl"):
        title = f"Python, {result['what']}, {size(result['bytes'])}"
        bar = None if result["what"] == "all-to-all" else 15
        rows.append(_over(f"{title}: host", result["raw_host"], result["engine_host"], bar))
        on_stream = None if result["what"] != "one tensor" else 0.5  # rounded, 0
        rows.append(
            _over(f"{title}: stream", result["raw_stream"], result["engine_stream"], on_stream)
        )
    return rows


def nccl_overhead(*arguments: str) -> list[list[str]]:
    """The columns of what that program prints."""
    nccl = os.environ.get("RUEDA_NCCL_LIBRARY") or nccl_path()
    variables = {"RUEDA_NCCL_LIBRARY": nccl, "RUEDA_GPU_BACKEND": "nccl"}
    output = run([str(BUILD / "nccl_overhead"), *arguments], variables)
    return [line.split("\t") for line in output.splitlines()]


def _over(what: str, raw: float, engine: float, bar: float | None) -> Row:
    microseconds = (engine - raw) * 1e6
    value = f"{microseconds:.1f} µs over {raw * 1e6:.1f} µs"
    return Row(what, value, f"{bar:g} µs", microseconds <= bar) if bar else Row(what, value)


def nccl_path() -> str:
    """Of the NCCL that torch loads."""
    import torch
    from rank_timing import loaded_nccl

    torch.cuda.nccl.version()
    return loaded_nccl()


def launch_thread() -> list[Row]:
    """What it costs that NCCL makes a thread for each launch, as it does for non-blocking communicators."""
    ways = ("NCCL, blocking", "NCCL, non-blocking", "Rueda")
    return [
        Row(f"{what} of one rank, {size(int(bytes_))}: {way}", f"{float(taken) * 1e6:.1f} µs")
        for what, bytes_, *seconds in nccl_overhead("launch-thread")
        for way, taken in zip(ways, seconds, strict=True)
    ]


def staging() -> list[Row]:
    """Two ranks through the host's memory."""
    rows = []
    for result in world("rank_staging.py", 2, "staged", ["--device", "cpu"] if REHEARSAL else []):
        moved = result["bytes"]
        smaller = max(result["copies"], result["ring"])
        fraction = smaller / result["staged"]
        rows.append(
            Row(
                f"allreduce of 2 ranks through the host, {size(moved)}",
                f"{rate(moved, result['staged'])}, {fraction:.0%} of the smaller of copies "
                f"{rate(moved, result['copies'])} and ring {rate(moved, result['ring'])}",
                "80%",
                fraction >= 0.8,
            )
        )
    return rows


def memory() -> list[Row]:
    """Memory of the GPU that each thing takes beyond torch's."""
    if REHEARSAL:
        raise NothingToMeasure("a rehearsal has no GPU that torch can use")
    results = world("rank_memory.py", 1, "nccl")
    return [Row(f"beyond torch's: {r['what']}", size(r["bytes"])) for r in results]


def training(ranks: int = 1, extra: dict[str, str] | None = None) -> list[Row]:
    """Steps of a transformer; DistributedDataParallel over NCCL is what the others are compared with."""
    small = ["--device", "cpu", "--layers", "1", "--width", "64", "--batch", "2"]
    few = [*small, "--rounds", "2", "--steps", "2"] if REHEARSAL else []
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*few, "--store", f"{folder}/store"]
        (result,) = world("rank_training.py", ranks, "nccl", arguments, extra)
    ddp = result["ddp"]
    model = f"{result['parameters'] / 1e6:.0f} M parameters in {result['tensors']} tensors"
    where = f"{ranks} rank{'s' * (ranks > 1)}"

    def against(what: str, seconds: float) -> Row:
        change = seconds / ddp - 1
        return Row(f"{where}, {what}", f"{change:+.1%}", "no slower", seconds <= ddp)

    calls = f"{result['nccl_calls_per_step']:.1f} NCCL calls a step"
    return [
        Row(f"{where}, DDP over {'gloo' if REHEARSAL else 'NCCL'}, {model}", f"{ddp * 1e3:.2f} ms"),
        Row(f"{where}, the plain optimizer", f"{result['plain'] / ddp - 1:+.1%}"),
        against("DDP over Rueda", result["ddp_over_rueda"]),
        against(f"DistributedOptimizer, {calls}", result["rueda"]),
    ]


def two_ranks() -> list[Row]:
    """Training of two ranks on this one card over NCCL, where it allows that."""
    if REHEARSAL:
        raise NothingToMeasure("a rehearsal has no NCCL")
    import rueda.horovod.torch as hvd  # which loads torch's, of which torch itself tells what it was built with

    version = hvd.nccl_built()
    if version < MULTI_RANK:
        raise NothingToMeasure(
            f"NCCL {version} allows one rank on a card: {MULTI_RANK} and newer allow more"
        )
    return training(2, {"RUEDA_GPU_SHARING": "on", "NCCL_MULTI_RANK_GPU_ENABLE": "1"})


def print_table(rows: list[Row]) -> None:
    """What has been measured, beside its bar."""
    widths = [max(len(row.what) for row in rows), max(len(row.value) for row in rows)]
    for row in rows:
        verdict = "" if row.met is None else "met" if row.met else "missed"
        bar = f"bar {row.bar}: {verdict}" if row.bar else ""
        print(f"{row.what:<{widths[0]}}  {row.value:<{widths[1]}}  {bar}".rstrip())


def record_rows(rows: list[Row]) -> None:
    """For whoever runs the sections within a deadline (tests/gpu/gpu_steps.py)."""
    if record := os.environ.get("RUEDA_TEST_RECORD"):
        with Path(record).open("a") as file:
            file.writelines(json.dumps(row.__dict__) + "\n" for row in rows)


SECTIONS: dict[str, Callable[[], list[Row]]] = {
    "overhead": overhead,
    "launch-thread": launch_thread,
    "kernels": kernels,
    "staging": staging,
    "training": training,
    "memory": memory,
    "two-ranks": two_ranks,
}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--section", choices=SECTIONS, required=True)
    options = parser.parse_args()

    import torch

    if not torch.cuda.is_available() and not REHEARSAL:
        print("there is no GPU that torch can use")
        return SKIPPED
    try:
        rows = SECTIONS[options.section]()
    except NothingToMeasure as why:
        print(why)
        return SKIPPED
    except SectionFailed as error:
        print(f"{options.section} could not be measured:\n{error}")
        return 1
    print_table(rows)
    record_rows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
