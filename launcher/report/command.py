"""The command `rueda report`."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from ..companion import INTERRUPTED
from ..equiv.plan import parse_list
from ..errors import LaunchError
from ..figures import require_matplotlib
from ..ranges import FiniteRange
from ..result_files import require_file, write_file
from ..sink import say
from ..temporary import temporary_folder

_SIZES = "2,4,8,16,32,64,128,256,512,1000"
_MAX_RANKS = 20_000  # the largest number of hosts that the simulator takes
# After a run that has failed: `rueda run` may have named flags of its own.
_NOTHING = "no rank has recorded anything; flags for `rueda run` are given in --launch, such as --launch=--no-mpi"
# After one that has succeeded.
_NO_WORLD = (
    "there is nothing to report on: no rank has called rueda.init(), which begins a recording, so the program did "
    "nothing with Rueda's Python API; if ranks ran on other hosts, name a folder in --out that all of them see"
)
_HELP = """Shows where the time of a training run goes, and predicts the speedup of 2 to 1,000 ranks.

Time is split into compute, exposed communication, straggler wait, input wait and other. The report names the ranks
that others wait for.

\b
  rueda report -np 4 python train.py    runs and reports
  rueda report FOLDER                   reports on a recording

Options come before COMMAND. Under any other launcher, set RUEDA_REPORT=FOLDER in the environment of the ranks and
gather rank0.report, ... in one folder. docs/report.md explains how each part is counted.
"""

_EPILOG = """
\b
--json prints one object; times are seconds:
  schema     1; increases only when a field changes its meaning or is removed
  ranks, hosts (both at first), command
  per_rank   of each: rank (its first), epoch (of the world in which it was
             that: 0, or the one it joined), joined, left (since the first
             world was formed; null: at first, with the others), host, wall;
             whole and training, each with compute, communication, straggler,
             input, other; steps; waited_for (by rank of the first world,
             then those that joined, as in per_rank); events (number
             recorded); recording (time spent writing them)
  step, one_rank, speedup, efficiency
  ranks_of_steps  how many ranks did the steps, in the mean
  links      gbit, latency_us, source; used for the predictions
  predictions  ranks, hosts, step, exposed, waits, speedup, efficiency
  stragglers   rank, kind (permanent, transient), factor, share,
               waited_for, epoch
  ssp          bound (null: none), time (of all steps, over that of bound 0)
  sentences, notes

\b
Exit code: that of the run if -np starts one, otherwise 0; 2 if there is nothing to report on.
Ctrl-C ends the run; what it recorded is reported, and the exit code is 130.
"""


class _ReportCommand(click.Command):
    """Words after COMMAND belong to it. A FOLDER may be followed by options."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        runs = any(word.partition("=")[0] in ("-np", "--np") for word in args)
        context.allow_interspersed_args = not runs
        return super().parse_args(context, args)


