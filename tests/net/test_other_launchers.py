"""Ranks on several hosts that srun, torchrun or another program starts form their world."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from rueda_command import launcher_environment

from .lab import Lab, namespaces
from .lab.fixture import MakeLab

Variables = dict[str, str]

MEET = """
import os, rueda
rueda.init(init_timeout=60)
found = rueda.allgather_object((os.environ["JOB"], rueda.rank(), os.uname().nodename))
assert [part[:2] for part in found] == [(os.environ["JOB"], r) for r in range(rueda.size())], found
assert rueda.allreduce([1.0], op=rueda.Sum, name="x")[0] == rueda.size()
if "AGAIN" in os.environ:  # a second world at the same place
    rueda.shutdown()
    rueda.init(init_timeout=60)
    assert rueda.allgather_object(rueda.rank()) == list(range(rueda.size()))
print("met", rueda.size(), sorted({part[2] for part in found}), "\\n", end="", flush=True)
"""
REFUSED = """
import rueda
try:
    rueda.init(init_timeout=1)
except rueda.InitializationError as error:
    print("refused:", error)
"""
HOSTS = ["h0", "h1"]


def slurm_step(job: str, rank: int, **more: str) -> Variables:
    """Returns what srun sets for a task of a four-task step on two nodes, without PMI."""
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "h[0-1]",
        "SLURM_PROCID": str(rank),
        **more,
    }


def bare(port: str, rank: int, **more: str) -> Variables:
    """Returns what many operators and scripts set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "h0",
        "MASTER_PORT": port,
        **more,
    }


def unique() -> str:
    """Returns a job or port number that no concurrent test uses."""
    return str(uuid.uuid4().int % 10**9)


def secret() -> Variables:
    """Returns a secret as a user makes one for a job."""
    return {"RUEDA_SECRET": secrets.token_hex(32)}


