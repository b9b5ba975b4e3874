"""Hosts and their slots, from `-H a:2,b:2` or from a hostfile."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import MAX_QUOTED, LaunchError, quoted

# A name, an IPv4 address, or an IPv6 address in brackets. No name in the DNS has more than 253 letters.
_NAME = r"(?P<name>\[[0-9A-Fa-f:.%\w]{1,253}\]|[A-Za-z0-9_][A-Za-z0-9_.\-]{0,252})"
_HOST = re.compile(_NAME + r"(?::(?P<slots>\d{0,9}))?")
_HOSTFILE_LINE = re.compile(
    _NAME
    + r"(?::(?P<colon>\d{1,9})|\s+slots\s*=\s*(?P<slots>\d{0,9}))?(?:\s+max[-_]slots\s*=\s*\d+)?"
)


@dataclass(frozen=True)
class Host:
    """A machine and the number of ranks that may run on it."""

    name: str
    slots: int

    def __str__(self) -> str:
        """As in `-H`."""
        return f"{self.name}:{self.slots}"

    @property
    def is_local(self) -> bool:
        """Whether this is the machine that the launcher runs on."""
        here = socket.gethostname()
        return self.name in {"localhost", "127.0.0.1", "[::1]", here, here.split(".")[0]}


def _not_a_host(place: str, text: str, example: str) -> LaunchError:
    user, at, name = text.partition("@")
    if user and at and len(user) <= MAX_QUOTED and re.match(_NAME, name):
        return LaunchError(
            f"{place}: {quoted(text)} names a user; write the host alone, and name the user with "
            f"--ssh 'ssh -l {user}' or, for one host, in ~/.ssh/config"
        )
    return LaunchError(f"{place}: {quoted(text)} {example}")


def _host(name: str, slots: str | None, place: str, example: str) -> Host:
    if not slots:
        raise LaunchError(
            f"{place}: host '{name}' has no number of slots; write '{example.format(name)}' "
            "with the number of ranks that may run there"
        )
    if int(slots) == 0:
        raise LaunchError(f"{place}: host '{name}' has 0 slots; leave it out or give it at least 1")
    return Host(name, int(slots))


def merge_hosts(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Each host once. A host that is named several times gets the sum of its slots."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return tuple(Host(name, number) for name, number in slots.items())


def _merged(hosts: Iterable[Host], place: str) -> tuple[Host, ...]:
    merged = merge_hosts(hosts)
    if not merged:
        raise LaunchError(f"{place} names no host")
    return merged


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parses `a:2,b:2`. A host that is named twice gets the sum of its slots."""
    hosts = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _HOST.fullmatch(part)
        if match is None:
            raise _not_a_host("-H", part, "is not a host; write 'name:slots'")
        hosts.append(_host(match["name"], match["slots"], "-H", "{}:2"))
    return _merged(hosts, "-H")


def parse_hostfile(path: Path) -> tuple[Host, ...]:
    """Parses lines `host slots=2` (as for Open MPI and Horovod) or `host:2`. `#` starts a comment."""
    try:
        # Editors of other systems begin a file with a byte order mark.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise LaunchError(f"--hostfile: cannot read '{path}': {reason}") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        place = f"{path}, line {number}"
        match = _HOSTFILE_LINE.fullmatch(text)
        if match is None:
            raise _not_a_host(place, text, "is not understood; write 'name slots=2'")
        hosts.append(_host(match["name"], match["slots"] or match["colon"], place, "{} slots=2"))
    return _merged(hosts, str(path))


def parse_host_line(script: str, line: str, default_slots: int | None) -> Host:
    """Parses a line of a discovery script: `host:2`, or `host` for `default_slots`."""
    match = _HOST.fullmatch(line)
    if match is None:
        raise LaunchError(
            f"'{script}' has printed {quoted(line)}, which is not a host; print 'name:slots'"
        )
    slots = match["slots"] or (str(default_slots) if default_slots else None)
    if slots is not None and int(slots) == 0:
        return Host(match["name"], 0)
    return _host(match["name"], slots, f"'{script}'", "{}:2")


def format_hosts(hosts: Iterable[Host]) -> str:
    """The argument of `-H` that parses to `hosts`."""
    return ",".join(map(str, hosts))


def total_slots(hosts: Iterable[Host]) -> int:
    """The total number of slots."""
    return sum(host.slots for host in hosts)
