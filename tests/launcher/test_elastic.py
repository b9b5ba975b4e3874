"""`rueda run --max-np`: lost ranks are replaced, and ranks join and leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rueda_command import Ran

from .conftest import Rueda, has_ended

Elastic = Callable[..., Ran]

# Counts in slow steps until ENOUGH, which is the same for all ranks.
PROGRAM = """
import os, pathlib, signal, sys, time
import numpy as np
import rueda, rueda.elastic

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
def before_init(): pass
def in_step(step): pass
def is_enough(sizes): return False
SPECIAL
pathlib.Path(f"pid.{number}").write_text(str(os.getpid()))
before_init()
rueda.init()
print("began as", rueda.rank(), "of", rueda.size(), flush=True)

class Count:
    value = 0.0
    enough = False
    def state_dict(self): return {"value": self.value}
    def load_state_dict(self, state): self.value = state["value"]

count = Count()
sizes = []
for step in rueda.elastic.steps(3000, count):
    with step:
        time.sleep(0.01)
        in_step(step.number)
        one = rueda.allreduce(np.ones(1), "one", rueda.Average)[0]
        enough = rueda.allreduce(np.array([is_enough(sizes)], np.int32), "enough", rueda.Max)[0]
        count.value += one
        if not sizes or rueda.size() != sizes[-1]:
            sizes.append(rueda.size())
    if step.lost is None and enough:
        break
assert count.value == step.number + 1, (count.value, step.number)
print("was of", *sizes, flush=True)
"""


@pytest.fixture
def elastic(rueda: Rueda, tmp_path: Path) -> Iterator[Elastic]:
    """Runs the program with a few lines of its own; fails if a process is left."""

    def run(special: str, *flags: str) -> Ran:
        (tmp_path / "program.py").write_text(PROGRAM.replace("SPECIAL", special))
        return rueda("run", *flags, "python3", "program.py")

    yield run
    for file in tmp_path.glob("pid.*"):
        assert has_ended(int(file.read_text())), file.name


# For programs: the process loses its processor for a while, just after it has connected to the launcher.
SLOW_TO_SAY_HELLO = """
import socket
connect = socket.socket.connect
def slow(end, address):
    connect(end, address)
    if str(address).startswith("\\0rueda-launcher-"):
        time.sleep(0.6)
if number in WHO:
    socket.socket.connect = slow
"""


DISCOVERING = ("--host-discovery-script", "./hosts.sh")


def discover(folder: Path, script: str) -> None:
    """Writes the script that DISCOVERING runs."""
    file = folder / "hosts.sh"
    file.write_text(f"#!/bin/sh\n{script}")
    file.chmod(0o755)


# For programs: sets the number of slots that the script names.
SLOTS = """
def say_slots(count):
    pathlib.Path("slots.new").write_text(count)
    os.replace("slots.new", "slots")
"""


def discover_slots(folder: Path, count: str) -> None:
    """Writes a script that names as many slots of this host as file `slots`, first ``count``."""
    discover(folder, "echo localhost:$(cat slots)\n")
    (folder / "slots").write_text(count)


@pytest.mark.parametrize("who", [{0}, {2}])
def test_a_process_that_says_hello_late_takes_part(elastic: Elastic, who: set[int]) -> None:
    ran = elastic(
        SLOW_TO_SAY_HELLO.replace("WHO", str(who))
        + """
def in_step(step):
    if number == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
def is_enough(sizes): return sizes[-2:] == [1, 2]
""",
        "-np", "2", "--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert "rejected" not in ran.err, ran.err
    assert re.search(r"\[2\]<stdout>: was of 2$", ran.out, re.M), ran.out + ran.err


# For programs: a rank is replaced only once the others have done a step without it.
REPLACED = """
def before_init():
    while number == 3 and not pathlib.Path("without").exists():
        time.sleep(0.01)
def in_step(step):
    if number == 1 and step == 5:
        os.kill(os.getpid(), signal.HOW)
    if rueda.size() == 2:
        pathlib.Path("without").touch()
def is_enough(sizes): return sizes[-2:] == [2, 3]
"""


def test_a_lost_rank_is_replaced(elastic: Elastic) -> None:
    ran = elastic(
        REPLACED.replace("HOW", "SIGKILL"),
        "-np", "3", "--min-np", "1", "--max-np", "3", "--blacklist-cooldown-range", "0", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert "process 1 is lost, killed by SIGKILL" in ran.err, ran.err
    assert "process 3 is started to join the job" in ran.err, ran.err
    assert ran.out.count("was of 3 2 3") == 2, ran.out + ran.err
    assert re.search(r"\[3\]<stdout>: began as 2 of 3", ran.out), ran.out
    assert re.search(r"\[3\]<stdout>: was of 3$", ran.out, re.M), ran.out


def test_one_that_cannot_join_is_tried_again(elastic: Elastic) -> None:
    ran = elastic(
        """
