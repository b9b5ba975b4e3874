"""`rueda bench [COLLECTIVE]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rueda.launcher.errors import LaunchError
from rueda.launcher.ranges import MOST_SECONDS, FiniteRange, Seconds

if TYPE_CHECKING:
    from .run import Request

_HELP = """Measures the collectives of Rueda and of its alternatives side by side, in one run.

\b
  rueda bench -np 2
  rueda bench allreduce -np 2 -b 4 -e 256M -f 4 --peers mpi,gloo,impi --tune-mpi
  rueda bench allgather -np 4 -b 1K -e 16M --dtype bfloat16 --json report.json
  rueda bench latency -np 2  (latency of single calls: see rueda bench latency --help)
  rueda bench train -np 2    (training steps: see rueda bench train --help)

All ranks run on this host. COLLECTIVE is allreduce (the default), allgather, broadcast,
reduce_scatter or alltoall.
"""

_EPILOG = """
\b
How it is measured. The ranks of every contender start once and sleep in read() between their
turns. At each size the contenders take turns in --rounds rounds, and a different one goes first in
each round. Before each call every rank rewrites its whole buffer. A call lasts from the moment the
last rank enters it until the last rank leaves it. The median is over all calls of all rounds; p10
and p90 show the spread. Each rank is bound to its own core if there are enough cores, otherwise no
rank is bound. If ranks outnumber the cores, Open MPI is told so, and yields.

\b
Columns (nccl-tests' conventions): size: bytes of a rank's larger buffer; count: elements of its
smaller buffer; time in µs; algbw = size / time, and busbw = algbw times 2(n-1)/n for allreduce, 1
for broadcast, (n-1)/n otherwise, both in GB/s; wrong: incorrect elements in the first and the last
call of every round, on all ranks.

\b
Contenders. rueda: direct calls in C++, on private memory (any) and on registered memory
(rueda::allocate, rueda.empty). rueda-named: named calls in C++. rueda-python: named calls from
Python. rueda-python-direct: rueda.torch.PersistentAllreduce. baseline, baseline-named and so
on: the build that --baseline names. Peers: mpi (every Open MPI found), impi (Intel MPI), gloo
(torch.distributed), deepspeed (its shared-memory allreduce). In the ratios, "Open MPI" is the
fastest Open MPI found, with its defaults; with --tune-mpi, "its best" is the fastest of all
settings.

\b
Limits. A flag exchanged between two cores, or handed over on one core by sched_yield; memcpy and
a += b on 64 MiB; process_vm_readv. At each size, "limit" is the time of an allreduce's loads and
stores in shared memory on huge pages, without waiting for other ranks.

\b
--json writes one object: schema (1), head, notes, collective, ranks, dtype, op, contenders (their
versions), limits (by name: what, time_us or gbps), sizes (a list: size, count, best_setting,
results by contender: time_us, min_us, p10_us, p90_us, round_medians_us, calls, algbw_gbps,
busbw_gbps, wrong, or unsupported).

\b
Exit code: 0; 1 if a result was wrong or ranks died; 2 if it could not run as asked; 128 + N if
signal N ended it (130 after Ctrl-C). No process is left running.
"""


def _refuse_hosts(_: click.Context, __: click.Parameter, hosts: str | None) -> None:
    if hosts is not None:
        raise LaunchError(
            f"-H: all ranks of `rueda bench` run on this host; `rueda check -H {hosts}` tells what the links between "
            "hosts were found to be, and which algorithm is chosen for which sizes"
        )


_FLAGS = [
    click.argument("collective", default="allreduce"),
    click.option("-np", "-n", "--num-proc", "ranks", type=int, default=2, metavar="N",
                 help="Number of ranks. Default 2."),
    click.option("-b", "--min-bytes", "first", metavar="SIZE",
                 help="Smallest size, in bytes or with K, M or G. Default: one element."),
    click.option("-e", "--max-bytes", "last", default="256M", metavar="SIZE",
                 help="Largest size. Default 256M."),
    click.option("-f", "--step-factor", "factor", type=int, default=4, metavar="N",
                 help="Factor from one size to the next. Default 4."),
    click.option("-d", "--dtype", default="float32", metavar="TYPE",
                 help="Element type. Default float32."),
    click.option("-o", "--op", default="sum", metavar="OP", help="Reduction. Default sum."),
    click.option("--root", type=int, default=0, metavar="RANK",
                 help="Root of broadcast. Default 0."),
    click.option("--memory", default="private,registered", metavar="LIST",
                 help="Memory for Rueda's calls, a column each. Default private,registered."),
    click.option("--paths", default="direct", metavar="LIST",
                 help="Ways to call Rueda: direct, named, python, python-direct. Default direct."),
    click.option("--peers", metavar="LIST",
                 help="Any of mpi, impi, gloo, deepspeed; or none. Default: those of mpi, impi "
                 "and gloo that are installed."),
    click.option("--baseline", type=click.Path(path_type=Path), metavar="FOLDER",
                 help="Another build of Rueda, installed with `pip install --target FOLDER`, to "
                 "compare on the same paths."),
    click.option("--impi", type=click.Path(path_type=Path), metavar="FOLDER",
                 help="An environment that contains Intel MPI."),
    click.option("--tune-mpi", is_flag=True,
                 help="First sweep Open MPI's allreduce algorithms and segment sizes. The best at "
                 "each size takes part."),
    click.option("--rounds", type=click.IntRange(min=1), default=6, metavar="N",
                 help="Rounds at each size; each contender has a turn per round. Default 6."),
    click.option("--calls", type=click.IntRange(min=0), default=0, metavar="N",
                 help="Calls per turn. Default 0: as many as fit into --seconds, 3 to 1000."),
    click.option("--seconds", type=Seconds(min=0, min_open=True), default=0.1, metavar="S",
                 help="Time per turn. Default 0.1."),
    click.option("--late", type=FiniteRange(0, 1e3 * MOST_SECONDS), default=0, metavar="MS",
                 help="One rank, a different one in each call, enters this many milliseconds after "
                 "the others, as in training. Default 0."),
    click.option("--limits/--no-limits", default=True,
                 help="Also measure the machine's limits."),
    click.option("--explain", is_flag=True,
                 help="Print which algorithm Rueda uses for which sizes on this host, and exit. "
                 "Across hosts: rueda check -H."),
    click.option("-H", "--hosts", expose_value=False, hidden=True, callback=_refuse_hosts),
    click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write the results as JSON."),
    click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write the tables as Markdown."),
    click.option("--plot", "plot_file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Plot the results: .svg, .png or .pdf. Needs matplotlib."),
]  # fmt: skip


class _Collectives(click.Command):
    """Registered as `collectives`, a name that users do not type: the usage line omits it."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.parent.command_path if ctx.parent else ctx.command_path
        formatter.write_usage(path, " ".join(self.collect_usage_pieces(ctx)))


def make_collectives_command() -> click.Command:
    """The command for one collective."""

    def bench(context: click.Context, /, **values: Any) -> None:
        from .run import run  # imports NumPy, which `rueda run` does not need

        context.exit(run(_request(values)))

    callback: Any = click.pass_context(bench)
    for decorate in reversed(_FLAGS):
        callback = decorate(callback)
    command: click.Command = click.command(
        "bench",
        help=_HELP,
        epilog=_EPILOG,
        short_help="Measure collectives against alternatives.",
        cls=_Collectives,
    )(callback)
    return command


def _request(values: dict[str, Any]) -> Request:
    from .run import Request

    return Request(**values)
