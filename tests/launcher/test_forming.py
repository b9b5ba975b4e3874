"""A rank that ends before the world is formed: the others hear it at once, whatever the limits."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest
from ending_in_init import END_IN_INIT

from .conftest import Rueda

pytest.importorskip("rueda._native")
Script = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("no_survivors")

JOBS = {
    "plain": [],
    "recovers": ["--min-np", "1"],
    "elastic": ["--min-np", "1", "--max-np", "3"],
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("lost", [0, 2])
def test_the_others_are_told_who_has_ended_and_how(
    rueda: Rueda, script: Script, job: str, lost: int
) -> None:
    name = script(f"""
        if rank == {lost}:
            wait_for("come", size - 1)  # the launcher gives them a moment from here on, not to begin in
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        import rueda, rueda._native
        mark("come")
        try:
            rueda.init()
        except rueda.InitializationError as error:
            print("told:", error, flush=True)
            raise
    """)
    ran = rueda("run", "--no-mpi", "-np", "3", *JOBS[job], "--init-timeout", "600", "python3", name)
    assert ran.code != 0
    told = re.findall(r"told: .*", ran.out)
    assert len(told) == 2, ran.out + ran.err
    for line in told:
        assert f"rank {lost} ended before the world was formed: killed by SIGKILL" in line
    assert re.match(rf"rueda: rank {lost} on \S+ failed first: killed by SIGKILL", ran.last_line)


def test_a_rank_that_ends_before_any_has_come_is_told_of_when_they_do(
    rueda: Rueda, script: Script
) -> None:
    name = script("""
        if rank == 0:
            os._exit(3)
        time.sleep(1)
        import rueda
        rueda.init()
    """)
    ran = rueda(
        "run", "--no-mpi", "-np", "2", "--min-np", "1", "--init-timeout", "600", "python3", name
    )
    assert ran.code == 3
    assert "rank 0 ended before the world was formed: exit code 3" in ran.err
    assert re.match(r"rueda: rank 0 on \S+ failed first: exit code 3", ran.last_line)


def test_ranks_meet_again_and_again_however_early_one_of_them_is(
    rueda: Rueda, script: Script
) -> None:
    name = script("""
        import rueda
        for again in range(5):
            rueda.init()
            assert rueda.size() == 3
            rueda.barrier()
            rueda.shutdown()
            if rank == again % 3:
                time.sleep(0.2)
        print("done", flush=True)
    """)
    ran = rueda("run", "--no-mpi", "-np", "3", "--init-timeout", "50", "python3", name)
    assert ran.code == 0, ran.out + ran.err
    assert len(re.findall("done", ran.out)) == 3


@pytest.mark.parametrize("size", [2, 4])
def test_the_launcher_answers_and_no_rank_listens(rueda: Rueda, script: Script, size: int) -> None:
    name = script("""
        import rueda
        rueda.init()
        print("at", os.environ["RUEDA_RENDEZVOUS"] == os.environ["RUEDA_RENDEZVOUS_STORE"])
        name = os.environ["RUEDA_RENDEZVOUS"].removeprefix("unix:")
        sockets = [line for line in open("/proc/net/unix") if line.split()[-1] == name]
        listening = [line for line in sockets if line.split()[3] == "00010000"]
        inodes = {line.split()[6] for line in listening}
        own = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                own.add(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:
                pass  # another thread has closed it
        print("listens:", len(inodes), any(f"socket:[{inode}]" in own for inode in inodes))
    """)
    ran = rueda("run", "--no-mpi", "-np", str(size), "python3", name)
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("at True") == size
    assert ran.out.count("listens: 1 False") == size


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("where", ["in init", "before init"])
def test_a_job_in_which_a_rank_ends_well_before_there_is_a_world_fails(
    rueda: Rueda, script: Script, job: str, where: str
) -> None:
    """As where SIGTERM comes, and the program's handler calls sys.exit(0)."""
    program = f"""
        import rueda, rueda._native
        def leave(*_):
            mark("leaves")
            sys.exit(0)
        signal.signal(signal.SIGTERM, leave)
        if rank == 0 and {where == "before init"}:
            leave()
        if rank == 0:
            threading.Thread(target=end_in_init, daemon=True).start()
        else:
            wait_for("leaves", 1)
            if {where == "before init"}:
                time.sleep(0.5)
                sys.exit(7)
        rueda.init()
    """
    name = script(END_IN_INIT + textwrap.dedent(program))
    ran = rueda("run", "--no-mpi", "-np", "3", *JOBS[job], "--init-timeout", "600", "python3", name)
    assert ran.code == (7 if where == "before init" else 1), ran.out + ran.err
    assert "failed first" in ran.last_line, ran.err
    if where == "in init":
        assert "rank 0 ended before the world was formed: exit code 0" in ran.err
        assert "go on" not in ran.err, ran.err
        assert "goes on" not in ran.err, ran.err


@pytest.mark.parametrize("job", ["recovers", "elastic"])
def test_a_rank_that_ends_well_after_there_was_a_world_has_done_its_work(
    rueda: Rueda, script: Script, job: str
) -> None:
    name = script("""
        import rueda
        rueda.init()
        if rank == 0:
            mark("begun")
        else:
            wait_for("begun", 1)
            rueda.shutdown()
            os._exit(7 if rank == 1 else 0)
    """)
    ran = rueda("run", "--no-mpi", "-np", "2", *JOBS[job], "python3", name)
    assert ran.code == 0, ran.out + ran.err
    assert "1 is lost" in ran.err or "rank 1 on" in ran.err, ran.err