def before_init():
    if number in (2, 3):
        sys.exit(7)
def is_enough(sizes): return rueda.size() == 3
""",
        "-np", "2", "--max-np", "3", "--blacklist-cooldown-range", "0.1", "0.2",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert ran.err.count("has not joined, exit code 7; the job goes on") == 2, ran.err
    assert "[4]<stdout>: began as 2 of 3" in ran.out, ran.out


def test_a_discovery_script_lets_ranks_join_and_leave(elastic: Elastic, tmp_path: Path) -> None:
    discover_slots(tmp_path, "1")
    ran = elastic(
        SLOTS
        + """
seen = []
def in_step(step):
    if rueda.rank() == 0 and (not seen or seen[-1] != rueda.size()):
        seen.append(rueda.size())
        say_slots("2" if 3 in seen else "3")  # the two that join need not do so at once
def is_enough(sizes): return sizes[-2:] == [3, 2]
""",
        "-np", "1", "--max-np", "3", *DISCOVERING,
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert "[0]<stdout>: was of 1 3 2" in ran.out or "[0]<stdout>: was of 1 2 3 2" in ran.out, (
        ran.out
    )
    assert "is lost" not in ran.err, ran.err


def test_one_that_is_not_wanted_any_more_is_started_again_when_it_is(
    elastic: Elastic, tmp_path: Path
) -> None:
    discover_slots(tmp_path, "2")
    ran = elastic(
        SLOTS
        + """
def before_init():
    if number == 1:  # before it waits to join there is no room for it
        signal.signal(signal.SIGTERM, lambda *_: (say_slots("2"), sys.exit(1)))
        say_slots("1")
        time.sleep(60)
        os._exit(9)
def is_enough(sizes): return rueda.size() == 2
""",
        "-np", "1", "--max-np", "2", *DISCOVERING,
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert "began as 1 of 2" in ran.out, ran.out + ran.err


def test_one_that_is_not_wanted_and_does_not_end_is_killed(elastic: Elastic) -> None:
    ran = elastic(
        """
def before_init():
    if number == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path("stubborn").touch()
        time.sleep(600)
def is_enough(sizes): return os.path.exists("stubborn")
""",
        "-np", "1", "--max-np", "2", "--grace", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert "was of 1" in ran.out, ran.out + ran.err


def test_a_discovery_script_that_fails_is_reported_and_the_job_goes_on(
    elastic: Elastic, tmp_path: Path
) -> None:
    discover(
        tmp_path,
        "if [ ! -e asked ]; then touch asked; echo localhost:2\n"
        "elif [ ! -e again ]; then touch again; echo 'no such cluster'; exit 3\n"
        "else touch third; echo 'what?'; fi\n",
    )
    ran = elastic(
        """
def is_enough(sizes): return os.path.exists("third")
def in_step(step): time.sleep(0.02)
""",
        "-np", "2", "--max-np", "2", *DISCOVERING,
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert "'./hosts.sh' exited with code 3: no such cluster" in ran.err, ran.err
    assert ran.out.count("was of 2") == 2, ran.out


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2"], ids=["here", "by an agent"])
def test_a_discovery_script_that_runs_at_the_end_is_ended_without_a_report(
    elastic: Elastic, tmp_path: Path, host: str
) -> None:
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    agent.chmod(0o755)
    discover(
        tmp_path,
        f"echo {host}:2\n"
        "if [ ! -e asked ]; then touch asked; exit; fi\n"
        "trap '' TERM\n"
        "echo $$ >number && mv number pid.script\n"
        "while true; do sleep 0.1; done\n",
    )
    ran = elastic(
        'def is_enough(sizes): return os.path.exists("pid.script")',
        "-np", "2", "--max-np", "2", "--ssh", "./agent", *DISCOVERING,
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("was of 2") == 2, ran.out + ran.err
    assert "discovery" not in ran.err, ran.err
    assert "child process" not in ran.err, ran.err  # of asyncio, about a process that others reaped


def test_ranks_that_meet_within_this_host_stay_there(elastic: Elastic, tmp_path: Path) -> None:
    discover(
        tmp_path,
        "echo localhost:2\n"
        "if [ -e asked ]; then echo elsewhere:2; [ -e again ] && touch third; touch again; fi\n"
        "touch asked\n",
    )
    ran = elastic(
        """
