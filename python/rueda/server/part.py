"""What remains of a table when its world has ended."""

from __future__ import annotations

import numpy as np

__all__ = ["Part"]


class Part:
    """What one rank holds of a table: its own part, or the replica of the previous rank's.

    ``owner``: rank within the process set; ``is_own``: whether that is this rank. ``version``: the number of additions.
    ``begin`` or ``rows``: which elements, or which rows, ``values`` has. ``state``: the rule's state for them; for
    rows, all kinds of a row side by side, for elements, one kind after the other.

    Example::

        >>> with rueda.server.Table("small", 4) as table:
        ...     part = table.parts()[0]
        >>> part.is_own, part.version
        (True, 0)
    """

    def __init__(
        self,
        owner: int,
        is_own: bool,
        version: int,
        begin: int,
        rows: bytes,
        values: bytes,
        state: bytes,
    ) -> None:
        self.owner = owner
        self.is_own = is_own
        self.version = version
        self.begin = begin
        self.rows = np.frombuffer(rows, np.int64)
        self.values = np.frombuffer(values, np.float32)
        self.state = np.frombuffer(state, np.float32)
