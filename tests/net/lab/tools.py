"""Runs the programs that the lab is made with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

# Where Debian keeps ip, tc, nft and sshd; not on every user's PATH.
_SYSTEM = "/usr/sbin:/sbin"
_TIMEOUT = 30


class Unavailable(Exception):
    """Something that the lab needs is not there or not allowed; the text says what."""


def find(program: str) -> str | None:
    """Where the program is, if it is installed."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + os.pathsep + _SYSTEM)


def run(*line: str, text: str | None = None) -> str:
    """Runs a program that must succeed; returns what it printed."""
    path = find(line[0])
    if path is None:
        raise Unavailable(f"needs {line[0]}, which is not installed")
    done = subprocess.run(
        [path, *line[1:]], input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"'{' '.join(line)}' failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def try_to(line: Sequence[str]) -> None:
    """Runs a program that may fail because what it removes is gone already."""
    subprocess.run(
        [find(line[0]) or line[0], *line[1:]], capture_output=True, timeout=_TIMEOUT, check=False
    )