def make_report_command() -> click.Command:
    """The command. It needs only the recordings and, to predict, the simulator."""

    @click.command(
        "report",
        cls=_ReportCommand,
        help=_HELP,
        epilog=_EPILOG,
        short_help="Show where the time of a training run goes, and what more ranks would gain.",
    )
    @click.option(
        "-np",
        "--np",
        "ranks",
        type=click.IntRange(1),
        metavar="N",
        help="Runs COMMAND on N ranks and records it.",
    )
    @click.option(
        "--launch",
        default="",
        metavar="FLAGS",
        help="Flags for `rueda run`, such as '--no-mpi' or '-H a:2,b:2'.",
    )
    @click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Keeps the recording there. On several hosts, all must see the folder.",
    )
    @click.option(
        "--json",
        "prints_json",
        is_flag=True,
        help="Prints one JSON object; the output of COMMAND goes to standard error.",
    )
    @click.option(
        "--html",
        "page",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Also writes a page with plots; needs matplotlib.",
    )
    @click.option(
        "--baseline",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="A recording of one rank, to which the speedup is relative, instead of a rank's own time.",
    )
    @click.option(
        "--predict",
        "sizes",
        default=_SIZES,
        show_default=True,
        metavar="N,N,…",
        help=f"Predicts for these numbers of ranks, from 2 to {_MAX_RANKS:,}; 0 for none.",
    )
    @click.option(
        "--ranks-per-host",
        "per_host",
        type=click.IntRange(1),
        metavar="N",
        help="For the predictions; by default as in the recording.",
    )
    @click.option(
        "--bandwidth",
        type=FiniteRange(0, 1e6, min_open=True),
        metavar="GBIT",
        help="Bandwidth of a host's link, for the predictions; by default what the recording shows.",
    )
    @click.option(
        "--latency",
        type=FiniteRange(0, 1e6),
        metavar="US",
        help="Latency of a message between hosts, for the predictions.",
    )
    @click.argument("arguments", nargs=-1, required=True, metavar="COMMAND…|FOLDER")
    @click.pass_context
    def report(
        context: click.Context,
        ranks: int | None,
        launch: str,
        out: Path | None,
        prints_json: bool,
        page: Path | None,
        baseline: Path | None,
        sizes: str,
        per_host: int | None,
        bandwidth: float | None,
        latency: float | None,
        arguments: tuple[str, ...],
    ) -> None:
        if page is not None:
            require_matplotlib("--html")
            require_file("--html", page)
        # Modules that need NumPy are imported here, so that `rueda` itself starts without it.
        from .assembly import Asked, assemble, read_baseline

        wanted = _sizes_of(sizes)
        one_rank = None if baseline is None else read_baseline(baseline)
        asked = Asked(wanted, per_host, bandwidth, latency, one_rank)
        code = 0
        with ExitStack() as stack:
            if ranks is None:
                folder = _folder_of(arguments, out)
            else:
                from .running import run_recorded

                folder = out or stack.enter_context(
                    temporary_folder(
                        "rueda-report-", ", or a folder to keep the recording in --out"
                    )
                )
                output = sys.stderr.fileno() if prints_json else sys.stdout.fileno()
                try:
                    words = shlex.split(launch)
                except ValueError as error:
                    raise LaunchError(f"--launch: {error}") from error
                code = run_recorded(ranks, words, arguments, folder, output)
                if code == 0 and _is_empty(folder):
                    raise LaunchError(_NO_WORLD)
                if code == INTERRUPTED and _is_empty(folder):
                    say("no rank has recorded anything")
                    context.exit(code)
            try:
                found = assemble(folder, asked)
            except LaunchError as error:
                if code == 0:
                    raise
                say(_NOTHING if _is_empty(folder) else error.format_message())
                context.exit(code)
        from ..terminal import console
        from .output import as_json, print_report

        if prints_json:
            click.echo(json.dumps(as_json(found), indent=2, ensure_ascii=False, allow_nan=False))
        else:
            print_report(found, console())
        if page is not None:  # last, so that the findings are printed in any case
            from .page import page_of

            write_file(page, page_of(found))
        context.exit(code)

    return report


def _sizes_of(text: str) -> tuple[int, ...]:
    """Parses --predict. Raises LaunchError."""
    if text == "0":
        return ()
    sizes = parse_list(text, "--predict")
    for size in sizes:
        if not 2 <= size <= _MAX_RANKS:
            raise LaunchError(
                f"--predict {text}: nothing is predicted for {size:,} {'rank' if size == 1 else 'ranks'}; give numbers "
                f"from 2 to {_MAX_RANKS:,}, or 0 for no prediction"
            )
    return sizes


def _is_empty(folder: Path) -> bool:
    """Whether no rank has begun a recording in it."""
    return not any(folder.glob("rank*.report"))


def _folder_of(arguments: tuple[str, ...], out: Path | None) -> Path:
    if len(arguments) > 1:
        raise LaunchError(
            f"'{shlex.join(arguments)}' is not one folder: to run a command, give -np N before it"
        )
    if out is not None:
        raise LaunchError("--out needs a run: give -np N and a command")
    return Path(arguments[0])
