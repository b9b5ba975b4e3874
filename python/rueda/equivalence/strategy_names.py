"""What strategies are called, for those who have no torch."""

from __future__ import annotations

__all__ = ["NAMES"]

#: The names that a text may begin with, see :func:`rueda.torch.strategies.parse_strategy`.
NAMES = frozenset(
    [
        "sync",
        "synchronous",
        "accumulate",
        "local",
        "postlocal",
        "oneshot",
        "diloco",
        "sparseloco",
        "desloc",
        "adpsgd",
        "noloco",
        "easgd",
        "ssp",
        "aeasgd",
        "eamsgd",
        "downpour",
        "async",
        "asynchronous",
        "adag",
        "dynsgd",
        "hogwild",
    ]
)
