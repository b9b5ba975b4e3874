"""The command `rueda check`."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import TYPE_CHECKING

import click

from ..companion import run_to_end
from ..errors import LaunchError
from ..mpirun import provide_home
from ..native import Native
from .row import Row

if TYPE_CHECKING:
    from .report import Report

_EPILOG = """
\b
--json prints one object:
  schema       1; increases only when a field changes its meaning or is removed
  ready        whether a world can be formed
  components   by name, each with
    found        true or false
    version      text or null
    path         text or null
    note         a remark on what was found, or null
    why_not      the reason if found is false, else null
    what_to_do   text or null
With -H it prints this object instead:
  schema       1, as above
  ranks        how many
  hosts        for each host name, its ranks
  links        links tried between hosts, the one in use first:
    transport, latency_us, gbit_per_second, obstacle (mpi: only with --mpi)
  allreduce    for growing sizes: bytes, algorithm, predicted_us


Names: rueda, native extension, librueda, MPI plug-in, MPI library, MPI
threads, ULFM, mpirun, transport inproc, transport shm, transport mpi,
GPU support, NCCL, CUDA driver, CUDA toolkit, torch, numpy, Python, CPU cores, instruction sets,
/dev/shm, process_vm_readv, memfd.

\b
Exit code: 0 if a world can be formed (the extension loads, and shared
memory or MPI can carry its data), else 1. With -H, that of the ranks.
"""


def _check_hosts(
    hosts: str,
    ssh: str | None,
    interface: str | None,
    mpi: bool,
    mpi_args: str | None,
    as_json: bool,
) -> int:
    """Starts one rank for each slot, which report what the links between them were found to be."""
    run = ["-H", hosts, "--no-prefix"]
    if mpi:
        run += ["--bootstrap", "mpi"]
    if ssh is not None:
        run += ["--ssh", ssh]
    if interface is not None:
        run += ["--interface", interface]
    if mpi_args is not None:
        run += ["--mpi-args", mpi_args]
    report = [sys.executable, "-m", "rueda.links", *(["--json"] if as_json else [])]
    return run_to_end([*run, *report])


def _check_flags(
    hosts: str | None, ssh: str | None, interface: str | None, mpi: bool, mpi_args: str | None
) -> None:
    """Raises LaunchError where some are given that mean nothing together."""
    of_hosts = {"--mpi": mpi, "--ssh": ssh is not None, "--interface": interface is not None}
    given = [flag for flag, is_given in of_hosts.items() if is_given]
    if hosts is None and given:
        raise LaunchError(f"{given[0]} needs -H, which names the hosts")
    if mpi_args is not None and not mpi:
        raise LaunchError("--mpi-args needs --mpi")
    if mpi and ssh is not None:
        raise LaunchError(
            "--ssh: mpirun reaches hosts in its own way; for another agent give --mpi-args "
            "'--prtemca plm_ssh_agent COMMAND' (Open MPI 5; '--mca plm_rsh_agent COMMAND' before it)"
        )


def _remarks(row: Row) -> str:
    parts = [row.why_not or row.note, f"→ {row.what_to_do}" if row.what_to_do else ""]
    return "\n".join(part for part in parts if part)


def _print_plain(report: Report) -> None:
    for row in report.rows:
        words = [row.name + ":", "yes" if row.found else "no", row.version, row.path]
        remarks = _remarks(row).replace("\n", " ")
        line = " ".join(word for word in words if word)
        click.echo(f"{line} ({remarks})" if remarks else line)


def _print_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", "version", "path, remarks", pad_edge=False)
    for row in report.rows:
        mark = Text("✓", "green") if row.found else Text("✗", "red")
        rest = Text("\n".join(part for part in (row.path, _remarks(row)) if part))
        table.add_row(mark, Text(row.name), Text(row.version), rest)
    Console().print(table)


def make_check_command(native: Native) -> click.Command:
    """The command; `native` is the extension that it reports on."""

    @click.command("check", epilog=_EPILOG, short_help="Show what is built and what is found.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option(
        "-H", "--hosts", metavar="HOST:SLOTS,...",
        help="Start ranks on these hosts, and report the links between them and the algorithm "
        "chosen for each size: for TCP, and with --mpi also for MPI.",
    )  # fmt: skip
    @click.option("--ssh", metavar="COMMAND", help="With -H: how `rueda run` reaches hosts.")
    @click.option(
        "--interface", metavar="NAME",
        help="With -H: the network interface, or several, that ranks use between hosts, as for `rueda run`.",
    )  # fmt: skip
    @click.option(
        "--mpi", is_flag=True,
        help="With -H: start the ranks by mpirun, so that MPI is tried as well as TCP.",
    )  # fmt: skip
    @click.option(
        "--mpi-args", metavar="'ARGS'", help="With --mpi: arguments for mpirun, as one word."
    )
    @click.pass_context
    def check(
        context: click.Context, as_json: bool, hosts: str | None, ssh: str | None,
        interface: str | None, mpi: bool, mpi_args: str | None,
    ) -> None:  # fmt: skip
        """Lists Rueda's parts and what it can use, each with its path and version, or the reason why not.

        Prints a table on a terminal, otherwise one line per component. With -H, tries the links between hosts.
        """
        _check_flags(hosts, ssh, interface, mpi, mpi_args)
        provide_home()
        if hosts is not None:
            context.exit(_check_hosts(hosts, ssh, interface, mpi, mpi_args, as_json))
        from .report import make_report  # `rueda run` has no use for what it imports

        report = make_report(native)
        if as_json:
            click.echo(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
        elif sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
            _print_table(report)
        else:
            _print_plain(report)
        if not report.ready and not as_json:
            click.echo("rueda: no world can be formed here", err=True)
        context.exit(0 if report.ready else 1)

    return check
