"""Loads shared objects in processes of their own, so that what they do then harms nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_DEADLINE = 20


def probe(script: str, *arguments: str) -> Any:
    """Runs a Python script that prints JSON; raises OSError with what went wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"loading it took more than {_DEADLINE} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise OSError(lines[-1] if lines else f"loading it ended with status {done.returncode}")
    return json.loads(done.stdout)


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
