"""The flags of horovodrun, as `rueda run` takes them."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import click.testing
import pytest
from rueda.launcher.cli import build
from rueda.launcher.horovod_flags import FLAGS
from rueda.launcher.native import Native

NATIVE = Native(ModuleType("rueda._native"), option_table=[])


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", *(n for n in os.environ if n.startswith(("RUEDA_", "HOROVOD_")))):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(
        build(NATIVE),
        ["run", "-np", "2", "--dry-run", *arguments, "echo", "--lr", "1"],
    )


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--fusion-threshold-mb", "32"], ["RUEDA_FUSION_THRESHOLD=33554432"]),
        (
            ["--timeline-filename", "t.json"],
            ["RUEDA_TIMELINE=t.json", "RUEDA_TIMELINE_FORMAT=horovod"],
        ),
        (["--timeline-mark-cycles"], ["RUEDA_TIMELINE_CYCLES=1"]),
        (["--no-timeline-mark-cycles"], ["RUEDA_TIMELINE_CYCLES=0"]),
        (["--stall-check-warning-time-seconds", "9"], ["RUEDA_STALL_WARNING=9"]),
        (["--stall-check-shutdown-time-seconds", "9"], ["RUEDA_STALL_ERROR=9"]),
        (["--no-stall-check"], ["RUEDA_STALL_WARNING=0", "RUEDA_STALL_ERROR=0"]),
        (["--gloo-timeout-seconds", "9"], ["RUEDA_TRANSFER_TIMEOUT=9"]),
        (["--start-timeout", "9"], ["RUEDA_INIT_TIMEOUT=9"]),
        (["--network-interface", "lo"], ["RUEDA_INTERFACE=lo"]),
        (["--network-interfaces", "lo"], ["RUEDA_INTERFACE=lo"]),
        (["--stall-check", "--disable-cache", "--log-hide-timestamp"], []),
    ],
)
def test_flags_that_mean_an_option(flags: list[str], variables: list[str]) -> None:
    result = run("--gloo", *flags)
    assert result.exit_code == 0, result.output
    assert "echo --lr 1" in result.output
    for variable in variables:
        assert variable in result.output
    assert "no effect" not in result.output


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--cycle-time-ms", "3.5"], "--cycle-time-ms has no effect: there are no cycles"),
        (["--autotune"], "--autotune has no effect: Rueda measures once"),
        (["--hierarchical-allreduce"], "--hierarchical-allreduce has no effect"),
        (["--num-nccl-streams", "2"], "each process set has streams of its own"),
        (["-prefix-timestamp"], "--prefix-output-with-timestamp has no effect"),
    ],
)
def test_flags_without_effect_say_why(flags: list[str], why: str) -> None:
    result = run("--gloo", *flags)
    assert result.exit_code == 0, result.output
    assert why in result.output


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--host-discovery-script", "x"], "needs --max-np"),
        (["--max-num-proc", "1"], "--max-np 1 is less than the 2 ranks"),
        (["--max-num-proc", "many"], "give a number of ranks"),
        (["--check-build"], "run 'rueda check' instead"),
        (["-p", "22"], "--ssh-port is not supported: use --ssh 'ssh -p PORT'"),
        (["--fusion-threshold-mb", "much"], "give a number of MiB"),
        (["--blacklist-cooldown-range", "1", "2"], "give --max-np, too"),
        (["--mpi"], "--mpi contradicts --no-mpi"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags: list[str], why: str) -> None:
    result = run("--gloo", *flags)
    assert result.exit_code == 2, result.output
    assert why in result.output


def test_every_flag_is_parsed() -> None:
    for flag in FLAGS:
        for name in flag.names.split():
            values = [] if flag.is_flag else ["2"] * flag.values
            result = run("--gloo", name, *values)
            assert "No such option" not in result.output, name
            fails = flag.refused or flag.names in ("-hostfile", "--mpi")  # "--mpi" beside "--gloo"
            assert (result.exit_code == 0) == (not fails), name


def test_hosts_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2\n")
    assert run("--gloo", "-hostfile", str(file)).exit_code == 0


def test_horovod_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PYTHONPATH" not in run("--gloo").output
    assert "horovod/alias/path" in run("--gloo", "--horovod").output
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    assert "horovod/alias/path:/some/where" in run("--gloo", "--horovod").output
    result = run("--gloo", "--horovod", "-x", "PYTHONPATH=/else")
    assert "horovod/alias/path:/else" in result.output


def test_ranks_are_told_who_they_are_as_by_horovodrun() -> None:
    """Scripts and libraries read these variables before they import anything."""
    told = {
        "RANK": "1",
        "SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_SIZE": "2",
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
    }
    for flags in ([], ["-H", "localhost:2"]):
        (line,) = (
            line
            for line in run("--gloo", "--horovod", *flags).output.splitlines()
            if "RUEDA_RANK=1" in line
        )
        assert {f"HOROVOD_{name}={value}" for name, value in told.items()} <= {*line.split()}
        assert "HOROVOD_RANK" not in run("--gloo", *flags).output


def test_help_lists_those_that_do_something() -> None:
    result = click.testing.CliRunner().invoke(build(NATIVE), ["run", "--help"])
    assert "--fusion-threshold-mb" in result.output
    assert "--horovod " in result.output
    assert "--autotune" not in result.output
