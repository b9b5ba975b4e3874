"""The HOROVOD_* variables that are not plain aliases of Rueda options.

The core reads plain aliases (docs/options.md). This module has the rest: variables whose value must be converted to an
option, and variables without effect, with the reason.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["UNUSED", "defaults", "overrides", "understood", "warn_of_unused"]

_NO = {"", "0", "false", "no", "off"}

# Variable: why it has no effect. Empty reason: Rueda behaves as requested anyway.
UNUSED: dict[str, str] = {
    "HOROVOD_CYCLE_TIME": "",  # there are no cycles: a submission wakes the thread that processes it
    "HOROVOD_DYNAMIC_PROCESS_SETS": "",  # always on
    "HOROVOD_CONTROLLER": "",
    "HOROVOD_CPU_OPERATIONS": "",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "init measures which algorithm is fastest, see RUEDA_ALGORITHM",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "init measures which algorithm is fastest, see RUEDA_ALGORITHM",
    "HOROVOD_TORUS_ALLREDUCE": "init measures which algorithm is fastest, see RUEDA_ALGORITHM",
    "HOROVOD_AUTOTUNE": "Rueda measures once at init and does not tune while it runs",
    "HOROVOD_THREAD_AFFINITY": "Rueda's thread is not bound; use the launcher's --bind-to",
    "HOROVOD_MPI_THREADS_DISABLE": "Rueda requests the MPI thread level that it needs",
    "HOROVOD_NUM_NCCL_STREAMS": "each process set has streams of its own",
    "HOROVOD_DISABLE_GROUP_FUSION": "groups may be fused with other tensors",
}


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() not in _NO


def overrides(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns options for ``rueda.init()`` from HOROVOD_* variables; RUEDA_* variables take precedence.

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


# Horovod's defaults that differ from Rueda's.
_DEFAULTS = {"join_average": "all"}


def defaults(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns options that give Rueda Horovod's defaults; RUEDA_* variables take precedence."""
    return {name: v for name, v in _DEFAULTS.items() if not environment.get(_variable(name))}


def _variable(option: str) -> str:
    return f"RUEDA_{option.upper()}"


@contextmanager
def understood() -> Iterator[dict[str, str]]:
    """Context that hides variables that the core would misread; yields the options that they imply."""
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
    """Warns of each set variable that Rueda does not support."""
    for name, why in UNUSED.items():
        if why and _is_set(environment, name):
            warnings.warn(f"{name} has no effect: {why}", stacklevel=3)
