"""Trains on the digits with one rank and with four, and compares the results: `make demo`.

Exits with 1 if any line of the table does not hold.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RANKS = 4
ACCURACY_TOLERANCE = 0.005  # half a percentage point
PARAMETER_TOLERANCE = 1e-4  # the effect of another order of summation in float32 in this training

Archive = dict[str, np.ndarray]


@dataclass
class Line:
    """One line of the table: the value found, the expected value, and whether they agree."""

    name: str
    found: str
    expected: str
    holds: bool


def parameters(archive: Archive) -> Archive:
    """The model's parameters in a result: all arrays. Accuracy and counters are scalars."""
    return {name: value for name, value in archive.items() if value.ndim > 0}


def fingerprint(archive: Archive) -> str:
    """A hash of every bit of the parameters."""
    digest = hashlib.sha256()
    for name, value in sorted(parameters(archive).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def compare(single: Archive, ranks: list[Archive]) -> list[Line]:
    """Compares the results of the two trainings."""
    size = len(ranks)
    alone, together = float(single["accuracy"]), [float(rank["accuracy"]) for rank in ranks]
    apart = max(abs(alone - accuracy) for accuracy in together)
    differences = [
        np.abs(value - ranks[0][name]).max() for name, value in parameters(single).items()
    ]
    difference = float(np.max(differences))  # NaN if any difference is
    prints = [fingerprint(rank) for rank in ranks]
    return [
        Line("test accuracy, 1 rank", f"{100 * alone:.2f} %", "above 90 %", alone > 0.9),
        Line(
            f"test accuracy, {size} ranks",
            f"{100 * together[0]:.2f} %",
            f"within {100 * ACCURACY_TOLERANCE} points",
            apart <= ACCURACY_TOLERANCE,
        ),
        Line(
            f"largest parameter difference, 1 to {size} ranks",
            f"{difference:.1e}",
            f"at most {PARAMETER_TOLERANCE:.0e}",
            difference <= PARAMETER_TOLERANCE,
        ),
        Line(
            f"hash of the parameters' bits, {size} ranks",
            "\n".join(sorted(set(prints))),
            "the same on all",
            same(prints),
        ),
    ]


def count(ranks: list[Archive]) -> list[Line]:
    """Checks the engines' counters."""
    hops = 2 * (len(ranks) - 1)

    def counter(name: str) -> list[int]:
        return [int(rank[f"allreduce_{name}"]) for rank in ranks]

    def line(name: str, values: list[int], expected: str, holds: bool) -> Line:
        found = f"{values[0]:,}" if same(values) else ", ".join(f"{value:,}" for value in values)
        return Line(name, found, expected, same(values) and values[0] > 0 and holds)

    tensors, batches, steps = counter("tensors"), counter("batches"), counter("ring_steps")
    given, sent = counter("tensor_bytes"), sum(counter("payload_bytes_sent"))
    return [
        line("gradient buckets submitted, each rank", tensors, "the same on all", True),
        line("batches executed", batches, "at most as many", batches[0] <= tensors[0]),
        line(
            "ring steps",
            steps,
            f"2(P-1) x batches = {hops * batches[0]:,}",
            steps[0] == hops * batches[0],
        ),
        line("gradient bytes n", given, "the same on all", True),
        line(
            "payload bytes sent, all ranks",
            [sent],
            f"2(P-1) n = {hops * given[0]:,}",
            sent == hops * given[0],
        ),
    ]


def same(values: list[int] | list[str]) -> bool:
    """Whether all ranks agree."""
    return len(set(values)) == 1


def train(console: Console, command: list[str], **environment: str) -> None:
    """Runs a training and shows its output."""
    console.print(f"\n[bold]$ {' '.join(command)}[/]", highlight=False, soft_wrap=True)
    subprocess.run(command, check=True, timeout=600, env=os.environ | environment)


def load(path: Path) -> Archive:
    """Loads a training's result."""
    with np.load(path) as archive:
        return dict(archive)


def show(console: Console, lines: list[Line]) -> None:
    """Prints the table."""
    table = Table(title="1 rank and 4 ranks, the same global batch")
    for title in ("", "found", "must be", "holds"):
        table.add_column(title, justify="right" if title == "found" else "left")
    for line in lines:
        holds = "[green]yes[/]" if line.holds else "[bold red]NO[/]"
        table.add_row(line.name, line.found, line.expected, holds)
    console.print()
    console.print(table)


def main() -> None:
    console = Console(width=110)
    rueda = str(Path(sys.executable).with_name("rueda"))
    with tempfile.TemporaryDirectory() as folder:
        single, distributed = Path(folder, "single"), Path(folder, "rank")
        train(
            console,
            [sys.executable, str(HERE / "digits_single.py"), "--result", str(single)],
            OMP_NUM_THREADS="1",
        )
        train(
            console,
            [
                rueda,
                "run",
                "-np",
                str(RANKS),
                "--bootstrap",
                "mpi",
                "--transport",
                "mpi",
                "--verbose",
            ]
            + [sys.executable, str(HERE / "digits.py"), "--result", str(distributed)],
        )
        ranks = [load(Path(f"{distributed}.{rank}.npz")) for rank in range(RANKS)]
        lines = compare(load(Path(f"{single}.npz")), ranks) + count(ranks)
    show(console, lines)
    if not all(line.holds for line in lines):
        sys.exit("the demo does not hold: see the lines marked NO")


if __name__ == "__main__":
    main()
