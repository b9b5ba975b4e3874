"""Loads shared objects in processes of their own, so that what they do then harms nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_DEADLINE = 20
# Bytes of an answer: a pipe holds as many.
_MOST = 1 << 16

# What a process of Open MPI says itself, and the notice that ends it if that is during MPI_Init.
_SAID = re.compile(r"\[\S+:\d+\] (.+)").match
_NOTICES = ("***", "---")
_ABORTED = re.compile(r"\[\S+:\d+\] Local abort before MPI_INIT")

# The answer has a pipe of its own, since a library that is loaded may print. What it starts does not inherit that.
_PRELUDE = """
import json, os
os.set_inheritable({0}, False)
def answer(value):
    os.write({0}, json.dumps(value).encode())
"""


def probe(script: str, *arguments: str) -> Any:
    """Runs a Python script that calls `answer()` with a value JSON can hold; returns that value.

    Whatever else the script prints is dropped. Raises OSError with what went wrong.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)  # a process left behind may hold the other end
    with open(read_end, "rb", buffering=0) as told:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PRELUDE.format(write_end) + script, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                pass_fds=(write_end,),
                timeout=_DEADLINE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"loading it took more than {_DEADLINE} s") from error
        finally:
            os.close(write_end)
        text = told.read(_MOST)
    if done.returncode != 0:
        said = _reason_in(done.stderr)
        raise OSError(said or f"loading it ended with status {done.returncode}")
    try:
        return json.loads(text or b"")
    except ValueError as error:
        raise OSError("loading it ended the process early") from error


def _reason_in(stderr: str) -> str:
    """The last line; of an Open MPI that has given up, what it said before the notices that it always ends with."""
    lines = stderr.strip().splitlines()
    if lines and _ABORTED.match(lines[-1]):
        said = [found[1] for found in map(_SAID, lines[:-1]) if found]
        lines = said or [line for line in lines[:-1] if not line.startswith(_NOTICES)]
    return lines[-1] if lines else ""


def ldconfig(name: str) -> list[Path]:
    """Where the system's loader would find `name` or `name.N`."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            listing = subprocess.run(
                [program, "-p"], capture_output=True, text=True, timeout=_DEADLINE, check=False
            ).stdout
        except OSError:
            continue
        found = []
        for line in listing.splitlines():
            entry, _, path = line.strip().partition(" => ")
            file = entry.split(" ")[0]
            if path and (file == name or file.startswith(name + ".")):
                found.append(Path(path))
        return found
    return []
