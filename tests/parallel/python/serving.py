"""A rank that outlives its scripts: it runs the scripts and checks that a test requests.

The test listens at the socket ``CHECKS_SOCKET`` and sends lines of JSON. ``script`` starts a
script, which runs as ``__main__``. When the script calls ``run``, each ``check`` runs one of its
checks, and ``end`` lets it run to its end. Every answer has ``error``: a traceback, or empty.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_test: Connection | None = None


class Connection:
    """The connection to the test."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r")

    def send(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Returns the next request; empty if there are no more."""
        return json.loads(self._lines.readline() or "{}")


def requested(names: list[str]) -> Iterator[str]:
    """The checks to run: requested by the test, else on the command line, else all."""
    assert names, "nothing to check"
    if _test is None:
        yield from [name for name in names if name in sys.argv[1:] or not sys.argv[1:]]
        return
    while name := _test.receive().get("check"):
        assert name in names, f"there is no {name}"
        yield name
        _test.send(error="")  # the check and the barrier after it have returned


def serve(connection: Connection, rank: int) -> None:
    """Runs scripts until the test leaves or one fails, which makes the world unusable."""
    global _test
    sys.modules["serving"] = sys.modules["__main__"]  # scripts that import serving get this module
    _test = connection
    connection.send(rank=rank)
    before = dict(os.environ)
    while request := connection.receive():
        os.environ.update(request["environment"])
        sys.argv = [request["script"], *request["arguments"]]
        error = told(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))
        connection.send(error=error)
        if error:
            sys.exit(1)
        for name in request["environment"].keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        forget_scripts()


def told(act: Callable[[], Any]) -> str:
    """Returns the traceback of what ``act`` raises, or nothing."""
    try:
        act()
    except BaseException:
        return traceback.format_exc()
    return ""


def forget_scripts() -> None:
    """Forgets the modules that scripts share: they may read the environment when imported."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and Path(path).parent == HERE and Path(path) != Path(__file__).resolve():
            del sys.modules[name]


if __name__ == "__main__":
    launchers = ("RUEDA_RANK", "OMPI_COMM_WORLD_RANK")
    my_rank = int(next(os.environ[name] for name in launchers if name in os.environ))
    serve(Connection(os.environ.pop("CHECKS_SOCKET")), my_rank)
