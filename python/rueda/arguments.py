"""Converts collectives' arguments other than arrays for the core."""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Iterable

from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError
from rueda.operations import ReduceOp

__all__ = [
    "RANK_BITS",
    "factor_of",
    "fits",
    "label_of",
    "priority_of",
    "reduction_of",
    "root_of",
    "rows_of",
    "same_text",
    "shown",
    "text_of",
    "whole_number",
]

RANK_BITS = 32
_PRIORITY_BITS = 32
_ROW_BITS = 64
# As in what object.__repr__() returns; other classes may show numbers in hexadecimal.
_AT_ADDRESS = re.compile(" at 0x[0-9a-f]+")


def fits(number: int, bits: int) -> bool:
    """Whether ``number`` fits into a signed integer of ``bits`` bits, as the core takes it."""
    end = 1 << (bits - 1)
    return -end <= number < end


def whole_number(what: str, value: object, least: int) -> int:
    """An argument as an integer. Raises InvalidArgumentError, on this rank only, if it is none or below ``least``."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(f"{what}={value!r} is not a whole number") from None
    if number < least:
        raise InvalidArgumentError(f"{what}={number} is less than {least}")
    return number


def text_of(name: object) -> str:
    """A name as it is sent to other ranks; empty for an unnamed operation.

    Anything but a string is converted by ``str()``, so that a wrong type on one rank makes no other rank wait. Raises
    Refusal for a string that cannot be encoded as UTF-8.
    """
    text = name if type(name) is str else "" if name is None else str(name)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refusal(
                f"the name {text!a} has surrogate characters, as from a file name that is not UTF-8"
            ) from None
    return text


def label_of(name: object) -> str:
    """The same for an operation that fails; a name that UTF-8 cannot encode is escaped alike on every rank."""
    try:
        return text_of(name)
    except Refusal:
        return str(name).encode(errors="backslashreplace").decode()


def reduction_of(op: ReduceOp) -> int:
    """The core's number for a reduction. Raises Refusal."""
    if type(op) is ReduceOp:
        return op
    try:
        return ReduceOp(op).value
    except ValueError:
        raise Refusal(f"op={op!r} is not one of rueda.Sum, Average, Min, Max, ...") from None


def factor_of(value: float) -> float:
    """A factor as a float. Raises Refusal."""
    if type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise Refusal(f"the scale factor {shown(value)} is not a number") from None


def rows_of(splits: Iterable[int] | None) -> list[int]:
    """How many rows go to each rank; empty for an even division. Raises Refusal."""
    if splits is None:
        return []
    try:
        all_rows = [operator.index(rows) for rows in splits]
    except TypeError:
        raise Refusal(f"splits={shown(splits)} is not a sequence of whole numbers") from None
    for rows in all_rows:
        if not fits(rows, _ROW_BITS):
            raise Refusal(f"splits={shown(splits)}: {shown(rows)} is not a possible number of rows")
    return all_rows


def root_of(root_rank: int) -> int:
    """A rank as an integer. Raises Refusal."""
    try:
        root = operator.index(root_rank)
    except TypeError:
        raise Refusal(f"root_rank={shown(root_rank)} is not a whole number") from None
    if not fits(root, RANK_BITS):
        raise Refusal(f"root rank {shown(root)} is not in the process set")
    return root


def priority_of(priority: int) -> int:
    """A priority as an integer. Raises Refusal."""
    try:
        number = operator.index(priority)
    except TypeError:
        raise Refusal(f"priority={shown(priority)} is not a whole number") from None
    if not fits(number, _PRIORITY_BITS):
        raise Refusal(f"priority={shown(number)} has more than {_PRIORITY_BITS} bits")
    return number


@reprlib.recursive_repr()
def same_text(value: object) -> str:
    """``repr(value)`` to be compared between ranks: without addresses, and with the elements of sets in order.

    Also within lists, tuples and dictionaries; of other classes the text is their own.
    """
    if type(value) in (str, bytes):  # which may have what looks like an address
        return repr(value)
    if isinstance(value, set | frozenset) and type(value) in (set, frozenset):
        return f"{type(value).__name__}({{{', '.join(sorted(map(same_text, value)))}}})"
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        elements = ", ".join(map(same_text, value))
        if type(value) is list:
            return f"[{elements}]"
        return f"({elements},)" if len(value) == 1 else f"({elements})"
    if isinstance(value, dict) and type(value) is dict:
        return f"{{{', '.join(f'{same_text(k)}: {same_text(v)}' for k, v in value.items())}}}"
    return _AT_ADDRESS.sub("", repr(value))


def shown(value: object) -> str:
    """``value`` for an error message: shortened, and safe if its own methods raise."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:197]}..."
