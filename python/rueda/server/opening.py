"""Opens a table on all ranks, or fails on all of them if one rank's arguments are invalid."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rueda import _native
from rueda.adapter import Refusal
from rueda.arguments import fits, label_of, shown, text_of
from rueda.errors import InvalidArgumentError
from rueda.process_sets import ProcessSet, identify
from rueda.submission import refuse

__all__ = [
    "Floats",
    "check",
    "data",
    "extent",
    "factor_of",
    "flag",
    "numbers",
    "of_call",
    "open_native",
    "readable",
    "real",
    "text",
    "whole",
    "writeable",
]

T = TypeVar("T")
_LARGEST = float(np.finfo(np.float32).max)
Floats = npt.NDArray[np.float32]


def open_native(
    name: str, process_set: ProcessSet, arguments: Callable[[], tuple[Any, ...]]
) -> _native.Table:
    """The core's table. ``arguments``: gives those between name and process set; may raise Refusal.

    Raises InvalidArgumentError, on this rank only, without a name: under none, it would meet no other rank.
    """
    if name is None or name == "":
        raise InvalidArgumentError(f"name={name!r}: a table needs a name, the same on every rank")
    try:
        label, given = text_of(name), arguments()
    except Refusal as refusal:
        # Where the others open the table, they get the error.
        refuse(f"rueda.table '{label_of(name)}'", process_set, refusal).result()
        raise  # not reached
    opened: _native.Table = _native.Table(*(label, *given, identify(process_set)))
    return opened


def text(what: str, value: object) -> str:
    """``value``, which must be a text that UTF-8 can encode. Raises Refusal."""
    if not isinstance(value, str):
        raise Refusal(f"{what}={shown(value)} is not a text")
    return text_of(value)


def whole(what: str, value: object) -> int:
    """``value`` as a 64-bit integer. Raises Refusal."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise Refusal(f"{what}={shown(value)} is not a whole number") from None
    if not fits(number, 64):
        raise Refusal(f"{what}={shown(value)} has more than 64 bits")
    return number


def extent(what: str, value: object, most: int) -> int:
    """How many elements ``what`` has: a whole number from 1 to ``most``. Raises Refusal."""
    number = whole(what, value)
    if not 1 <= number <= most:
        raise Refusal(f"{what}={number} is not from 1 to {most}")
    return number


def real(what: str, value: object) -> float:
    """``value`` as a float. Raises Refusal."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise Refusal(f"{what}={shown(value)} is not a number") from None


def finite(what: str, value: object) -> float:
    """``value`` as a float that is finite as float32, too. Raises Refusal."""
    number = real(what, value)
    if not abs(number) <= _LARGEST:
        raise Refusal(f"{what}={shown(value)} is not a finite float32")
    return number


def flag(what: str, value: object) -> bool:
    """``value`` as a bool. Raises Refusal."""
    if value is not None and not isinstance(value, int | np.bool_ | np.integer):
        raise Refusal(f"{what}={shown(value)} is neither True nor False")
    return bool(value)


def data(what: str, value: object) -> bytes:
    """``value``, bytes or anything that lends its memory as such, a text as UTF-8. Raises Refusal."""
    if isinstance(value, str):
        return text(what, value).encode()
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]
    except TypeError:
        raise Refusal(f"{what}={shown(value)} are not bytes") from None


def numbers(what: str, values: Iterable[object], each: Callable[[str, object], float]) -> list[Any]:
    """Converts each value with :func:`whole` or :func:`real`. Raises Refusal."""
    try:
        return [each(what, value) for value in values]
    except TypeError:
        raise Refusal(f"{what}={shown(values)} is not a sequence of numbers") from None


def of_call(call: str, convert: Callable[[str, object], T], what: str, value: object) -> T:
    """An argument of one rank's call. Raises InvalidArgumentError, on this rank only, where ``convert`` refuses it.

    ``call``: what the error begins with, such as "table 'weights': get()".
    """
    try:
        return convert(what, value)
    except Refusal as refusal:
        raise InvalidArgumentError(f"{call}: {refusal}") from None


def check(call: str, **given: tuple[Callable[[str, object], object], object]) -> None:
    """Raises InvalidArgumentError for the first of a call's arguments that its conversion refuses.

    It is called where the core has refused one of them, so that a call without an error does not pay for it.
    """
    for what, (convert, value) in given.items():
        of_call(call, convert, what, value)


def factor_of(about: Callable[[str], str], factor: object) -> float:
    """The factor of add(). Raises InvalidArgumentError: one that is not finite would spoil the table for all ranks.

    ``about(call)``: what an error begins with.
    """
    if type(factor) is float and -_LARGEST <= factor <= _LARGEST:  # the usual case
        return factor
    return of_call(about("add"), finite, "factor", factor)


def readable(about: Callable[[str], str], call: str, what: str, values: npt.ArrayLike) -> Floats:
    """A contiguous float32 array of the values: the caller's own if it is one. Raises InvalidArgumentError.

    ``about(call)``: what an error begins with.
    """
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if array.dtype.kind in "cSUMmO":  # of objects, NumPy would take None for NaN
            raise TypeError(f"its dtype is {array.dtype}")
        return np.ascontiguousarray(array, np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"{about(call)}: {what}={shown(values)} cannot be converted to an array of float32: {error}"
        ) from None


def writeable(about: Callable[[str], str], call: str, out: object) -> Floats:
    """Raises InvalidArgumentError if values cannot be written directly into ``out``."""
    if not isinstance(out, np.ndarray):
        found = f"of type {type(out).__name__}"
    elif out.dtype != np.float32:
        found = f"of dtype {out.dtype}"
    elif not out.flags.c_contiguous:
        found = "not contiguous"
    elif not out.flags.writeable:
        found = "read-only"
    else:
        return out
    raise InvalidArgumentError(
        f"{about(call)}: out= must be a contiguous, writable array of float32, but it is {found}"
    )
