"""The flags of `rueda run` and their help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from .errors import LaunchError
from .horovod_flags import PREFIX, add_horovod_flags
from .native import Native
from .option_flags import OptionFlag, add_flags
from .ranges import Seconds

_HELP = """Starts COMMAND once per rank. On this host it uses mpirun or, without MPI, starts the ranks directly.
On several hosts it uses ssh, or mpirun if you ask for MPI.

\b
  rueda run -np 4 python train.py --epochs 3
  rueda run -H node1:8,node2:8 python train.py
  rueda run --nodes 2 --node-rank 0 --rendezvous tcp:node1:29400 -np 8 python train.py
  rueda run -np 4 --fusion-threshold 16M --timeline trace.json python train.py

Options of the launcher and of the library come before COMMAND. Everything after it belongs to COMMAND.
When a rank fails, the launcher ends the other ranks. The last line names the rank that failed first and why.
"""

_EPILOG = """
\b
Exit code: that of the rank that failed first, or 128 + N if signal N killed it;
130 after Ctrl-C; 141 if nobody reads the output any more; 2 if the job could not
be started as asked; 1 if a rank exited with 0 before it reached rueda.init(),
where other ranks wait for it; 0 if every rank exited with 0, or 74 if some of
their output could not be written.

\b
Set for the ranks, unless set already: OMP_NUM_THREADS, to a host's cores
divided by its ranks, and PYTHONUNBUFFERED=1. PATH begins with the folder of
the Python that runs the launcher. Ranks on this host inherit every variable.
Other hosts get those named with -x and RUEDA_*, HOROVOD_*, PATH,
LD_LIBRARY_PATH, PYTHON*, VIRTUAL_ENV, CONDA_PREFIX, OMP_*, MKL_*,
OPENBLAS_*, KMP_*, NCCL_*, CUDA_*, TORCH_* and PYTORCH_*.

\b
Without MPI each rank has RUEDA_RANK, RUEDA_SIZE, RUEDA_LOCAL_RANK,
RUEDA_LOCAL_SIZE, RUEDA_CROSS_RANK, RUEDA_CROSS_SIZE,
RUEDA_BOOTSTRAP=rendezvous, RUEDA_RENDEZVOUS (the address where the ranks meet)
and RUEDA_SECRET (the ranks prove to each other that they know it). The launcher
answers at that address; on several hosts, its process on rank 0's host does.
RUEDA_RENDEZVOUS_STORE, set to the same address, says so. The library reports to
RUEDA_LAUNCHER that a rank has reached init(). With --max-np ranks have
RUEDA_ELASTIC=1, and a rank that joins later has RUEDA_JOINER, its number,
instead of RUEDA_RANK. With --horovod the first six are also set as
HOROVOD_RANK and so on.

\b
Other hosts, without MPI: the launcher connects to each once, with 'ssh HOST', which
must log in without a prompt (keys, known hosts). The same Python and the same Rueda
must be at the same path there, and the job runs in the same folder. Ranks are
numbered host by host, in the order of -H. What the job needs to start, its secret
included, goes through ssh's standard input. When the connection to a host ends, or
the launcher is killed, the ranks there are ended. Ranks meet at rank 0's host: at
the address of --interface, else the address that its name in -H stands for, or the
one that leads from it to the others. All hosts must be ready within --init-timeout.

