"""The head of a report: where and how it was measured."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

from .plan import Entry, Plan


def cpu_model() -> str:
    """The CPU's name in /proc/cpuinfo, or the architecture if it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name", platform.machine())
    family = fields.get("cpu family")
    return f"{model} (family {family}, model {fields.get('model')})" if family else model


def settings() -> str:
    """Environment variables that affect the results."""
    heads = ("RUEDA_", "OMPI_MCA_", "I_MPI_", "GLOO_", "OMP_NUM_THREADS")
    return " ".join(
        f"{name}={shlex.quote(value)}"
        for name, value in sorted(os.environ.items())
        if name.startswith(heads)
    )


def huge_pages() -> str:
    """The kernel's settings for transparent huge pages."""
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    parts = []
    for name in ("enabled", "shmem_enabled"):
        try:
            text = (folder / name).read_text()
        except OSError:
            return "not known"
        parts.append(f"{name} {text.partition('[')[2].partition(']')[0]}")
    return ", ".join(parts)


def head(plan: Plan) -> dict[str, str]:
    """The lines that do not depend on the contenders."""
    placed = "each rank on a core of its own"
    if plan.oversubscribed:
        placed = "ranks outnumber the cores and are not bound"
    lines = {
        "command": shlex.join(["rueda", *sys.argv[1:]]),
        "CPU": f"{cpu_model()}, {len(plan.processors)} of {os.cpu_count()} hardware threads",
        "kernel": f"{platform.system()} {platform.release()}",
        "huge pages": huge_pages(),
        "ranks": f"{plan.ranks}, {placed}",
        "measured": f"{plan.rounds} rounds in which the contenders take turns; every rank rewrites "
        "its buffer before each call; a call lasts from the last rank's entry to the last rank's "
        "return",
    }
    if settings():
        lines["settings"] = settings()
    return lines


def versions(entries: list[Entry]) -> dict[str, str]:
    """The version that each contender's ranks report."""
    return {
        entry.contender.name: entry.group.facts["version"]
        for entry in entries
        if "version" in entry.group.facts
    }
