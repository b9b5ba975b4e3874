"""`rueda run --nodes N` on each of several hosts, as in the pods of a Kubernetes job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from ending_in_init import END_IN_INIT
from rueda_command import launcher_environment

from .pods import PORT, Pods, Process

WRITES = """
import rueda, sys
rueda.init(init_timeout=60)
print("rank", rueda.rank(), flush=True)
print("of", rueda.size(), file=sys.stderr)
"""
FAILS = """
import rueda, sys
rueda.init(init_timeout=60)
if rueda.rank() == 3:
    print("no more disk", file=sys.stderr)
    sys.exit(7)
rueda.barrier()
"""
WAITS = """
import pathlib, rueda, time
rueda.init(init_timeout=60)
pathlib.Path(f"ready.{rueda.rank()}").touch()
time.sleep(100)
"""


def end(processes: Sequence[Process], code: int) -> list[tuple[str, str]]:
    """Returns what each launcher has written; all must end with this code."""
    written = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), written
    return written


def last_lines(processes: Sequence[Process], code: int) -> set[str]:
    """Returns the last lines of all launchers, which must end with this code."""
    return {err.splitlines()[-1] for _, err in end(processes, code)}


def test_each_node_writes_the_files_of_its_ranks(pods: Pods, tmp_path: Path) -> None:
    started = [
        pods.start(
            f"h{n}", "--nodes", "3", "--node-rank", str(n), "-np", "4", "--output-filename",
            "shared" if n < 2 else "own", program=WRITES,
        )
        for n in range(3)
    ]  # fmt: skip
    end(started, 0)
    for folder, ranks in (("shared", range(8)), ("own", range(8, 12))):
        found = {path.name: path.read_text() for path in (tmp_path / folder).iterdir()}
        assert found == {f"rank.{rank:02}": f"rank {rank}\nof 12\n" for rank in ranks}


def test_one_job_on_three_nodes(pods: Pods, tmp_path: Path) -> None:
    """Each launcher's environment gives its node number; one reads the secret from a file."""
    file = tmp_path / "secret"
    file.write_text(pods.secret + "\n")
    file.chmod(0o600)
    kubernetes = pods.start("h2", "--nodes", "3", JOB_COMPLETION_INDEX="2", OWN="c")
    trainer = pods.start("h1", PET_NODE_RANK="1", PET_NNODES="3", OWN="b")
    slurm = {"SLURM_NODEID": "0", "SLURM_NNODES": "3"}
    first = pods.start("h0", **slurm, RUEDA_SECRET="", RUEDA_SECRET_FILE=str(file), OWN="a")
    written = end([first, trainer, kubernetes], 0)
    assert [err for _, err in written] == ["", "", ""]
    ranks = []
    for (out, _), own, numbers in zip(written, "abc", ((0, 1), (2, 3), (4, 5)), strict=True):
        lines = sorted(out.splitlines())
        assert [line[:12] for line in lines] == [f"[{n}]<stdout>: "[:12] for n in numbers]
        found = [json.loads(line.partition(": ")[2]) for line in lines]
        assert all(rank["own"] == own for rank in found)  # each node's ranks have its own variables
        ranks += found
    assert all(rank["hosts"] == ["h0", "h0", "h1", "h1", "h2", "h2"] for rank in ranks)
    assert len({rank["SECRET"] for rank in ranks}) == 1
    assert ranks[0]["SECRET"] != pods.secret
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    assert [[int(rank[name]) for name in names] for rank in ranks] == [
        [n, 6, n % 2, 2, n // 2, 3] for n in range(6)
    ]


def test_a_rank_that_fails_ends_all_nodes_with_its_cause(pods: Pods) -> None:
    sentence = "rank 3 on h1 failed first: exit code 7; last line of stderr: no more disk"
    assert last_lines(pods.all(2, program=FAILS), 7) == {f"rueda: {sentence}"}


def test_a_signal_to_one_launcher_ends_all(pods: Pods) -> None:
    """For example when a pod is deleted."""
    launchers = pods.all(2, "-np", "1", program=WAITS)
    pods.looks.wait_for("ready", 2, launchers[0])
    launchers[1].send_signal(signal.SIGTERM)
    lines = last_lines(launchers, 128 + signal.SIGTERM)
    assert lines == {"rueda: rank 1 on h1 failed first: killed by SIGTERM (Terminated)"}


@pytest.mark.parametrize("which", [0, 1])
def test_a_launcher_that_is_killed_is_missed_by_all(pods: Pods, which: int) -> None:
    launchers = pods.all(2, "-np", "1", program=WAITS)
    pods.looks.wait_for("ready", 2, launchers[0])
    pods.looks.kill_all(f"h{which}")
    ((_, err),) = end([launchers[1 - which]], 1)
    gone = "the launcher of node 0 is gone" if which == 0 else "host 'h1', with rank 1, was lost"
    assert gone in err.splitlines()[-1]


def test_nodes_that_differ_are_told_of_it(pods: Pods) -> None:
    first = pods.start("h0", "--nodes", "2", "--node-rank", "0")
    other = pods.start("h1", "--nodes", "2", "--node-rank", "1", "-np", "3")
    sentence = (
        "node 1 on h1 has -np 3, and node 0 on h0 has -np 2: they must be the same on all nodes"
    )
    assert last_lines([first, other], 2) == {f"rueda: {sentence}"}


def test_strangers_do_not_become_nodes(pods: Pods) -> None:
    """A second node 1 is turned away, and so is a launcher with another secret."""
    first = pods.start("h0", "--nodes", "3", "--node-rank", "0")
    probe = [
        "-c",
        f"import socket; s = socket.create_connection(('h0', {PORT})); s.sendall(b'GET /\\n'); s.recv(1)",
    ]
    while pods.lab.run("h2", sys.executable, *probe).returncode != 0:
        assert first.poll() is None, first.communicate()
    twins = [pods.start(host, "--nodes", "3", "--node-rank", "1") for host in ("h1", "h2")]
    refused = pods.first_to_end(twins)
    ((_, err),) = end([refused], 2)
    assert "is node 1 already: give each node its own --node-rank" in err
    other = pods.start("h2", "--nodes", "3", "--node-rank", "2", RUEDA_SECRET="x" * 32)
    ((_, err),) = end([other], 2)
    assert "has another secret (RUEDA_SECRET)" in err
    assert all(process.poll() is None for process in (first, *twins) if process is not refused)
    first.send_signal(signal.SIGTERM)
    ((_, said),) = end([first], 128 + signal.SIGTERM)
    assert "that does not know the job's secret (RUEDA_SECRET)" in said
    assert "rejected a connection from" in said


def test_a_node_that_does_not_come_is_named_by_those_that_have(pods: Pods) -> None:
    first = pods.start("h0", "--nodes", "3", "--node-rank", "0", "--nodes-timeout", "15")
    one = pods.start("h1", "--nodes", "3", "--node-rank", "1")
    sentence = f"node 2 of 3 did not connect to tcp:h0:{PORT} within 15 s"
    for _, err in end([first, one], 2):
        assert sentence in err


def test_a_node_0_that_is_not_there_is_named(pods: Pods) -> None:
    ((_, err),) = end(
        [pods.start("h1", "--nodes", "2", "--node-rank", "1", "--nodes-timeout", "1")], 2
    )
    assert (
        f"node 1 on h1 did not reach node 0 at tcp:h0:{PORT} within 1 s: Connection refused" in err
    )


def test_a_port_that_is_taken(pods: Pods) -> None:
    program = f"import socket, time; s = socket.create_server(('', {PORT})); print(1, flush=True); time.sleep(99)"
    stranger = pods.lab.start("h0", sys.executable, "-c", program, stdout=subprocess.PIPE)
    try:
        stranger.stdout.readline()
        ((_, err),) = end([pods.start("h0", "--nodes", "2", "--node-rank", "0")], 2)
    finally:
        stranger.kill()
        stranger.communicate()
    assert f"port {PORT}: Address already in use; name another port" in err


def link_local(pods: Pods, host: str) -> str:
    """Its address on the first link that only hosts on that link can use."""
    asked = ["ip", "-6", "-j", "addr", "show", "dev", "eth0"]
    deadline = time.monotonic() + 30
    while True:
        for entry in json.loads(pods.lab.run(host, *asked).stdout)[0]["addr_info"]:
            if entry["scope"] == "link" and not entry.get("tentative"):  # else it is not usable yet
                return f"{entry['local']}%eth0"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nodes_meet_at_a_link_local_address(pods: Pods) -> None:
    link_local(pods, "h1")
    where = f"tcp:[{link_local(pods, 'h0')}]:{PORT}"
    written = end(pods.all(2, "--rendezvous", where), 0)
    assert [err for _, err in written] == ["", ""]
    assert [len(out.splitlines()) for out, _ in written] == [2, 2]


def test_ranks_meet_at_a_link_local_address_that_they_are_told(pods: Pods, tmp_path: Path) -> None:
    program = """
import os, pathlib, sys, time, rueda
rank, file = int(sys.argv[1]), pathlib.Path("address")
if rank == 0:
    part = file.with_suffix(".part")
    part.write_text(rueda.rendezvous.open(2, sys.argv[2]))
    part.rename(file)
deadline = time.monotonic() + 60
while not file.exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
with rueda.world(rank, 2, file.read_text()):
    assert rueda.cross_size() == 2
    rueda.barrier()
"""
    own = link_local(pods, "h0")
    link_local(pods, "h1")
    started = [
        pods.lab.start(
            f"h{rank}", sys.executable, "-c", program, str(rank), own, env=launcher_environment(),
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        end(started, 0)
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("flags", [[], ["--max-np", "4"]], ids=["recovers", "elastic"])
def test_a_job_in_which_a_rank_ends_well_before_there_is_a_world_fails(
    pods: Pods, flags: list[str]
) -> None:
    program = (
        END_IN_INIT
        + """
import pathlib
import rueda
def leave(*_):
    pathlib.Path("leaves").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
if os.environ["RUEDA_RANK"] == "0":
    threading.Thread(target=end_in_init, daemon=True).start()
while os.environ["RUEDA_RANK"] != "0" and not pathlib.Path("leaves").exists():
    time.sleep(0.01)
rueda.init(init_timeout=60)
"""
    )
    processes = pods.all(2, "--min-np", "1", *flags, program=program)
    (said,) = last_lines(processes, 1)
    assert "failed first" in said
    assert "rank 0 ended before the world was formed: exit code 0" in said
