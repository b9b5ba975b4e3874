"""The variables of ranks: set by flags, set by the launcher, or forwarded to other hosts."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping

from .errors import LaunchError

# Variables forwarded to other hosts. Ranks on this host inherit everything.
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

# Variables that identify a rank. Left over from an outer launch, they would mislead the inner one.
_IDENTITY = re.compile(
    r"OMPI_COMM_WORLD_|OMPI_UNIVERSE_|PMIX_|PMI_|PRTE_|ORTE_|TORCHELASTIC_RUN_ID$|"
    r"(RUEDA|HOROVOD)_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE)$|"
    r"RUEDA_(RENDEZVOUS|RENDEZVOUS_LISTENER|RENDEZVOUS_STORE|SECRET|LAUNCHER|OUTER_STEP|ELASTIC|JOINER)$"
)

# Tells ranks in which step of Slurm their launcher runs, so that they recognise one begun within them; see
# csrc/membership/launch.cpp.
OUTER_STEP = "RUEDA_OUTER_STEP"

# The number of compute threads of a rank, read by OpenMP, MKL and torch.
THREADS = "OMP_NUM_THREADS"

# A valid name of a variable.
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
    """The names in `environment` that are forwarded to other hosts by default."""
    return sorted(
        name
        for name in environment
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _FORWARDED)
        and not _IDENTITY.match(name)
    )


def without_identity(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the variables with which an outer launcher has identified this process.

    Of a step of Slurm they remain, since programs may ask for them; `OUTER_STEP` says that it is an outer one.
    """
    own = {name: value for name, value in environment.items() if not _IDENTITY.match(name)}
    if is_rank(environment):  # also drops that rank's bootstrap settings
        own.pop("RUEDA_BOOTSTRAP", None)
    if step := environment.get("SLURM_STEP_ID"):
        own[OUTER_STEP] = f"{environment.get('SLURM_JOB_ID', '')}.{step}"
    return own


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether a process with these variables is a rank started by a launcher."""
    return any(
        name in environment for name in ("RUEDA_RANK", "RUEDA_JOINER", "OMPI_COMM_WORLD_RANK")
    )


def choice_of(name: str, variables: Mapping[str, str]) -> str:
    """The value of a variable as the library reads it: in lower case; "" if it is empty or not set."""
    return variables.get(name, "").lower()


def threads_per_rank(cores: int, ranks_here: int) -> int:
    """The default of OMP_NUM_THREADS: the ranks of a host share its cores."""
    return max(1, cores // ranks_here)
