"""Runs all fuzz targets for some minutes: python tests/fuzz/run.py BUILD MINUTES [--jobs N].

BUILD is the folder of the CMake preset fuzz. What was found to reach far is kept in BUILD/corpus, and is where the
next run begins. Exits with 1 where a target failed; the input lies in BUILD/findings then, for
`fuzz_replay TARGET --files FILE`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# An allocation that cannot be served is the library's to handle, whatever a peer has asked for. Each is told, and
# finding the names of its callers takes long: who looks into a finding runs its input again, with names.
SANITIZERS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=256:symbolize=0:quarantine_size_mb=16"
}
LIMITS = ["-rss_limit_mb=2048", "-malloc_limit_mb=1000000000", "-timeout=20", "-max_len=8192"]


def targets(programs: Path) -> list[str]:
    told = subprocess.run(
        [programs / "fuzz_replay", "--targets"], check=True, capture_output=True, text=True
    )
    return told.stdout.split()


def explore(build: Path, target: str, seconds: int) -> tuple[int, str]:
    """The executions of one target, and what it printed where it failed."""
    programs = build / "tests" / "fuzz"
    corpus, findings = build / "corpus" / target, build / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    subprocess.run([programs / "fuzz_replay", target, "--write-seeds", corpus], check=True)
    ended = subprocess.run(
        [
            programs / "fuzz_explore",
            *LIMITS,
            f"-max_total_time={seconds}",
            "-print_final_stats=1",
            f"-artifact_prefix={findings}/{target}-",
            corpus,
        ],
        env=os.environ | SANITIZERS | {"RUEDA_FUZZ_TARGET": target},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    executed = re.search(r"number_of_executed_units: *(\d+)", ended.stdout)
    count = int(executed[1]) if executed else 0
    return count, ended.stdout if ended.returncode != 0 or executed is None else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("minutes", type=float, help="for all targets together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", help="targets; all where none is named")
    given = parser.parse_args()
    build = given.build.resolve()
    chosen = given.only or targets(build / "tests" / "fuzz")
    seconds = max(1, round(given.minutes * 60 * min(given.jobs, len(chosen)) / len(chosen)))
    with ThreadPoolExecutor(given.jobs) as pool:
        results = pool.map(lambda target: explore(build, target, seconds), chosen)
        total, failed = 0, 0
        for target, (count, output) in zip(chosen, results, strict=True):
            print(f"{target:12} {count:12,} executions{'  FAILED' if output else ''}", flush=True)
            if output:
                print(output[-6000:])
            total += count
            failed += bool(output)
    print(f"{'all':12} {total:12,} executions in {seconds} s each, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
