"""Opens a table on all ranks, or fails on all of them if one rank's arguments are invalid."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from rueda import _native
from rueda.adapter import Refusal
from rueda.arguments import fits, label_of, text_of
from rueda.process_sets import ProcessSet, identify
from rueda.submission import refuse

__all__ = ["numbers", "open_native", "real", "whole"]


def open_native(
    name: str, process_set: ProcessSet, arguments: Callable[[], tuple[Any, ...]]
) -> _native.Table:
    """The core's table. ``arguments``: gives those between name and process set; may raise Refusal."""
    try:
        text, given = text_of(name), arguments()
    except Refusal as refusal:
        # Where the others open the table, they get the error.
        refuse(f"rueda.table '{label_of(name)}'", process_set, refusal).result()
        raise  # not reached
    opened: _native.Table = _native.Table(*(text, *given, identify(process_set)))
    return opened


def whole(what: str, value: object) -> int:
    """``value`` as a 64-bit integer. Raises Refusal."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise Refusal(f"{what}={value!r} is not a whole number") from None
    if not fits(number, 64):
        raise Refusal(f"{what}={value!r} has more than 64 bits")
    return number


def real(what: str, value: object) -> float:
    """``value`` as a float. Raises Refusal."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise Refusal(f"{what}={value!r} is not a number") from None


def numbers(what: str, values: Iterable[object], each: Callable[[str, object], float]) -> list[Any]:
    """Converts each value with :func:`whole` or :func:`real`. Raises Refusal."""
    try:
        return [each(what, value) for value in values]
    except TypeError:
        raise Refusal(f"{what}={values!r} is not a sequence of numbers") from None
