"""Numbers on the command line."""

from __future__ import annotations

import sys
from typing import Any

import click

# As for the library's options.
MOST_SECONDS = 1e9


class FiniteRange(click.FloatRange):
    """A finite number in a range. NaN is in every range of click's."""

    most = sys.float_info.max
    what = "a finite number"

    def _describe_range(self) -> str:
        """For --help. Of a range without bounds click writes "x<=None"."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuses NaN and infinity, and what is beyond ``most`` on either side."""
        number = float(super().convert(value, param, ctx))
        if not abs(number) <= self.most:
            self.fail(f"{value} is not {self.what}.", param, ctx)
        return number


class Seconds(FiniteRange):
    """A number of seconds in a range: no clock can wait for infinity."""

    most = MOST_SECONDS
    what = f"a number of seconds up to {MOST_SECONDS:g}"
