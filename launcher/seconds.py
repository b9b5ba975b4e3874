"""Numbers of seconds on the command line."""

from __future__ import annotations

from typing import Any

import click

# As for the library's options.
MOST = 1e9


class Seconds(click.FloatRange):
    """A number of seconds in a range. NaN is in every range of click's, and no clock can wait for infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuses what is not a time."""
        seconds = float(super().convert(value, param, ctx))
        if not seconds <= MOST:
            self.fail(f"{value} is not a number of seconds up to {MOST:g}.", param, ctx)
        return seconds
