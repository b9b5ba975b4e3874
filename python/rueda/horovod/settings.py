"""The HOROVOD_* variables that are more than another name of one of Rueda's options.

Those that mean the same as an option are read by the core (docs/options.md). Here are the rest: what sets an option
in another way of writing, and what has no effect, with the reason.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["UNUSED", "defaults", "overrides", "understood", "warn_of_unused"]

_NO = {"", "0", "false", "no", "off"}

# Variable: why nothing depends on it. An empty reason: what it asks for is so anyway.
UNUSED: dict[str, str] = {
    "HOROVOD_CYCLE_TIME": "",  # there are no cycles: a submission wakes whoever works on it
    "HOROVOD_DYNAMIC_PROCESS_SETS": "",  # always on
    "HOROVOD_CONTROLLER": "",
    "HOROVOD_CPU_OPERATIONS": "",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "the algorithm follows what is measured, see RUEDA_ALGORITHM",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "the algorithm follows what is measured, see RUEDA_ALGORITHM",
    "HOROVOD_TORUS_ALLREDUCE": "the algorithm follows what is measured, see RUEDA_ALGORITHM",
    "HOROVOD_AUTOTUNE": "Rueda measures once at init and does not tune while it runs",
    "HOROVOD_THREAD_AFFINITY": "Rueda's thread is not bound; use the launcher's --bind-to",
    "HOROVOD_MPI_THREADS_DISABLE": "Rueda asks MPI for what it needs",
    "HOROVOD_NUM_NCCL_STREAMS": "each process set has streams of its own",
    "HOROVOD_DISABLE_GROUP_FUSION": "groups may be fused with other tensors",
}


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() not in _NO


def overrides(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Options for ``rueda.init()`` that follow from HOROVOD_* variables; a RUEDA_* variable wins over them.

    Example::

        >>> overrides({"HOROVOD_STALL_CHECK_DISABLE": "1"})
        {'stall_warning': '0', 'stall_error': '0'}
    """
    options: dict[str, str] = {}
    if _is_set(environment, "HOROVOD_STALL_CHECK_DISABLE"):
        options.update(stall_warning="0", stall_error="0")
    if environment.get("HOROVOD_LOG_LEVEL", "").lower() == "fatal":
        options["log_level"] = "error"  # the highest level that Rueda has
    return {name: v for name, v in options.items() if not environment.get(_variable(name))}


# What Horovod does where Rueda by itself does otherwise.
_DEFAULTS = {"join_average": "all"}


def defaults(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Options with which Rueda does as Horovod does; variables of Rueda's win."""
    return {name: v for name, v in _DEFAULTS.items() if not environment.get(_variable(name))}


def _variable(option: str) -> str:
    return f"RUEDA_{option.upper()}"


@contextmanager
def understood() -> Iterator[dict[str, str]]:
    """Within it the core finds no variable that it would misunderstand; gives the options that follow from them."""
    options = overrides()
    strange = []
    if os.environ.get("HOROVOD_LOG_LEVEL", "").lower() == "fatal":
        strange.append("HOROVOD_LOG_LEVEL")
    if os.environ.get("HOROVOD_TIMELINE") == "DYNAMIC":  # start_timeline() will be called
        strange.append("HOROVOD_TIMELINE")
    hidden = {name: os.environ.pop(name) for name in strange}
    try:
        yield options
    finally:
        os.environ.update(hidden)


def warn_of_unused(environment: Mapping[str, str] = os.environ) -> None:
    """Says which variables ask for something that Rueda does not do."""
    for name, why in UNUSED.items():
        if why and _is_set(environment, name):
            warnings.warn(f"{name} has no effect: {why}", stacklevel=3)
