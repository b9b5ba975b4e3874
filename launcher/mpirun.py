"""Finds Open MPI's mpirun and builds its command line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cores import usable_cores
from .environment import forwarded_by_default, without_identity
from .errors import LaunchError
from .hosts import format_hosts, total_slots
from .job import Job
from .mpirun_ends import reporting

_VERSION = re.compile(r"\(Open MPI\) (\d+)\.([\w.]+)")
# If one of these is set, mpirun takes hosts and slots from the batch system.
_BATCH_SYSTEMS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")


@dataclass(frozen=True)
class Mpirun:
    """An mpirun of Open MPI."""

    path: str
    major: int
    version: str

    @property
    def tag_separator(self) -> bytes:
        """The text between the tag of an output line and the line itself."""
        return b" " if self.major >= 5 else b""


@dataclass(frozen=True)
class MpirunOptions:
    """The user's settings for mpirun itself."""

    bind_to: str = "none"
    map_by: str = ""
    oversubscribe: bool = False
    ulfm: bool = False
    extra: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """The user's flags that have an effect only under mpirun."""
        given = {
            "--bind-to": self.bind_to != "none",
            "--map-by": self.map_by,
            "--ulfm": self.ulfm,
            "--mpi-args": self.extra,
        }
        return [flag for flag, is_given in given.items() if is_given]


def find_mpirun(environment: Mapping[str, str] = os.environ) -> str | None:
    """Finds the mpirun of RUEDA_MPI_LIBRARY, of this Python's environment, or on the PATH."""
    library = environment.get("RUEDA_MPI_LIBRARY", "")
    # /usr/lib/x86_64-linux-gnu/libmpi.so.40 belongs to /usr/bin/mpirun.
    prefixes = Path(library).absolute().parents if library else []
    for folder in [*(prefix / "bin" for prefix in prefixes), Path(sys.executable).parent]:
        if found := shutil.which(folder / "mpirun"):
            return str(found)
    return shutil.which("mpirun")


def provide_home() -> None:
    """Sets HOME, without which Open MPI does not start, to what the system's list of users says.

    Init systems and `env -i` leave it out. Open MPI loads plug-ins named below it, so it must not be a folder that
    others may write to.
    """
    home = Path(os.environ.get("HOME") or os.path.expanduser("~"))
    by_others = stat.S_IWGRP | stat.S_IWOTH
    if "HOME" not in os.environ and home.is_dir() and not _may_write(by_others, home):
        os.environ["HOME"] = str(home)


def _may_write(others: int, folder: str | Path) -> bool:
    """As in csrc/mpi/init_environment.cpp. `others`: bits of the folder's mode."""
    try:
        return bool(os.stat(folder).st_mode & others)
    except OSError:
        return False


def changed_variables(job: Job | None = None) -> dict[str, str]:
    """What mpirun's environment has otherwise than this one: no home in which anybody could place files for MPI.

    With HOME=/tmp, as in some containers, Open MPI would load what any user of the host has named there. The ranks get
    the user's own HOME; on several hosts mpirun cannot give each rank its own, and keeps it.
    """
    is_here = job is None or is_on_this_host(job)
    is_open = _may_write(stat.S_IWOTH, os.environ.get("HOME", ""))
    return {"HOME": os.devnull} if is_here and is_open else {}


