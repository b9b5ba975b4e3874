"""The error about an option in which ranks differ, once all know what each has given."""

from __future__ import annotations

from collections.abc import Iterable

from rueda.errors import MismatchError

__all__ = ["difference"]


def difference(
    name: str | None, what: str, field: str, told: Iterable[tuple[int, str]]
) -> MismatchError:
    """The same on every rank. ``told``: each rank's number and what it has given for ``field``.

    Example::

        >>> error = difference("w", "'w': op of the tensors", "op", [(0, "sum"), (1, "min"), (2, "sum")])
        >>> str(error), error.peer
        ("'w': op of the tensors differs between ranks: sum on ranks 0, 2; min on rank 1", 1)
    """
    ranks: dict[str, list[int]] = {}
    for rank, value in told:
        ranks.setdefault(value, []).append(rank)
    ordered = sorted(ranks, key=lambda value: -len(ranks[value]))  # stable: first that of rank 0
    words = [
        f"{value} on rank{'s' * (len(ranks[value]) > 1)} {', '.join(map(str, ranks[value]))}"
        for value in ordered
    ]
    return MismatchError(
        f"{what} differs between ranks: {'; '.join(words)}",
        ranks[ordered[-1]][0],
        tensor=name,
        field=field,
        values=tuple(ordered),
    )
