"""`rueda run --max-np` over several hosts: hosts and ranks join, fail to join, die and leave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked import launched

from .lab import Lab, Unavailable
from .lab.fixture import MakeLab
from .launching import Launcher

pytest.importorskip("rueda._native")

# Trains until the file `stop` exists, checks every step's sum, and prints the trained bits at the
# end.
PROGRAM = """
import hashlib, os, pathlib, socket, sys, time
import numpy as np
import rueda, rueda.elastic

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
host = socket.gethostname()
def mark(name):
    new = pathlib.Path(f"new.{number}")
    new.write_text(f"{os.getpid()} {host}")
    new.replace(f"{name}.{number}")  # at once: who sees it may read it
mark("pid")
rueda.init()

class State:
    def __init__(self):
        self.weights = np.full(5000, 1.0 / 3.0)
    def state_dict(self): return {"weights": self.weights}
    def load_state_dict(self, state): self.weights = np.array(state["weights"])

state = State()
sizes = []
for step in rueda.elastic.steps(100000, state):
    with step:
        size = rueda.size()
        mine = np.full(5000, rueda.rank() + 1.0)
        total = rueda.allreduce(mine, op=rueda.Sum, name="sum")
        assert np.all(total == size * (size + 1) / 2), (total, size)
        here = rueda.allreduce(state.weights, op=rueda.Average, name="same")
        np.testing.assert_allclose(here, state.weights, rtol=1e-12)
        enough = rueda.allreduce(np.array([pathlib.Path("stop").exists()], np.int32), "enough", rueda.Max)[0]
        state.weights = state.weights * 1.0001 + total / (7.0 + step.number % 5)
        time.sleep(0.01)
    if size != (sizes[-1] if sizes else 0):
        sizes.append(size)
        mark(f"size{size}")
    if step.lost is None and enough:
        break
digest = hashlib.sha256(state.weights.tobytes()).hexdigest()[:16]
print("ended at", step.number, "of", *sizes, "on", host, "with", digest, flush=True)
"""


# A model and an optimizer large enough to be sent in the background.
TORCH_PROGRAM = """
import hashlib, os, pathlib, socket, time
import torch
import rueda.attendance, rueda.elastic, rueda.torch

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
def mark(name):
    pathlib.Path(f"{name}.{number}").write_text(f"{os.getpid()} {socket.gethostname()}")
mark("pid")
torch.manual_seed(number)
model = torch.nn.Sequential(torch.nn.Linear(1500, 1500), torch.nn.Linear(1500, 1))
optimizer = rueda.torch.DistributedOptimizer(torch.optim.Adam(model.parameters(), 1e-4))
rueda.init()
if "RUEDA_JOINER" in os.environ:
    print("followed:", rueda.attendance.attendance().received is not None, flush=True)
