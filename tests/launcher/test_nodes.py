"""`rueda run --nodes`: its flags and variables, and its messages before anything starts."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rueda.launcher.errors import LaunchError
from rueda.launcher.job import Job
from rueda.launcher.nodes import other
from rueda.launcher.nodes.flags import Nodes, hint_at_batch_job, hint_at_nodes, nodes_of
from rueda.launcher.nodes.greeting import First, Other, Stranger, key_of, secret_of_ranks
from rueda.launcher.remote.frames import Frame, Kind
from rueda_command import LAUNCHER, launcher_environment

from .conftest import Rueda

SECRET = {"RUEDA_SECRET": "s" * 32}
NOTHING: dict[str, Any] = dict.fromkeys(
    ["nodes", "node_rank", "rendezvous", "hosts", "hostfile", "max_np", "host_discovery_script"]
    + ["output_directory", "mpirun_path", "map_by", "ulfm", "mpi_args", "bootstrap"]
)
NOTHING["nodes_timeout"] = 600.0
TWO = {**NOTHING, "nodes": 2, "node_rank": 1, "rendezvous": "tcp:first:29400"}


def test_flags_come_before_variables() -> None:
    others = {
        "PET_NODE_RANK": "0",
        "PET_NNODES": "7",
        "PET_MASTER_ADDR": "x",
        "PET_MASTER_PORT": "1",
    }
    nodes = nodes_of(TWO, {**SECRET, **others})
    assert nodes is not None
    assert (nodes.count, nodes.rank, nodes.where) == (2, 1, "tcp:first:29400")
    assert SECRET["RUEDA_SECRET"] not in repr(nodes)


@pytest.mark.parametrize(
    ("variables", "rank", "count"),
    [
        ({"PET_NODE_RANK": "1", "PET_NNODES": "3", "JOB_COMPLETION_INDEX": "2"}, 1, 3),
        ({"JOB_COMPLETION_INDEX": "2", "PET_NNODES": "4", "SLURM_NODEID": "0"}, 2, 4),
        ({"SLURM_NODEID": "3", "SLURM_NNODES": "4"}, 3, 4),
    ],
)
def test_variables_of_what_has_started_the_nodes(
    variables: dict[str, str], rank: int, count: int
) -> None:
    nodes = nodes_of({**NOTHING, "rendezvous": "tcp:[fd00::1]:4711"}, {**SECRET, **variables})
    assert nodes is not None
    assert (nodes.rank, nodes.count, nodes.host, nodes.port) == (rank, count, "[fd00::1]", 4711)


def test_a_trainjob_tells_where_to_meet() -> None:
    pet = {
        "PET_NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_MASTER_ADDR": "a-0.a",
        "PET_MASTER_PORT": "29400",
    }
    nodes = nodes_of({**NOTHING, "nodes": 2}, {**SECRET, **pet})
    assert nodes is not None
    assert nodes.where == "tcp:a-0.a:29400"
    for address in ("fd00::1", "[fd00::1]"):
        nodes = nodes_of({**NOTHING, "nodes": 2}, {**SECRET, **pet, "PET_MASTER_ADDR": address})
        assert nodes is not None
        assert nodes.where == "tcp:[fd00::1]:29400"


def test_variables_alone_make_no_job_of_several_nodes() -> None:
    assert nodes_of(NOTHING, {"PET_NNODES": "2", "SLURM_NNODES": "2"}) is None
    assert nodes_of({**NOTHING, "nodes": 1}, {}) is None


@pytest.mark.parametrize(
    ("change", "variables", "part"),
    [
        ({"nodes": None}, {}, "say how many nodes the job has: --nodes N"),
        ({"nodes": None}, {"PET_NNODES": "1:4"}, "PET_NNODES=1:4 is not a number; give --nodes"),
        ({"nodes": 0}, {}, "at least 1 node"),
        ({"node_rank": None}, {}, "say which of the 2 nodes this is: --node-rank R, from 0 to 1"),
        ({"node_rank": 2}, {}, "2 nodes have numbers from 0 to 1"),
        ({"rendezvous": None}, {}, "say where the nodes meet: --rendezvous tcp:HOST:PORT"),
        ({"rendezvous": "first:29400"}, {}, "write tcp:HOST:PORT"),
        ({"rendezvous": "tcp:first:99999"}, {}, "write tcp:HOST:PORT"),
        ({"hosts": "a:2"}, {}, "-H cannot be used with --nodes"),
        ({"bootstrap": "mpi"}, {}, "--bootstrap mpi cannot be used with --nodes"),
        ({}, {"RUEDA_SECRET": "short"}, "nodes that meet over TCP need RUEDA_SECRET"),
        (
            {},
            {"RUEDA_SECRET": "", "RUEDA_SECRET_FILE": "/nowhere"},
            "/nowhere cannot be read: No such file",
        ),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    change: dict[str, Any], variables: dict[str, str], part: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        nodes_of({**TWO, **change}, {**SECRET, **variables})
    assert part in caught.value.format_message()
    assert "\n" not in caught.value.format_message()


def test_a_secret_file_for_all_users_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 32)
    file.chmod(0o644)
    with pytest.raises(LaunchError, match="chmod 600"):
        nodes_of(TWO, {"RUEDA_SECRET_FILE": str(file)})
    file.chmod(0o600)
    nodes = nodes_of(TWO, {"RUEDA_SECRET_FILE": str(file)})
    assert nodes is not None
    assert nodes.secret == "s" * 32


def test_a_pod_that_would_be_alone_is_told_so(rueda: Rueda) -> None:
    ran = rueda(
        "run", "--no-mpi", "-np", "1", "true", JOB_COMPLETION_INDEX="3", OMP_NUM_THREADS="1"
    )
    assert ran.code == 0
    assert "JOB_COMPLETION_INDEX" in ran.err
    assert "--nodes N --rendezvous tcp:HOST:PORT, otherwise --nodes 1" in ran.err
    assert hint_at_nodes({**NOTHING, "nodes": 1}, {"JOB_COMPLETION_INDEX": "3"}) == ""
    assert hint_at_nodes(NOTHING, {}) == ""


@pytest.mark.parametrize(
    ("variables", "source"),
    [
        ({"SLURM_JOB_ID": "1", "SLURM_NNODES": "2"}, "SLURM_NNODES"),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_NNODES": "4"}, "SLURM_STEP_NUM_NODES"),
        ({"LSB_MCPU_HOSTS": "a 4 b 4"}, "LSB_MCPU_HOSTS"),
        ({"PBS_NODEFILE": "nodes"}, "PBS_NODEFILE"),
    ],
)
def test_a_batch_job_on_several_nodes_that_runs_on_one_is_told_so(
    tmp_path: Path, variables: dict[str, str], source: str
) -> None:
    (tmp_path / "nodes").write_text("a\na\nb\nb\n")
    found = {n: str(tmp_path / v) if v == "nodes" else v for n, v in variables.items()}
    values = {**NOTHING, "host_discovery_script": None}
    hint = hint_at_batch_job(values, found)
    assert hint.startswith(f"the batch job has 2 nodes ({source}), but all ranks run on this one:")
    assert "--nodes 2 --rendezvous tcp:HOST:PORT" in hint
    for name, value in (("nodes", 1), ("hosts", "a:1"), ("hostfile", "f")):
        assert hint_at_batch_job({**values, name: value}, found) == ""
    assert hint_at_batch_job(values, {**found, "RUEDA_RANK": "0"}) == ""


def test_a_batch_job_on_one_node_is_told_nothing() -> None:
    values = {**NOTHING, "host_discovery_script": None}
    assert hint_at_batch_job(values, {"SLURM_NNODES": "1"}) == ""
    assert hint_at_batch_job(values, {"SLURM_STEP_NUM_NODES": "1", "SLURM_NNODES": "4"}) == ""
    assert hint_at_batch_job(values, {"PBS_NODEFILE": "/no/such/file"}) == ""
    assert hint_at_batch_job(values, {}) == ""


@pytest.mark.parametrize("flags", [["--no-mpi"], ["--min-np", "1"]], ids=str)
def test_the_hint_at_other_nodes_is_for_direct_launches(rueda: Rueda, flags: list[str]) -> None:
    ran = rueda(
        "run", *flags, "-np", "1", "true", SLURM_JOB_ID="1", SLURM_NNODES="2", OMP_NUM_THREADS="1"
    )
    assert ran.code == 0
    assert "the batch job has 2 nodes (SLURM_NNODES)" in ran.err


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_node_without_its_program_tells_the_others(tmp_path: Path, wrong: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [*LAUNCHER, "run", "--nodes", "2", "--node-rank", str(rank), "--rendezvous",
             f"tcp:127.0.0.1:{port}", "-np", "1", "no-such-program" if rank == wrong else "true"],
            env={**launcher_environment(), **SECRET, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, error in zip(processes, errors, strict=True):
        assert process.returncode == 2, errors
        assert "there is no program 'no-such-program' on the PATH" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_node_0(number: signal.Signals) -> None:
    """As by Ctrl-C or the end of a pod; the listener says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        where = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        flags = ["--nodes", "2", "--node-rank", "1", "--rendezvous", where, "-np", "1"]
        process = subprocess.Popen(
            [*LAUNCHER, "run", *flags, "true"],
            env={**launcher_environment(), **SECRET, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with listener.accept()[0]:
                process.send_signal(number)
                _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert err == f"rueda: ended by {number.name}; all ranks are gone\n"


def talk(first_key: bytes, other_key: bytes) -> dict[str, Any]:
    """Runs a whole conversation; returns what node 0 learns about the other."""
    first, other = First(first_key), Other(other_key)
    challenge = first.challenge(other.hello())
    return first.facts(other.prove(challenge, {"node": 1}))


def test_only_those_who_know_the_secret_and_the_job_believe_each_other() -> None:
    key = key_of("s" * 32, ["here", "77", "0"])
    assert talk(key, key) == {"node": 1}
    for stranger in (key_of("t" * 32, ["here", "77", "0"]), key_of("s" * 32, ["here", "77", "1"])):
        with pytest.raises(Stranger):
            talk(key, stranger)
    assert secret_of_ranks(key, "a") != secret_of_ranks(key, "b")


def test_what_was_heard_once_proves_nothing_again() -> None:
    key = key_of("s" * 32, [])
    one, two, other = First(key), First(key), Other(key)
    hello = other.hello()
    proof = other.prove(one.challenge(hello), {"node": 1})
    two.challenge(hello)
    with pytest.raises(Stranger):
        two.facts(proof)
    changed = json.loads(proof)
    changed["facts"] = json.dumps({"node": 2})
    with pytest.raises(Stranger):
        one.facts(json.dumps(changed).encode())


@pytest.mark.parametrize(
    "line", [b"", b"GET / HTTP/1.1\n", b"[]\n", b"{}\n", b'{"rueda nodes": 1}\n', b"\xff\n"]
)
def test_what_is_no_launcher_is_a_stranger(line: bytes) -> None:
    key = key_of("s" * 32, [])
    with pytest.raises(Stranger):
        First(key).challenge(line)
    with pytest.raises(Stranger):
        Other(key).prove(line, {})


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"{}", b"[" * 100_000, b'{"identities": 1, "first": 0}', b'{"identities": [[]], "first": 0}']
    + [b'{"identities": [], "first": "x"}'],
    ids=lambda payload: str(payload[:30]),
)  # fmt: skip
def test_a_node_0_that_says_nonsense_is_one_sentence(payload: bytes) -> None:
    nodes = Nodes(2, 1, "first", 29400, 1.0, "s" * 32)
    frame = Frame(Kind.JOB, 0, payload)
    for read in (
        lambda: other._part(Job(1, ("true",)), frame.json(), "", 1.0, 60.0),
        lambda: other._meeting(nodes, frame.json()),
    ):
        with pytest.raises(
            LaunchError, match="node 0 at tcp:first:29400 has sent an invalid message"
        ):
            other._understand(nodes, read)
