"""Strategies that train a small transformer on text, on hosts with thin links: loss, bytes, and what is waited for.

The hosts are network namespaces on this machine, each with one rank and a link of its own (tests/net/lab). All runs
go through equally many characters, the modules of Python's standard library, of which every tenth is held out. With
each seed all runs begin with the same parameters and see the same batches. The table has the loss on the text held
out, and by how much it is above that of `sync`, as mean and standard error over the seeds; then of a rank the bytes
that its interface has sent, with headers and acknowledgements, how many times fewer that is than what `sync` sends,
the seconds of the training, and which part of them step() takes beyond the optimizer's own step (text_rank.py).

`torchft:PERIOD,FRAGMENTS,DELAY,MIXING` is torchft's own DiLoCo over gloo, each host a replica group.

    python benchmarks/strategies/text.py --seeds 3

Needs root, `ip` and `tc`; torchft's run needs `pip install torchft==0.2.0`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "python")]
from net.lab import Lab  # noqa: E402

RANK = Path(__file__).with_name("text_rank.py")
TORCHFT = "torchft:"
TORCHFT_RANK = Path(__file__).with_name("text_torchft_rank.py")
LIMIT = 3600.0  # seconds that one training may take
LINE = "measured "
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
RUNS = (
    "sync",
    "diloco:104",
    "diloco:104,fragments=2,delay=8,mixing=0.5,codec=int8",
    "sparseloco:104,0.03",
    "noloco:104",
    "desloc:16,16,16",
    "desloc:16,96,48",
)


def measure(lab: Lab, run: str, seed: int, steps: int, last_rate: float) -> dict[str, float]:
    """What the ranks of one training have measured, on average."""
    begin = measure_torchft if run.startswith(TORCHFT) else measure_rueda
    output = begin(lab, run.removeprefix(TORCHFT), [str(seed), str(steps), str(last_rate)])
    told = [
        json.loads(line.removeprefix(LINE)) for line in output.splitlines() if line.startswith(LINE)
    ]
    if len(told) != len(lab.names):
        raise click.ClickException(output)
    return {key: float(np.mean([each[key] for each in told])) for key in told[0]}


def measure_rueda(lab: Lab, run: str, arguments: list[str]) -> str:
    """What one job prints."""
    everywhere = ",".join(f"{name}:1" for name in lab.names)
    line = [str(Path(sys.executable).with_name("rueda")), "run", "--ssh", str(lab.agent)]
    line += ["-H", everywhere, "--no-prefix", sys.executable, str(RANK), run, *arguments]
    done = lab.run(lab.names[0], *line, timeout=LIMIT, env=ENVIRONMENT)
    return done.stdout + done.stderr


def measure_torchft(lab: Lab, run: str, arguments: list[str]) -> str:
    """What all replicas print."""
    line = [sys.executable, str(TORCHFT_RANK), run, *arguments]
    replicas = [
        lab.start(
            name,
            *line,
            str(number),
            str(len(lab.names)),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, name in enumerate(lab.names)
    ]
    try:
        return "".join(each.communicate(timeout=LIMIT)[0] for each in replicas)
    finally:
        for each in replicas:
            each.kill()


def with_error(values: list[float], form: str) -> str:
    """Mean and standard error."""
    mean = format(np.mean(values), form)
    if len(values) < 2:
        return mean
    return f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):{form.lstrip('+')}}"


@click.command(help=__doc__)
@click.argument("runs", nargs=-1)
@click.option("--hosts", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--mbit", type=float, default=100, show_default=True, help="Of each link.")
@click.option("--steps", type=click.IntRange(min=1), default=1664, show_default=True)
@click.option("--last-rate", type=click.FloatRange(0, 1), default=0.1, show_default=True,
              help="The learning rate at the end, as a part of the highest.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
def main(
    runs: tuple[str, ...], hosts: int, mbit: float, steps: int, last_rate: float, seeds: int
) -> None:
    """The command."""
    names = [each for each in runs or RUNS if each != "sync"]
    names.insert(0, "sync")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with Lab(hosts, rate=f"{mbit:g}mbit") as lab:
        for seed in range(seeds):
            for name in names:
                found[name].append(measure(lab, name, seed, steps, last_rate))
                click.echo(f"seed {seed}, {name}: {found[name][-1]}", err=True)
    click.echo("| run | loss | above `sync`, % | bytes | times fewer | s | waited, % |")
    click.echo("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    plain = found["sync"]
    for name in names:
        of_seeds = found[name]
        pairs = list(zip(of_seeds, plain, strict=True))
        above = [100 * (each["loss"] / other["loss"] - 1) for each, other in pairs]
        sent = np.mean([each["bytes"] for each in of_seeds])
        seconds = np.median([each["seconds"] for each in of_seeds])
        waited = np.median([100 * each["exposed"] / each["seconds"] for each in of_seeds])
        fewer = np.mean([each["bytes"] for each in plain]) / sent if sent else float("inf")
        click.echo(
            f"| `{name}` | {with_error([each['loss'] for each in of_seeds], '.4f')} "
            f"| {'' if name == 'sync' else with_error(above, '+.2f')} | {sent:,.0f} | {fewer:.1f} "
            f"| {seconds:.1f} | {waited:.2f} |"
        )


if __name__ == "__main__":
    main()