for step in rueda.elastic.steps(100000, model, optimizer):
    with step:
        torch.manual_seed(1000 * step.number + rueda.rank())
        loss = model(torch.randn(8, 1500)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        enough = rueda.allreduce(torch.tensor([int(pathlib.Path("stop").exists())]), "enough", rueda.Max)[0]
        time.sleep(0.05)
    if step.number > 2:
        mark(f"size{rueda.size()}")
    if step.lost is None and enough:
        break
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print("ended at", step.number, "on", socket.gethostname(), "with", digest.hexdigest()[:16], flush=True)
"""


class Job:
    """A running job and the files in its folder."""

    def __init__(self, launcher: Launcher, process: subprocess.Popen[str]) -> None:
        self.launcher = launcher
        self.folder = launcher.folder
        self.process = process
        self._ended: tuple[str, str] | None = None

    def hosts(self, text: str) -> None:
        """Sets what the discovery script prints from now on."""
        name_hosts(self.folder, text)

    def wait_for(self, name: str) -> None:
        """Waits until a rank has marked `name`."""
        deadline = time.monotonic() + 180
        while not (self.folder / name).exists():
            assert self.process.poll() is None, self.process.communicate()
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"no '{name}': {self.process.communicate()}")
            time.sleep(0.02)

    def rank(self, number: int) -> tuple[int, str]:
        """Returns the process of a rank and its host."""
        process, host = (self.folder / f"pid.{number}").read_text().split()
        return int(process), host

    def wait_until_ended(self, process: int) -> None:
        """Waits until one of its processes has ended."""
        deadline = time.monotonic() + 60
        while Path(f"/proc/{process}").exists():
            assert time.monotonic() < deadline, process
            time.sleep(0.05)

    def stop(self) -> tuple[int, str, str]:
        """Lets the ranks end; returns exit code and output."""
        (self.folder / "stop").touch()
        out, err = self.process.communicate(timeout=180)
        return self.process.returncode, out, err


def name_hosts(folder: Path, text: str) -> None:
    """Replaces the file atomically: the script may be reading it."""
    (folder / "hosts.new").write_text(text)
    os.replace(folder / "hosts.new", folder / "hosts")


def ends(out: str) -> dict[int, tuple[str, str]]:
    """Returns host and bits of each rank that ended by itself."""
    found = re.findall(r"\[(\d+)\]<stdout>: ended at .* on (\S+) with (\S+)", out)
    return {int(number): (host, digest) for number, host, digest in found}


def only_line(text: str, words: str) -> str:
    """Returns the only line that has these words."""
    lines = [line for line in text.splitlines() if words in line]
    assert len(lines) == 1, text
    return lines[0]


@pytest.fixture
def launcher(make_lab: MakeLab, tmp_path: Path) -> Iterator[Launcher]:
    """Starts jobs on three hosts, over ssh if possible; fails if a process is left on any."""
    lab: Lab = make_lab(3, rate="1gbit")
    try:
        agent = lab.ssh()
    except Unavailable:
        agent = [str(lab.agent)]
    made = Launcher(lab, tmp_path, agent)
    (tmp_path / "train.py").write_text(PROGRAM)
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\ncat hosts\n")
    script.chmod(0o755)
    yield made
    made.wait_until_gone()


@contextmanager
def running(
    launcher: Launcher, *flags: str, rank: Sequence[str] = ("python3", "train.py")
) -> Iterator[Job]:
    """Starts a job of train.py."""
    cooldown = ["--blacklist-cooldown-range", "0.5", "2"]
    with launcher.started(*flags, *cooldown, *rank) as process:
        yield Job(launcher, process)


@contextmanager
def discovering(launcher: Launcher, hosts: str, *flags: str, **options: Any) -> Iterator[Job]:
    """Starts a job on the hosts that a script names."""
    name_hosts(launcher.folder, hosts)
    with running(launcher, "--host-discovery-script", "./hosts.sh", *flags, **options) as job:
        yield job


def test_a_host_that_appears_joins_and_trains_with_the_same_bits(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--min-np", "1", "--max-np", "4") as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nh2:2\n")
        job.wait_for("size4.3")
        code, out, err = job.stop()
    assert code == 0, out + err
    ended = ends(out)
    assert [ended[number][0] for number in range(4)] == ["h0", "h1", "h2", "h2"], out + err
    assert len({digest for _, digest in ended.values()}) == 1, out
    assert "process 2 is started on h2 to join the job" in err, err
    assert "is lost" not in err, err


def test_a_newcomer_takes_the_state_over_the_network_while_the_others_train(
    launcher: Launcher,
) -> None:
    pytest.importorskip("torch")
    (launcher.folder / "train.py").write_text(TORCH_PROGRAM)
    flags, rank = ["-np", "2", "--max-np", "3"], launched(launcher.folder / "train.py")
    with discovering(launcher, "h0:1\nh1:1\n", *flags, rank=rank) as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nh2:1\n")
        job.wait_for("size3.2")
        code, out, err = job.stop()
    assert code == 0, out + err
    assert "[2]<stdout>: followed: True" in out, out + err
    ended = ends(out)
    assert [ended[number][0] for number in range(3)] == ["h0", "h1", "h2"], out + err
    assert len({digest for _, digest in ended.values()}) == 1, out


def test_more_slots_of_a_host_that_is_there(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--max-np", "3") as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:2\n")
        job.wait_for("size3.2")
        assert job.rank(2)[1] == "h1"
        code, out, err = job.stop()
    assert code == 0, out + err
    assert len(set(ends(out).values())) == 2, out  # two hosts, the same bits
    assert len(ends(out)) == 3, out


def count_tries(launcher: Launcher, host: str) -> None:
    """Makes the launcher's ssh leave a file 'HOST.N' at its Nth call for that host."""
    script = launcher.folder / "counting"
    tries = launcher.folder / host
    script.write_text(f"""#!/bin/sh
case " $* " in *" {host} "*)
    echo try >> {tries}
    touch {tries}.$(wc -l < {tries}) ;;
esac
exec {launcher.agent} "$@"
""")
    script.chmod(0o755)
    launcher.agent = str(script)


def test_a_host_that_cannot_be_reached_is_named_once_and_the_job_goes_on(
    launcher: Launcher,
) -> None:
    count_tries(launcher, "nowhere")
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--max-np", "4") as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nnowhere:1\nh2:1\n")
        job.wait_for("size3.2")  # the unreachable host does not keep another from joining
        job.wait_for("nowhere.3")  # it is retried repeatedly
        code, out, err = job.stop()
    assert code == 0, out + err
    said = only_line(err, "nowhere")
    assert "host 'nowhere' cannot be reached" in said, err
    assert "the job goes on without it" in said, err
    assert len(ends(out)) == 3, out


