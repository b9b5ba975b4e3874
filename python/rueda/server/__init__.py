"""Parameters that are divided over the ranks, and that each rank reads and adds to when it likes.

What asynchronous training stands on, and models that are larger than a rank. Each rank owns a part of a table and
serves it while its script computes, by Rueda's own thread; none is special, and none waits for another unless it asks
to. Over shared memory, TCP and MPI alike.
"""

from rueda.server.part import Part
from rueda.server.rows import RowTable
from rueda.server.tables import Table

__all__ = ["Part", "RowTable", "Table"]
