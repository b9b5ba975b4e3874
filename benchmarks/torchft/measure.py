"""Training and allreduce under torchft's Manager on this host: ProcessGroupRueda beside ProcessGroupGloo.

Each start has a lighthouse and `--replicas` processes, one replica group each; contenders take turns, `--starts` times
each. `train` is torchft's example train_ddp.py on random pictures: a small network and an embedding of `--useless` MB
that is there to be reduced, DistributedDataParallel of torchft's and AdamW. `allreduce` reduces one tensor of each size
by `Manager.allreduce` again and again. `configure` forms the group anew. The tables give the median over all starts of
replica 0's medians, and their least and greatest.

    python benchmarks/torchft/measure.py train
    python benchmarks/torchft/measure.py allreduce
    python benchmarks/torchft/measure.py configure

Needs `pip install torchft==0.2.0`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import click
from torchft._torchft import LighthouseServer

REPLICA = Path(__file__).with_name("replica.py")
LIMIT = 600.0  # seconds that a start may take


def start(
    contender: str, task: str, replicas: int, arguments: dict[str, object]
) -> dict[str, float]:
    """What replica 0 has measured: a number for each row of the table."""
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=replicas)
    line = [sys.executable, str(REPLICA), contender, task]
    threads = arguments.pop("threads")
    line += [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    processes = [
        subprocess.Popen(
            [*line, "--replica", str(replica), "--replicas", str(replicas)],
            env={
                **os.environ,
                "TORCHFT_LIGHTHOUSE": lighthouse.address(),
                "OMP_NUM_THREADS": str(threads),
                "PYTHONWARNINGS": "ignore",
            },
            stdout=subprocess.PIPE if replica == 0 else subprocess.DEVNULL,
            text=True,
        )
        for replica in range(replicas)
    ]
    try:
        output = processes[0].communicate(timeout=LIMIT)[0]
        for process in processes:
            if process.wait(timeout=LIMIT) != 0:
                raise click.ClickException(f"{contender}: a replica has failed")
    finally:
        for process in processes:
            process.kill()
        lighthouse.shutdown()
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


@click.command()
@click.argument("task", type=click.Choice(["train", "allreduce", "configure"]))
@click.option("--contenders", default="rueda,gloo", show_default=True)
@click.option("--replicas", default=2, show_default=True)
@click.option("--starts", default=3, show_default=True)
@click.option("--useless", default=1000, show_default=True, help="MB of the embedding of `train`")
@click.option("--threads", default=1, show_default=True, help="of torch's, as torchrun sets it")
@click.option("--seconds", default=10.0, show_default=True, help="each start, or size, lasts")
def main(
    task: str,
    contenders: str,
    replicas: int,
    starts: int,
    useless: int,
    threads: int,
    seconds: float,
) -> None:
    """Prints a table with a line for each size, or one."""
    names = contenders.split(",")
    arguments = {"useless": useless, "threads": threads, "seconds": seconds}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(starts):
        for name in names:
            found[name].append(start(name, task, replicas, dict(arguments)))
    print(f"{'':>14}" + "".join(f"{name:>28}" for name in names) + f"{'ratio':>8}")
    for row in found[names[0]][0]:
        medians, cells = [], []
        for name in names:
            values = [each[row] for each in found[name]]
            medians.append(statistics.median(values))
            cells.append(f"{medians[-1]:.4g} ({min(values):.4g}-{max(values):.4g})")
        ratio = f"{medians[-1] / medians[0]:.2f}"
        print(f"{row:>14}" + "".join(f"{cell:>28}" for cell in cells) + f"{ratio:>8}")


if __name__ == "__main__":
    main()
