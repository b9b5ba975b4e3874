"""How other hosts are reached, and which options leave that to mpirun."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click.testing
import pytest
from rueda.launcher.cli import build
from rueda.launcher.errors import LaunchError
from rueda.launcher.hosts import Host
from rueda.launcher.job import Job, job_folder
from rueda.launcher.native import Native
from rueda.launcher.nodes.first import NodesRun
from rueda.launcher.output import RankOutput
from rueda.launcher.placement import place
from rueda.launcher.remote.address import (
    interface_address,
    is_loopback,
    is_own,
    listen,
    rendezvous_at,
    resolve,
    ssh_connection,
    towards,
)
from rueda.launcher.remote.host_job import HostJob, prepare
from rueda.launcher.remote.run import Reach, RemoteRun
from rueda.launcher.remote.ssh import agent_words, command_line, command_there, why_not_reached
from rueda_command import launcher_environment

FAR = ["-H", "far-away-1:1,far-away-2:1"]


@pytest.fixture
def mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An mpirun found on the PATH, next to the system's programs."""
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    program.chmod(0o755)
    monkeypatch.setattr("rueda.launcher.mpirun.find_mpirun", lambda _: str(program))
    for name in ("RUEDA_BOOTSTRAP", "RUEDA_TRANSPORT", "RUEDA_MPI_LIBRARY", "RUEDA_SSH_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    return str(program)


def dry_run(*arguments: str) -> str:
    native = Native(ModuleType("rueda._native"), option_table=[])
    ran = click.testing.CliRunner().invoke(build(native), ["run", "--dry-run", *FAR, *arguments])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_several_hosts_are_reached_over_ssh(mpirun: str) -> None:
    lines = dry_run("true").splitlines()
    assert lines[0].startswith("# far-away-1: ssh -T -o BatchMode=yes ")
    assert lines[1].startswith("env ")
    assert "RUEDA_RANK=0 RUEDA_SIZE=2" in lines[1]
    assert "SECRET" not in "".join(lines)


@pytest.mark.parametrize(
    "flags",
    [
        ["--bootstrap", "mpi"], ["--mpi"], ["--map-by", "node"], ["--bind-to", "core"], ["--ulfm"],
        ["--mpi-args", "--mca btl tcp"], ["-x", "RUEDA_TRANSPORT=mpi"], ["-x", "RUEDA_BOOTSTRAP=mpi"],
    ],
)  # fmt: skip
def test_flags_that_only_mpirun_understands_ask_for_it(mpirun: str, flags: list[str]) -> None:
    assert dry_run(*flags, "true").startswith(mpirun)


@pytest.mark.parametrize("variables", [["-x", "RUEDA_RECOVERY=ON"], ["-x", "RUEDA_RECOVERY=on"]])
def test_flags_that_only_mpirun_understands_ask_for_it_with_recovery_too(
    mpirun: str, variables: list[str]
) -> None:
    assert "ssh" in dry_run(*variables, "true")
    line = dry_run(*variables, "--map-by", "node", "true")
    assert line.startswith(mpirun)
    assert "--with-ft ulfm" in line


def test_variables_are_read_as_the_library_reads_them(mpirun: str) -> None:
    assert dry_run("-x", "RUEDA_TRANSPORT=MPI", "true").startswith(mpirun)
    assert dry_run("-x", "RUEDA_BOOTSTRAP=MPI", "true").startswith(mpirun)
    assert "ssh" in dry_run("-x", "RUEDA_MIN_NP=", "-x", "RUEDA_RECOVERY=on", "true")


def test_the_variable_of_the_bootstrap_does_as_the_flag(
    mpirun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Native(ModuleType("rueda._native"), option_table=[])

    def line() -> str:
        arguments = ["run", "--dry-run", "-np", "1", "true"]
        return click.testing.CliRunner().invoke(build(native), arguments).stdout

    assert line().startswith(mpirun)
    monkeypatch.setenv("RUEDA_BOOTSTRAP", "rendezvous")
    assert line().startswith("env ")
    monkeypatch.setenv("RUEDA_RANK", "0")  # says how this rank of another job met the others
    assert line().startswith(mpirun)


def test_other_nodes_are_not_told_what_they_bring_themselves() -> None:
    shares = place(4, [Host("node-0", 2), Host("node-1", 2)])
    run = object.__new__(NodesRun)  # starts nothing
    run._job = Job(4, ("python", "t.py"), settings={"API_TOKEN": "1"})
    run._shares, run._grace, run._reach = shares, 1.0, Reach("ssh", 1.0, 1.0)
    run._machines = {}
    first, second = (run._part(share, "") for share in shares)
    assert first.settings["API_TOKEN"] == "1"
    assert (second.command, second.folder, second.settings) == ([], "", {})
    assert [each["RUEDA_RANK"] for each in second.identities] == ["2", "3"]


def test_each_host_divides_its_own_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rueda.launcher.remote.host_job.cores_within_quota", lambda: (64, None))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    identities = [{"RUEDA_RANK": str(n), "RUEDA_SIZE": "4"} for n in (2, 3)]
    job = HostJob(["true"], str(tmp_path), {}, identities, 2, 1, 1, "", "", False, 0, 2)
    assert prepare(job).environment["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert "OMP_NUM_THREADS" not in dry_run("--no-mpi", "true")
    assert prepare(job).environment["OMP_NUM_THREADS"] == "32"


def test_without_mpi_wins(mpirun: str) -> None:
    assert "ssh" in dry_run("--no-mpi", "--map-by", "node", "true")


def test_another_program_may_reach_the_hosts(mpirun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_SSH_COMMAND", "rsh -x")
    assert dry_run("true").startswith("# far-away-1: rsh -x far-away-1 ")
    assert dry_run("--ssh", "/my/agent", "true").startswith("# far-away-1: /my/agent far-away-1 ")


def test_ssh_is_told_not_to_ask() -> None:
    line = command_line(["/usr/bin/ssh", "-p", "2222"], "[fe80::1]", 7.2)
    assert line[:3] == ["/usr/bin/ssh", "-p", "2222"]
    assert {"BatchMode=yes", "ConnectTimeout=7", "ControlMaster=no", "-T"} <= set(line)
    assert line[-2:] == ["fe80::1", command_there()]


def test_the_place_of_rueda_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"relative{os.pathsep}/abso lute")
    words = shlex.split(command_there())
    assert f"PYTHONPATH={Path('relative').absolute()}:/abso lute" in words
    assert words[-3] == sys.executable


@pytest.fixture
def entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, entered through a symbolic link, as an automounted home."""
    (tmp_path / "disk1").mkdir()
    link = tmp_path / "home"
    link.symlink_to("disk1")
    monkeypatch.chdir(link)
    monkeypatch.setenv("PWD", str(link))
    return link


def test_the_folder_is_the_one_that_the_user_has_entered(
    entered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = (Host("a", 1), Host("b", 1))
    run = RemoteRun(Job(2, ("true",), hosts), Reach("ssh", 1, 1), RankOutput(2, None, False), 1, -1)
    assert [run._part(share, "").folder for share in run._shares] == [str(entered)] * 2
    monkeypatch.setenv("PYTHONPATH", f"lib{os.pathsep}../lib")
    assert f"PYTHONPATH={entered}/lib:{entered}/../lib" in shlex.split(command_there())


@pytest.mark.parametrize("entered_as", [None, "", "disk1", "home", "/", "/no/such/folder", "/\n"])
def test_a_name_of_another_folder_does_not_count(
    entered: Path, monkeypatch: pytest.MonkeyPatch, entered_as: str | None
) -> None:
    if entered_as is None:
        monkeypatch.delenv("PWD")
    else:
        monkeypatch.setenv("PWD", entered_as)
    assert job_folder() == str(entered.resolve())


def test_ranks_are_told_the_folder(entered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/")
    job = HostJob(["true"], str(entered), {}, [{}], 1, 1, 1, "", "", False)
    assert prepare(job).environment["PWD"] == str(entered)


@pytest.mark.parametrize("agent", ["", "ssh '"])
def test_an_agent_that_is_none(agent: str) -> None:
    with pytest.raises(LaunchError, match="--ssh"):
        agent_words(agent)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (255, "cannot be reached: last line (ssh: exit code 255)"),
        (-9, "cannot be reached: last line (ssh: killed by SIGKILL"),
        (127, f"has no {sys.executable}: last line; every host needs"),
        (1, f"could not run Rueda with {sys.executable}: last line (exit code 1); every"),
    ],
)
def test_why_a_host_was_not_reached(status: int, words: str) -> None:
    assert why_not_reached("/usr/bin/ssh", status, "first\nlast line\n\n").startswith(words)


def test_addresses_of_this_host() -> None:
    assert resolve("localhost") is None
    assert resolve("no.such.host.invalid") is None
    assert resolve("[2001:db8::1]") == "2001:db8::1"
    assert towards("127.0.0.1") is None
    assert is_own("127.0.0.1")
    assert not is_own("203.0.113.1")
    assert not is_own("")
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("127.0.0.1") == "127.0.0.1"
    for name in ("eth77", "203.0.113.1", "no.such.host.invalid"):
        with pytest.raises(LaunchError, match="neither a network interface nor an address"):
            interface_address(name)


@pytest.mark.parametrize(
    ("told", "addresses"),
    [
        ("10.0.0.1 5 10.0.0.2 22", ("10.0.0.1", "10.0.0.2")),
        ("UNKNOWN 65535 UNKNOWN 65535", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_addresses_of_an_ssh_connection(
    monkeypatch: pytest.MonkeyPatch, told: str, addresses: tuple[str, str]
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", told)
    assert ssh_connection() == addresses


@pytest.mark.parametrize(
    ("address", "means_itself"),
    [("127.0.1.1", True), ("::1", True), ("10.0.0.1", False), ("", False), ("gateway", False)],
)
def test_which_addresses_mean_each_host_itself(address: str, means_itself: bool) -> None:
    assert is_loopback(address) is means_itself


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "203.0.113.1"])
def test_a_listener_is_open_at_once(address: str) -> None:
    with listen(address) as listener:
        port = listener.getsockname()[1]
        own = address if address != "203.0.113.1" else "127.0.0.1"  # else all addresses
        socket.create_connection((own, port), timeout=5).close()
        assert rendezvous_at(address, port) in (f"tcp:{address}:{port}", f"tcp:[{address}]:{port}")


# On a host whose only interface, apart from the loopback, has no other address.
LINK_LOCAL = """
import socket
from rueda.launcher.errors import LaunchError
from rueda.launcher.remote.address import (
    address_in, interface_address, is_own, listen, rendezvous_at, resolve, towards
)
own = "fe80::1:2%short"
assert interface_address("short") == own
assert interface_address(own) == own
assert resolve(f"[{own}]") == own
assert towards("fe80::7%short") == own
assert is_own(own) and not is_own("fe80::7%short") and not is_own("fe80::1:2%none")
with listen(own) as listener:
    port = listener.getsockname()[1]
    with socket.create_connection((own, port), timeout=5) as link:
        assert address_in(link.getsockname()) == own
assert rendezvous_at(own, port) == f"tcp:[{own}]:{port}"
try:
    listen("fe80::1:2%none")
except LaunchError as error:
    assert str(error).startswith("cannot listen at fe80::1:2%none: "), error
else:
    raise AssertionError
"""


def test_a_link_local_address_has_the_name_of_its_interface() -> None:
    made = (
        "mount -t sysfs sysfs /sys && ip link set lo up && "
        "ip link add short type veth peer name other && ip link set other up && "
        "ip link set short addrgenmode none up && ip -6 addr add fe80::1:2/64 dev short nodad"
    )
    alone = ["unshare", "--net", "--mount", "sh", "-c"]
    try:
        ran = subprocess.run(
            [*alone, made], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        pytest.skip(f"no interface can be made: {error}")
    if ran.returncode != 0:
        pytest.skip(f"no interface can be made: {ran.stderr}")
    ran = subprocess.run(
        [*alone, f'{made} && exec "$@"', "sh", sys.executable, "-c", LINK_LOCAL],
        env=launcher_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
