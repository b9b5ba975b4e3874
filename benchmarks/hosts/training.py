"""Training across hosts: how much of a step waits for gradients, of a model with 100 MB of them.

The hosts are network namespaces on this machine, each with a link of its own (tests/net/lab). The contenders take
turns within one start of the ranks, each with a copy of the model:

- alone: without communication, in as many processes, so that these share the processors alike;
- rueda: DistributedOptimizer; rueda-overlap: with overlap_forward=True; rueda-order: the same without priorities;
- gloo: DistributedDataParallel of torch over gloo.

A step's time is from its beginning to that of the next one, so what it leaves for the next one counts there. What is
exposed is what it takes longer than alone; the bound is that of the link, 2(P-1)/P of the gradients' bytes at the rate
of TCP's payload, less the time of the backward pass, which is the most that can hide it without reaching into
the next forward pass. The figures are medians over all turns.

    python benchmarks/hosts/training.py --batch 256

Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import click

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "python")]
from net.lab import Lab  # noqa: E402

RANK = Path(__file__).with_name("training_rank.py")
PORT = 29518
LIMIT = 900.0  # seconds that all turns may take
CONTENDERS = ("alone", "rueda", "rueda-overlap", "rueda-order", "gloo")
# Of the bytes that `tc` counts, those of a full segment's data: 1500 less IP's and TCP's headers with time stamps.
PAYLOAD = 1448 / 1514
LINE = "measured "


def measure(
    lab: Lab, contenders: list[str], batch: int, layers: int, steps: int, turns: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each contender's steps and of their parts, on rank 0."""
    everywhere = ",".join(f"{name}:1" for name in lab.names)
    line = [str(Path(sys.executable).with_name("rueda")), "run", "--ssh", str(lab.agent)]
    line += ["-H", everywhere, "--no-prefix", sys.executable, str(RANK)]
    line += [json.dumps(contenders), str(batch), str(layers), str(steps), str(turns)]
    line += [f"tcp://{lab.address('h0')}:{PORT}"]
    done = subprocess.run(
        lab.inside(lab.names[0], *line),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    for text in done.stdout.splitlines():
        if text.startswith(LINE):
            measured: dict[str, dict[str, list[float]]] = json.loads(text.removeprefix(LINE))
            return measured
    raise click.ClickException(done.stdout + done.stderr)


@click.command(help=__doc__)
@click.option("--hosts", type=click.IntRange(min=2), default=2, show_default=True)
@click.option("--mbit", type=float, default=1000, show_default=True, help="Of each link.")
@click.option("--layers", type=int, default=24, show_default=True, help="Of 4.2 MB each.")
@click.option("--batch", type=int, default=256, show_default=True, help="Samples of each rank.")
@click.option("--steps", type=click.IntRange(min=4), default=6, show_default=True, help="A turn.")
@click.option("--turns", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--contenders", default=",".join(CONTENDERS), show_default=True)
def main(
    hosts: int, mbit: float, layers: int, batch: int, steps: int, turns: int, contenders: str
) -> None:
    """The command."""
    names = contenders.split(",")
    if names[0] != "alone":
        raise click.BadParameter("what is exposed is told by `alone`, which comes first")
    with Lab(hosts, rate=f"{mbit:g}mbit") as lab:
        measured = measure(lab, names, batch, layers, steps, turns)
    middle = {
        name: {part: statistics.median(times) for part, times in parts.items()}
        for name, parts in measured.items()
    }
    gradients = 4 * layers * (1024 * 1024 + 1024)
    wire = 2 * (hosts - 1) / hosts * gradients / (mbit * 1e6 / 8 * PAYLOAD)
    alone = middle["alone"]
    bound = max(0.0, wire - alone["backward"])
    click.echo(
        f"{hosts} hosts, links of {mbit:g} Mbit/s, {gradients / 1e6:.1f} MB of gradients, {turns} turns\n"
        f"alone: step {alone['step'] * 1e3:.0f} ms, forward {alone['forward'] * 1e3:.0f}, "
        f"backward {alone['backward'] * 1e3:.0f}; the link needs {wire * 1e3:.0f}; "
        f"link less backward {bound * 1e3:.0f}, less forward too "
        f"{max(0.0, bound - alone['forward']) * 1e3:.0f}"
    )
    for name in names[1:]:
        times = sorted(measured[name]["step"])
        exposed = middle[name]["step"] - alone["step"]
        told = f"{exposed / bound:.2f} of the bound" if bound > 0 else "the bound is 0"
        click.echo(
            f"{name:14} step {middle[name]['step'] * 1e3:7.0f} ms "
            f"({times[0] * 1e3:.0f} to {times[-1] * 1e3:.0f})  exposed {exposed * 1e3:7.0f} ms, {told}"
        )


if __name__ == "__main__":
    main()
