"""A rank that ends well before it comes to rueda.init() leaves the others waiting for ever."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rueda.launcher.absentees import _LOOKS
from rueda.launcher.orphans import INTERVAL

from .conftest import Rueda

pytest.importorskip("rueda._native")
Script = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("no_survivors")


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_that_ends_before_init_is_named_and_the_job_ends(
    rueda: Rueda, launch: list[str], script: Script, leaves: int
) -> None:
    program = script(f"""
        if rank != {leaves}:
            import rueda
            rueda.init()
    """)
    ran = rueda(*launch, "-np", "2", "python3", program)
    assert ran.code == 1
    assert ran.last_line == (
        f"rueda: rank {leaves} ended with exit code 0 before calling rueda.init(); rank "
        f"{1 - leaves} would wait there for ever"
    )
    assert "rejected" not in ran.err  # about the rank that was ended while it waited for the other


def test_ranks_that_leave_an_init_in_time_are_no_absentees(
    rueda: Rueda, launch: list[str], script: Script
) -> None:
    program = script("""
        import rueda
        rueda.init()
        rueda.shutdown()
        time.sleep(rank)
        print("done", flush=True)
    """)
    ran = rueda(*launch, "-np", "3", "python3", program)
    assert ran.code == 0, ran.err
    assert len(re.findall("done", ran.out)) == 3


def test_ranks_that_form_no_common_world_may_end_when_they_like(
    rueda: Rueda, launch: list[str], script: Script
) -> None:
    # Without mpirun the launcher decides once it knows rank 0's end and rank 1's words; with it,
    # after this many looks.
    looks = _LOOKS + 2 if "--mpirun" in launch else 0
    program = script(f"""
        first = int(pathlib.Path("pid.0").read_text())
        if rank == 0:
            sys.exit()
        import rueda
        if rank == 1:
            rueda.init(bootstrap="none")
        deadline = time.monotonic() + 60
        while os.path.exists(f"/proc/{{first}}"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep({looks * INTERVAL})
        print("done", flush=True)
    """)
    ran = rueda(*launch, "-np", "3", "python3", program)
    assert ran.code == 0, ran.err
    assert len(re.findall("done", ran.out)) == 2


def test_many_ranks_come_at_once(rueda: Rueda, script: Script) -> None:
    program = script("""
        if rank != 7:
            import rueda
            rueda.init()
    """)
    ran = rueda("run", "--no-mpi", "--grace", "0.5", "-np", "12", "python3", program)
    assert ran.code == 1
    assert re.fullmatch(
        r"rueda: rank 7 ended with exit code 0 before calling rueda.init\(\); ranks? .* would "
        r"wait there for ever",
        ran.last_line,
    )
