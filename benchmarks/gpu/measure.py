"""Measures on this machine's GPU what docs/gpu.md sets bars for, and prints a table.

    python benchmarks/gpu/measure.py --kernel-rates build/gpu/benchmarks/gpu/kernel_rates

`make bench-gpu` builds what it needs. Medians of rounds after a warm-up; nothing is estimated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT = 300.0  # seconds that one section may take
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


def world(script: str, size: int, backend: str) -> list[dict[str, Any]]:
    """Runs ranks and returns what they have reported."""
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "--no-prefix", "-np", str(size)]
    output = run([*line, sys.executable, str(HERE / script)], {"RUEDA_GPU_BACKEND": backend})
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


def kernels(program: Path) -> list[Row]:
    """Rates of the batch kernels; moved bytes are those read and those written."""
    rows = []
    copy = 0.0
    for line in run([str(program)]).splitlines():
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
                    "85%",
                    speed >= 0.85 * copy,
                )
            )
    return rows


def overhead() -> list[Row]:
    rows = []
    for result in world("rank_overhead.py", 1, "nccl"):
        what = f"{result['what']}, {size(result['bytes'])}"
        host = (result["engine_host"] - result["raw_host"]) * 1e6
        stream = (result["engine_stream"] - result["raw_stream"]) * 1e6
        raw_host, raw_stream = result["raw_host"] * 1e6, result["raw_stream"] * 1e6
        rows += [
            Row(
                f"overhead on the host: {what}",
                f"{host:.1f} µs over {raw_host:.1f} µs",
                "10 µs",
                host <= 10,
            ),
            Row(f"overhead on the stream: {what}", f"{stream:.1f} µs over {raw_stream:.1f} µs"),
        ]
    return rows


def staging() -> list[Row]:
    rows = []
    for result in world("rank_staging.py", 2, "staged"):
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


def training() -> list[Row]:
    (result,) = world("rank_training.py", 1, "nccl")
    plain = result["plain"]
    slower = result["rueda"] / plain - 1
    model = f"{result['parameters'] / 1e6:.0f} M parameters in {result['tensors']} tensors"
    return [
        Row(f"step of the plain optimizer, {model}", f"{plain * 1e3:.2f} ms"),
        Row(
            f"DistributedOptimizer, {result['nccl_calls_per_step']:.1f} NCCL calls a step",
            f"{slower:+.1%}",
            "3%",
            slower <= 0.03,
        ),
        Row("DistributedDataParallel", f"{result['ddp'] / plain - 1:+.1%}"),
    ]


def print_table(rows: list[Row]) -> None:
    widths = [max(len(row.what) for row in rows), max(len(row.value) for row in rows)]
    for row in rows:
        verdict = "" if row.met is None else "met" if row.met else "missed"
        bar = f"bar {row.bar}: {verdict}" if row.bar else ""
        print(f"{row.what:<{widths[0]}}  {row.value:<{widths[1]}}  {bar}".rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kernel-rates", type=Path, required=True, help="the program of that name")
    parser.add_argument("--json", type=Path, help="where to write the rows as well")
    options = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        print("There is no GPU that torch can use here: nothing was measured.")
        return 0
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}"
    )
    sections: dict[str, Callable[[], list[Row]]] = {
        "kernels": lambda: kernels(options.kernel_rates),
        "overhead": overhead,
        "staging": staging,
        "training": training,
    }
    rows: list[Row] = []
    failed = False
    for name, section in sections.items():
        try:
            found = section()
        except SectionFailed as error:
            failed = True
            print(f"\n{name} could not be measured:\n{error}", file=sys.stderr)
            continue
        print(f"\n{name}")
        print_table(found)
        sys.stdout.flush()
        rows += found
    if options.json:
        options.json.write_text(json.dumps([row.__dict__ for row in rows], indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
