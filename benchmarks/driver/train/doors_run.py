"""A run of `rueda bench train --doors`, from the command line to the report."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rueda.launcher.result_files import require_file, write_file

from ..arena import Interrupted
from ..continuation import require_same
from ..machine import cpu_model, huge_pages, settings
from ..progress import Progress
from .doors import DOORS, Effort, measure_doors
from .doors_report import SCHEMA, merged, read_report, render, render_run

__all__ = ["QUICK", "Effort", "run_doors"]

# What all runs of one report share, besides the version of torch.
SAME = ("CPU", "kernel", "huge pages", "settings")

QUICK = Effort(rounds=1, steps=1, warm_up=2)


def run_doors(
    models: Sequence[str],
    ranks: int,
    effort: Effort,
    json_file: Path | None,
    add_file: Path | None,
    markdown_file: Path | None,
) -> int:
    """Returns the exit code; raises LaunchError."""
    files = {"--json": json_file, "--add": add_file, "--markdown": markdown_file}
    for option, path in files.items():
        require_file(option, path)
    before = read_report(add_file) if add_file else None
    report: dict[str, Any] = {"schema": SCHEMA, "kind": "doors", "head": _head(), "runs": []}
    if add_file and before:
        require_same(add_file, before["head"], report["head"], SAME)
    try:
        with Progress() as progress:
            progress.begin(len(models))
            for model in models:
                run = measure_doors(model, ranks, tuple(DOORS), effort, progress)
                report["head"]["torch"] = run["torch"]
                if add_file and before:
                    require_same(add_file, before["head"], report["head"], ["torch"])
                report["runs"].append(run)
                progress.say(render_run(run))
    except Interrupted as interrupted:
        click.echo(f"rueda: ended by {interrupted.number.name}; all ranks are gone", err=True)
        return 128 + interrupted.number
    is_right = not any(run["wrong"] for run in report["runs"])
    if add_file:
        report = merged(before, report)
        write_file(add_file, json.dumps(report, indent=2) + "\n")
    if json_file:
        write_file(json_file, json.dumps(report, indent=2) + "\n")
    if markdown_file:
        write_file(markdown_file, render(report, markdown=True))
    return 0 if is_right else 1


def _head() -> dict[str, str]:
    lines = {
        "command": shlex.join(["rueda", *sys.argv[1:]]),
        "CPU": f"{cpu_model()}, {len(os.sched_getaffinity(0))} hardware threads",
        "kernel": f"{platform.system()} {platform.release()}, {'-'.join(platform.libc_ver())}",
        "huge pages": huge_pages(),
    }
    if settings():
        lines["settings"] = settings()
    return lines