class Tasks:
    """Starts tasks on hosts of a lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def start(
        self, host: str, line: Sequence[str], given: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Starts a program on a host."""
        base = {k: v for k, v in launcher_environment().items() if not k.startswith("SLURM_")}
        return self.lab.start(
            host,
            *line,
            env={**base, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def ranks(self, program: str, given: Sequence[Variables]) -> list[subprocess.Popen[str]]:
        """Starts one rank for each of `given`, the first half on h0 and the others on h1."""
        line = [sys.executable, "-c", textwrap.dedent(program)]
        half = len(given) // 2
        return [
            self.start(HOSTS[number >= half], line, variables)
            for number, variables in enumerate(given)
        ]


def end(processes: Sequence[subprocess.Popen[str]], codes: Sequence[int] = (0,)) -> list[str]:
    """Returns what each process wrote. All must end with one of these codes."""
    try:
        written = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode in codes for process in processes), written
    return written


@pytest.fixture
def tasks(lab: Lab) -> Tasks:
    """Tasks of the lab that all tests share."""
    return Tasks(lab)


def test_tasks_of_two_steps_at_once(tasks: Tasks) -> None:
    """Two jobs of one user, with one secret, on the same nodes; one of them was requeued."""
    shared, job = secret(), unique()
    one = tasks.ranks(MEET, [slurm_step(job, r, JOB="a", **shared) for r in range(4)])
    requeued = {"SLURM_RESTART_COUNT": "1", "JOB": "b", "AGAIN": "1", **shared}
    two = tasks.ranks(MEET, [slurm_step(job, r, **requeued) for r in range(4)])
    for text in end(one + two):
        assert "met 4 ['h0', 'h1']" in text


def test_ranks_that_only_know_their_master(tasks: Tasks, tmp_path: Path) -> None:
    """With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and the secret in a file."""
    file = tmp_path / "secret"
    file.write_text(secrets.token_hex(32) + "\n")
    file.chmod(0o600)
    given = {"JOB": "a", "RUEDA_SECRET_FILE": str(file)}
    port = unique()
    for text in end(tasks.ranks(MEET, [bare(port, r, **given) for r in range(4)])):
        assert "met 4 ['h0', 'h1']" in text


def names(lab: Lab, of: Callable[[str], Sequence[str]]) -> None:
    """Gives the hosts' names these addresses on each host."""
    text = "127.0.0.1 localhost\n::1 localhost\n"
    text += "".join(f"{address} {name}\n" for name in lab.names for address in of(name))
    for name in lab.names:
        (namespaces.ETC / lab.namespace(name) / "hosts").write_text(text)


@pytest.mark.parametrize("has_ipv4", [False, True])
def test_a_master_whose_name_has_an_ipv6_address(make_lab: MakeLab, has_ipv4: bool) -> None:
    """IPv6 only, or first: then rank 0 listens at both, and ranks try the other if one fails."""
    lab = make_lab(2, ipv6=not has_ipv4)
    if has_ipv4:
        names(lab, lambda name: [lab.ipv6(name), lab.ipv4(name)])
    port, given = unique(), {"JOB": "a", **secret()}
    for text in end(Tasks(lab).ranks(MEET, [bare(port, r, **given) for r in range(4)])):
        assert "met 4 ['h0', 'h1']" in text


def test_a_master_that_is_reached_at_the_last_of_its_addresses(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    names(lab, lambda name: ["fd13::99" if name == "h0" else lab.ipv6(name), lab.ipv4(name)])
    port, given = unique(), {"JOB": "a", **secret()}
    for text in end(Tasks(lab).ranks(MEET, [bare(port, r, **given) for r in range(4)])):
        assert "met 4 ['h0', 'h1']" in text


def test_a_master_whose_name_is_a_loopback_on_itself(make_lab: MakeLab) -> None:
    """As on Debian: then rank 0 listens at all addresses."""
    lab = make_lab(2)
    hosts = namespaces.ETC / lab.namespace("h0") / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 h0\n{lab.ipv4('h1')} h1\n")
    port, given = unique(), {"JOB": "a", **secret()}
    for text in end(Tasks(lab).ranks(MEET, [bare(port, r, **given) for r in range(4)])):
        assert "met 4 ['h0', 'h1']" in text


CALLS = """
import socket, sys, time
*others, served = sys.argv[2:]
deadline = time.monotonic() + 60
while socket.socket().connect_ex((served, int(sys.argv[1]))) != 0 and time.monotonic() < deadline:
    time.sleep(0.05)
for address in (served, *others):
    print(address, socket.socket().connect_ex((address, int(sys.argv[1]))) == 0)
"""


@pytest.mark.parametrize("number", [0, 1])
def test_rank_0_listens_only_where_its_name_is(make_lab: MakeLab, number: int) -> None:
    lab = make_lab(2, links=2)
    tasks, master = Tasks(lab), f"h0-eth{number}"
    given = {"MASTER_ADDR": master, "RUEDA_INTERFACE": f"eth{number}", **secret()}
    job = unique()
    where = WHERE.replace("h0:", f"{master}:")
    port = end(tasks.ranks(where, [bare(job, 1, **given)]))[0].strip()
    line = [sys.executable, "-c", REFUSED.replace("init_timeout=1", "init_timeout=60")]
    rank_0 = tasks.start("h0", line, bare(job, 0, **given))
    try:
        served, other = lab.ipv4("h0", number), lab.ipv4("h0", 1 - number)
        call = [sys.executable, "-c", CALLS, port]
        assert end([tasks.start("h1", [*call, other, served], {})]) == [
            f"{served} True\n{other} False\n"
        ]
        assert end([tasks.start("h0", [*call, "127.0.0.1", other, served], {})]) == [
            f"{served} True\n127.0.0.1 False\n{other} False\n"
        ]
    finally:
        rank_0.kill()
        rank_0.communicate()


def test_hosts_whose_names_have_addresses_of_a_gateway(make_lab: MakeLab) -> None:
    """As behind NAT: no interface has these addresses."""
    lab = make_lab(2)
    names(lab, lambda name: [f"203.0.113.{5 + lab.names.index(name)}"])
    given = {"JOB": "a", "MASTER_ADDR": lab.ipv4("h0"), **secret()}
    port = unique()
    for text in end(Tasks(lab).ranks(MEET, [bare(port, r, **given) for r in range(4)])):
        assert "met 4 ['h0', 'h1']" in text


@pytest.mark.parametrize("start", [slurm_step, bare])
def test_without_a_secret_every_rank_says_what_to_do(tasks: Tasks, start: type) -> None:
    texts = end(tasks.ranks(REFUSED, [start("1", rank) for rank in (1, 2)]))
    for text in texts:
        assert "export RUEDA_SECRET=$(openssl rand -hex 32)" in text
        assert "rueda run -H" in text
        assert ("srun --mpi=pmix" in text) == (start is slurm_step)


def test_a_secret_file_that_others_may_read(tasks: Tasks, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("x" * 32)
    file.chmod(0o644)
    text = end(tasks.ranks(REFUSED, [bare("1", 1, RUEDA_SECRET_FILE=str(file))]))[0]
    assert f"RUEDA_SECRET_FILE={file} may be read by every user: chmod 600 it" in text


def test_a_node_whose_name_does_not_resolve(tasks: Tasks) -> None:
    given = slurm_step(unique(), 1, **secret(), SLURM_STEP_NODELIST="nowhere[1-2]")
    text = end(tasks.ranks(REFUSED, [given]))[0]
    assert "'nowhere1' does not resolve" in text
    assert "name its address in MASTER_ADDR" in text
    assert "srun --mpi=pmix" in text


TAKES_PORTS = """
import socket, sys, time
taken = []
for port in sys.argv[1:]:
    taken.append(socket.create_server(("", int(port))))
print("taken", flush=True)
time.sleep(100)
"""
# The first port of a job, from the error of a rank that waits alone.
WHERE = """
import re, rueda
try:
    rueda.init(init_timeout=1)
except rueda.InitializationError as error:
    print(re.search(r"tcp:h0:(\\d+)", str(error))[1])
"""


@contextmanager
def taken(tasks: Tasks, port: str) -> Iterator[None]:
    """Makes an unrelated program on h0 listen at the port and say nothing."""
    stranger = tasks.start("h0", [sys.executable, "-c", TAKES_PORTS, port], {})
    assert stranger.stdout is not None
    try:
        assert stranger.stdout.readline() == "taken\n"
        yield
    finally:
        stranger.kill()
        stranger.communicate()


def test_a_stranger_on_the_first_port_is_passed_by(tasks: Tasks) -> None:
    job, own = unique(), secret()
    port = end(tasks.ranks(WHERE, [slurm_step(job, 1, **own)]))[0].strip()
    with taken(tasks, port):
        ranks = tasks.ranks(MEET, [slurm_step(job, r, JOB="a", **own) for r in range(4)])
        assert all("met 4" in text for text in end(ranks))


UNTIL_ANSWERED = """
import rueda, time
begun = time.monotonic()
while time.monotonic() < begun + 60:
    try:
        rueda.init(init_timeout=1)
        print("met")
        break
    except rueda.InitializationError as error:
        if "another secret" in str(error):
            print("refused:", error)
            break
"""


def test_another_secret_at_the_same_ports_never_meets(tasks: Tasks) -> None:
    """As if two users had the same job number: ranks of one job get different secrets."""
    port = unique()
    waits = REFUSED.replace("init_timeout=1", "init_timeout=60")
    rank_0 = tasks.start("h0", [sys.executable, "-c", waits], bare(port, 0, **secret()))
    line = [sys.executable, "-c", UNTIL_ANSWERED]
    try:
        text = end([tasks.start("h1", line, bare(port, 2, **secret()))])[0]
    finally:
        rank_0.kill()
        rank_0.communicate()
    assert "has another secret (RUEDA_SECRET) than rank 2 on h1" in text


def test_ranks_that_were_told_different_sizes(tasks: Tasks) -> None:
    port, own = unique(), secret()
    waits = [sys.executable, "-c", REFUSED.replace("init_timeout=1", "init_timeout=60")]
    rank_0 = tasks.start("h0", waits, bare(port, 0, **own))
    try:
        other = tasks.start("h1", waits, bare(port, 2, WORLD_SIZE="5", **own))
        text = end([other])[0]
    finally:
        rank_0.kill()
        warned = rank_0.communicate()[0]
    said = "was told that there are 5 ranks, rank 0 on h0 that there are 4"
    assert f"rank 2 on h1 was rejected: rank 2 {said}" in text
    assert f"rejected rank 2 at {tasks.lab.ipv4('h1')}, which {said}" in warned


def test_a_second_rank_0_of_the_same_job_is_refused(tasks: Tasks) -> None:
    twice = [bare(unique(), 0, **secret())] * 2
    line = [sys.executable, "-c", REFUSED]
    texts = end([tasks.start("h0", line, given) for given in twice])
    assert sum("another process is rank 0 of this very job" in text for text in texts) == 1, texts
    assert sum("waited for ranks 1-3" in text for text in texts) == 1, texts


def torchrun(
    tasks: Tasks, script: Path, given: Variables, *more: str
) -> list[subprocess.Popen[str]]:
    """Starts a torchrun agent with two workers on each of two hosts."""
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "h0:29400", "--rdzv-id", "one"]
    variables = {"PATH": os.environ["PATH"], **given}
    return [tasks.start(h, [*line, *where, *more, str(script)], variables) for h in HOSTS]


def test_torchrun_on_two_hosts_restarts_all_in_a_new_world(tasks: Tasks, tmp_path: Path) -> None:
    """Rank 3 is killed in the first attempt; the agents' restart counts may differ."""
    pytest.importorskip("torch.distributed")
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, pathlib, rueda, signal
            rueda.init(init_timeout=60)
            folder = pathlib.Path(__file__).parent
            attempt = len(list(folder.glob(f"seen.{rueda.rank()}.*")))
            assert rueda.allgather_object(attempt) == [attempt] * 4
            (folder / f"seen.{rueda.rank()}.{attempt}").touch()
            rueda.barrier()
            if attempt == 0:
                if rueda.rank() == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                rueda.barrier()
            hosts = sorted(set(rueda.allgather_object(os.uname().nodename)))
            count = os.environ["TORCHELASTIC_RESTART_COUNT"]
            print(f"attempt {attempt} of {hosts}, count {count}\\n", end="", flush=True)
            """
        )
    )
    agents = torchrun(tasks, script, secret(), "--max-restarts", "2")
    for text in end(agents):
        assert text.count("attempt 1 of ['h0', 'h1']") == 2, text


def test_a_rank_whose_agent_is_killed_does_not_wait_for_the_next_attempt(
    tasks: Tasks, tmp_path: Path
) -> None:
    """An agent ends the ranks of an attempt itself. If it is killed, nobody does."""
    rank = """
        import os, pathlib, rueda, sys
        print("looks for rank 0", flush=True)
        try:
            rueda.init(init_timeout=100)
        except rueda.InitializationError as error:
            pathlib.Path(sys.argv[1]).write_text(str(error))
    """
    told = tmp_path / "told"
    line = [sys.executable, "-c", textwrap.dedent(rank), str(told)]
    agent = [sys.executable, "-c", f"import subprocess; subprocess.run({line})"]
    given = bare(unique()[:4], 3, TORCHELASTIC_RUN_ID="one", LOCAL_WORLD_SIZE="2", **secret())
    started = tasks.start("h1", agent, given)
    assert started.stdout is not None
    assert started.stdout.readline() == "looks for rank 0\n"
    time.sleep(0.5)  # the rank starts to look for rank 0
    started.kill()
    assert started.stdout.read() == ""  # returns once the rank has ended too
    assert "ended before the rank found rank 0: this attempt is over" in told.read_text()
    started.wait()
