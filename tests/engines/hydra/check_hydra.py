"""Ranks that meet through PMI: two worlds in sequence, and values that need several pieces.

With argument ``fails`` rank 1 fails. With ``trains`` all ranks train the digits, as well as one
process does.
"""

from __future__ import annotations

import os
import sys

import rueda
from digits import require_trained_as_by_one

assert "PMI_FD" in os.environ
rueda.init(init_timeout=60)
texts = [str(rank) * 5000 for rank in range(rueda.size())]
assert rueda.allgather_object(str(rueda.rank()) * 5000) == texts
rueda.shutdown()
rueda.init(init_timeout=60)
assert rueda.allreduce([1.0], op=rueda.Sum, name="x")[0] == rueda.size()
if "fails" in sys.argv and rueda.rank() == 1:
    raise ValueError("a bad row")
if "trains" in sys.argv:
    require_trained_as_by_one()
rueda.barrier()
print(f"met {rueda.size()} on {rueda.cross_size()} hosts\n", end="", flush=True)
