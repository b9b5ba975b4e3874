"""The flags of `horovodrun`, for `rueda run`: what each one does here, or why it has no effect."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from .errors import LaunchError

PREFIX = "horovod_"


@dataclass(frozen=True)
class HorovodFlag:
    """One flag. It sets variables, stands for another flag, or is ignored or refused with a reason."""

    names: str  # as click takes them
    sets: Callable[[str], dict[str, str]] | None = None
    stands_for: tuple[str, str] | None = (
        None  # a flag of `rueda run`, and its value, or "" to pass this flag's value
    )
    ignored: str | None = None  # the reason; empty if it requests what is the case anyway
    refused: str = ""
    is_flag: bool = False
    values: int = 1
    help: str = ""

    @property
    def parameter(self) -> str:
        """Click's name of the flag's value."""
        return PREFIX + self.names.split()[0].strip("-").replace("-", "_")


def _variable(name: str) -> Callable[[str], dict[str, str]]:
    return lambda value: {name: value}


def _mebibytes(value: str) -> dict[str, str]:
    try:
        return {"RUEDA_FUSION_THRESHOLD": str(int(float(value) * (1 << 20)))}
    except ValueError:
        raise LaunchError(f"--fusion-threshold-mb {value}: give a number of MiB") from None


_CYCLES = "there are no cycles: each submission wakes the thread that processes it"
_MEASURED = "init measures which algorithm is fastest, see --algorithm"
_TUNING = "Rueda measures once at init and does not tune while it runs"
FLAGS = [
    HorovodFlag("--fusion-threshold-mb", sets=_mebibytes, help="--fusion-threshold, in MiB."),
    HorovodFlag(
        "--timeline-filename",
        sets=lambda path: {"RUEDA_TIMELINE": path, "RUEDA_TIMELINE_FORMAT": "horovod"},
        help="--timeline, --timeline-format horovod.",
    ),
    HorovodFlag(
        "--stall-check-warning-time-seconds",
        sets=_variable("RUEDA_STALL_WARNING"),
        help="--stall-warning.",
    ),
    HorovodFlag(
        "--stall-check-shutdown-time-seconds",
        sets=_variable("RUEDA_STALL_ERROR"),
        help="--stall-error.",
    ),
    HorovodFlag(
        "--no-stall-check",
        sets=lambda _: {"RUEDA_STALL_WARNING": "0", "RUEDA_STALL_ERROR": "0"},
        is_flag=True,
        help="--stall-warning 0 --stall-error 0.",
    ),
    HorovodFlag(
        "--gloo-timeout-seconds",
        sets=_variable("RUEDA_TRANSFER_TIMEOUT"),
        help="--transfer-timeout.",
    ),
    HorovodFlag("--start-timeout", sets=_variable("RUEDA_INIT_TIMEOUT"), help="--init-timeout."),
    HorovodFlag(
        "--network-interfaces --network-interface",
        sets=_variable("RUEDA_INTERFACE"),
        help="--interface.",
    ),
    HorovodFlag("--gloo", stands_for=("bootstrap", "rendezvous"), is_flag=True, help="--no-mpi."),
    HorovodFlag("--mpi", stands_for=("bootstrap", "mpi"), is_flag=True, help="--bootstrap mpi."),
    HorovodFlag("-hostfile", stands_for=("hostfile", ""), help="--hostfile."),
    HorovodFlag("--binding-args", stands_for=("mpi_args", ""), help="--mpi-args."),
    HorovodFlag("--stall-check", ignored="", is_flag=True),
    HorovodFlag("--disable-cache", ignored="", is_flag=True),
    HorovodFlag("--no-autotune", ignored="", is_flag=True),
    HorovodFlag("--cycle-time-ms", ignored=_CYCLES),
    HorovodFlag(
        "--timeline-mark-cycles",
        sets=lambda _: {"RUEDA_TIMELINE_CYCLES": "1"},
        is_flag=True,
        help="--timeline-cycles 1.",
    ),
    HorovodFlag(
        "--no-timeline-mark-cycles",
        sets=lambda _: {"RUEDA_TIMELINE_CYCLES": "0"},
        is_flag=True,
        help="--timeline-cycles 0.",
    ),
    HorovodFlag("--hierarchical-allreduce", ignored=_MEASURED, is_flag=True),
    HorovodFlag("--no-hierarchical-allreduce", ignored=_MEASURED, is_flag=True),
    HorovodFlag("--hierarchical-allgather", ignored=_MEASURED, is_flag=True),
    HorovodFlag("--no-hierarchical-allgather", ignored=_MEASURED, is_flag=True),
    HorovodFlag("--torus-allreduce", ignored=_MEASURED, is_flag=True),
    HorovodFlag("--no-torus-allreduce", ignored=_MEASURED, is_flag=True),
    HorovodFlag("--autotune", ignored=_TUNING, is_flag=True),
    HorovodFlag("--autotune-log-file", ignored=_TUNING),
    HorovodFlag("--autotune-warmup-samples", ignored=_TUNING),
    HorovodFlag("--autotune-steps-per-sample", ignored=_TUNING),
    HorovodFlag("--autotune-bayes-opt-max-samples", ignored=_TUNING),
    HorovodFlag("--autotune-gaussian-process-noise", ignored=_TUNING),
    HorovodFlag("--num-nccl-streams", ignored="each process set has streams of its own"),
    HorovodFlag("--thread-affinity", ignored="Rueda's thread is not bound, see --bind-to"),
    HorovodFlag(
        "--mpi-threads-disable",
        ignored="Rueda requests the MPI thread level that it needs",
        is_flag=True,
    ),
    HorovodFlag("--no-mpi-threads-disable", ignored="", is_flag=True),
    HorovodFlag(
        "--tcp", ignored="Open MPI chooses the network; --mpi-args overrides it", is_flag=True
    ),
    HorovodFlag("--log-with-timestamp", ignored="messages have no timestamp", is_flag=True),
    HorovodFlag("--log-without-timestamp", ignored="", is_flag=True),
    HorovodFlag(
        "-prefix-timestamp --prefix-output-with-timestamp",
        ignored="output has no timestamps",
        is_flag=True,
    ),
    HorovodFlag("--log-hide-timestamp", ignored="", is_flag=True),
    HorovodFlag("--no-log-hide-timestamp", ignored="messages have no timestamp", is_flag=True),
    HorovodFlag("-cb --check-build", refused="run 'rueda check' instead", is_flag=True),
    HorovodFlag("--config-file", refused="give flags or RUEDA_* variables instead"),
    HorovodFlag("-p --ssh-port", refused="use --ssh 'ssh -p PORT'"),
    HorovodFlag("-i --ssh-identity-file", refused="use --ssh 'ssh -i FILE'"),
    HorovodFlag("--jsrun", refused="start the ranks with jsrun itself", is_flag=True),
    HorovodFlag(
        "--min-num-proc",
        sets=lambda value: {"RUEDA_MIN_NP": value, "RUEDA_RECOVERY": "on"},
        help="--min-np.",
    ),
    HorovodFlag("--max-num-proc", stands_for=("max_np", ""), help="--max-np."),
]


def add_horovod_flags(command: click.Command) -> None:
    """Adds the flags to a command. Only those that have an effect appear in its help."""
    for flag in FLAGS:
        command.params.append(
            click.Option(
                [*flag.names.split(), flag.parameter],
                is_flag=flag.is_flag,
                nargs=flag.values,
                default=False if flag.is_flag else None,
                help=flag.help,
                hidden=not flag.help,
            )
        )


def apply_horovod_flags(
    values: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the values with horovodrun's flags translated, and the variables that these flags set.

    Reports flags without effect with `say`. Raises LaunchError for flags that are refused or contradict each other.
    Rueda's own flags win.
    """
    changed = {name: v for name, v in values.items() if not name.startswith(PREFIX)}
    settings: dict[str, str] = {}
    for flag in FLAGS:
        value = values[flag.parameter]
        if value is None or value is False:
            continue
        name = flag.names.split()[-1]
        if flag.refused:
            raise LaunchError(f"{name} is not supported: {flag.refused}")
        if flag.ignored:
            say(f"{name} has no effect: {flag.ignored}")
        if flag.sets is not None:
            settings.update(flag.sets(str(value)))
        if flag.stands_for is not None:
            target, fixed = flag.stands_for
            _refuse_both(name, fixed, changed[target])
            if not changed[target]:
                changed[target] = fixed or _converted(target, value)
    return changed, settings


def _refuse_both(name: str, bootstrap: str, other: Any) -> None:
    """Raises LaunchError if one flag asks for MPI and another, with the value `other`, for the opposite."""
    if {bootstrap, other} == {"mpi", "rendezvous"}:
        words = {
            "mpi": "--bootstrap mpi",
            "rendezvous": "--no-mpi (--gloo, --bootstrap rendezvous)",
        }
        raise LaunchError(f"{name} contradicts {words[other]}: give one of them")


def _converted(target: str, value: Any) -> Any:
    """Converts the value of horovodrun's flag to that of the flag of `rueda run` it stands for."""
    if target == "hostfile":
        return Path(value)
    if target != "max_np":
        return value
    try:
        return int(value)
    except ValueError:
        raise LaunchError(f"--max-num-proc {value}: give a number of ranks") from None


def alias_path(inherited: str | None) -> str:
    """A PYTHONPATH with which `import horovod` imports Rueda. `inherited`: the previous value."""
    folder = Path(__file__).parents[1] / "horovod" / "alias" / "path"
    if not folder.is_dir():
        raise LaunchError(f"--horovod: {folder} is missing from the installation")
    return os.pathsep.join([str(folder), *([inherited] if inherited else [])])
