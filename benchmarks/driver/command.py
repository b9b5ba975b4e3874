"""`rueda bench` with a collective, or none, for its argument."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rueda.launcher.errors import LaunchError

if TYPE_CHECKING:
    from .run import Request

_HELP = """Measures Rueda's collectives and those of its alternatives side by side, in one run.

\b
  rueda bench -np 2
  rueda bench allreduce -np 2 -b 4 -e 256M -f 4 --peers mpi,gloo,impi --tune-mpi
  rueda bench allgather -np 4 -b 1K -e 16M --dtype bfloat16 --json report.json
  rueda bench latency -np 2  (how long single calls take: see rueda bench latency --help)
  rueda bench train -np 2    (steps of training: see rueda bench train --help)

All ranks run on this host. COLLECTIVE is allreduce (the default), allgather, broadcast,
reduce_scatter or alltoall.
"""

_EPILOG = """
\b
How it is measured. The ranks of every contender are started once and sleep in read() while it is
not their turn. At each size the contenders take turns, in --rounds rounds, each time another
first. Before each call every rank rewrites its whole buffer; a call lasts from the moment the last
rank enters it until the last rank has left. The median is over all calls of all rounds, p10 and p90
are its spread. Ranks are bound to a core each where there are enough, else not at all. Where ranks
outnumber the cores, Open MPI is told so, and yields.

\b
Columns (nccl-tests' conventions): size in bytes of a rank's larger buffer; count of elements, of
the smaller buffer; time in µs; algbw = size / time; busbw = algbw times 2(n-1)/n for allreduce, 1
for broadcast, (n-1)/n else, in GB/s; wrong = elements that were not what they should be, in
the first and the last call of every round on every rank.

\b
Contenders. rueda: direct calls in C++, on private memory (any) and on registered memory
(rueda::allocate, rueda.empty). rueda-named: named calls in C++. rueda-python: named calls from
Python; rueda-python-direct: rueda.torch.PersistentAllreduce. baseline, baseline-named: the other
build that --baseline names. Peers: mpi (every Open MPI that is found), impi (Intel MPI), gloo
(torch.distributed), deepspeed (its allreduce through shared memory). "Open MPI" in the ratios is
the fastest of those found, with its defaults; "its best" the fastest of all settings, with
--tune-mpi.

\b
Limits. A flag exchanged between two cores, or handed over on one by sched_yield; memcpy and a += b
on 64 MiB; process_vm_readv. At each size "limit": the loads and stores of an allreduce in
shared memory on huge pages, without waiting for anybody.

\b
--json writes one object: schema (1), head, notes, collective, ranks, dtype, op, contenders (their
versions), limits (by name: what, time_us or gbps), sizes (a list: size, count, best_setting,
results by contender: time_us, min_us, p10_us, p90_us, round_medians_us, calls, algbw_gbps,
busbw_gbps, wrong, or unsupported).

\b
Exit code: 0; 1 where a result was wrong or ranks died; 2 where it could not be run as asked;
128 + N where signal N ended it (130 after Ctrl-C). Nothing is left running.
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
                 help="How many ranks. Default 2."),
    click.option("-b", "--min-bytes", "first", metavar="SIZE",
                 help="The smallest size: bytes, or with K, M, G. Default: one element."),
    click.option("-e", "--max-bytes", "last", default="256M", metavar="SIZE",
                 help="The largest size. Default 256M."),
    click.option("-f", "--step-factor", "factor", type=int, default=4, metavar="N",
                 help="Each size is so many times the one before. Default 4."),
    click.option("-d", "--dtype", default="float32", metavar="TYPE", help="Default float32."),
    click.option("-o", "--op", default="sum", metavar="OP", help="The reduction. Default sum."),
    click.option("--root", type=int, default=0, metavar="RANK", help="Of broadcast. Default 0."),
    click.option("--memory", default="private,registered", metavar="LIST",
                 help="Rueda's columns. Default private,registered."),
    click.option("--paths", default="direct", metavar="LIST",
                 help="Ways to call Rueda: direct, named, python, python-direct. Default direct."),
    click.option("--peers", metavar="LIST",
                 help="Of mpi, impi, gloo, deepspeed; or none. Default: mpi, impi and gloo, as far "
                 "as they are installed."),
    click.option("--baseline", type=click.Path(path_type=Path), metavar="FOLDER",
                 help="Another build of Rueda, as `pip install --target FOLDER` makes it: takes "
                 "turns with this one in the paths direct and named."),
    click.option("--impi", type=click.Path(path_type=Path), metavar="FOLDER",
                 help="An environment with Intel MPI."),
    click.option("--tune-mpi", is_flag=True,
                 help="Sweep Open MPI's allreduce algorithms and segment sizes first, and let "
                 "the best at each size take part."),
    click.option("--rounds", type=click.IntRange(min=1), default=6, metavar="N",
                 help="How often the contenders take turns at each size. Default 6."),
    click.option("--calls", type=click.IntRange(min=0), default=0, metavar="N",
                 help="Calls in each round. Default 0: as many as --seconds allow, 3 to 1000."),
    click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=0.1,
                 metavar="S", help="For a contender in each round at each size. Default 0.1."),
    click.option("--late", type=click.FloatRange(min=0), default=0, metavar="MS",
                 help="One rank, another in each call, enters so many milliseconds after the "
                 "others, as ranks that train do. Default 0."),
    click.option("--limits/--no-limits", default=True, help="Measure the machine, too."),
    click.option("--explain", is_flag=True,
                 help="Print which algorithm Rueda has chosen for which sizes on this host, and exit. "
                 "Across hosts: rueda check -H."),
    click.option("-H", "--hosts", expose_value=False, hidden=True, callback=_refuse_hosts),
    click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write the results."),
    click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write the tables as Markdown."),
    click.option("--plot", "plot_file", type=click.Path(path_type=Path), metavar="FILE",
                 help="Draw them: .svg, .png or .pdf. Needs matplotlib."),
]  # fmt: skip


class _Collectives(click.Command):
    """Called `collectives` inside, but that word is left out by those who call it."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.parent.command_path if ctx.parent else ctx.command_path
        formatter.write_usage(path, " ".join(self.collect_usage_pieces(ctx)))


def make_collectives_command() -> click.Command:
    """The command."""

    def bench(context: click.Context, /, **values: Any) -> None:
        from .run import run  # `rueda run` has no use for NumPy

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
