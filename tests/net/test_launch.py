"""`rueda run` over several hosts without MPI: works as on one host, leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .lab import Lab, Unavailable
from .lab.fixture import MakeLab, or_skip
from .launching import Launcher

TWO = ["-H", "h0:2,h1:2"]
WAITS = """
    mark("ready")
    time.sleep(100)
"""


def agents_of(lab: Lab, kind: str) -> list[str]:
    """Returns the command that reaches the other hosts."""
    if kind == "agent":
        return [str(lab.agent)]
    with or_skip():
        return lab.ssh()


@pytest.fixture(params=["agent", "ssh"])
def each(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """Starts jobs over ssh and over the agent; fails if a process is left."""
    launcher = Launcher(lab, tmp_path, agents_of(lab, request.param))
    yield launcher
    launcher.wait_until_gone()


@pytest.fixture
def launcher(lab: Lab, tmp_path: Path) -> Iterator[Launcher]:
    """Starts jobs over ssh if possible; fails if a process is left."""
    try:
        agent = lab.ssh()
    except Unavailable:
        agent = [str(lab.agent)]
    launcher = Launcher(lab, tmp_path, agent)
    yield launcher
    launcher.wait_until_gone()


SHOWS = """
    import json, socket
    names = [n for n in os.environ if n.startswith("RUEDA_") or n in ("FORWARDED", "UNRELATED")]
    print(json.dumps({"host": socket.gethostname(), "cwd": os.getcwd(), **{n: os.environ[n] for n in names}}))
"""


def shown(out: str) -> list[dict[str, str]]:
    """Returns what ranks that run SHOWS have printed, in rank order."""
    lines = sorted(out.splitlines(), key=lambda line: int(line[1 : line.index("]")]))
    return [json.loads(line.partition(": ")[2]) for line in lines]


def test_every_rank_knows_who_it_is(each: Launcher) -> None:
    program = each.program(SHOWS)
    ran = each.run("-H", "h0:1,h2:2,h1:1", "-x", "FORWARDED=a b'c", *program, UNRELATED="x")
    assert (ran.code, ran.err) == (0, "")
    ranks = shown(ran.out)
    assert [rank["host"] for rank in ranks] == ["h0", "h2", "h2", "h1"]
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    assert [[int(rank[f"RUEDA_{name}"]) for name in names] for rank in ranks] == [
        [0, 4, 0, 1, 0, 3],
        [1, 4, 0, 2, 1, 3],
        [2, 4, 1, 2, 0, 1],
        [3, 4, 0, 1, 2, 3],
    ]
    assert {rank["cwd"] for rank in ranks} == {str(each.folder)}
    assert {rank["FORWARDED"] for rank in ranks} == {"a b'c"}
    assert "UNRELATED" in ranks[0]  # the launcher's own host inherits everything
    assert len({rank["RUEDA_SECRET"] for rank in ranks}) == 1
    assert all(rank["RUEDA_RENDEZVOUS_STORE"] == rank["RUEDA_RENDEZVOUS"] for rank in ranks)


def test_a_host_under_two_names_is_one_host(lab: Lab, tmp_path: Path) -> None:
    launcher = Launcher(lab, tmp_path, agents_of(lab, "ssh"))
    ran = launcher.run("-H", f"h1:1,h0:2,{lab.ipv4('h1')}:2", *launcher.program(SHOWS))
    assert ran.code == 0, ran.err
    ranks = shown(ran.out)
    assert [rank["host"] for rank in ranks] == ["h1", "h0", "h0", "h1", "h1"]
    names = ["LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    assert [[int(rank[f"RUEDA_{name}"]) for name in names] for rank in ranks] == [
        [0, 3, 0, 2],
        [0, 2, 1, 2],
        [1, 2, 1, 2],
        [1, 3, 0, 2],
        [2, 3, 0, 1],
    ]
    launcher.wait_until_gone()


def test_a_terminal_that_the_user_asks_ssh_for_does_no_harm(lab: Lab, tmp_path: Path) -> None:
    *ssh, option, config = agents_of(lab, "ssh")
    assert option == "-F"
    (tmp_path / "config").write_text(Path(config).read_text() + "  RequestTTY force\n")
    launcher = Launcher(lab, tmp_path, [*ssh, option, str(tmp_path / "config")])
    ran = launcher.run(*TWO, *launcher.program("print(rank)"))
    assert (ran.code, ran.err) == (0, "")
    launcher.wait_until_gone()


def test_each_job_has_a_secret_of_its_own_that_is_on_no_command_line(launcher: Launcher) -> None:
    program = launcher.program("""
        import glob
        lines = []
        for name in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                lines.append(open(name).read())
            except OSError:
                pass
        secret = os.environ["RUEDA_SECRET"]
        assert not any(secret in line for line in lines)
        print(secret, flush=True)
    """)
    secrets = set()
    for _ in range(2):
        ran = launcher.run(*TWO, "-np", "4", "-v", *program)
        assert ran.code == 0, ran.err
        secret = ran.out.splitlines()[0].partition(": ")[2]
        assert len(secret) == 64
        assert secret not in ran.err
        secrets.add(secret)
    assert len(secrets) == 2


# The launcher's process on rank 0's host listens there and closes connections that do not speak its
# protocol.
LISTENS = """
    import socket
    host, _, port = os.environ["RUEDA_RENDEZVOUS"].removeprefix("tcp:").rpartition(":")
    host = host.strip("[]")
    if rank == size - 1:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(bytes(8))
            assert connection.recv(1) == b""
            print(host, "answers")