def inspect_mpirun(path: str, is_needed: bool = True) -> Mpirun:
    """Asks an mpirun for its version. Raises LaunchError if it is not Open MPI's.

    `is_needed`: whether the user has asked for mpirun. If not, the error names --no-mpi.
    """
    try:
        answer = subprocess.run(
            [path, "--version"],
            env={**os.environ, **changed_variables()}, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "" if is_needed else "; use --no-mpi"
        raise LaunchError(f"'{path} --version' failed: {error}{remedy}") from error
    text = answer.stdout + answer.stderr
    if answer.returncode != 0:
        raise LaunchError(_why_no_version(path, answer.returncode, text, is_needed))
    match = _VERSION.search(text)
    if match is None:
        raise LaunchError(
            f"'{path}' is not Open MPI's mpirun; install Open MPI 4.1 or newer, name its mpirun "
            "with --mpirun, or use --no-mpi on a single host"
        )
    return Mpirun(path, int(match[1]), f"{match[1]}.{match[2]}")


def _why_no_version(path: str, code: int, text: str, is_needed: bool) -> str:
    lines = [line.strip() for line in text.splitlines()]
    said = next((line for line in lines if any(map(str.isalnum, line))), "it printed nothing")
    remedies = ["set HOME"] if "home directory" in text.lower() else []
    remedies += [] if is_needed else ["use --no-mpi"]
    remedy = "; " + " or ".join(remedies) if remedies else ""
    return f"'{path} --version' failed with exit code {code}: {said}{remedy}"


def is_batch_job() -> bool:
    """Whether a batch system has granted hosts, which mpirun uses by default."""
    return any(name in os.environ for name in _BATCH_SYSTEMS)


def is_on_this_host(job: Job) -> bool:
    """Whether mpirun starts all of the job's ranks here."""
    return job.is_local and not is_batch_job()


def _needs_oversubscription(job: Job, options: MpirunOptions) -> bool:
    if options.oversubscribe:
        return True
    if job.hosts:
        return job.ranks > total_slots(job.hosts)
    return not is_batch_job() and job.ranks > usable_cores()


def _mapping(mpirun: Mpirun, options: MpirunOptions, oversubscribe: bool) -> list[str]:
    map_by = options.map_by
    arguments = []
    if oversubscribe and mpirun.major >= 5:
        # In Open MPI 5, --oversubscribe is a deprecated spelling of this.
        qualifiers = map_by.upper().split(":")[1:]
        if not any("OVERSUBSCRIBE" in qualifier.split(",") for qualifier in qualifiers):
            policy_colons = 2 if map_by.lower().startswith("ppr:") else 0
            map_by += (":" if map_by.count(":") == policy_colons else ",") + "OVERSUBSCRIBE"
    elif oversubscribe:
        arguments.append("--oversubscribe")
    if map_by:
        arguments += ["--map-by", map_by]
    return arguments


def _variables(job: Job) -> list[str]:
    names = set(job.forward)
    if not job.is_local:
        names.update(forwarded_by_default(without_identity(os.environ)))
    settings = {name: os.environ[name] for name in changed_variables(job)} | dict(job.settings)
    arguments: list[str] = []
    for name in sorted(names - set(settings)):
        arguments += ["-x", name]
    for name, value in settings.items():
        arguments += ["-x", f"{name}={value}"]
    return arguments


def has_no_input() -> bool:
    """Whether the launcher's own standard input is empty or, being a terminal, not passed on to mpirun."""
    try:
        kind = os.fstat(0)
    except OSError:  # it is closed
        return False
    is_null = stat.S_ISCHR(kind.st_mode) and kind.st_rdev == os.stat(os.devnull).st_rdev
    return is_null or os.isatty(0)


def _input(mpirun: Mpirun, options: MpirunOptions) -> list[str]:
    # Open MPI 5 never shows rank 0 the end of an input that it passes on, even of an empty one.
    is_asked = any(word.lstrip("-") == "stdin" for word in options.extra)
    return ["--stdin", "none"] if mpirun.major >= 5 and has_no_input() and not is_asked else []


def may_lose_ranks(job: Job, options: MpirunOptions) -> bool:
    """Whether mpirun lets the other ranks go on when one is lost. It then ends with 0 whatever becomes of them."""
    return options.ulfm or job.recovers


def shown_line(argv: Sequence[str], job: Job) -> str:
    """What --dry-run shows for the command line `argv`."""
    changed = [f"{name}={value}" for name, value in changed_variables(job).items()]
    return shlex.join([*(["env", *changed] if changed else []), *argv])


def command_line(mpirun: Mpirun, job: Job, options: MpirunOptions) -> list[str]:
    """The whole command line, ready to run or print."""
    on_path = shutil.which("mpirun") == mpirun.path
    argv = ["mpirun" if on_path else mpirun.path, "-np", str(job.ranks)]
    if job.hosts:
        argv += ["-H", format_hosts(job.hosts)]
    argv += ["--bind-to", options.bind_to]
    argv += _mapping(mpirun, options, _needs_oversubscription(job, options))
    argv += ["--output", "tag"] if mpirun.major >= 5 else ["--tag-output"]
    argv += _input(mpirun, options)
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    command = job.command
    if may_lose_ranks(job, options):
        command = tuple(reporting(job.command))
        if mpirun.major < 5:
            what = "--ulfm" if options.ulfm else "RUEDA_RECOVERY=on"
            raise LaunchError(f"{what} needs Open MPI 5; {mpirun.path} is {mpirun.version}")
        argv += ["--with-ft", "ulfm"]
    if job.recovers:
        argv += ["--runtime-options", "error-nonzero-status=false"]
        # Open MPI's hierarchical collectives fail after a failure (open-mpi/ompi issue 13915).
        argv += ["--mca", "coll", "^han"]
    return [*argv, *_variables(job), *options.extra, *command]
