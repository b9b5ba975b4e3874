"""What recording costs: small allreduces with and without it, in turns.

python benchmarks/report/overhead.py [--rounds 5]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

RANK = """
import time
import numpy as np
import rueda
rueda.init()
x = np.ones(2, np.float32)
for _ in range(2000):
    rueda.allreduce_(x, name="x")
begin = time.perf_counter()
for _ in range(20000):
    rueda.allreduce_(x, name="x")
if rueda.rank() == 0:
    print("measured", (time.perf_counter() - begin) / 20000 * 1e6)
"""


def microseconds(folder: str | None) -> float:
    """Of an allreduce of two ranks."""
    line = [sys.executable, "-m", "rueda.launcher", "run", "-np", "2", "--no-mpi", "--no-prefix"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if folder is not None:
        environment["RUEDA_REPORT"] = folder
    done = subprocess.run(
        [*line, sys.executable, "-c", RANK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return float(done.stdout.partition("measured ")[2].split()[0])


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
def main(rounds: int) -> None:
    """Medians, in microseconds."""
    without, recorded = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            without.append(microseconds(None))
            recorded.append(microseconds(folder))
        size = sum(path.stat().st_size for path in Path(folder).glob("rank0.report"))
    click.echo(
        f"an allreduce takes {statistics.median(without):.2f} µs, recorded {statistics.median(recorded):.2f} µs "
        f"(medians of {rounds}); {size / 22000:.0f} bytes of recording for each"
    )


if __name__ == "__main__":
    main()
