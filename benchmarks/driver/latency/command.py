"""The command `rueda bench latency`."""

from __future__ import annotations

from typing import Any

import click

from ..options import file_option, ranks_option

_EPILOG = """
\b
Cases. loop: one array of 4 bytes under one name, again and again. barrier: the same with a barrier
before each call, which is not timed. names: eight names in turn. dtypes: four arrays of 8 bytes
that differ in dtype, in turn. private 4K to 4M: one NumPy array of that many bytes, rewritten
before each call.

\b
How it is measured. As a user starts it, and by what a user calls: the ranks of each contender are
processes of their own in every run, started by `rueda run` (rueda, gloo) or by mpirun with its
defaults (mpi, through mpi4py), bound to nothing by this program and with no priority. A rank takes
the time around each call. Quantiles are over all calls of all ranks of all runs, so that a run in
which everything is slow shows; "slowest run" is the highest of the runs' medians. Times are kept
with 2% of precision.

\b
A machine that is only now and then idle can be measured in parts: --add FILE goes on with the runs
that FILE has, and writes all of them there. Runs of other ranks, processors, kernels, settings
(variables such as RUEDA_TRANSPORT) or versions are refused.

\b
--json and --add write one object: schema (1), head, versions, cases: by case and contender medians
(seconds, of each run) and counts (a list of [n, calls]: so many took 2^(n/36) nanoseconds).

\b
Exit code: 0; 1 where ranks failed; 2 where it could not be run as asked.
"""


def make_latency_command() -> click.Command:
    """The command."""

    @click.command("latency", epilog=_EPILOG, short_help="Measure how single calls vary.")
    @ranks_option(2)
    @click.option(
        "--runs",
        type=click.IntRange(min=1),
        default=20,
        metavar="N",
        help="How often all contenders are started. Default 20.",
    )
    @click.option(
        "--contenders", default="rueda,mpi,gloo", metavar="LIST", help="Default rueda,mpi,gloo."
    )
    @click.option("--cases", default="", metavar="LIST", help="Default: all.")
    @click.option(
        "--seconds",
        type=click.FloatRange(min=0, min_open=True),
        metavar="S",
        help="Begin no further run after that long.",
    )
    @file_option("--json", "Write the results.")
    @file_option("--add", "Add the results to those in FILE, which need not exist.")
    @file_option("--markdown", "Write the table as Markdown.")
    @click.pass_context
    def latency(context: click.Context, /, **values: Any) -> None:
        """Measures how long single calls take in ordinary programs, and how much that varies."""
        from .run import Request, run  # `rueda run` has no use for NumPy

        context.exit(run(Request(**values)))

    return latency  # fmt: skip
