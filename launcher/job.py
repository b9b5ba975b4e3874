"""A job: what to run, checked before anything starts."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .environment import choice_of
from .errors import LaunchError
from .hosts import Host, total_slots

_PYTHON = re.compile(r"python(\d(\.\d+)?)?")

# Parts of a rank's identity that horovodrun also passes, under names of its own.
_WHO = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


@dataclass(frozen=True)
class Job:
    """A program, its number of ranks, its hosts, and its variables."""

    ranks: int
    command: tuple[str, ...]
    hosts: tuple[Host, ...] = ()  # empty: this host, or the hosts that a batch system has granted
    settings: Mapping[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()
    # Names of settings that the user has not given and that depend on this host's hardware.
    chosen: frozenset[str] = frozenset()
    # Whether the script is written for Horovod and looks for horovodrun's variables.
    for_horovod: bool = False

    def told(self, who: Mapping[str, str]) -> dict[str, str]:
        """The variables of a rank's identity, under all names that its script may look for."""
        names = [name for name in _WHO if self.for_horovod and f"RUEDA_{name}" in who]
        return {**who, **{f"HOROVOD_{name}": who[f"RUEDA_{name}"] for name in names}}

    @property
    def recovers(self) -> bool:
        """Whether the ranks go on without lost ranks."""
        return choice_of("RUEDA_RECOVERY", {**os.environ, **self.settings}) == "on"

    @property
    def is_local(self) -> bool:
        """Whether all ranks run on this host."""
        return all(host.is_local for host in self.hosts)

    @property
    def ranks_here(self) -> int:
        """The largest number of ranks on any host when hosts are filled in order."""
        if not self.hosts:
            return self.ranks
        if self.ranks > total_slots(self.hosts):  # oversubscribed: divided evenly
            return -(-self.ranks // len(self.hosts))
        return min(self.ranks, max(host.slots for host in self.hosts))


def check_ranks(ranks: int | None, hosts: Sequence[Host], oversubscribe: bool) -> int:
    """The number of ranks: as requested, or one per slot of the hosts."""
    slots = total_slots(hosts)
    if ranks is None:
        if not hosts:
            raise LaunchError("say how many ranks to run: -np N")
        return slots
    if ranks < 1:
        raise LaunchError(f"-np {ranks}: a job needs at least 1 rank")
    if hosts and ranks > slots and not oversubscribe:
        slot = "slot" if slots == 1 else "slots"
        raise LaunchError(
            f"-np {ranks} is more than the {slots} {slot} of the hosts; give them more slots, or "
            "--oversubscribe to share them"
        )
    return ranks


def search_path() -> str:
    """PATH. If it lacks this Python's folder (environment not activated), with that folder in front."""
    path = os.environ.get("PATH", os.defpath)
    folder = os.path.dirname(sys.executable)
    return path if folder in path.split(os.pathsep) else folder + os.pathsep + path


def job_folder() -> str:
    """The current folder, in which the job runs on every host, under the name by which the user entered it.

    That is PWD if it names this folder, as for mpirun and Slurm: a symbolic link, such as an automounted home, may
    lead to another place on each host. Raises OSError if the folder is gone.
    """
    here = os.getcwd()
    entered = os.environ.get("PWD", "")
    try:
        is_same = os.path.isabs(entered) and os.path.samefile(entered, here)
    except (OSError, ValueError):  # it is gone or may not be entered; ValueError for no valid path
        is_same = False
    return entered if is_same else here


def check_command(command: Sequence[str], local: bool) -> tuple[str, ...]:
    """The command, with a program that can be found. `local`: checks that on this host. Raises LaunchError."""
    if not local:
        return tuple(command)
    program, *arguments = command
    found = shutil.which(program, path=search_path())
    if found is None:
        raise LaunchError(_why_not_found(program))
    script = arguments[0] if arguments else "-"
    is_python = _PYTHON.fullmatch(os.path.basename(program)) is not None
    if is_python and not script.startswith("-") and not os.path.exists(script):
        if folder := _forbidden_folder(script):
            raise LaunchError(f"'{script}' cannot be reached: folder '{folder}' may not be entered")
        raise LaunchError(
            f"there is no file '{script}' for {program} to run{_similar_file(script)}"
        )
    # mpirun searches the PATH itself. Pass the full path only if it would find another program, or none.
    return tuple(command) if shutil.which(program) == found else (found, *arguments)


def _why_not_found(program: str) -> str:
    if os.path.isfile(program):
        if program.endswith(".py"):
            return f"'{program}' is a Python script: write 'rueda run … python {program}'"
        return f"'{program}' is not executable: chmod +x it"
    if os.path.isdir(program) and os.sep in program:
        return f"'{program}' is a folder, not a program"
    if os.sep in program:
        if folder := _forbidden_folder(program):
            return f"'{program}' cannot be reached: folder '{folder}' may not be entered"
        return f"there is no program '{program}'{_similar_file(program)}"
    folders = {folder: _names_in(folder) for folder in search_path().split(os.pathsep)}
    for folder, names in folders.items():
        path = os.path.join(folder, program)
        if program in names and not os.path.isdir(path):
            return f"'{path}' is on the PATH, but {_why_not_executable(path)}"
    others = {name for names in folders.values() for name in names if name != program}
    return f"there is no program '{program}' on the PATH{suggestion(program, others)}"


def _why_not_executable(path: str) -> str:
    """Of a program that is on the PATH; as the end of a sentence."""
    target = os.path.realpath(path)
    if folder := _forbidden_folder(target):
        return f"folder '{folder}' may not be entered"
    if not os.path.lexists(target):
        return f"'{target}', to which it leads, does not exist"
    what = f"'{target}', to which it leads" if os.path.islink(path) else "it"
    return f"this user may not execute {what}"


def _similar_file(path: str) -> str:
    folder, name = os.path.split(path)
    return suggestion(name, _names_in(folder or "."))


def _names_in(folder: str) -> list[str]:
    """The names in the folder; empty if it is not a readable folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _forbidden_folder(path: str) -> str:
    """The first folder on the way to `path` that this user may not enter, or ""."""
    folders = [str(folder) for folder in reversed(Path(path).parents)]
    return next((f for f in folders if os.path.isdir(f) and not os.access(f, os.X_OK)), "")


def suggestion(name: str, names: Sequence[str] | set[str], cutoff: float = 0.75) -> str:
    """The nearest of the names, as the end of a sentence; "" if none is near."""
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=cutoff)
    return f"; did you mean '{close[0]}'?" if close else ""
