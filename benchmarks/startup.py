"""How long it takes until ranks on one host can compute together, beside MPI and gloo.

Contenders take turns, after one start of each that does not count. The table gives medians and quartiles: of how long
the slowest rank was in init(), and of the whole command, which ends as soon as the ranks are connected. gloo's time is
that of init_process_group() and a barrier; its ranks import torch before, which the whole command includes.

    python benchmarks/startup.py -np 2 --starts 9
    python benchmarks/startup.py -np 2 --baseline OTHER  # a folder that has another build of Rueda
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rueda.launcher.mpirun import find_mpirun

_TIMED = """
import os, time
{before}
begin = time.perf_counter()
{formed}
os.write(1, b"connected after %f s\\n" % (time.perf_counter() - begin))
{after}
"""
_RUEDA = {"before": "import numpy, rueda", "formed": "rueda.init()", "after": "rueda.shutdown()"}
_MPI = {
    "before": "import ctypes; mpi = ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)",
    "formed": "assert mpi.MPI_Init(None, None) == 0",
    "after": "mpi.MPI_Finalize()",
}
_GLOO = {
    "before": "import torch.distributed as dist",
    "formed": "dist.init_process_group('gloo'); dist.barrier()",
    "after": "dist.destroy_process_group()",
}


@dataclass(frozen=True)
class Contender:
    """What is started: a command line that ends with the program's path; ``path``: for PYTHONPATH."""

    name: str
    line: Sequence[str]
    program: str
    path: Path | None = None

    def start(self) -> tuple[float, float]:
        """Seconds that the slowest rank took to connect, and that the command took."""
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(self.program)
            file.flush()
            added = {} if self.path is None else {"PYTHONPATH": str(self.path)}
            begin = time.perf_counter()
            ended = subprocess.run(
                [*self.line, file.name],
                env=os.environ | added,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            whole = time.perf_counter() - begin
        if ended.returncode:
            raise click.ClickException(f"{self.name} has failed:\n{ended.stdout}{ended.stderr}")
        times = re.findall(r"connected after (\S+) s", ended.stdout)
        return max(map(float, times)), whole


def contenders(ranks: int, baseline: Path | None) -> Iterator[Contender]:
    """All that can run here."""
    python = sys.executable
    run = [python, "-m", "rueda.launcher", "run", "-np", str(ranks), "--no-prefix"]
    ways = {"rueda run": [*run, python], "rueda run --no-mpi": [*run, "--no-mpi", python]}
    mpirun = find_mpirun()
    if mpirun is not None:
        line = [mpirun, "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            line.append("--allow-run-as-root")
        ways["mpirun"] = [*line, python]
        library = str(Path(mpirun).parent.parent / "lib" / "libmpi.so.40")
        program = _TIMED.format(**_MPI).format(library=library)
        yield Contender("mpirun, MPI_Init", [*line, python], program)
    for name, line in ways.items():
        yield Contender(name, line, _TIMED.format(**_RUEDA))
        if baseline is not None:
            yield Contender(f"{name}, baseline", line, _TIMED.format(**_RUEDA), baseline)
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    yield Contender("torchrun, gloo", [*torchrun, str(ranks)], _TIMED.format(**_GLOO))


def _told(values: Sequence[float], scale: float) -> str:
    low, middle, high = statistics.quantiles([scale * value for value in values], n=4)
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


@click.command(help=__doc__)
@click.option("-np", "ranks", default=2, show_default=True)
@click.option("--starts", default=9, show_default=True, type=click.IntRange(min=2))
@click.option("--baseline", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(ranks: int, starts: int, baseline: Path | None) -> None:
    """The command line."""
    chosen = list(contenders(ranks, baseline))
    found: dict[str, list[tuple[float, float]]] = {each.name: [] for each in chosen}
    for start in range(-1, starts):
        for each in chosen:
            times = each.start()
            if start >= 0:
                found[each.name].append(times)
    click.echo(f"{ranks} ranks, {starts} starts: medians (quartiles)\n")
    click.echo("| started by | connected, ms | whole command, s |")
    click.echo("| --- | ---: | ---: |")
    for name, times in found.items():
        formed, whole = zip(*times, strict=True)
        click.echo(f"| {name} | {_told(formed, 1e3)} | {_told(whole, 1)} |")


if __name__ == "__main__":
    main()
