"""How long the others take to go on when a rank is killed that has much memory, in ms: docs/reliability.md.

The last rank has touched that much, in pages of 4 KiB, and kills itself; the first says how long it took from just
before until it knew, was in a new world, and had the next allreduce's result.

    rueda run --min-np 1 -np 3 --oversubscribe python benchmarks/recovery/memory.py --gib 1
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import rueda


def main() -> None:
    """Runs on each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    size = int(parser.parse_args().gib * (1 << 30))
    rueda.init()
    last = rueda.size() - 1
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    np.frombuffer(memory, np.uint8)[::4096] = 1
    folder = rueda.broadcast_object(tempfile.mkdtemp() if rueda.rank() == 0 else None, 0)
    moment = Path(folder) / "killed"
    rueda.allreduce(np.ones(1000), name="before")
    if rueda.rank() == last:
        time.sleep(0.1)  # until the others wait
        moment.write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(rueda.PeerLostError):
        rueda.allreduce(np.ones(1000), name="lost")
    knew = time.monotonic()
    rueda.recover(timeout=60)
    entered = time.monotonic()
    rueda.allreduce(np.ones(1000), name="after")
    right = time.monotonic()
    if rueda.rank() == 0:
        began = float(moment.read_text())
        told = ", ".join(
            f"{what} {1e3 * (at - began):.1f}"
            for what, at in (("knew", knew), ("new world", entered), ("result", right))
        )
        print(f"{size / (1 << 30):g} GiB: {told}")
        moment.unlink()
        Path(folder).rmdir()
    rueda.shutdown()


if __name__ == "__main__":
    main()
