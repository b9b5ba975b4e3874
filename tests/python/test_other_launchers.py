"""Ranks of one host started by srun or torchrun: a world without MPI or `rueda run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest
from launching import environment

MEET = """
import os, rueda
rueda.init(init_timeout=60)
found = rueda.allgather_object((os.environ["JOB"], rueda.rank()))
assert found == [(os.environ["JOB"], r) for r in range(rueda.size())], found
print(f"met {rueda.size()}\\n", end="", flush=True)
"""


def slurm_step(job: str, step: str, rank: int, size: int, **more: str) -> dict[str, str]:
    """The variables that srun sets for a task of a step on one node, without PMI."""
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": step,
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        **more,
    }


def start(program: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(processes: list[subprocess.Popen[str]]) -> list[str]:
    """The output of each; all must succeed."""
    try:
        written = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), written
    return written


def unique() -> str:
    """A job number that no other test uses at the same time."""
    return str(uuid.uuid4().int % 10**12)


def test_tasks_of_a_step_on_one_node_meet() -> None:
    job = unique()
    tasks = [start(MEET, slurm_step(job, "0", rank, 3, JOB="a")) for rank in range(3)]
    assert all("met 3" in text for text in end(tasks))


def test_two_steps_and_a_restarted_one_at_once_do_not_meet() -> None:
    job = unique()
    steps = [
        ("first", "0", {}),
        ("second", "1", {}),
        ("restarted", "0", {"SLURM_RESTART_COUNT": "1"}),
    ]
    tasks = [
        start(MEET, slurm_step(job, step, rank, 2, JOB=name, **more))
        for rank in range(2)
        for name, step, more in steps
    ]
    assert all("met 2" in text for text in end(tasks))


def test_a_task_alone_does_not_wait() -> None:
    assert "met 1" in end([start(MEET, slurm_step(unique(), "0", 0, 1, JOB="a"))])[0]


def test_a_task_that_waits_in_vain_says_for_which() -> None:
    program = """
    import rueda
    try:
        rueda.init(init_timeout=2)
    except rueda.InitializationError as error:
        print("error:", error)
    """
    text = end([start(program, slurm_step(unique(), "0", 0, 2))])[0]
    assert "rank 1" in text, text


def test_ranks_with_different_secrets_do_not_meet() -> None:
    program = """
    import rueda
    try:
        rueda.init(init_timeout=3)
    except rueda.InitializationError as error:
        print("refused")
    """
    job = unique()
    secrets = [letter * 32 for letter in "ab"]
    texts = end(
        [
            start(program, slurm_step(job, "0", rank, 2, RUEDA_SECRET=secret))
            for rank, secret in enumerate(secrets)
        ]
    )
    assert all("refused" in text for text in texts), texts


def test_two_jobs_of_torchrun_at_once(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            + [str(script)],
            env=environment({"JOB": name}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in "ab"
    ]
    for text in end(jobs):
        assert text.count("met 2") == 2, text


def test_a_rank_whose_agent_ends_before_init_does_not_look_for_the_others(tmp_path: Path) -> None:
    """Much work may precede init(), and init() may run in a fork of the rank."""
    rank = """
        import os, pathlib, rueda, sys, time
        folder = pathlib.Path(sys.argv[1])
        agent = os.getppid()
        (folder / "pid").write_text(str(os.getpid()))
        (folder / "pid").rename(folder / "loaded")
        while os.getppid() == agent:
            time.sleep(0.01)
        fork = os.fork()
        try:
            rueda.init(init_timeout=100 if fork else 20)
        except rueda.InitializationError as error:
            (folder / ("part" if fork else "fork")).write_text(str(error))
        if fork:
            os.waitpid(fork, 0)
            (folder / "part").rename(folder / "told")
    """
    line = [sys.executable, "-c", textwrap.dedent(rank), str(tmp_path)]
    agent = [sys.executable, "-c", f"import subprocess; subprocess.run({line})"]
    given = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "192.0.2.1",
        "MASTER_PORT": "9",
        "TORCHELASTIC_RUN_ID": "one",
        "RUEDA_SECRET": "known to these ranks alone",
    }
    started = subprocess.Popen(agent, env=environment(given))
    deadline = time.monotonic() + 60
    while not (tmp_path / "loaded").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started.kill()
    started.wait()
    try:
        while not (tmp_path / "told").exists():
            assert time.monotonic() < deadline, "it looks for rank 0"
            time.sleep(0.01)
    except AssertionError:
        os.kill(int((tmp_path / "loaded").read_text()), signal.SIGKILL)
        raise
    for name in ("told", "fork"):
        assert "ended before the rank found rank 0" in (tmp_path / name).read_text()


def test_torchrun_restarts_all_in_a_new_world(tmp_path: Path) -> None:
    """The second attempt does not meet the first, whose rank 0 was killed in the world."""
    pytest.importorskip("torch.distributed")
    script = tmp_path / "restart.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, rueda, signal
            rueda.init(init_timeout=60)
            attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
            assert rueda.allgather_object(attempt) == [attempt] * 2
            if attempt == "0":
                if rueda.rank() == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                rueda.barrier()
            print(f"attempt {attempt}\\n", end="", flush=True)
            """
        )
    )
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    job = subprocess.Popen(
        [*line, "--nproc-per-node", "2", str(script)],
        env=environment({"PATH": os.environ["PATH"]}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text = end([job])[0]
    assert text.count("attempt 1") == 2, text
    assert "attempt 0\n" not in text


def test_under_torchrun_ranks_tell_who_was_lost_and_recover_before_all_are_ended(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch.distributed")
    script = tmp_path / "loss.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, time
            import numpy as np
            import rueda

            rueda.init(init_timeout=60)
            assert rueda.options()["recovery"] == "on"
            number, ended = rueda.rank(), []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(True))  # as torchrun ends them
            process = rueda.allgather_object(os.getpid())[1]
            if number == 1:
                os.kill(process, signal.SIGKILL)
            try:
                while True:
                    rueda.allreduce(np.ones(1), name="w")
            except rueda.PeerLostError as error:
                said = str(error)
            recovery = rueda.recover()
            total = rueda.allreduce(np.ones(1), name="w", op=rueda.Sum)[0]
            assert recovery.details[1].process_id == process
            deadline = time.monotonic() + 60
            while not ended and time.monotonic() < deadline:
                time.sleep(0.01)
            print(f"rank {number} of {total:.0f}, ended {ended}: {said}\\n", end="", flush=True)
            sys.exit(3)
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
        + [str(script)],
        env=environment({"PATH": os.environ["PATH"], "RUEDA_RECOVERY": "on"}),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    for number in (0, 2):
        told = rf"rank {number} of 2, ended \[True\]: .*rank 1 \(.*\) is gone: \w"
        assert re.search(told, ran.stdout), ran.stdout + ran.stderr
    assert "exitcode: -9" in re.sub(r" +:", ":", ran.stderr), ran.stderr  # torchrun's report
