"""Tells how often `rueda equiv` is right: 40 prepared trainings, 20 truly the same, 20 with a planted fault.

    python benchmarks/equiv/measure.py [--seeds 5] [--out FOLDER] [--group N ...]

Each group of `cases.py` is one call of `rueda equiv`. Right is, for one that is truly the same, "same bits" or "same
state"; for a fault, that its state is said to leave what rounding explains, in the very step, and in the tensor and on
the rank where there is only one. The table on standard output is that of docs/equivalence.md. Exit code 1 where fewer
than 39 are right.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from cases import GROUPS, Case, Group
from images import VARIABLE, prepare

HERE = Path(__file__).resolve().parent
REQUIRED = 39


def judged(group: Group, seeds: int, folder: Path, images: Path) -> tuple[list[str], Any]:
    """The command, and the object that it has printed."""
    ranks = dict.fromkeys(str(case.ranks) for case in group.cases)
    variants = [f"--variant={case.variant}" for case in group.cases if case.variant]
    strategies = dict.fromkeys(case.strategy for case in group.cases)
    command = [
        *(sys.executable, "-m", "rueda", "equiv", "--json", "--launch=--no-mpi"),
        *("--np", ",".join(ranks), "--strategy", ",".join(strategies)),
        *("--reference", group.reference, "--seeds", str(seeds)),
        *("--out", str(folder), *variants),
        *(sys.executable, str(HERE / "train.py"), *group.arguments),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, VARIABLE: str(images)},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"rueda equiv ended with exit code {done.returncode}: {command}")
    return command, json.loads(done.stdout)


def is_right(case: Case, found: dict[str, Any]) -> bool:
    """Whether the verdict is the truth about the case."""
    if not case.fault:
        return found["level"] in ("same bits", "same state")
    where = found["diverges"]
    rounding = found["rounding"]
    if where is None or rounding is None or rounding["explains"] is not False:
        return False
    return (
        where["step"] == case.step
        and case.tensor in (None, where["tensor"])
        and case.rank in (None, where["rank"])
    )


def row(case: Case, group: Group, found: dict[str, Any], right: bool) -> str:
    """Of the table."""
    told = case.name or ("plain" if case.strategy == "sync" else f"`{case.strategy}`")
    arguments = " ".join(group.arguments)
    what = f"{told}, {case.ranks} ranks" + (f", `{arguments}`" if arguments else "")
    rounding, quality, where = found["rounding"], found["quality"], found["diverges"]
    factor = "0" if rounding is None else f"{rounding['factor']:.2g}"
    place = ""
    if where is not None:
        place = f"step {where['step']}, `{where['tensor']}`, rank {where['rank']}"
    gap = "" if quality["gap"] is None else f"{100 * quality['gap']:+.2f}"
    kind = "fault" if case.fault else "same"
    marks = f"{found['level']} | {factor} | {place} | {gap} | {'yes' if right else '**no**'}"
    return f"| {kind} | {what} | {marks} |"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="keeps the runs, and takes those that are there")
    parser.add_argument("--group", type=int, nargs="*", help="only these, from 0 on")
    options = parser.parse_args()
    numbers = range(len(GROUPS)) if options.group is None else options.group
    right = total = 0
    began = time.monotonic()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{options.seeds} seeds, {versions}, {os.cpu_count()} cores, {platform.machine()}\n")
    print("| truth | training | verdict | times rounding | diverges at | accuracy gap, % | right |")
    print("| --- | --- | --- | ---: | --- | ---: | --- |", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        images = prepare(Path(temporary))
        for number in numbers:
            group = GROUPS[number]
            folder = (options.out or Path(temporary)) / "-".join(["runs", *group.arguments])
            _, found = judged(group, options.seeds, folder, images)
            ways = {(way["np"], way["strategy"], way["variant"]): way for way in found["ways"]}
            for case in group.cases:
                variant = case.variant.partition(":")[0]
                way = ways[case.ranks, case.strategy, variant]
                is_it = is_right(case, way)
                right, total = right + is_it, total + 1
                print(row(case, group, way, is_it), flush=True)
    print(f"\n{right} of {total} right, in {time.monotonic() - began:,.0f} s")
    return 0 if right >= min(REQUIRED, total) else 1


if __name__ == "__main__":
    sys.exit(main())
