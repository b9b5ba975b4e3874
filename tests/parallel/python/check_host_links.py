"""Every rank knows the same links between hosts; the argument is RUEDA_TRANSPORT."""

import os
import sys

os.environ["RUEDA_TRANSPORT"] = sys.argv[1]

import numpy as np
import rueda

rueda.init()
links = rueda.host_links()
tried = sorted(link.transport for link in links)
assert tried == (["mpi", "tcp"] if sys.argv[1] == "auto" else [sys.argv[1]]), links
assert all(link.latency_us > 0 and not link.obstacle for link in links), links
for of_rank in rueda.allgather_object(links):
    assert [tuple(link) for link in of_rank] == [tuple(link) for link in links]
for length in (1, 1000, 200_003):
    total = rueda.allreduce(np.full(length, rueda.rank() + 1.0), name=f"x{length}", op=rueda.Sum)
    assert np.all(total == rueda.size() * (rueda.size() + 1) / 2)
print("links agree", flush=True)
rueda.shutdown()
