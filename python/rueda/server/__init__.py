"""Parameters that are divided over the ranks, and that each rank reads and adds to at any time.

The basis for asynchronous training, and for models larger than one rank's memory. Each rank owns a part of a table,
which Rueda's own thread serves while the rank's script computes. No rank is special, and none waits for another unless
it asks to. Works over shared memory, TCP and MPI.
"""

from rueda.server.part import Part
from rueda.server.rows import RowTable
from rueda.server.tables import Table

__all__ = ["Part", "RowTable", "Table"]
