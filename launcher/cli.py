"""The `rueda` command. A subcommand is a file with a click command and one line in `build()`.

`rueda bench` alone is a package of its own, `rueda.bench`, which is imported only where it is asked for.
"""

from __future__ import annotations

import errno
import os
import sys

import click

from .analyze import make_analyze_command
from .check import make_check_command
from .equiv import make_equiv_command
from .native import Native, load_native
from .output import OUTPUT_LOST
from .report import make_report_command
from .run import make_run_command
from .sink import open_missing_streams, say
from .version import installed_version


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    click.echo(f"rueda {installed_version()}")
    context.exit()


class _Commands(click.Group):
    """With `bench` among them."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), "bench"})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "bench":
            from rueda.bench import make_bench_command

            return make_bench_command()
        return super().get_command(context, name)


def build(native: Native) -> click.Group:
    """The command tree; `native` gives the table of options that become flags of `rueda run`."""

    @click.group(
        cls=_Commands,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    @click.option(
        "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
        help="Print the version and exit.",
    )  # fmt: skip
    def rueda() -> None:
        """Ring allreduce for training across processes: starts jobs, measures, tells what went wrong."""

    rueda.add_command(make_run_command(native))
    rueda.add_command(make_check_command(native))
    rueda.add_command(make_analyze_command())
    rueda.add_command(make_equiv_command())
    rueda.add_command(make_report_command())
    return rueda


def main() -> None:
    """The console script."""
    open_missing_streams()
    try:
        build(load_native())(prog_name="rueda")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        # Python flushes once more at exit; let that go nowhere instead of failing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = f"'{error.filename}'" if error.filename else "standard output"
        say(f"cannot write to {where}: {error.strerror}")
        sys.exit(OUTPUT_LOST)
