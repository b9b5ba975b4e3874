"""The congestion control of the connections in a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .tools import Unavailable, run

_IPV4 = Path("/proc/sys/net/ipv4")
_ALLOWED = _IPV4 / "tcp_allowed_congestion_control"
_AVAILABLE = _IPV4 / "tcp_available_congestion_control"


@contextmanager
def _allowed(name: str) -> Iterator[None]:
    """Lets namespaces choose `name`; a choice stays in effect after this is undone."""
    before = _ALLOWED.read_text()
    if name in before.split():
        yield
        return
    _ALLOWED.write_text(f"{before.strip()} {name}\n")
    try:
        yield
    finally:
        _ALLOWED.write_text(before)


def use_congestion_control(namespaces: list[str], name: str) -> None:
    """Sets the congestion control of new connections: reno, cubic or bbr."""
    if name not in _AVAILABLE.read_text().split():
        raise Unavailable(f"this kernel has no congestion control '{name}'")
    set_it = ["sh", "-c", 'echo "$0" > "$1"', name, str(_IPV4 / "tcp_congestion_control")]
    with _allowed(name):
        for namespace in namespaces:
            run("ip", "netns", "exec", namespace, *set_it)
