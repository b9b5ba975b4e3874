"""Strangers at the listeners of a running job: nobody joins, no bit differs, nothing leaks.

`benchmarks/hosts/attack.py` does the same with thousands of connections and measures the effect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .attacked_job import KINDS, AttackedJob, Capture
from .lab import Lab
from .lab.fixture import MakeLab

pytest.importorskip("rueda._native")

CONNECTIONS = 120


def check(seen: list[dict[str, Any]]) -> None:
    """Checks that no rank holds more resources after the attacks than before."""
    for of_rank in seen:
        before, after = of_rank["quiet"]["held"], of_rank["after"]["held"]
        assert after["descriptors"] <= before["descriptors"]
        assert after["threads"] <= before["threads"]
        assert after["memory"] < before["memory"] + (16 << 10)


def hellos_of_another_job(lab: Lab, folder: Path) -> list[str]:
    folder.mkdir()
    with Capture(lab, folder) as capture, AttackedJob(folder / "job", lab, 1 << 12) as job:
        job.end()
    return capture.hellos()


def test_two_hosts(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    last = hellos_of_another_job(lab, tmp_path / "last")
    with Capture(lab, tmp_path) as capture, AttackedJob(tmp_path / "job", lab, 1 << 14) as job:
        hellos = capture.hellos()
        job.rest(1)
        assert hellos
        assert last
        assert not set(hellos) & set(last)
        for kind in KINDS:
            came = job.suffer(kind, CONNECTIONS, 0, last if kind == "last job" else hellos)
            assert came["connected"] > 0, kind
            assert came["confirmed"] == 0, kind
            assert came["welcomed"] == 0 or kind == "replay", kind
        job.rest(1, "after")
        check(job.end())


def test_one_host(tmp_path: Path) -> None:
    with AttackedJob(tmp_path / "job", None, 1 << 14) as job:
        job.rest(1)
        for kind in ("garbage", "half-open", "wrong secret"):
            came = job.suffer(kind, CONNECTIONS, 0)
            assert came["connected"] > 0, kind
            assert came["welcomed"] == 0, kind
        job.rest(1, "after")
        check(job.end())