def test_a_host_that_cannot_be_reached_at_the_start_is_left_out_where_others_have_slots(
    launcher: Launcher,
) -> None:
    hosts = "nowhere:1\nh1:1\nh2:1\n"
    with discovering(launcher, hosts, "-np", "2", "--max-np", "3") as job:
        job.wait_for("size2.0")
        assert [job.rank(number)[1] for number in (0, 1)] == ["h1", "h2"]
        code, out, err = job.stop()
    assert code == 0, out + err
    assert "host 'nowhere' cannot be reached" in only_line(err, "nowhere"), err
    assert len(ends(out)) == 2, out


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ('exec $agent $host "mount -t tmpfs none {parent}; $command"', "cannot enter folder"),
        (
            """echo 'rueda-host {{"version": "0.0.7"}}'; exec cat >/dev/null""",
            "has Rueda 0.0.7, but the launcher is",
        ),
        ("exec sleep 600", "was not ready within 20 s"),
    ],
)
def test_a_host_that_cannot_run_its_ranks_at_the_start_is_left_out(
    launcher: Launcher, what: str, said: str
) -> None:
    agent = launcher.folder / "agent.sh"
    agent.write_text(
        f'#!/bin/bash\nagent="{launcher.agent}" host=$1 command=$2\n'
        + f"if [ $host = h1 ]; then {what.format(parent=launcher.folder.parent)}; fi\n"
        + 'exec $agent $host "$command"\n'
    )
    agent.chmod(0o755)
    launcher.agent = str(agent)
    flags = ["-np", "2", "--max-np", "2", "--init-timeout", "20"]
    with discovering(launcher, "h2:1\nh1:1\nh0:1\n", *flags) as job:
        job.wait_for("size2.0")
        assert [job.rank(number)[1] for number in (0, 1)] == ["h2", "h0"]
        code, out, err = job.stop()
    assert code == 0, out + err
    about = only_line(err, "host 'h1'")
    assert said in about, err
    assert "the job goes on without it" in about, err
    assert len(ends(out)) == 2, out


