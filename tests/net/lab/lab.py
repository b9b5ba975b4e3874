"""Simulates several hosts on this machine.

Each host is a network namespace with its own hostname (UTS namespace) and /etc/hosts, and with one
or more links to a switch. The switch is a namespace too, so a lab adds nothing to the machine's own
network. All hosts share the machine's files and processes: every host sees Unix sockets that are
files, but only one host sees those in the abstract namespace.

A lab and everything in it end together: `with Lab(2) as lab`, or `python -m tests.net.lab down`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address
from pathlib import Path
from typing import IO, Any

from . import namespaces
from .congestion import use_congestion_control
from .links import End, Link
from .sshd import SshDaemons
from .tools import Unavailable, run

# Behaves like `ssh HOST COMMAND...`, except that it inherits the environment.
_AGENT = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
if [[ ! -e /run/netns/{lab}-$host ]]; then echo "agent: there is no host $host" >&2; exit 255; fi
exec ip netns exec "{lab}-$host" unshare --uts bash -c "hostname $host; $*"
"""
_ENTER = 'hostname "$0" && exec "$@"'


def _end_by_exception() -> bool:
    """Makes SIGTERM unwind this process's `with` blocks; False if SIGTERM has a handler already."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    owner = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != owner:  # a forked child has nothing to remove
            os._exit(128 + number)
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    return True


class Lab:
    """Hosts h0, h1, ... (`count`) for a `with` block. Raises Unavailable if they cannot be made."""

    def __init__(
        self,
        count: int,
        *,
        rate: str | None = None,
        links: int = 1,
        ipv6: bool = False,
        congestion: str | None = None,
        name: str | None = None,
    ) -> None:
        """`rate`: limit of each link in both directions; None for no limit.

        `ipv6`: no IPv4; otherwise hosts have both and names resolve to IPv4. `name`: the lab stays
        up until it is taken down by this name.
        """
        if not 1 <= count <= 250 or not 1 <= links <= 8:
            raise ValueError("a lab has 1 to 250 hosts, and each 1 to 8 links")
        self.lab = namespaces.PREFIX + (name or uuid.uuid4().hex[:8])
        self.names = [f"h{index}" for index in range(count)]
        self.folder = namespaces.folder_of(self.lab)
        self.agent = self.folder / "agent"
        self._owner = 0 if name else os.getpid()
        self._links = links
        self._rate = rate
        self._ipv6 = ipv6
        self._congestion = congestion
        self._daemons = SshDaemons(self)
        self._delayed: set[int] = set()  # links
        self._lines: list[subprocess.Popen[bytes]] = []  # the processes that delay
        self._takes_sigterm = False

    @classmethod
    def existing(cls, name: str) -> Lab:
        """Returns a lab that is already up. Raises Unavailable if it is not."""
        prefix = namespaces.PREFIX + name + "-h"
        count = len(namespaces.namespaces_of(prefix))
        if count == 0:
            raise Unavailable(f"no lab '{name}' is up")
        first = namespaces.namespaces_of(prefix)[0]
        interfaces = run("ip", "-n", first, "-o", "link", "show", "type", "veth").splitlines()
        return cls(count, links=len(interfaces), name=name)

    def __enter__(self) -> Lab:
        self.up()
        self._takes_sigterm = _end_by_exception()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        if self._takes_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def up(self) -> None:
        """Makes the hosts; removes all of them if that fails."""
        namespaces.check_available()
        namespaces.sweep()
        namespaces.make_folder(self.lab, self._owner)
        try:
            self._make()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Kills everything that runs on the hosts and removes them."""
        self._daemons.close()
        namespaces.remove(self.lab)
        for line in self._lines:
            line.wait()

    # --- What runs on a host

    def namespace(self, host: str) -> str:
        """Returns the name of the host's network namespace."""
        if host not in self.names:
            raise ValueError(f"the lab has no host '{host}'")
        return f"{self.lab}-{host}"

    def inside(self, host: str, *command: str) -> list[str]:
        """Returns the command line that runs `command` on a host."""
        enter = ["ip", "netns", "exec", self.namespace(host), "unshare", "--uts"]
        return [*enter, "sh", "-c", _ENTER, host, *command]

    def start(self, host: str, *command: str, **keywords: Any) -> subprocess.Popen[Any]:
        """Starts a program on a host; `keywords` are those of subprocess.Popen."""
        return subprocess.Popen(self.inside(host, *command), **keywords)

    def run(
        self,
        host: str,
        *command: str,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        stdin: IO[Any] | int = subprocess.DEVNULL,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on a host to completion."""
        return subprocess.run(
            self.inside(host, *command),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            stdin=stdin,
            check=False,
        )

    def ssh(self) -> list[str]:
        """Returns an ssh that reaches all hosts; starts their daemons. Unavailable without sshd."""
        return self._daemons.command()

    @property
    def daemons(self) -> SshDaemons:
        """The daemons behind ssh()."""
        return self._daemons

    # --- Addresses

    def ipv4(self, host: str, link: int = 0) -> str:
        """The host's IPv4 address on that link."""
        return f"10.213.{link}.{self.names.index(host) + 1}"

    def ipv6(self, host: str, link: int = 0) -> str:
        """The host's IPv6 address on that link."""
        return str(IPv6Address(f"fd13:{link:x}::{self.names.index(host) + 1:x}"))

    def address(self, host: str, link: int = 0) -> str:
        """Returns what the host's name (link 0), or its name with "-ethN", resolves to."""
        return self.ipv6(host, link) if self._ipv6 else self.ipv4(host, link)

    def names_of(self, host: str) -> list[str]:
        """Returns all names and addresses of the host."""
        links = range(self._links)
        names = [host, *(f"{host}-eth{number}" for number in links)]
        addresses = [self.ipv6(host, number) for number in links]
        return names + addresses + [self.ipv4(host, number) for number in links]

    # --- The network

    def link(self, host: str, number: int = 0) -> Link:
        """Returns one of the host's links; links.py lists what it can do."""
        inner = End(self.namespace(host), f"eth{number}")
        outer = End(self._switch, f"{host}.{number}")
        is_late = number in self._delayed
        return Link(inner, outer, End(self._switch, _late(outer)) if is_late else outer)

    def cap_flows(self, rates: Sequence[str], port: str = "dport", link: int = 0) -> None:
        """Classifies flows leaving a host by the low bits of their TCP port ("sport" or "dport").

        There is one class per rate; the number of rates is a power of 2.
        """
        for host in self.names:
            self.link(host, link).inner.cap_flows(rates, port, self._rate)

    def use_congestion_control(self, name: str) -> None:
        """Sets the congestion control of new connections: reno, cubic or bbr."""
        use_congestion_control([self.namespace(host) for host in self.names], name)

    def part(self, some: Sequence[str], others: Sequence[str], answer: str = "nothing") -> None:
        """Drops every packet between any of `some` and any of `others`, in both directions.

        With another `answer`, first drops all packets, then rejects them: see Link.reject_from().
        """
        beyond = {host: [self.address(other) for other in others] for host in some}
        beyond |= {host: [self.address(other) for other in some] for host in others}
        for answered in ["nothing"] if answer == "nothing" else ["nothing", answer]:
            for host, addresses in beyond.items():
                if answer == "nothing":
                    self.link(host).inner.drop_to(addresses, self._rate or "10gbit")
                else:
                    self.link(host).reject_from(addresses, answered)

    def lose(self, per_mille: int) -> None:
        """Drops packets at random on all links; turns offloads off first."""
        self._turn_off_offloads()
        for host in self.names:
            for number in range(self._links):
                self.link(host, number).lose(per_mille)

    def delay(self, seconds: float, link: int = 0) -> None:
        """Delays each packet between hosts by `seconds` (see delay.py). At most once per link."""
        self._turn_off_offloads()
        for host in self.names:
            outer = self.link(host, link).outer
            tap = _late(outer)
            outer.link("nomaster")
            line = self._python(self._switch, "delay.py", outer.interface, tap, str(seconds / 2))
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
            self._lines.append(process)
            assert process.stdout is not None
            with process.stdout:
                if process.stdout.readline() != b"ready\n":
                    raise Unavailable("no TAP interface can be made")
            run("ip", "-n", self._switch, "link", "set", tap, "master", f"br{link}", "up")
        self._delayed.add(link)

    def _turn_off_offloads(self) -> None:
        for host in self.names:
            for number in range(self._links):
                link = self.link(host, number)
                for end in (link.inner, link.outer):
                    run(*self._python(end.namespace, "offload.py", end.interface))

    def _python(self, space: str, file: str, *arguments: str) -> list[str]:
        """Returns the command line that runs a file of this folder in a namespace."""
        path = str(Path(__file__).with_name(file))
        return ["ip", "netns", "exec", space, sys.executable, path, *arguments]

    # --- How it is made

    @property
    def _switch(self) -> str:
        return f"{self.lab}-switch"

    def _make(self) -> None:
        self.agent.write_text(_AGENT.format(lab=self.lab))
        self.agent.chmod(0o755)
        namespaces.add(self._switch)
        for number in range(self._links):
            bridge = ["name", f"br{number}", "type", "bridge", "mcast_snooping", "0"]
            run("ip", "-n", self._switch, "link", "add", *bridge)
            run("ip", "-n", self._switch, "link", "set", f"br{number}", "up")
        for host in self.names:
            self._make_host(host)
        if self._congestion is not None:
            self.use_congestion_control(self._congestion)

    def _make_host(self, host: str) -> None:
        space = self.namespace(host)
        # `ip netns exec` mounts it over /etc.
        etc = namespaces.ETC / space
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(self._names_of_hosts())
        namespaces.add(space)
        keep = "/proc/sys/net/ipv6/conf/all/keep_addr_on_down"
        run("ip", "netns", "exec", space, "sh", "-c", 'test ! -e "$0" || echo 1 > "$0"', keep)
        for number in range(self._links):
            self._connect(host, number)

    def _connect(self, host: str, number: int) -> None:
        link = self.link(host, number)
        inner, outer = link.inner, link.outer
        pair = ["type", "veth", "peer", "name", inner.interface, "netns", inner.namespace]
        run("ip", "-n", outer.namespace, "link", "add", "name", outer.interface, *pair)
        outer.link("master", f"br{number}", "up")
        inside = ["ip", "-n", inner.namespace, "addr", "add"]
        if not self._ipv6:
            run(*inside, f"{self.ipv4(host, number)}/24", "dev", inner.interface)
        run(*inside, f"{self.ipv6(host, number)}/64", "dev", inner.interface, "nodad")
        inner.link("up")
        if self._rate is not None:
            link.shape(self._rate)

    def _names_of_hosts(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for host in self.names:
            lines.append(f"{self.address(host)} {host}")
            lines += [f"{self.address(host, n)} {host}-eth{n}" for n in range(self._links)]
        return "\n".join(lines) + "\n"


def _late(outer: End) -> str:
    """Returns the name of the interface behind a delay line."""
    return f"{outer.interface}.late"
