"""The lab itself: names, addresses, control of links, and complete removal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from .lab import Lab, Unavailable, namespaces, rate_in_bits
from .lab.fixture import MakeLab, or_skip
from .lab.links import Link

ROOT = Path(__file__).parents[2]
ALLOWED = "tcp_allowed_congestion_control"

# Each line that comes back has crossed the links twice.
ECHO = """
import socket, sys
family, port = (socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET), int(sys.argv[2])
with socket.create_server((sys.argv[1], port), family=family) as server:
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(1 << 16):
                if sys.argv[3] == "echo":
                    connection.sendall(data)
            if sys.argv[3] == "count":
                connection.sendall(b"end")
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as c:
    c.sendall(b"hello")
    print(c.recv(5).decode())
"""
# Sends `count` bytes and prints how long it took until all had arrived.
SEND = """
import socket, sys, time
address, port, count, source = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with socket.create_connection((address, port), timeout=60, source_address=("", source)) as c:
    begin = time.monotonic()
    c.sendall(bytes(count))
    c.shutdown(socket.SHUT_WR)
    assert c.recv(3) == b"end"
    print(time.monotonic() - begin)
"""


def serve(lab: Lab, host: str, address: str, manner: str, port: int = 4711) -> None:
    """Starts a server that ends with the lab."""
    server = lab.start(
        host,
        *(sys.executable, "-c", ECHO, address, str(port), manner),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == "ready\n"


def answers(lab: Lab, host: str, address: str, timeout: float = 5) -> str:
    """Returns the answer to a host that connects there, or the error."""
    asked = lab.run(host, sys.executable, "-c", ASK, address, "4711", str(timeout))
    return asked.stdout.strip() or asked.stderr.strip().rpartition("\n")[2]


def send(lab: Lab, count: int, source: int = 0, address: str = "") -> float:
    """Returns the seconds that the bytes take from h0 to h1."""
    where = address or lab.address("h1")
    line = [sys.executable, "-c", SEND, where, "4711", str(count), str(source)]
    sent = lab.run("h0", *line)
    assert sent.returncode == 0, sent.stderr
    return float(sent.stdout)


def traces(lab: str) -> list[str]:
    """Returns everything that exists of a lab."""
    etc = [str(path) for path in namespaces.ETC.glob(f"{lab}-*")]
    folder = namespaces.folder_of(lab)
    return namespaces.namespaces_of(lab) + etc + [str(folder)] * folder.exists()


def test_every_host_has_a_name_and_knows_the_others(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    for host in lab.names:
        assert lab.run(host, "hostname").stdout.strip() == host
        for other in lab.names:
            assert lab.run(host, "getent", "hosts", other).stdout.split()[0] == lab.ipv4(other)


@pytest.mark.parametrize("ipv6", [False, True])
def test_hosts_reach_each_other_over_every_link(make_lab: MakeLab, ipv6: bool) -> None:
    lab = make_lab(2, links=2, ipv6=ipv6)
    serve(lab, "h1", "::" if ipv6 else "0.0.0.0", "echo")
    for name in ("h1", "h1-eth0", "h1-eth1"):
        assert answers(lab, "h0", name) == "hello"
    if not ipv6:
        serve(lab, "h0", lab.ipv6("h0", 1), "echo")
        assert answers(lab, "h1", lab.ipv6("h0", 1)) == "hello"


def test_the_agent_runs_a_command_as_ssh_does(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    ran = lab.run("h0", str(lab.agent), "h1", "hostname; cat; exit 3", stdin=subprocess.DEVNULL)
    assert (ran.stdout, ran.returncode) == ("h1\n", 3)
    ran = lab.run("h0", str(lab.agent), "h7", "true")
    assert (ran.stderr, ran.returncode) == ("agent: there is no host h7\n", 255)


def test_ssh_gets_into_every_host(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with or_skip():
        ssh = lab.ssh()
    for host in lab.names:
        ran = lab.run("h0", *ssh, "-o", "BatchMode=yes", host, "hostname; exit 3")
        assert (ran.stdout, ran.returncode) == (f"{host}\n", 3), ran.stderr
    lab.daemons.stop("h1")
    assert "refused" in lab.run("h0", *ssh, "h1", "true").stderr


def test_a_link_keeps_its_rate(make_lab: MakeLab) -> None:
    lab = make_lab(2, rate="80mbit")  # 0.42 s for 4 MiB, 256 KiB of which are the burst
    serve(lab, "h1", lab.address("h1"), "count")
    bound = (4 << 20) / 10e6
    assert 0.8 * bound < send(lab, 4 << 20) < 2 * bound
    lab.link("h0").inner.unlimited()
    lab.link("h1").outer.unlimited()
    assert send(lab, 4 << 20) < 0.5 * bound


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_a_flow_is_capped_by_its_port(make_lab: MakeLab, family: str) -> None:
    """For either address family, not only the one that the lab's names resolve to."""
    lab = make_lab(2, rate="800mbit")
    lab.cap_flows(["80mbit", "8mbit"], port="sport")
    address = getattr(lab, family)("h1")
    serve(lab, "h1", address, "count")
    slow, quick = (send(lab, 1 << 20, source, address) for source in (20001, 20000))
    assert slow > 3 * quick


