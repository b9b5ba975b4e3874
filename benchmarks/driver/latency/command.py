"""The command `rueda bench latency`."""

from __future__ import annotations

from typing import Any

import click
from rueda.launcher.ranges import Seconds

from ..options import file_option, ranks_option

_EPILOG = """
\b
Cases. loop: one array of 4 bytes under one name, repeatedly. barrier: the same, with an untimed
barrier before each call. names: eight names in turn. dtypes: four arrays of 8 bytes with different
dtypes, in turn. private 256 to 64M: one NumPy array of that many bytes, rewritten before each call.
registered 256 to 64M: the same in memory from rueda.empty(); the other contenders' arrays are NumPy's.

\b
How it is measured. Everything is started and called as a user would do it: in every run, `rueda
run` (rueda, gloo) or mpirun with its defaults (mpi, through mpi4py) starts new processes for each
contender. This command neither binds them nor gives them a priority. A rank times each call.
Quantiles are over all calls of all ranks of all runs, so that a run in which everything is slow
shows. "slowest run" is the highest of the runs' medians. Times are kept with a precision of 2%.

\b
On a machine that is idle only now and then, measure in parts: --add FILE adds runs to those in
FILE. It refuses if the number of ranks, the processor, the kernel, the settings (variables such as
RUEDA_TRANSPORT) or a version differs.

\b
--json and --add write one object: schema (1), head, versions, cases: by case and contender, medians
(in seconds, one per run) and counts (a list of [n, calls]: how many calls took 2^(n/36) ns).

\b
Exit code: 0; 1 if ranks failed; 2 if it could not run as asked.
"""


def make_latency_command() -> click.Command:
    """The command."""

    @click.command("latency", epilog=_EPILOG, short_help="Measure the latency of single calls.")
    @ranks_option(2)
    @click.option(
        "--runs",
        type=click.IntRange(min=1),
        default=20,
        metavar="N",
        help="How many times to start each contender. Default 20.",
    )
    @click.option(
        "--contenders", default="rueda,mpi,gloo", metavar="LIST", help="Default rueda,mpi,gloo."
    )
    @click.option("--cases", default="", metavar="LIST", help="Cases to measure. Default: all.")
    @click.option(
        "--seconds",
        type=Seconds(min=0, min_open=True),
        metavar="S",
        help="Start no further run after this time.",
    )
    @file_option("--json", "Write the results as JSON.")
    @file_option("--add", "Add the results to those in FILE, which need not exist.")
    @file_option("--markdown", "Write the table as Markdown.")
    @click.pass_context
    def latency(context: click.Context, /, **values: Any) -> None:
        """Measures the latency of single calls in ordinary programs, and how much it varies."""
        from .run import Request, run  # imports NumPy, which `rueda run` does not need

        context.exit(run(Request(**values)))

    return latency  # fmt: skip