"""


@pytest.mark.parametrize("flags", [[], ["--min-np", "1"]], ids=["plain", "recovers"])
def test_a_rank_0_that_ends_before_the_world_is_formed_is_named_on_all_hosts(
    launcher: Launcher, flags: list[str]
) -> None:
    pytest.importorskip("rueda._native")
    os.mkfifo(launcher.folder / "alive")
    program = launcher.program("""
        import signal
        if rank == 0:  # the only one of its host
            alive = open("alive", "w")
            wait_for("come", 2)  # the launcher gives them a moment from here on, not to begin in
            os.kill(os.getpid(), signal.SIGKILL)
        import rueda, rueda._native
        with open("alive") as alive:
            mark("come")
            alive.read()  # until rank 0 has ended
        try:
            rueda.init(init_timeout=600)
        except rueda.InitializationError as error:
            print("told:", error, flush=True)
            raise
    """)
    ran = launcher.run("-H", "h0:1,h1:1,h2:1", *flags, *program)
    told = [line for line in ran.out.splitlines() if "told: " in line]
    assert len(told) == 2, ran.out + ran.err
    for line in told:
        assert "rank 0 ended before the world was formed: killed by SIGKILL" in line
    assert ran.last_line.startswith("rueda: rank 0 on h0 failed first: killed by SIGKILL")


@pytest.mark.parametrize(
    ("on", "hosts"),
    [
        ("h0", "h0:1,h1:1"),
        ("h0", "h1:1,h2:1"),
        ("h0", "h1:1,h0:1"),
        ("h2", "localhost:1,h1:1"),
        ("h0", "10.213.0.1:1,h1:1"),
    ],
)
def test_ranks_meet_at_rank_0s_host(launcher: Launcher, on: str, hosts: str) -> None:
    first = hosts.partition(":")[0].replace("localhost", on).replace("10.213.0.1", "h0")
    ran = launcher.run("-H", hosts, *launcher.program(LISTENS), on=on)
    assert ran.out == f"[1]<stdout>: {launcher.lab.address(first)} answers\n", ran.err


def test_ranks_meet_over_ipv6(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(3, ipv6=True)
    launcher = Launcher(lab, tmp_path, agents_of(lab, "ssh"))
    hosts = {"h0:1,h1:1": "h0", "h1:1,h2:1": "h1", f"h0:1,[{lab.ipv6('h2')}]:1": "h0"}
    for names, first in hosts.items():
        ran = launcher.run("-H", names, *launcher.program(LISTENS))
        assert ran.out == f"[1]<stdout>: {lab.ipv6(first)} answers\n", ran.err
    launcher.wait_until_gone()


@pytest.mark.parametrize("choice", ["eth1", "--network-interface"])
def test_ranks_meet_at_the_chosen_interface(make_lab: MakeLab, tmp_path: Path, choice: str) -> None:
    lab = make_lab(2, links=2)
    launcher = Launcher(lab, tmp_path, [str(lab.agent)])
    flags = ["--interface", "eth1"] if choice == "eth1" else ["--network-interface", "eth1"]
    for hosts, first in (("h0:1,h1:1", "h0"), ("h1:1,h0:1", "h1")):
        ran = launcher.run("-H", hosts, *flags, *launcher.program(LISTENS))
        assert ran.out == f"[1]<stdout>: {lab.address(first, 1)} answers\n", ran.err


def test_output_is_that_of_one_host(launcher: Launcher) -> None:
    program = launcher.program("""
        for n in range(1000):
            print("line", n)
        print("error", rank, file=sys.stderr)
        print("no end", end="")
    """)
    ran = launcher.run(*TWO, "--output-filename", "out", *program)
    assert ran.code == 0, ran.err
    for rank in range(4):
        whole = [f"line {n}" for n in range(1000)] + ["no end"]
        own = [line for line in ran.out.splitlines() if line.startswith(f"[{rank}]")]
        assert own == [f"[{rank}]<stdout>: {line}" for line in whole]
        assert f"[{rank}]<stderr>: error {rank}\n" in ran.err
        file = (launcher.folder / "out" / f"rank.{rank}").read_text().splitlines()
        assert len(file) == 1002 - ("no end" in file[-1]) or "error" in "".join(file)


def test_rank_0_reads_what_is_piped_in(launcher: Launcher) -> None:
    text = "".join(f"{n}\n" for n in range(100_000))
    program = launcher.program("print(len(sys.stdin.read()))")
    ran = launcher.run("-H", "h1:1,h0:1", *program, stdin=text)
    assert sorted(ran.out.splitlines()) == [f"[0]<stdout>: {len(text)}", "[1]<stdout>: 0"], ran.err


def test_a_rank_that_does_not_read_its_input_keeps_nobody(launcher: Launcher) -> None:
    ran = launcher.run(*TWO, *launcher.program("pass"), stdin="x" * (1 << 20))
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_the_first_failure_is_named_with_its_host(each: Launcher) -> None:
    program = each.program("""
        if rank == 3:
            raise ValueError("no good")
        time.sleep(100)
    """)
    ran = each.run(*TWO, *program)
    assert ran.code == 1
    assert ran.last_line == "rueda: rank 3 on h1 failed first: ValueError: no good (exit code 1)"


def test_the_exit_code_is_the_ranks(launcher: Launcher) -> None:
    program = launcher.program("""
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(100)
    """)
    ran = launcher.run(*TWO, *program)
    assert ran.code == 128 + signal.SIGSEGV
    assert "rank 2 on h1 failed first: killed by SIGSEGV" in ran.last_line


def test_a_rank_that_never_comes_to_init_is_named(launcher: Launcher) -> None:
    program = launcher.program("""
        import rueda
        if rank == 3:
            sys.exit(0)
        rueda.init()
    """)
    ran = launcher.run(*TWO, *program)
    assert ran.code == 1
    assert "rank 3 ended with exit code 0 before calling rueda.init()" in ran.last_line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_the_job(each: Launcher, number: signal.Signals) -> None:
    program = each.program("""
        def save(number, frame):
            mark(f"saved{number}")
            sys.exit()
        signal.signal(signal.SIGINT, save)
        signal.signal(signal.SIGTERM, save)
        mark("ready")
        time.sleep(100)
    """)
    with each.running(*TWO, *program) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.rstrip().endswith(f"rueda: ended by {number.name}; all ranks are gone")
    assert len(list(each.folder.glob(f"saved{int(number)}.*"))) == 4


STUBBORN = """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark("ready")
    time.sleep(100)
