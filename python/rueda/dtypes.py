"""The element types, with the same numbers as in C++."""

from __future__ import annotations

from rueda import _native

__all__ = ["code_of", "item_size", "name_of", "names"]

# Row i is the element type with the number i.
_rows: tuple[tuple[str, int], ...] = tuple(_native.data_types())
_codes: dict[str, int] = {name: code for code, (name, _) in enumerate(_rows)}


def names() -> list[str]:
    """Names of all element types, NumPy's where NumPy has one.

    Example::

        >>> "bfloat16" in names()
        True
    """
    return [name for name, _ in _rows]


def code_of(name: str) -> int | None:
    """Number of the element type called ``name``, or ``None`` if Rueda does not support it."""
    return _codes.get(name)


def name_of(code: int) -> str:
    """Name of the element type with this number."""
    return _rows[code][0]


def item_size(code: int) -> int:
    """Bytes per element."""
    return _rows[code][1]
