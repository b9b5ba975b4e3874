"""`rueda run` under an mpirun that lets the job go on when ranks are lost, and that ends with 0 even if all are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.failure import Failure
from rueda.launcher.job import Job
from rueda.launcher.mpirun import find_mpirun, inspect_mpirun
from rueda.launcher.mpirun_ends import STATUS, RankEnds, StatusLines, reporting, status_of
from rueda.launcher.mpirun_output import MpirunOutput
from rueda.launcher.output import RankOutput

from .conftest import Rueda

Script = Callable[[str], str]

LINE = STATUS + b"3\n"


@given(
    st.lists(st.sampled_from([b"rueda", STATUS, b"12", b"r", b" ", b"\n"])),
    st.data(),
)
def test_the_line_is_found_wherever_the_output_is_cut(
    words: list[bytes], data: st.DataObject
) -> None:
    said = b"".join(words).replace(b"2\n", b"2 \n")  # no whole line of that kind
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said + LINE)), max_size=6)))
    whole = said + LINE
    lines = StatusLines()
    passed_on, statuses = b"", []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        text, status = lines.take(0, whole[begin:end])
        passed_on += text
        statuses += [] if status is None else [status]
    assert (passed_on, statuses) == (said, [3])
    assert list(lines.finish()) == []


@given(st.lists(st.sampled_from([STATUS, b"1", b"rueda-rank", b"x", b"\n"])))
def test_text_that_only_begins_like_it_is_not_lost(words: list[bytes]) -> None:
    said = b"".join(words).replace(b"1\n", b"1 \n")
    lines = StatusLines()
    passed_on = b""
    for at in range(len(said)):
        text, status = lines.take(2, said[at : at + 1])
        passed_on += text
        assert status is None
    for rank, rest in lines.finish():
        assert rank == 2
        passed_on += rest
    assert passed_on == said


def test_the_lines_of_ranks_are_kept_apart_from_what_they_print(tmp_path: Path) -> None:
    output = RankOutput(2, tmp_path, prefix=True)
    ended: list[tuple[int, int]] = []
    streams = MpirunOutput(output, 2, b" ", lambda *end: ended.append(end))
    streams.write(
        "stderr",
        b"[1,1]<stderr>: no line end" + STATUS + b"137\n[1,0]<stderr>: rueda-rank",
    )
    streams.finish()
    streams.write("stdout", b"[1,0]<stdout>: " + STATUS + b"7\n")
    streams.finish()
    output.finish()
    output.writer.write_here()
    assert ended == [(1, -signal.SIGKILL)]
    assert (tmp_path / "rank.1").read_bytes() == b"no line end"
    assert (tmp_path / "rank.0").read_bytes() == b"rueda-rank\n" + STATUS + b"7\n"


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 148", 148),  # as a signal it would stop the process
        ("exit 255", 255),
        ("kill -KILL $$", -signal.SIGKILL),
        ("kill -INT $$", -signal.SIGINT),
        ("kill -TERM 0; exit 5", -signal.SIGTERM),  # as mpirun sends it, to the process group
        ("trap 'exit 6' TERM; kill -TERM 0; exit 5", 6),
        ("kill -SEGV $$", -signal.SIGSEGV),
    ],
)
def test_a_command_is_seen_to_end_as_it_does(shell: str, command: str, status: int) -> None:
    try:
        reported = reporting(["sh", "-c", f"cat; echo said >&2; {command}"])
        argv = [shell, *reported[reported.index("-c") :]]
        ran = subprocess.run(
            argv, input="given", capture_output=True, text=True, timeout=60, start_new_session=True,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip(f"there is no {shell}")
    assert ran.returncode == status
    code = 128 - status if status < 0 else status
    assert (ran.stdout, ran.stderr) == ("given", f"said\n{STATUS.decode()}{code}\n")
    assert status_of(code) == status


def test_a_rank_has_all_variables_that_it_would_have(
    rueda: Rueda, surviving: list[str], script: Script
) -> None:
    """Also those whose names are none of a shell's, which some shells drop."""
    if not os.path.exists("/bin/bash"):
        pytest.skip("there is no bash")
    odd = {"a.b": "1", "BASH_FUNC_module%%": "() { :; }"}
    told = script(f"sys.exit(not {set(odd)} <= os.environ.keys())")
    ran = rueda(*surviving, "python3", told, **odd)
    assert ran.code == 0, ran


def ends_of(ranks: int, least: int | None = None, sees_arrivals: bool = True) -> RankEnds:
    variables = {} if least is None else {"RUEDA_RECOVERY": "on", "RUEDA_MIN_NP": str(least)}
    return RankEnds(Job(ranks, ("true",), settings=variables), variables, sees_arrivals)


def test_losses_are_borne_down_to_the_least_number() -> None:
    ends = ends_of(4, least=2)
    ends.have_met()
    assert ends.note(Failure(3, 1)) == "rank 3 is lost, exit code 1; the other ranks go on"
    assert ends.note(Failure(0, 0)) == ""
    assert ends.note(Failure(2, -9), is_certain=False).startswith("rank 2 is lost, killed by SIGK")
    assert not ends.failures
    assert ends.note(Failure(1, 4)) == ""
    assert ends.failures == [Failure(1, 4)]
    assert ends.ended_with(137) == [Failure(2, -9)]


@pytest.mark.parametrize("well", [2, 3])
def test_who_does_not_report_has_not_ended_well(well: int) -> None:
    ends = ends_of(4, least=3)
    ends.have_met()
    for rank in range(well):
        ends.note(Failure(rank, 0))
    ends.note_silent_ends("here")
    assert [failure.rank for failure in ends.failures] == ([3] if well == 2 else [])
    assert all("as if killed" in failure.describe_status() for failure in ends.failures)


