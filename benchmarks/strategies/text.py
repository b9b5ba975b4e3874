"""Strategies that train a small transformer on text, on hosts with thin links: loss, bytes, and what is waited for.

The hosts are network namespaces on this machine, each with one rank and a link of its own (tests/net/lab). All runs
go through equally many characters, the modules of Python's standard library, of which every tenth is held out. With
each seed all runs begin with the same parameters and see the same batches. The table has the loss on the text held
out, and by how much it is above that of `sync`, as mean and standard error over the seeds; then of a rank the bytes
that its interface has sent, with headers and acknowledgements, how many times fewer that is than what `sync` sends,
the seconds of the training, and which part of them step() takes beyond the optimizer's own step (text_rank.py).

`torchft:PERIOD,FRAGMENTS,DELAY,MIXING` is torchft's own DiLoCo over gloo, each host a replica group.

With --records what has been measured is kept, and not measured again, so that a table can be made piece by piece:

    python benchmarks/strategies/text.py --records records.jsonl --seeds 3 sync
    python benchmarks/strategies/text.py --records records.jsonl --seeds 3

Needs root, `ip` and `tc`; torchft's run needs `pip install torchft==0.2.0`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
from text_rank import Settings

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
Measured = list[dict[str, float]]  # by rank


def measure(lab: Lab, run: str, settings: Settings) -> Measured:
    """What the ranks of one training have measured."""
    begin = measure_torchft if run.startswith(TORCHFT) else measure_rueda
    output = begin(lab, run.removeprefix(TORCHFT), settings.dump())
    told = [
        json.loads(line.removeprefix(LINE)) for line in output.splitlines() if line.startswith(LINE)
    ]
    if len(told) != len(lab.names):
        raise click.ClickException(output)
    return sorted(told, key=lambda each: float(each["rank"]))


def measure_rueda(lab: Lab, run: str, settings: str) -> str:
    """What one job prints."""
    everywhere = ",".join(f"{name}:1" for name in lab.names)
    line = [str(Path(sys.executable).with_name("rueda")), "run", "--ssh", str(lab.agent)]
    line += ["-H", everywhere, "--no-prefix", sys.executable, str(RANK), run, settings]
    done = lab.run(lab.names[0], *line, timeout=LIMIT, env=ENVIRONMENT)
    return done.stdout + done.stderr


def measure_torchft(lab: Lab, run: str, settings: str) -> str:
    """What all replicas print."""
    line = [sys.executable, str(TORCHFT_RANK), run, settings]
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


class Records:
    """What has been measured, by what was to be: in a file, a line of JSON each, if there is to be one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._found: dict[str, Measured] = {
            self._key(each["what"]): each["measured"] for each in map(json.loads, lines)
        }

    @staticmethod
    def _key(what: dict[str, Any]) -> str:
        return json.dumps(what, sort_keys=True)

    def get(self, what: dict[str, Any]) -> Measured | None:
        """What was measured; `None` where nothing was."""
        return self._found.get(self._key(what))

    def add(self, what: dict[str, Any], measured: Measured) -> None:
        """Keeps it."""
        self._found[self._key(what)] = measured
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"what": what, "measured": measured}) + "\n")


def mean_of(measured: Measured, key: str) -> float:
    """Over the ranks."""
    return float(np.mean([each[key] for each in measured]))


def with_error(values: list[float], form: str) -> str:
    """Mean and standard error."""
    mean = format(np.mean(values), form)
    if len(values) < 2:
        return mean
    return f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):{form.lstrip('+')}}"


def row(name: str, of_seeds: list[Measured], plain: list[Measured]) -> str:
    """A line of the table; `plain`: of `sync`, none where that was not measured with all these seeds."""
    losses = [mean_of(each, "loss") for each in of_seeds]
    sent = float(np.mean([mean_of(each, "bytes") for each in of_seeds]))
    waited = [100 * mean_of(each, "exposed") / mean_of(each, "seconds") for each in of_seeds]
    above = fewer = ""
    if plain and name != "sync":
        others = [mean_of(each, "loss") for each in plain]
        gaps = [100 * (own / other - 1) for own, other in zip(losses, others, strict=True)]
        above = with_error(gaps, "+.2f")
        fewer = f"{np.mean([mean_of(each, 'bytes') for each in plain]) / sent:,.1f}"
    cells = [
        f"`{name}`",
        with_error(losses, ".4f"),
        above,
        f"{sent:,.0f}",
        fewer,
        f"{np.median([mean_of(each, 'seconds') for each in of_seeds]):.1f}",
        f"{np.median(waited):.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


@click.command(help=__doc__)
@click.argument("runs", nargs=-1)
@click.option("--hosts", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--mbit", type=float, default=100, show_default=True, help="Of each link.")
@click.option("--steps", type=click.IntRange(min=1), default=1664, show_default=True)
@click.option("--rate", type=click.FloatRange(0), default=2e-3, show_default=True,
              help="The highest learning rate, of AdamW.")  # fmt: skip
@click.option("--last-rate", type=click.FloatRange(0, 1), default=0.1, show_default=True,
              help="The learning rate at the end, as a part of the highest.")  # fmt: skip
@click.option("--width", type=click.IntRange(min=4), default=96, show_default=True,
              help="Of the model.")  # fmt: skip
@click.option("--context", type=click.IntRange(min=1), default=64, show_default=True,
              help="Characters of a text.")  # fmt: skip
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True,
              help="Texts of a rank in a step.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--records", type=click.Path(dir_okay=False, path_type=Path))
def main(
    runs: tuple[str, ...],
    hosts: int,
    mbit: float,
    seeds: int,
    records: Path | None,
    **training: Any,
) -> None:
    """The command."""
    kept = Records(records)
    names = list(runs or RUNS)

    def what(name: str, seed: int) -> dict[str, Any]:
        settings = Settings(seed=seed, **training)
        return {"run": name, "hosts": hosts, "mbit": mbit, **settings._asdict()}

    with Lab(hosts, rate=f"{mbit:g}mbit") as lab:
        for seed in range(seeds):
            for name in names:
                if kept.get(what(name, seed)) is None:
                    measured = measure(lab, name, Settings(seed=seed, **training))
                    kept.add(what(name, seed), measured)
                    click.echo(f"seed {seed}, {name}: {measured}", err=True)

    def found(name: str) -> list[Measured]:
        all_seeds = [kept.get(what(name, seed)) for seed in range(seeds)]
        return [each for each in all_seeds if each is not None]

    plain = found("sync") if len(found("sync")) == seeds else []
    heads = ["run", "loss", "above `sync`, %", "bytes", "times fewer", "s", "waited, %"]
    click.echo("| " + " | ".join(heads) + " |")
    click.echo("| --- |" + " ---: |" * (len(heads) - 1))
    for name in names:
        click.echo(row(name, found(name), plain))


if __name__ == "__main__":
    main()
