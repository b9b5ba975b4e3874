"""The `rueda` command. A subcommand is a module with a click command, and a function in `_COMMANDS`.

Subcommands are imported on demand, so that jobs start sooner. Only `rueda bench` is outside `rueda.launcher`.
"""

from __future__ import annotations

import codecs
import errno
import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from .native import Native, load_native
from .sink import OUTPUT_LOST, discard, open_missing_streams, say, unread_streams
from .version import installed_version


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    click.echo(f"rueda {installed_version()}")
    context.exit()


def _analyze(_: Native) -> click.Command:
    from .analyze import make_analyze_command

    return make_analyze_command()


def _bench(_: Native) -> click.Command:
    from rueda.bench import make_bench_command

    return make_bench_command()


def _check(native: Native) -> click.Command:
    from .check import make_check_command

    return make_check_command(native)


def _equiv(_: Native) -> click.Command:
    from .equiv import make_equiv_command

    return make_equiv_command()


def _report(_: Native) -> click.Command:
    from .report import make_report_command

    return make_report_command()


def _run(native: Native) -> click.Command:
    from .run import make_run_command

    return make_run_command(native)


_COMMANDS: dict[str, Callable[[Native], click.Command]] = {
    "analyze": _analyze,
    "bench": _bench,
    "check": _check,
    "equiv": _equiv,
    "report": _report,
    "run": _run,
}


@contextmanager
def _exit_codes_of_signals() -> Iterator[None]:
    """Exits with 130 after Ctrl-C and 141 if nobody reads the output, as shells report it. click exits with 1."""
    try:
        yield
    except KeyboardInterrupt:
        say("ended by SIGINT")
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        unread = unread_streams()
        if not unread:  # another pipe
            raise
        for descriptor in unread:
            discard(descriptor)
        sys.exit(128 + signal.SIGPIPE)


class _Commands(click.Group):
    """Creates subcommands on demand."""

    def __init__(self, native: Native, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._native = native

    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        """Like click's method; --help and --version are printed here."""
        with _exit_codes_of_signals():
            return super().make_context(*arguments, **named)

    def invoke(self, context: click.Context) -> Any:
        """Like click's method, apart from the exit codes after signals."""
        with _exit_codes_of_signals():
            return super().invoke(context)

    def list_commands(self, _: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name in _COMMANDS and name not in self.commands:
            self.add_command(_COMMANDS[name](self._native), name)
        return self.commands.get(name)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's method, but suggests the nearest name for an unknown command."""
        if args and not args[0].startswith("-") and self.get_command(context, args[0]) is None:
            from .job import suggestion

            if hint := suggestion(args[0], list(_COMMANDS), cutoff=0.6):
                context.fail(f"No such command '{args[0]}'{hint}")
        return super().resolve_command(context, args)


_HELP = """Ring allreduce for distributed training: starts jobs, measures them and reports what went wrong.

\b
  rueda run -np 4 python train.py    starts train.py on 4 ranks of this host
  rueda check                        reports what was found here, and what was not
"""

_EPILOG = """
\b
Completion of commands and flags in bash (zsh_source and fish_source for these shells):
  eval "$(_RUEDA_COMPLETE=bash_source rueda)"
"""


def build(native: Native) -> click.Group:
    """Builds the command tree. `native` provides the option table, whose rows become flags of `rueda run`."""

    @click.group(
        cls=_Commands,
        native=native,
        help=_HELP,
        epilog=_EPILOG,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    @click.option(
        "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
        help="Print the version and exit.",
    )  # fmt: skip
    def rueda() -> None:
        """The text of --help is in _HELP."""

    return rueda


def _replace_characters_that_stdout_lacks() -> None:
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        return
    if stdout.errors == "strict":
        stdout.reconfigure(errors="replace")
    elif stdout.errors == "surrogateescape":  # in the locales C and POSIX
        codecs.register_error("rueda.replace", _escape_or_replace)
        stdout.reconfigure(errors="rueda.replace")


def _escape_or_replace(error: UnicodeError) -> tuple[bytes, int]:
    """Like Python's "surrogateescape", which keeps names that cannot be decoded, but "?" where that raises."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    escaped = (ord(each) - 0xDC00 for each in found)
    return bytes(byte if 0x80 <= byte <= 0xFF else ord("?") for byte in escaped), error.end


def main() -> None:
    """The console script."""
    open_missing_streams()
    _replace_characters_that_stdout_lacks()
    try:
        with _exit_codes_of_signals():
            build(load_native())(prog_name="rueda")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        discard(sys.stdout.fileno())
        where = f"'{error.filename}'" if error.filename else "standard output"
        say(f"cannot write to {where}: {error.strerror}")
        sys.exit(OUTPUT_LOST)