"""


def test_stubborn_ranks_are_killed(launcher: Launcher) -> None:
    with launcher.running(*TWO, *launcher.program(STUBBORN)) as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.rstrip().endswith("rueda: ended by SIGTERM; all ranks are gone")


def test_a_second_signal_kills_at_once(launcher: Launcher) -> None:
    line = [*TWO, "--grace", "60", *launcher.program(STUBBORN)]
    with launcher.running(*line) as process:
        process.send_signal(signal.SIGTERM)
        # The launcher counts two signals within half a second, by its own clock, as one.
        deadline = time.monotonic() + 30
        while process.poll() is None:
            assert time.monotonic() < deadline, "no second signal has ended the job"
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


WITH_CHILDREN = """
    subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done"], start_new_session=True)
    mark("ready")
    time.sleep(100)
"""


def test_nothing_outlives_a_killed_launcher(each: Launcher) -> None:
    with each.running(*TWO, *each.program(WITH_CHILDREN)) as process:
        process.kill()
        process.wait(timeout=30)
        each.wait_until_gone()


def test_nothing_outlives_a_killed_ssh(launcher: Launcher) -> None:
    with launcher.running(*TWO, *launcher.program(WITH_CHILDREN)) as process:
        (ssh,) = launcher.find(
            "h0", "ssh " if "ssh" in launcher.agent else "bash " + launcher.agent
        )
        os.kill(ssh, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rueda: host 'h1', with ranks 2 to 3, was lost: " in err
    assert "killed by SIGKILL" in err


def test_a_host_that_is_lost_while_the_job_ends_is_not_the_cause(launcher: Launcher) -> None:
    program = launcher.program(
        """
        def kill_what_has_started_this(*_):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(100)
        if rank == 2:
            signal.signal(signal.SIGTERM, kill_what_has_started_this)
        mark("ready")
        wait_for("ready", size)
        if rank == 0:
            sys.exit(3)
        time.sleep(100)
        """
    )
    ran = launcher.run(*TWO, *program)
    assert ran.code == 3, ran.err
    assert "rank 0 on h0 failed first: exit code 3" in ran.last_line, ran.err
    assert "but host 'h1' was lost: " in ran.last_line, ran.err


@pytest.mark.parametrize("half", ["guardian", "supervisor"])
def test_nothing_outlives_half_of_the_process_on_a_host(each: Launcher, half: str) -> None:
    with each.running(*TWO, *each.program(WITH_CHILDREN)) as process:
        halves = each.find("h1", f"{sys.executable} -m rueda.launcher.remote.host")
        assert len(halves) == 2
        os.kill(halves[half == "supervisor"], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "host 'h1', with ranks 2 to 3, was lost: " in err or "on h1 failed first" in err, err


def test_a_host_that_falls_silent_is_given_up_by_both_sides(launcher: Launcher) -> None:
    link = launcher.lab.link("h1")
    program = launcher.program(WAITS)
    with launcher.running(*TWO, "--host-timeout", "2", *program) as process:
        link.silence()
        try:
            _, err = process.communicate(timeout=60)
            # Nothing tells h1: it must find out by itself.
            launcher.wait_until_gone()
        finally:
            link.end_silence()
    assert process.returncode == 1
    assert err.rstrip().endswith("was lost: it has said nothing for 2 s"), err


def test_a_launcher_whose_output_is_not_read_loses_no_host(launcher: Launcher) -> None:
    program = launcher.program("""
        for n in range(40_000):
            print("x" * 99)
        mark("ready")
    """)
    line = launcher.line(*TWO, "--host-timeout", "1", *program)
    with subprocess.Popen(
        line,
        cwd=launcher.folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        launcher.wait_for("started", 4, process)
        time.sleep(3)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert out.count(b"\n") == 160_000


def test_a_signal_of_a_batch_system_reaches_the_ranks_of_all_hosts(launcher: Launcher) -> None:
    program = launcher.program("""
        signal.signal(signal.SIGUSR1, lambda *_: mark("told"))
        mark("ready")
        wait_for("told", size)
    """)
    with launcher.running(*TWO, *program) as process:
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_what_a_lost_rank_has_left_on_a_host_ends_while_the_others_go_on(
    launcher: Launcher,
) -> None:
    program = launcher.program("""
        if rank == 3:
            subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
        mark("ready")
        while rank < 3:
            time.sleep(1)
        wait_for("go", 1)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    with launcher.running(*TWO, "--min-np", "1", *program) as process:
        assert launcher.find("h1", "sh -c trap")
        (launcher.folder / "go.0").touch()
        deadline = time.monotonic() + 60
        while launcher.find("h1", "sh -c trap"):
            assert time.monotonic() < deadline, "it outlives its rank"
            time.sleep(0.05)
        assert process.poll() is None
        assert len(launcher.find("h1", "python3 program.py")) == 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_launcher_that_is_stopped_loses_no_host(launcher: Launcher) -> None:
    """As by Ctrl-Z, which stops the process that the user started."""
    program = launcher.program("""
        mark("ready")
        wait_for("go", 1)
    """)
    with launcher.running(*TWO, "--host-timeout", "1", *program) as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        (launcher.folder / "go.on").touch()
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_a_signal_ends_a_job_whose_output_is_not_read(launcher: Launcher) -> None:
    program = launcher.program("""
        mark("ready")
        while True:
            print("x" * 999)
    """)
    with launcher.running(*TWO, *program) as process:
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM
        assert process.stderr is not None
        last_line = process.stderr.read().rstrip().rpartition("\n")[2]
        assert last_line == "rueda: ended by SIGTERM; all ranks are gone"


def test_the_dry_run_shows_hosts_and_ranks(launcher: Launcher) -> None:
    ran = launcher.run(*TWO, "--dry-run", "true")
    lines = ran.out.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("#")] == ["# h0", "# h1"]
    assert len([line for line in lines if line.startswith("env ")]) == 4
    assert "SECRET" not in ran.out
