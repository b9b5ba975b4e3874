"""Runs the programs that make the lab."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

# Debian keeps ip, tc, nft and sshd there; not every user's PATH has it.
_SYSTEM = "/usr/sbin:/sbin"
_TIMEOUT = 30


class Unavailable(Exception):
    """The lab needs something that is missing or not permitted; the text says what."""


def find(program: str) -> str | None:
    """Returns the program's path, or None if it is not installed."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + os.pathsep + _SYSTEM)


def run(*line: str, text: str | None = None) -> str:
    """Runs a program that must succeed; returns its output."""
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
    """Runs a program that may fail because the object it removes is already gone."""
    subprocess.run(
        [find(line[0]) or line[0], *line[1:]], capture_output=True, timeout=_TIMEOUT, check=False
    )