def is_enough(sizes): return os.path.exists("third")
def in_step(step): time.sleep(0.02)
""",
        "-np", "2", "--max-np", "4", *DISCOVERING,
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert ran.err.count("names host 'elsewhere', but ranks of other hosts cannot join") == 1, (
        ran.err
    )
    assert ran.out.count("was of 2") == 2, ran.out


def test_a_signal_ends_the_wait_for_slots_and_the_script(rueda: Rueda, tmp_path: Path) -> None:
    # The launcher is the script's parent; the script would run for long.
    discover(tmp_path, "echo $$ > pid.script\nkill -TERM $PPID\nexec sleep 600\n")
    ran = rueda("run", "-np", "2", "--max-np", "2", *DISCOVERING, "true")
    assert ran.code == 128 + 15, ran.out + ran.err
    assert "ended by SIGTERM; all ranks are gone" in ran.err, ran.err
    assert has_ended(int((tmp_path / "pid.script").read_text()))


def test_too_few_slots_at_the_start(elastic: Elastic, tmp_path: Path) -> None:
    discover(tmp_path, "echo localhost:1\n")
    ran = elastic(
        "", "-np", "2", "--max-np", "2", *DISCOVERING, "--elastic-timeout", "1"
    )  # fmt: skip
    assert ran.code == 2, ran.out + ran.err
    assert "only 1 of 2 slots were available within 1 s (--elastic-timeout)" in ran.err, ran.err


@pytest.mark.parametrize("kind", ["missing", "not executable", "folder", "of another processor"])
def test_a_discovery_script_that_cannot_be_run_ends_the_start(
    rueda: Rueda, tmp_path: Path, kind: str
) -> None:
    script = tmp_path / "hosts.sh"
    if kind == "folder":
        script.mkdir()
    elif kind != "missing":
        is_binary = kind == "of another processor"
        script.write_text("\0elf" if is_binary else "echo localhost:2\n")
        script.chmod(0o755 if is_binary else 0o644)
    ran = rueda("run", "-np", "2", "--max-np", "2", *DISCOVERING, "true")
    assert ran.code == 2, ran.out + ran.err
    reasons = {"missing": "No such file or directory", "of another processor": "Exec format error"}
    assert ran.last_line == (
        "rueda: --host-discovery-script: cannot run './hosts.sh': "
        + reasons.get(kind, "Permission denied")
    )
    assert ran.err.count("cannot run") == 1, ran.err


@pytest.mark.parametrize("executable", [False, True])
def test_a_discovery_command_whose_program_cannot_be_run_ends_the_start(
    rueda: Rueda, tmp_path: Path, executable: bool
) -> None:
    if executable:  # what the script calls may come later, so this is asked again
        discover(tmp_path, "[ -e asked ] && echo localhost:2 && exit; touch asked; no-such-program")
    command = ("--host-discovery-script", "./hosts.sh 2")
    ran = rueda("run", "-np", "2", "--max-np", "2", *command, "true")
    if executable:
        assert ran.code == 0, ran.out + ran.err
        assert "'./hosts.sh 2' exited with code 127: " in ran.err, ran.err
    else:
        assert ran.code == 2, ran.out + ran.err
        told = "rueda: --host-discovery-script: cannot run './hosts.sh 2': "
        assert ran.last_line.startswith(told), ran.err
        assert ran.err.count("cannot run") == 1, ran.err


def test_a_discovery_script_that_hangs_at_the_start_is_named(rueda: Rueda, tmp_path: Path) -> None:
    discover(tmp_path, "exec sleep 600\n")
    ran = rueda(
        "run", "-np", "2", "--max-np", "2", *DISCOVERING, "--elastic-timeout", "0.5", "true"
    )
    assert ran.code == 2, ran.out + ran.err
    assert "(--elastic-timeout): './hosts.sh' has not ended yet" in ran.last_line


def test_the_job_ends_after_too_many_losses(elastic: Elastic) -> None:
    ran = elastic(
        """
def in_step(step):
    if step > 3 and rueda.rank() == rueda.size() - 1 and rueda.size() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
