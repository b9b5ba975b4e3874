"""The variables that ranks get: set by flags, set for them, or forwarded to other hosts."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping

from .errors import LaunchError

# Forwarded to other hosts; the ranks of this host inherit everything.
_FORWARDED = (
    "RUEDA_*",
    "HOROVOD_*",
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHON*",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "OMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "KMP_*",
    "NCCL_*",
    "CUDA_*",
    "TORCH_*",
    "PYTORCH_*",
)

# What tells a rank who it is. Left over from an outer launch, it would mislead the inner one.
_IDENTITY = re.compile(
    r"OMPI_COMM_WORLD_|OMPI_UNIVERSE_|PMIX_|PMI_|PRTE_|ORTE_|TORCHELASTIC_RUN_ID$|"
    r"(RUEDA|HOROVOD)_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE)$|"
    r"RUEDA_(RENDEZVOUS|RENDEZVOUS_LISTENER|RENDEZVOUS_STORE|SECRET|LAUNCHER|ELASTIC|JOINER)$"
)

# How many threads a rank computes with, as OpenMP, MKL and torch read it.
THREADS = "OMP_NUM_THREADS"

# What a variable may be called.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_forwards(arguments: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Splits the arguments of `-x` into names to forward and variables to set."""
    names: list[str] = []
    settings: dict[str, str] = {}
    for argument in arguments:
        name, is_setting, value = argument.partition("=")
        if not NAME.fullmatch(name):
            raise LaunchError(f"-x {argument}: write NAME or NAME=VALUE")
        if is_setting:
            settings[name] = value
        elif name in os.environ:
            names.append(name)
        else:
            raise LaunchError(f"-x {name}: {name} is not set here; write {name}=VALUE to set it")
    return tuple(names), settings


def forwarded_by_default(environment: Mapping[str, str]) -> list[str]:
    """The names in `environment` that other hosts get without being asked to."""
    return sorted(
        name
        for name in environment
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _FORWARDED)
        and not _IDENTITY.match(name)
    )


def without_identity(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without what an outer launcher has said about who this process is."""
    own = {name: value for name, value in environment.items() if not _IDENTITY.match(name)}
    if is_rank(environment):  # how that rank has met the others
        own.pop("RUEDA_BOOTSTRAP", None)
    return own


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether a process with these variables is a rank that a launcher has started."""
    return any(
        name in environment for name in ("RUEDA_RANK", "RUEDA_JOINER", "OMPI_COMM_WORLD_RANK")
    )


def choice_of(name: str, variables: Mapping[str, str]) -> str:
    """What a variable chooses, read as the library does: in lower case, and nothing where it is empty."""
    return variables.get(name, "").lower()


def threads_per_rank(cores: int, ranks_here: int) -> int:
    """OMP_NUM_THREADS where nobody has set it: the ranks of a host share its cores."""
    return max(1, cores // ranks_here)
