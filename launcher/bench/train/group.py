"""`rueda bench` with `latency` and `train` beside the collectives."""

from __future__ import annotations

import click

from ...native import Native
from ..latency.command import make_latency_command
from .command import make_train_command


class _Bench(click.Group):
    """Takes whatever is no subcommand for the arguments of the one called `collectives`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["collectives", *args]
        return super().parse_args(context, args)


def with_training(bench: click.Command, native: Native) -> click.Group:
    """`bench` and its arguments as they are, `bench latency` and `bench train`."""
    group = _Bench("bench", short_help=bench.short_help)
    group.add_command(bench, "collectives")
    group.add_command(make_latency_command(native))
    group.add_command(make_train_command(native))
    return group
