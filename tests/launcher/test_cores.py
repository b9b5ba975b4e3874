"""How many cores a rank's threads may use: its affinity, limited by its container's quota."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from rueda.launcher import cores, run
from rueda.launcher.check.machine import cpu_row
from rueda.launcher.cores import cores_within_quota, cpu_quota
from rueda.launcher.job import Job


def quota_of(folder: Path, groups: str, files: dict[str, str]) -> float | None:
    (folder / "groups").write_text(groups + "\n")
    for name, text in files.items():
        file = folder / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return cpu_quota(folder / "groups", folder / "mount")


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/pod/c", {}, None),
        ("0::/pod/c", {"pod/c/cpu.max": "max 100000"}, None),
        ("0::/pod/c", {"pod/c/cpu.max": "250000 100000", "pod/cpu.max": "max 100000"}, 2.5),
        ("0::/pod/c", {"pod/c/cpu.max": "700000 100000", "pod/cpu.max": "400000 100000"}, 4.0),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/of/the/host", {"cpu.max": "150000 100000"}, 1.5),
        (
            "4:cpu,cpuacct:/docker/x\n3:cpuset:/b",
            {
                "cpu,cpuacct/docker/x/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (
            "4:cpu:/",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_the_quota_is_that_of_the_group_that_gets_least(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float | None
) -> None:
    assert quota_of(tmp_path, groups, files) == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "expected"),
    [(None, (96, None)), (3.5, (4, 3.5)), (0.2, (1, 0.2)), (96.0, (96, None))],
)
def test_a_quota_counts_where_it_is_less(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: tuple[int, float | None]
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 96)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores_within_quota() == expected


def test_without_an_answer_about_affinity_all_processors_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(_: int) -> set[int]:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", forbidden)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores.usable_cpus() == 6
    assert cores.usable_cores(Path("/no/such/folder")) == 6


def test_ranks_share_the_quota_of_their_container(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 96)
    monkeypatch.setattr(cores, "cpu_quota", lambda: 4.0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run._default_settings(Job(2, ("true",)), {})["OMP_NUM_THREADS"] == "2"
    assert "2 ranks share a quota of 4 CPUs" in capsys.readouterr().err


def test_the_check_tells_of_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rueda.launcher.check.machine.cpu_quota", lambda: 1.5)
    assert cpu_row().note.endswith(", within a quota of 1.5 CPUs")
