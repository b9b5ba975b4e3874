"""`rueda bench`: the collectives, and the subcommands `latency` and `train`."""

from __future__ import annotations

from typing import Any

import click
from rueda.launcher.mpirun import provide_home

from .command import make_collectives_command
from .latency.command import make_latency_command
from .train.command import make_train_command


class _Bench(click.Group):
    """Passes arguments that do not begin with a subcommand to the subcommand `collectives`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if (
            not args
        ):  # like the other commands, does not start work (here many minutes) without arguments
            args = ["collectives", "--help"]
        elif args[0] not in self.commands:
            args = ["collectives", *args]
        return super().parse_args(context, args)

    def invoke(self, context: click.Context) -> Any:
        provide_home()  # for Open MPI's mpirun
        return super().invoke(context)


def make_bench_command() -> click.Group:
    """The command."""
    return with_subcommands(make_collectives_command())


def with_subcommands(collectives: click.Command) -> click.Group:
    """A group that runs `collectives` by default, and has `latency` and `train` as subcommands."""
    group = _Bench("bench", short_help=collectives.short_help)
    group.add_command(collectives, "collectives")
    group.add_command(make_latency_command())
    group.add_command(make_train_command())
    return group
