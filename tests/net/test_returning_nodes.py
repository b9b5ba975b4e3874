"""Jobs of `rueda run --nodes` whose ranks and nodes are lost and return, like a restarted pod."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from .pods import Pods, Process
from .test_nodes import end

# Each step adds the number of ranks to a total, which newcomers receive; ends after file `stop`
# appears.
TRAINS = """
import os, pathlib, time
import numpy as np
import rueda, rueda.elastic

class Total:
    value = np.zeros(1)
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = np.array(state["value"])

number = os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"]
rueda.init(init_timeout=60)
pathlib.Path(f"ready.{number}").write_text(str(os.getpid()))
print("has begun", flush=True)
total = Total()
for step in rueda.elastic.steps(100000, total):
    with step:
        time.sleep(0.02)
        gathered = rueda.allgather(total.value)
        assert len(set(gathered.tolist())) == 1, gathered
        total.value = total.value + rueda.allreduce(np.ones(1), "one", rueda.Sum)
        stop = rueda.allreduce(np.array([float(pathlib.Path("stop").exists())]), "stop", rueda.Max)
        pathlib.Path(f"size.{number}").write_text(str(rueda.size()))
    if stop[0]:
        break
print("ended with", total.value[0], "at", step.number, "of", rueda.size(), flush=True)
"""


def wait_for_size(pods: Pods, number: int, size: int) -> None:
    """Waits until this process has seen a world of `size` ranks."""
    told = pods.folder / f"size.{number}"
    deadline = time.monotonic() + 90
    while not told.exists() or told.read_text() != str(size):
        if time.monotonic() > deadline:
            raise AssertionError(f"process {number} has not seen {size} ranks\n{pods.written()}")
        time.sleep(0.02)


def lose_and_start_again(pods: Pods, flags: list[str], host: str = "h1") -> tuple[Process, Process]:
    """Two nodes train, h1 is lost, and the second node starts again on `host`. Returns both nodes' launchers."""
    first, second = pods.all(2, *flags, program=TRAINS)
    wait_for_size(pods, 0, 4)
    pods.looks.kill_all("h1")
    wait_for_size(pods, 0, 2)
    second.communicate()
    return first, pods.start(host, "--nodes", "2", "--node-rank", "1", *flags, program=TRAINS)


def test_a_node_that_comes_again_joins_those_that_have_gone_on(pods: Pods) -> None:
    flags = ["--min-np", "1", "--max-np", "4"]
    first, again = lose_and_start_again(pods, flags)
    wait_for_size(pods, 0, 4)
    os.kill(int((pods.folder / "ready.1").read_text()), signal.SIGKILL)  # and one on node 0
    wait_for_size(pods, 0, 3)
    wait_for_size(pods, 0, 4)
    (pods.folder / "stop").touch()
    written = end([first, again], 0)
    said = written[0][1]
    assert re.search(r"process 2 on h1 is lost, its host is gone: .*; the job goes on", said), said
    results = [set(re.findall(r"ended with .*", out)) for out, _ in written]
    assert results[0] == results[1], written
    assert len(results[0]) == 1, written
    assert [len(re.findall("ended with", out)) for out, _ in written] == [2, 2]


def test_the_least_number_of_ranks_is_of_the_whole_job(pods: Pods) -> None:
    """The minimum is larger than one node; the job ends if fewer ranks are left."""
    flags = ["--min-np", "3", "--max-np", "4"]
    first, second = pods.all(2, *flags, program=TRAINS)
    wait_for_size(pods, 0, 4)
    pods.looks.kill_all("h1")
    second.communicate()
    _, said = first.communicate(timeout=60)
    assert first.returncode != 0, said
    assert "fewer than --min-np 3" in said, said


def test_a_node_that_is_told_to_end_goes_at_once_and_may_come_again(pods: Pods) -> None:
    """As when a pod moves to another machine."""
    flags = ["--min-np", "1", "--max-np", "4"]
    first, second = pods.all(2, *flags, program=TRAINS)
    wait_for_size(pods, 0, 4)
    assert second.stdout is not None
    assert "has begun" in second.stdout.readline()  # output arrives while the job runs
    second.send_signal(signal.SIGTERM)
    _, said = second.communicate(timeout=30)
    assert second.returncode == 128 + signal.SIGTERM, said
    again = pods.start("h1", "--nodes", "2", "--node-rank", "1", *flags, program=TRAINS)
    wait_for_size(pods, 0, 2)
    wait_for_size(pods, 0, 4)
    (pods.folder / "stop").touch()
    end([first, again], 0)


def test_a_node_that_comes_when_the_work_is_done_ends_well(pods: Pods) -> None:
    flags = ["--min-np", "1", "--max-np", "4"]
    lasts = "while number == '1' and not pathlib.Path('late').exists():\n    time.sleep(0.02)\n"
    first, second = pods.all(2, *flags, program=TRAINS + lasts)
    wait_for_size(pods, 0, 4)
    pods.looks.kill_all("h1")
    second.communicate()
    wait_for_size(pods, 0, 2)
    (pods.folder / "stop").touch()
    assert first.stdout is not None
    assert first.stderr is not None
    while "ended with" not in first.stdout.readline():
        assert first.poll() is None, first.communicate()
    process = Path("/proc", (pods.folder / "ready.0").read_text())
    while process.exists():
        time.sleep(0.02)
    again = pods.start("h1", "--nodes", "2", "--node-rank", "1", *flags, program=TRAINS)
    while "node 1 on h1 has reconnected" not in first.stderr.readline():
        assert first.poll() is None, first.communicate()
    (pods.folder / "late").touch()
    _, (_, said) = end([first, again], 0)
    assert "the other nodes have finished the job" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("waits", ["for its turn", "for its part"])
def test_a_node_that_waits_to_join_again_ends_as_node_0_does(
    pods: Pods, waits: str, number: signal.Signals
) -> None:
    cooldown = "600" if waits == "for its turn" else "0"
    flags = ["--min-np", "1", "--max-np", "4", "--blacklist-cooldown-range", cooldown, cooldown]
    first, again = lose_and_start_again(pods, flags)
    assert first.stderr is not None
    while "node 1 on h1 has reconnected" not in first.stderr.readline():
        assert first.poll() is None, first.communicate()
    if waits == "for its part":
        again.send_signal(signal.SIGSTOP)  # it is being told what to run
    first.send_signal(number)
    first.wait(timeout=60)
    again.send_signal(signal.SIGCONT)
    written = end([first, again], 128 + number)
    last = [said.rstrip().rpartition("\n")[2] for _, said in written]
    assert last == [f"rueda: ended by {number.name}; all ranks are gone"] * 2, written


def test_a_node_that_comes_again_on_another_host_is_called_by_it(pods: Pods) -> None:
    flags = ["--min-np", "1", "--max-np", "4"]
    first, again = lose_and_start_again(pods, flags, "h2")
    wait_for_size(pods, 0, 4)
    pods.looks.kill_all("h2")
    wait_for_size(pods, 0, 2)
    again.communicate()
    (pods.folder / "stop").touch()
    _, said = end([first], 0)[0]
    comes = said.partition("node 1 on h2 has reconnected")[2]
    assert len(re.findall(r"process \d is started on h2 \(node 1\) to join the job", comes)) >= 2, (
        said
    )
    assert re.search(r"process \d on h2 \(node 1\) is lost, its host is gone", comes), said
    assert "h1" not in comes, said