\b
The launcher raises the soft limit on open files if the ranks on this host need more.
"""

_SECTIONS = {
    "ranks": "Ranks and hosts",
    "forward": "Environment and output",
    "max_np": "Ranks that join (--min-np: ranks that may be lost)",
    "ssh": "Other hosts",
    "nodes": "A launcher on each node",
    "mpirun_path": "MPI",
    "dry_run": "Inspection",
}


class _RunCommand(click.Command):
    """Prints the options in sections. If the option table is missing, explains unknown flags with that."""

    native: Native

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        title = "Options"
        for parameter in self.get_params(ctx):
            name = parameter.name or ""
            title = _SECTIONS.get(name, title)
            if name.startswith("option_"):
                title = "Options of the library (each sets the variable in brackets)"
            elif name.startswith(PREFIX):
                title = "Flags of horovodrun (any other is explained when used)"
            elif name == "help":
                title = "Inspection"
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if self.native.module is not None:
                raise
            raise LaunchError(
                f"{error.option_name} is not a flag of the launcher, and the flags of the library's "
                f"options are not available because the native extension is missing "
                f"({self.native.why_not})"
            ) from error


_FLAGS = [
    click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED),
    click.option(
        "-np", "-n", "--num-proc", "ranks", type=int, metavar="N",
        help="How many ranks. Default: one per slot of the hosts.",
    ),
    click.option(
        "-H", "--hosts", metavar="HOST:SLOTS,...",
        help="Hosts and how many ranks each may take. Default: this host, or what the batch system "
        "(Slurm, PBS, LSF, Grid Engine) granted, if mpirun starts the ranks.",
    ),
    click.option(
        "--hostfile", type=click.Path(path_type=Path), metavar="FILE",
        help="A file with a line 'HOST slots=N' per host, as for Open MPI and Horovod.",
    ),
    click.option(
        "--oversubscribe", is_flag=True,
        help="Allow more ranks than slots. Not needed if all ranks are on this host.",
    ),
    click.option(
        "-x", "forward", multiple=True, metavar="NAME[=VALUE]",
        help="Forward a variable to the ranks on every host, or set it. May be repeated.",
    ),
    click.option(
        "--output-filename", "output_directory", type=click.Path(path_type=Path), metavar="DIR",
        help="Also write what each rank prints, without prefix, to DIR/rank.N.",
    ),
    click.option(
        "--prefix/--no-prefix", default=True,
        help="Start each line of output with '[rank]<stdout>: '. Default: yes.",
    ),
    click.option(
        "--grace", type=Seconds(min=0), default=5.0, metavar="SECONDS",
        help="How long ranks have to end after SIGTERM before they are killed. Default 5. "
        "Ranks that mpirun started have less: it kills them itself after a fraction of a second; use --no-mpi.",
    ),
    click.option(
        "--max-np", type=int, metavar="N",
        help="Let ranks join while the job runs, up to N: as replacements for lost ranks, and when there "
        "are more slots, on this host or the hosts of -H or --host-discovery-script; with --nodes, also ranks of "
        "nodes that return. Without MPI.",
    ),
    click.option(
        "--host-discovery-script", metavar="PATH",
        help="A program or shell command, run every second, that prints a line 'HOST:SLOTS' per host: the number of "
        "ranks that may run there now. Other hosts are reached like those of -H. Without it the limit is --max-np, or "
        "on several hosts what -H says.",
    ),
    click.option(
        "--slots-per-host", type=click.IntRange(min=1), metavar="N",
        help="Slots on a host for which that program prints no number.",
    ),
    click.option(
        "--elastic-timeout", type=Seconds(min=0), default=600.0, metavar="SECONDS",
        help="How long the job waits at its start for enough slots for all its ranks. Default 600.",
    ),
    click.option(
        "--reset-limit", type=click.IntRange(min=0), metavar="N",
        help="How many losses the job survives: each of one rank, or of a host with all its ranks. Default: no limit.",
    ),
    click.option(
        "--blacklist-cooldown-range", type=float, nargs=2, metavar="SECONDS SECONDS",
        help="How long the launcher starts no process on a host after one failed there. The first number "
        "doubles with each further failure, up to the second. Default 1 60.",
    ),
    click.option(
        "--ssh", metavar="COMMAND",
        help="The program that runs a command on another host, as in 'ssh -p 2222'. It is called with the host "
        "and the command, and must not prompt. Default: ssh. [RUEDA_SSH_COMMAND]",
    ),
    click.option(
        "--host-timeout", type=Seconds(min=1), default=60.0, metavar="SECONDS",
        help="How long a host, or the launcher, may be silent before it counts as gone. Default 60.",
    ),
    click.option(
        "--nodes", type=int, metavar="N",
        help="Start one part of a job that runs on N nodes; -np ranks of it run here. Start the same command on each "
        "node, as in the pods of an indexed Kubernetes job. Default: PET_NNODES, SLURM_STEP_NUM_NODES, SLURM_NNODES.",
    ),
    click.option(
        "--node-rank", type=int, metavar="R",
        help="Which of these nodes this is, from 0. Default: PET_NODE_RANK, JOB_COMPLETION_INDEX, SLURM_NODEID.",
    ),
    click.option(
        "--rendezvous", metavar="tcp:HOST:PORT",
        help="Where the nodes meet: node 0's host, and a free port there. Default: PET_MASTER_ADDR and "
        "PET_MASTER_PORT. The nodes prove to each other that they know RUEDA_SECRET, or the contents of the file "
        "RUEDA_SECRET_FILE.",
    ),
    click.option(
        "--nodes-timeout", type=Seconds(min=1), default=600.0, metavar="SECONDS",
        help="How long nodes wait for each other. Default 600.",
    ),
    click.option(
        "--mpirun", "mpirun_path", metavar="PATH",
        help="Open MPI's mpirun, 4.1 or newer. Default: the one next to RUEDA_MPI_LIBRARY, in this "
        "Python's environment, or on the PATH.",
    ),
    click.option(
        "--bind-to", default="none", metavar="WHAT",
        help="As for mpirun. Default none: a rank and its background thread need more than one core.",
    ),
    click.option("--map-by", default="", metavar="WHAT", help="As for mpirun."),
    click.option(
        "--ulfm", is_flag=True,
        help="Keep the job alive when a rank is lost (mpirun --with-ft ulfm, Open MPI 5). The job fails if no rank "
        "ends well, or with --min-np fewer than that many. Without --min-np it also fails if a rank exits with an "
        "error, unless you add --mpi-args '--runtime-options error-nonzero-status=false'.",
    ),
    click.option(
        "--mpi-args", default="", metavar="'ARGS'", help="More arguments for mpirun, as one word."
    ),
    click.option(
        "--bootstrap", type=click.Choice(["auto", "mpi", "rendezvous"]),
        help="How ranks find each other. mpi requires mpirun; rendezvous starts the ranks "
        "without MPI. Default auto: on this host mpirun if it is found; on several hosts "
        "without MPI, unless a flag of this section is given. [RUEDA_BOOTSTRAP]",
    ),
    click.option(
        "--no-mpi", "bootstrap", flag_value="rendezvous", help="The same as --bootstrap rendezvous."
    ),
    click.option(
        "--horovod", is_flag=True,
        help="Make the program's 'import horovod' import rueda.horovod, so that a Horovod script runs "
        "unchanged. The flags of horovodrun are accepted in any case.",
    ),
    click.option("--dry-run", is_flag=True, help="Print the command line and exit."),
    click.option("-v", "--verbose", is_flag=True, help="Print the command line, then run it."),
]  # fmt: skip


def declare_flags(
    callback: Callable[..., Any], flags: Sequence[OptionFlag], native: Native
) -> click.Command:
    """Builds the command `run` from its function."""
    for decorate in reversed(_FLAGS):
        callback = decorate(callback)
    command = click.command(
        "run",
        cls=_RunCommand,
        help=_HELP,
        epilog=_EPILOG,
        short_help="Start a job of several ranks.",
        context_settings={"allow_interspersed_args": False},
    )(callback)
    command.native = native
    add_flags(flags)(command)
    add_horovod_flags(command)
    return command
