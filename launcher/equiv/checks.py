"""Finds what would make runs fail, before the first training."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rueda.equivalence.strategy_names import NAMES

from ..errors import LaunchError
from ..native import load_native
from ..option_flags import option_flags
from ..run import make_run_command
from ..sink import say
from .plan import Plan, Planned, Way

__all__ = ["check_launch", "check_strategies", "check_variables"]

# Flags of mpirun that set the number of ranks. It follows the last one, and those of --mpi-args come last.
_SIZES_OF_MPIRUN = frozenset(["-np", "--np", "-n", "--n", "-c"])

# Seconds for what takes a few; a check that does not end leaves the matter to the runs.
_TIMEOUT = 120.0


def check_strategies(plan: Plan) -> None:
    """Raises LaunchError for a strategy of Rueda's with invalid parameters. Names those that are not Rueda's.

    A script may have strategies of its own, and there may be no torch here: then the runs tell.
    """
    reference = plan.reference
    texts = {reference.strategy: f"--reference {reference.ranks}:{reference.strategy}"}
    texts |= {way.strategy: f"--strategy {way.strategy}" for way in plan.candidates}
    for text, given in texts.items():
        name = text.partition(":")[0].strip()
        if name not in NAMES:
            say(f"{given}: '{name}' is none of Rueda's strategies, so the script must know it")
    asked = [text for text in texts if text != "sync" and text.partition(":")[0].strip() in NAMES]
    if not asked:
        return
    # In a process of its own, as importing torch takes memory for as long as this one lives.
    command = [sys.executable, "-m", "rueda.launcher.equiv.strategy_check", *asked]
    found = _run(command)
    if found is not None and found.returncode == 1 and found.stdout.strip():
        problem = found.stdout.strip().splitlines()[-1]
        if problem.startswith(f"--strategy {reference.strategy}: "):
            problem = problem.replace(
                f"--strategy {reference.strategy}", texts[reference.strategy], 1
            )
        raise LaunchError(problem)


def check_variables(ways: Iterable[Way]) -> None:
    """Raises LaunchError for a value that one of Rueda's options does not have, and for an unknown RUEDA_ variable."""
    native = load_native()
    flags = {flag.environment: flag for flag in option_flags(native.option_table)}
    for way in ways:
        for sentence in native.unknown_variables([name for name, _ in way.variables]):
            raise LaunchError(f"--variant {way.variant}: {sentence}")
        for name, value in way.variables:
            problem = flags[name].problem_of(value) if value and name in flags else ""
            if problem:
                raise LaunchError(f"--variant {way.variant}: {name}={value}: {problem}")


def check_launch(plan: Plan) -> None:
    """Raises LaunchError if --launch sets the number of ranks, or if `rueda run` refuses the way with the most ranks.

    It does so for want of slots, for example.
    """
    if not plan.launch:
        return
    _refuse_sizes(plan.launch)
    way = max((plan.reference, *plan.candidates), key=lambda each: each.ranks)
    flags = ["-np", str(way.ranks), *plan.launch, "--dry-run"]
    command = plan.settings(Planned(way, 0)).command
    found = _run([sys.executable, "-m", "rueda.launcher", "run", *flags, *command])
    if found is not None and found.returncode:
        said = found.stderr.strip().splitlines()[-1:] or ["rueda run does not start it"]
        raise LaunchError(f"{way}: {said[0].removeprefix('rueda: ')}")


def _refuse_sizes(launch: Sequence[str]) -> None:
    """Raises LaunchError for flags with which a run would not have as many ranks as it is judged for."""
    command = make_run_command(load_native())
    # What is wrong with other flags, `rueda run` says itself.
    context = command.make_context("run", [*launch, "command"], resilient_parsing=True)
    values = context.params
    if values.get("ranks") is not None:
        raise LaunchError(
            "--launch: leave out -np (-n, --num-proc): --np and --reference say how many ranks a run has"
        )
    if flag := _flag_of_nodes(values):
        raise LaunchError(
            f"--launch: leave out {flag}: each node would add its own ranks to those of --np; name the hosts with -H"
        )
    try:
        words = shlex.split(values.get("mpi_args") or "")
    except ValueError:
        return
    if found := _SIZES_OF_MPIRUN.intersection(words):
        raise LaunchError(
            f"--launch: leave out {min(found)} in --mpi-args: --np and --reference say how many ranks a run has"
        )


def _flag_of_nodes(values: Mapping[str, Any]) -> str:
    """The flag that makes a run a part of a job on several nodes, or ""."""
    if values.get("nodes") == 1:  # then the others have no effect
        return ""
    names = ("nodes", "node_rank", "rendezvous")
    return next(
        (f"--{name.replace('_', '-')}" for name in names if values.get(name) is not None), ""
    )


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