def test_a_job_begins_on_the_launchers_host_alone_under_its_name(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\n", "-np", "1", "--max-np", "2") as job:
        job.wait_for("size1.0")
        job.hosts("h0:1\nh1:1\n")
        job.wait_for("size2.1")
        assert job.rank(1)[1] == "h1"
        code, out, err = job.stop()
    assert code == 0, out + err
    assert len(ends(out)) == 2, out


def test_a_host_that_cannot_be_reached_at_the_start_ends_a_job_that_needs_it(
    launcher: Launcher,
) -> None:
    with discovering(launcher, "nowhere:1\nh1:1\n", "-np", "2", "--max-np", "3") as job:
        out, err = job.process.communicate(timeout=60)
    assert job.process.returncode == 2, out + err
    assert "host 'nowhere' cannot be reached" in err, err


def test_a_rank_that_dies_on_a_host_that_has_joined_is_replaced_there(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--min-np", "1", "--max-np", "3") as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nh2:1\n")
        job.wait_for("size3.2")
        os.kill(job.rank(2)[0], signal.SIGKILL)
        job.wait_for("size3.3")
        assert job.rank(3)[1] == "h2"
        code, out, err = job.stop()
    assert code == 0, out + err
    assert "process 2 on h2 is lost, killed by SIGKILL" in err, err
    ended = ends(out)
    assert sorted(ended) == [0, 1, 3], out + err
    assert len({digest for _, digest in ended.values()}) == 1, out


def test_the_ranks_of_a_host_that_vanishes_leave(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\nh1:1\nh2:1\n", "-np", "3", "--max-np", "3") as job:
        job.wait_for("size3.0")
        job.hosts("h0:1\nh2:1\n")
        job.wait_for("size2.0")
        deadline = time.monotonic() + 30
        while launcher.processes("h1"):  # including the launcher's own processes
            assert time.monotonic() < deadline, launcher.processes("h1")
            time.sleep(0.05)
        job.hosts("h0:1\nh1:1\nh2:1\n")  # the host returns
        job.wait_for("size3.3")
        assert job.rank(3)[1] == "h1"
        code, out, err = job.stop()
    assert code == 0, out + err
    assert "is lost" not in err, err
    ended = ends(out)
    assert sorted(ended) == [0, 2, 3], out + err
    assert len({digest for _, digest in ended.values()}) == 1, out


def test_the_first_host_may_vanish(launcher: Launcher) -> None:
    """The host at which the first ranks met."""
    with discovering(launcher, "h1:1\nh2:1\n", "-np", "2", "--max-np", "3") as job:
        job.wait_for("size2.0")
        job.hosts("h2:1\n")
        job.wait_for("size1.1")
        job.hosts("h0:1\nh2:1\n")
        job.wait_for("size2.2")
        assert job.rank(2)[1] == "h0"
        code, out, err = job.stop()
    assert code == 0, out + err
    assert sorted(ends(out)) == [1, 2], out + err


@pytest.mark.parametrize(("hosts", "ranks"), [("h0:1,h1:2", "2"), ("localhost:1,h1:2", "1")])
def test_a_lost_rank_is_replaced_on_the_hosts_that_were_named(
    launcher: Launcher, hosts: str, ranks: str
) -> None:
    flags = ["-H", hosts, "-np", ranks, "--min-np", "1", "--max-np", "3"]
    with running(launcher, *flags) as job:
        job.wait_for("size3.2")
        os.kill(job.rank(1)[0], signal.SIGKILL)
        job.wait_for("size3.3")
        assert [job.rank(number)[1] for number in (2, 3)] == ["h1", "h1"]
        code, out, err = job.stop()
    assert code == 0, out + err
    assert sorted(ends(out)) == [0, 2, 3], out + err


def test_a_host_that_is_lost_is_reached_again(launcher: Launcher) -> None:
    flags = ["-H", "h0:1,h1:1,h2:1", "-np", "3", "--min-np", "1", "--max-np", "3"]
    with running(launcher, *flags) as job:
        job.wait_for("size3.0")
        launcher.kill_all("h2")
        job.wait_for("size3.3")
        assert job.rank(3)[1] == "h2"
        code, out, err = job.stop()
    assert code == 0, out + err
    assert "process 2 on h2 is lost" in err, err
    assert sorted(ends(out)) == [0, 1, 3], out + err


def test_nothing_is_left_on_any_host_when_the_launcher_is_killed(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--max-np", "3") as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nh2:1\n")
        job.wait_for("size3.2")
        job.process.kill()
        job.process.communicate()
        launcher.wait_until_gone()


def test_a_host_that_falls_silent_is_lost_with_its_ranks(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--min-np", "1", "--max-np", "3",
                     "--host-timeout", "3") as job:  # fmt: skip
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nh2:1\n")
        job.wait_for("size3.2")
        (job.folder / "size2.0").unlink()
        launcher.lab.link("h2", 0).silence()
        job.wait_for("size2.0")
        deadline = time.monotonic() + 60
        while launcher.processes("h2"):  # it ends its ranks when it no longer hears the launcher
            assert time.monotonic() < deadline, launcher.processes("h2")
            time.sleep(0.05)
        code, out, err = job.stop()
    assert code == 0, out + err
    assert "process 2 on h2 is lost, its host is gone" in err, err
    assert sorted(ends(out)) == [0, 1], out + err


def test_a_signal_to_the_launcher_ends_ranks_on_all_hosts(launcher: Launcher) -> None:
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--max-np", "4") as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nh2:1\nnowhere:1\n")
        job.wait_for("size3.2")
        job.process.send_signal(signal.SIGTERM)
        out, err = job.process.communicate(timeout=60)
    assert job.process.returncode == 128 + 15, out + err
    assert "ended by SIGTERM; all ranks are gone" in err, err


def test_a_rank_that_ends_before_the_first_world_ends_the_job(launcher: Launcher) -> None:
    program = PROGRAM.replace("rueda.init()", "if number == 1: sys.exit(3)\nrueda.init()", 1)
    (launcher.folder / "train.py").write_text(program)
    with running(launcher, "-H", "h0:1,h1:1", "-np", "2", "--min-np", "1", "--max-np", "2") as job:
        out, err = job.process.communicate(timeout=60)
    assert job.process.returncode == 3, out + err
    assert "rank 1 on h1 failed first: exit code 3" in err, err


def test_the_loss_of_a_host_that_ends_the_job_is_not_said_to_be_borne(launcher: Launcher) -> None:
    flags = ["-H", "h0:1,h1:2", "-np", "3", "--min-np", "2", "--max-np", "3"]
    with running(launcher, *flags) as job:
        job.wait_for("size3.0")
        launcher.kill_all("h1")
        out, err = job.process.communicate(timeout=120)
    assert job.process.returncode != 0, out + err
    assert re.search(r"the job ends because .*, fewer than --min-np 2", err), err
    assert not re.search(r"process [12] on h1 is lost.*the job goes on", err), err


def test_one_that_does_not_come_to_join_is_tried_again_on_its_host(launcher: Launcher) -> None:
    program = PROGRAM.replace("rueda.init()", "if number == 2: sys.exit(7)\nrueda.init()", 1)
    (launcher.folder / "train.py").write_text(program)
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--max-np", "3") as job:
        job.wait_for("size2.0")
        job.hosts("h0:1\nh1:1\nh2:1\n")
        job.wait_for("size3.3")
        assert job.rank(3)[1] == "h2"
        code, out, err = job.stop()
    assert code == 0, out + err
    assert "process 2 on h2 has not joined, exit code 7; the job goes on" in err, err


def test_one_that_cannot_reach_a_rank_ends_before_the_ranks_wait_for_it(
    launcher: Launcher,
) -> None:
    timed = PROGRAM.replace(
        "    if step.lost is None", "    times.append(time.monotonic())\n    if step.lost is None"
    )
    timed = timed.replace("sizes = []", "sizes, times = [], []")
    timed += "print('longest pause', max(b - a for a, b in zip(times, times[1:])), flush=True)\n"
    (launcher.folder / "train.py").write_text(timed)
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--max-np", "3") as job:
        job.wait_for("size2.0")
        launcher.lab.part(["h1"], ["h2"])  # the launcher is on h0
        job.hosts("h0:1\nh1:1\nh2:1\n")
        job.wait_for("pid.2")
        job.wait_until_ended(job.rank(2)[0])
        for host in ("h1", "h2"):
            launcher.lab.link(host).inner.unlimited()
        job.wait_for("size3.0")
        code, out, err = job.stop()
    assert code == 0, out + err
    assert len(set(ends(out).values())) == 3, out + err
    said = only_line(err, "process 2 on h2 cannot join: ")
    assert "h2 cannot open a connection to process 1 on h1 at tcp:" in said, err
    assert "no answer within 3 s" in said, err
    assert "InitializationError: this process cannot join: h2 cannot open a connection" in err, err
    assert "process 2 on h2 has not joined, exit code 1; the job goes on" in err, err
    pauses = [float(each) for each in re.findall(r"\[[01]\]<stdout>: longest pause (\S+)", out)]
    assert len(pauses) == 2, out
    assert max(pauses) < 5, out


def test_a_host_for_which_the_ranks_have_waited_in_vain_is_left_out_for_long(
    launcher: Launcher,
) -> None:
    # As if the network failed after the probe.
    blind = "import rueda.elastic.joining\nrueda.elastic.joining.unreached = lambda places: {}\n"
    (launcher.folder / "train.py").write_text(blind + PROGRAM)
    with discovering(launcher, "h0:1\nh1:1\n", "-np", "2", "--max-np", "3") as job:
        job.wait_for("size2.0")
        launcher.lab.part(["h1"], ["h2"])
        job.hosts("h0:1\nh1:1\nh2:1\n")
        job.wait_for("pid.2")
        job.wait_until_ended(job.rank(2)[0])
        time.sleep(4)  # longer than the host cools down otherwise
        code, out, err = job.stop()
    assert code == 0, out + err
    assert sorted(ends(out)) == [0, 1], out + err
    only_line(err, "is started on h2")
    said = only_line(err, "in vain for process 2 on h2 to join")
    waited, pause = (float(each) for each in re.findall(r"([\d.]+) s ", said))
    assert waited > 10, err
    assert pause >= 9.9 * waited, err


def test_the_job_ends_where_too_few_ranks_are_left(launcher: Launcher) -> None:
    flags = ["-H", "h0:1,h1:1", "-np", "2", "--min-np", "2", "--max-np", "2"]
    with running(launcher, *flags) as job:
        job.wait_for("size2.0")
        os.kill(job.rank(1)[0], signal.SIGKILL)
        out, err = job.process.communicate(timeout=60)
    assert job.process.returncode == 128 + 9, out + err
    assert "1 rank is left, fewer than --min-np 2" in err, err
    assert "rank 1 on h1 failed first: killed by SIGKILL" in err, err
