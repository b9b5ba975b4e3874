"""`rueda bench` with `latency` and `train` beside the collectives."""

from __future__ import annotations

import click

from .command import make_collectives_command
from .latency.command import make_latency_command
from .train.command import make_train_command


class _Bench(click.Group):
    """Takes whatever is no subcommand for the arguments of the one called `collectives`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if (
            not args
        ):  # as every other command that could do anything; what it would do takes many minutes
            args = ["collectives", "--help"]
        elif args[0] not in self.commands:
            args = ["collectives", *args]
        return super().parse_args(context, args)


def make_bench_command() -> click.Group:
    """The command."""
    return with_subcommands(make_collectives_command())


def with_subcommands(collectives: click.Command) -> click.Group:
    """`collectives` and its arguments as they are, `bench latency` and `bench train`."""
    group = _Bench("bench", short_help=collectives.short_help)
    group.add_command(collectives, "collectives")
    group.add_command(make_latency_command())
    group.add_command(make_train_command())
    return group