""",
        "-np", "2", "--max-np", "2", "--reset-limit", "1", "--blacklist-cooldown-range", "0", "0",
    )  # fmt: skip
    assert ran.code == 128 + 9, ran.out + ran.err
    _, said, after = ran.err.partition("it is loss number 2, and --reset-limit is 1")
    assert said, ran.err
    assert "is started to join the job" not in after, ran.err  # it would be ended at once


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--max-np", "1"], "--max-np 1 is less than the 2 ranks of -np"),
        (["--max-np", "4", "--min-np", "3"], "--min-np 3: a job of 2 ranks"),
        (
            ["--reset-limit", "3"],
            "--reset-limit is for elastic jobs: give --max-np",
        ),
        (["--reset-limit", "0"], "--reset-limit is for elastic jobs: give --max-np"),
        (["--host-discovery-script", "x"], "needs --max-np"),
        (["--max-np", "2", "--blacklist-cooldown-range", "3", "1"], "the smaller first"),
        (
            ["--max-np", "4", "-H", "localhost:2", "--host-discovery-script", "x"],
            "says which hosts there are: leave out -H",
        ),
        (["--max-np", "4", "--recovery", "off"], "need recovery: leave out --recovery off"),
        (["--min-np", "1", "--recovery", "off"], "need recovery: leave out --recovery off"),
        (["--max-np", "4", "--bootstrap", "mpi"], "cannot join a job that mpirun has started"),
    ],
)
def test_what_makes_no_sense_is_refused(rueda: Rueda, flags: list[str], why: str) -> None:
    ran = rueda("run", "-np", "2", *flags, "true")
    assert ran.code == 2, ran.out + ran.err
    assert why in ran.err, ran.err


# For programs: process 2 stops where it waits to join. Once the others have taken steps and know of that, it goes on.
STOPPED = """
import rueda.attendance, rueda.elastic.joining
of = WHERE
if number == 2:
    begin = getattr(of, "WHAT")
    def stop_first(*arguments):
        setattr(of, "WHAT", begin)
        os.kill(os.getpid(), signal.SIGSTOP)
        return begin(*arguments)
    setattr(of, "WHAT", stop_first)
known = 0
def in_step(step):
    global known
    known += rueda.attendance.attendance().silent == [2]
    if rueda.rank() == 0 and known == 20:
        print("continues it", flush=True)
        os.kill(int(pathlib.Path("pid.2").read_text()), signal.SIGCONT)
def is_enough(sizes): return 3 in sizes
"""


@pytest.mark.parametrize(
    "where",
    [("rueda.elastic.joining._Offers", "take_entrance"), ("rueda._native", "enter_world")],
    ids=["it waits", "it is let in"],
)
def test_a_process_that_stops_while_it_joins_holds_nobody_up(
    elastic: Elastic, where: tuple[str, str]
) -> None:
    special = STOPPED.replace("WHERE", where[0]).replace("WHAT", where[1])
    ran = elastic(special, "-np", "2", "--max-np", "3")
    assert ran.code == 0, ran.out + ran.err
    assert "continues it" in ran.out
    assert len(re.findall(r"was of 2 3$", ran.out, re.M)) == 2, ran.out + ran.err
    assert "process 3" not in ran.err, ran.err  # it has not been given up
    if where[1] == "enter_world":
        assert "process 2 does not answer any more, as if it were stopped" in ran.err, ran.err


def test_a_rank_that_does_not_answer_is_ended_and_replaced(elastic: Elastic) -> None:
    ran = elastic(
        REPLACED.replace("HOW", "SIGSTOP"),
        # Ranks that share no memory leave it to the launcher.
        "-np", "3", "--min-np", "1", "--max-np", "3", "--transport", "tcp",
        "--blacklist-cooldown-range", "0", "1", "--grace", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    assert ran.err.count("did not answer, and the others have gone on without it") == 1, ran.err
    assert "process 1 is lost, killed by SIGKILL" in ran.err, ran.err
    assert re.search(r"\[3\]<stdout>: was of 3$", ran.out, re.M), ran.out + ran.err


@pytest.mark.parametrize("size", [2, 3])
def test_a_job_ends_if_most_of_its_ranks_freeze(elastic: Elastic, size: int) -> None:
    ran = elastic(
        f"""
def in_step(step):
    if number < {size - 1} and step == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
def is_enough(sizes): return False
""",
        # Ranks that share no memory do not kill each other.
        "-np", str(size), "--min-np", "1", "--transport", "tcp", "--grace", "1",
    )  # fmt: skip
    assert ran.code != 0, ran.out + ran.err
    assert ran.err.count("did not answer, and the others have gone on without it") == size - 1, (
        ran.err
    )
    assert "PeerLostError" in ran.err, ran.err


def test_a_newcomer_that_has_left_the_world_cannot_form_another_one(elastic: Elastic) -> None:
    ran = elastic(
        """
import atexit
def in_step(step):
    if number == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
def is_enough(sizes): return sizes[-2:] == [1, 2]
def begin_again():
    rueda.shutdown()
    try:
        rueda.init()
    except rueda.InitializationError as error:
        print("told:", error, flush=True)
if number == 2:
    atexit.register(begin_again)
""",
        "-np", "2", "--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    told = re.findall(r"\[2\]<stdout>: told: (.*)", ran.out)
    assert len(told) == 1, ran.out + ran.err
    assert "started to join the world of a running job, which it has left" in told[0]