def test_the_first_world_cannot_form_without_a_lost_rank() -> None:
    ends = ends_of(4, least=1)
    assert ends.note(Failure(2, 1))
    ends.note_waiting()
    assert ends.failures == [Failure(2, 1)]
    # What cannot be seen, as on other hosts, is no reason to end a job.
    for has_met in (ends_of(4, least=1, sees_arrivals=False), ends_of(4)):
        has_met.note(Failure(2, 1))
        has_met.note_waiting()
        assert not has_met.failures


def test_without_recovery_one_rank_that_ends_well_is_enough() -> None:
    ends = ends_of(3)
    assert [ends.note(Failure(rank, -9)) for rank in (0, 1)] == ["", ""]
    assert not ends.failures
    ends.note(Failure(2, -9))
    assert ends.failures == [Failure(2, -9)]


@pytest.fixture(scope="module", params=[["--ulfm"], ["--bootstrap", "mpi"]], ids=str)
def surviving(request: pytest.FixtureRequest) -> list[str]:
    """Flags for three ranks under mpirun, of which two must be left."""
    found = find_mpirun()
    if found is None or inspect_mpirun(found).major < 5:
        pytest.skip("needs Open MPI 5")
    return ["run", *request.param, "--min-np", "2", "-np", "3", "--oversubscribe"]


ALL_FAIL = {
    "raise ValueError('mine')": (1, "failed first: ValueError: mine (exit code 1)"),
    "sys.exit(3)": (3, "failed first: exit code 3"),
    "os.kill(os.getpid(), 9)": (137, "failed first: killed by SIGKILL (Killed)"),
    "os.killpg(0, 9)": (1, "failed first: ended without an exit code, as if killed"),
}


@pytest.mark.usefixtures("no_survivors")
@pytest.mark.parametrize("end", ALL_FAIL)
def test_a_job_whose_ranks_all_fail_has_failed(
    rueda: Rueda, surviving: list[str], script: Script, end: str
) -> None:
    ran = rueda(*surviving, "python3", script(end))
    code, words = ALL_FAIL[end]
    assert ran.code == code, ran
    assert ran.last_line.endswith(words), ran
    assert "rueda-rank-status" not in ran.out + ran.err


@pytest.mark.parametrize("count", [1, 2])
def test_lost_ranks_are_borne_if_enough_end_well(
    rueda: Rueda, surviving: list[str], script: Script, count: int
) -> None:
    pytest.importorskip("rueda._native")
    end = f"""
import rueda
rueda.init()
rueda.barrier()
if rank < {count}:
    os._exit(4)
try:
    while True:
        rueda.barrier()
except rueda.PeerLostError:
    rueda.recover()
"""
    ran = rueda(*surviving, "python3", script(end))
    assert ran.code == (0 if count == 1 else 4), ran
    assert " is lost, " in ran.err, ran


def test_ranks_that_end_without_a_word_of_a_lost_one_end(
    rueda: Rueda, surviving: list[str], script: Script
) -> None:
    """MPI_Finalize would wait for it: MPI does not learn of a rank that exits."""
    pytest.importorskip("rueda._native")
    ran = rueda(
        *surviving, "python3",
        script("""
        import rueda
        rueda.init()
        if rank == 1:
            raise ValueError("mine")
        """),
    )  # fmt: skip
    assert ran.code == 0, ran
    assert "rank 1" in ran.last_line, ran


def test_a_program_in_no_language_of_ours(rueda: Rueda, surviving: list[str]) -> None:
    ran = rueda(*surviving, "false")
    assert ran.code == 1, ran
    assert ran.last_line.endswith("failed first: exit code 1"), ran
    assert rueda(*surviving, "true").code == 0


def test_ranks_that_wait_for_a_lost_one_are_ended(
    rueda: Rueda, surviving: list[str], script: Script
) -> None:
    pytest.importorskip("rueda._native")
    ran = rueda(
        *surviving, "python3",
        script("""
        if rank == 1:
            sys.exit(4)
        import rueda
        rueda.init()
        """),
    )  # fmt: skip
    assert ran.code == 4, ran
    assert "rank 1" in ran.last_line, ran


def test_without_recovery_the_end_of_all_ranks_is_a_failure(
    rueda: Rueda, surviving: list[str], script: Script
) -> None:
    if "--ulfm" not in surviving:
        pytest.skip("recovery is what makes mpirun start the ranks")
    ulfm = [*surviving[:2], *surviving[4:]]
    ran = rueda(*ulfm, "python3", script("os.kill(os.getpid(), 9)"))
    assert ran.code == 137, ran
    assert "killed by SIGKILL (Killed)" in ran.last_line, ran
    ran = rueda(*ulfm, "python3", script("if rank != 2: os.kill(os.getpid(), 9)"))
    assert ran.code == 0, ran
    ran = rueda(*ulfm, "python3", script("sys.exit(4 if rank == 1 else 0)"))
    assert ran.code == 4, ran
    assert "rank 1" in ran.last_line, ran
    assert "exit code 4" in ran.last_line, ran


def test_mpi_args_of_the_help_are_not_taken_for_success(rueda: Rueda, surviving: list[str]) -> None:
    if "--ulfm" not in surviving:
        pytest.skip("without recovery")
    forgiving = ["--mpi-args", "--runtime-options error-nonzero-status=false"]
    ran = rueda(
        "run", "--ulfm", *forgiving, "-np", "2", sys.executable, "-c", "raise SystemExit(5)"
    )
    assert ran.code == 5, ran
    assert ran.last_line.endswith("failed first: exit code 5"), ran