def test_the_counters_tell_what_was_sent(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    serve(lab, "h1", lab.address("h1"), "count")
    before = lab.link("h0").counters(), lab.link("h1").counters()
    send(lab, 3 << 20)
    after = lab.link("h0").counters(), lab.link("h1").counters()
    sent = after[0].sent_bytes - before[0].sent_bytes
    received = after[1].received_bytes - before[1].received_bytes
    for count in (sent, received):
        assert 3 << 20 < count < 1.05 * (3 << 20)


@pytest.mark.parametrize("control", ["reno", "cubic", "bbr"])
def test_a_lab_has_its_own_congestion_control(make_lab: MakeLab, control: str) -> None:
    file = "/proc/sys/net/ipv4/tcp_congestion_control"
    before = Path(file).with_name(ALLOWED).read_text()
    with or_skip():
        lab = make_lab(2, congestion=control)
    for host in lab.names:
        assert lab.run(host, "cat", file).stdout.strip() == control
    assert Path(file).with_name(ALLOWED).read_text() == before


def test_packets_are_lost_at_random(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with or_skip():
        lab.lose(20)
    serve(lab, "h1", lab.address("h1"), "count")
    before = lab.link("h0").counters()
    send(lab, 8 << 20)
    after = lab.link("h0").counters()
    # With offloads off each packet is counted, and some were sent again.
    assert after.sent_packets - before.sent_packets > (8 << 20) / 1500
    assert after.sent_bytes - before.sent_bytes > 1.06 * (8 << 20)
    lab.lose(0)


def test_packets_take_their_time(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    serve(lab, "h1", lab.address("h1"), "echo")
    program = ASK.replace(
        "import socket, sys", "import socket, sys, time; begin = time.monotonic()"
    )
    program = program.replace(
        "print(c.recv(5).decode())", "c.recv(5); print(time.monotonic() - begin)"
    )

    def took() -> float:
        line = [sys.executable, "-c", program, lab.address("h1"), "4711", "30"]
        return float(lab.run("h0", *line).stdout)

    quick = took()
    with or_skip():
        lab.delay(0.2)
    # A round trip to connect, one for question and answer, and at first one to resolve addresses.
    assert took() > quick + 0.7
    lab.link("h1").silence()
    assert "timed out" in answers(lab, "h0", "h1", timeout=0.3)
    lab.link("h1").end_silence()
    assert took() > quick + 0.7


def test_a_cut_link_says_so_at_once(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    serve(lab, "h1", lab.address("h1"), "echo")
    lab.link("h0").cut()
    assert "unreachable" in answers(lab, "h0", lab.address("h1"))
    lab.link("h0").mend()
    assert answers(lab, "h0", lab.address("h1")) == "hello"


@pytest.mark.parametrize("host", ["h0", "h1"])
def test_a_silent_link_says_nothing(make_lab: MakeLab, host: str) -> None:
    lab = make_lab(2)
    serve(lab, "h1", lab.address("h1"), "echo")
    assert answers(lab, "h0", "h1") == "hello"  # both have resolved the other's link address
    lab.link(host).silence()
    assert "timed out" in answers(lab, "h0", "h1", timeout=0.3)
    lab.link(host).end_silence()
    assert answers(lab, "h0", "h1") == "hello"


def test_one_link_of_two_is_cut(make_lab: MakeLab) -> None:
    lab = make_lab(2, links=2)
    serve(lab, "h1", "0.0.0.0", "echo")
    lab.link("h1", 0).silence()
    assert answers(lab, "h0", "h1-eth1") == "hello"
    assert "timed out" in answers(lab, "h0", "h1-eth0", timeout=0.3)


def test_nothing_is_left_behind(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    stubborn = lab.start("h1", "sh", "-c", "trap '' TERM HUP; while :; do sleep 60; done")
    assert traces(lab.lab)
    lab.down()
    assert not traces(lab.lab)
    assert stubborn.wait(timeout=10) == -signal.SIGKILL


def test_what_a_killed_process_has_left_is_swept(make_lab: MakeLab) -> None:
    make_lab(1).down()  # skips if no lab can be made
    program = "import sys; from net.lab import Lab; lab = Lab(2); lab.up(); print(lab.lab, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        lab = owner.stdout.readline().strip()
        assert len(namespaces.namespaces_of(lab)) == 3
        assert lab not in namespaces.sweep()  # its owner is alive
        owner.kill()
    assert traces(lab)
    namespaces.sweep()  # a concurrent process that makes a lab may have swept first
    deadline = time.monotonic() + 10
    while traces(lab):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sigterm_ends_a_lab_with_its_process(make_lab: MakeLab) -> None:
    make_lab(1).down()  # skips if no lab can be made
    program = """
from net.lab import Lab
with Lab(2) as lab:
    lab.start("h1", "sleep", "600")
    print(lab.lab, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        lab = owner.stdout.readline().strip()
        assert traces(lab)
        owner.terminate()
        assert owner.wait(timeout=60) == 128 + signal.SIGTERM
    assert not traces(lab)


def test_one_command_up_and_one_down(make_lab: MakeLab) -> None:
    make_lab(1).down()
    name = uuid.uuid4().hex[:6]

    def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "tests.net.lab", "--name", name, *arguments]
        return subprocess.run(
            line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )

    try:
        up = lab("up", "--hosts", "2", "--rate", "1gbit", "--links", "2")
        assert up.stdout.splitlines()[0] == "hosts: h0 h1", up.stderr
        assert lab("exec", "h1", "--", "hostname").stdout == "h1\n"
        assert lab("exec", "h1", "--", "sh", "-c", "exit 7").returncode == 7
        assert "is up already" in lab("up").stderr
        assert lab("cut", "h0", "--link", "1").returncode == 0
        shown = lab("exec", "h0", "--", "ip", "-br", "link", "show", "eth1").stdout
        assert "DOWN" in shown
        assert lab("mend", "h0", "--link", "1").returncode == 0
        assert f"rueda-lab-{name}" in lab("list").stdout.splitlines()
    finally:
        assert lab("down").returncode == 0
    assert not traces(f"rueda-lab-{name}")
    assert "no lab" in lab("exec", "h0", "--", "true").stderr


def test_rates() -> None:
    assert [rate_in_bits(text) for text in ("1gbit", "31mbit", "1.5kbit", "8bit")] == [
        10**9, 31 * 10**6, 1500, 8,
    ]  # fmt: skip
    for text in ("fast", "0mbit", "10", "1gbyte"):
        with pytest.raises(ValueError, match="no rate"):
            rate_in_bits(text)


def test_what_a_lab_cannot_be() -> None:
    with pytest.raises(ValueError, match="1 to 250"):
        Lab(0)
    with pytest.raises(ValueError, match="no host 'h9'"):
        Lab(2).namespace("h9")
    with pytest.raises(Unavailable, match="no lab 'none'"):
        Lab.existing("none")


def test_the_number_of_classes_is_a_power_of_two(make_lab: MakeLab) -> None:
    link: Link = make_lab(1).link("h0")
    with pytest.raises(ValueError, match="power of 2"):
        link.inner.cap_flows(["1mbit"] * 3, "dport", None)
