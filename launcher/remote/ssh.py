"""Command lines that start a process on another host, and the meaning of their failures."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from ..errors import LaunchError
from ..failure import Failure
from ..job import job_folder
from .address import bare

# The launcher's process on a host.
MODULE = "rueda.launcher.remote.host"
# Never prompts, leaves no master connection behind, and notices a lost host.
_OPTIONS = (
    "BatchMode=yes",
    "ControlMaster=no",
    "ForwardX11=no",
    "LogLevel=ERROR",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=3",
)
# A shell's exit code for a program that was not found.
_NOT_FOUND = 127


def command_here() -> list[str]:
    """The command that starts the process on the launcher's own host."""
    return ["sh", "-c", command_there()]


def command_there() -> str:
    """The command for another host's shell, with the same Python and the same path to Rueda."""
    words = [sys.executable, "-m", MODULE]
    path = os.environ.get("PYTHONPATH")
    if path:
        absolute = os.pathsep.join(map(_absolute, filter(None, path.split(os.pathsep))))
        words = [f"PYTHONPATH={absolute}", *words]
    # Not in a folder that may contain something called rueda.
    return "cd / && exec env " + shlex.join(words)


def _absolute(path: str) -> str:
    # Not normalized: `..` leads out of the folder itself, not out of a link to it.
    return path if os.path.isabs(path) else os.path.join(job_folder(), path)


def agent_words(agent: str) -> list[str]:
    """The program that reaches other hosts, and its arguments. Raises LaunchError."""
    try:
        words = shlex.split(agent)
    except ValueError as error:
        raise LaunchError(f"--ssh: {error}") from error
    if not words:
        raise LaunchError("--ssh: name a program that runs a command on a host, as ssh does")
    return words


def command_line(agent: Sequence[str], host: str, timeout: float) -> list[str]:
    """The command that starts the process on another host. `timeout`: seconds for ssh to connect."""
    words = list(agent)
    if os.path.basename(words[0]) == "ssh":  # the user's options come first and take precedence
        words.append("-T")  # a terminal, as with RequestTTY in ssh_config, would alter the bytes
        for option in (*_OPTIONS, f"ConnectTimeout={max(1, round(timeout))}"):
            words += ["-o", option]
    return [*words, bare(host), command_there()]


def why_not_reached(agent: str, status: int, said: str) -> str:
    """The end of a sentence about a process that ended before hello, such as "cannot be reached: ..."."""
    program = os.path.basename(agent)
    how = Failure(0, status).describe_status()
    last_line = said.strip().rpartition("\n")[2].strip()
    because = f": {last_line}" if last_line else ""
    if status == _NOT_FOUND:
        return (
            f"has no {sys.executable}{because}; every host needs the same Python environment at "
            "the same place"
        )
    if status == 255 or status < 0:  # ssh itself failed
        return f"cannot be reached{because} ({program}: {how})"
    return (
        f"could not run Rueda with {sys.executable}{because} ({how}); every host needs the same "
        "Python environment at the same place"
    )
