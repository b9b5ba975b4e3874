"""The simulator beside the engine: allreduces across hosts of the lab, as they are and as they are predicted.

What the simulator is told of links is measured once for each rate, on two hosts with a rank each; what it is told of
memory, with the same hosts and ranks, which share this machine, but within each host. Nothing is fitted. A measured
time is the lower quartile of five calls, and the least of three starts, since disturbances only add. Needs root, `ip`
and `tc`.

    python benchmarks/simulate/compare.py [--json FILE]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from net.lab import Lab  # noqa: E402

RANK = Path(__file__).with_name("real_rank.py")
SIMULATE = ROOT / "build/release/benchmarks/simulate/simulate"
MIB = 1 << 20
SHORT, LONG = 8 * MIB, 40 * MIB  # messages of the probe, as in real_rank.py
LIMIT = 300.0  # seconds that a start may take
# Gbit/s, and what tc calls them.
RATES = {"1gbit": 1.0, "500mbit": 0.5}
# Hosts, ranks on each, MiB.
SETTINGS = [(2, 1, 8), (2, 1, 64), (4, 1, 32), (2, 2, 32), (4, 2, 64), (2, 4, 64)]
STARTS = 3


@dataclass
class Comparison:
    """One setting, times in milliseconds."""

    rate: str
    hosts: int
    ranks: int  # on each
    mib: int
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Of the simulation, relative."""
        return self.simulated / self.measured - 1


def found_in(output: str) -> dict[str, float]:
    """What rank 0 has measured."""
    for line in output.splitlines():
        if line.startswith("measured "):
            found: dict[str, float] = json.loads(line.removeprefix("measured "))
            return found
    raise click.ClickException(output)


def start(lab: Lab, ranks: int, *arguments: str) -> dict[str, float]:
    """On all hosts of a lab."""
    line = [str(Path(sys.executable).with_name("rueda")), "run", "--no-prefix"]
    line += ["--ssh", str(lab.agent), "-H", ",".join(f"{name}:{ranks}" for name in lab.names)]
    line += [sys.executable, str(RANK), *arguments]
    done = subprocess.run(
        lab.inside(lab.names[0], *line),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return found_in(done.stdout + done.stderr)


def simulate(hosts: int, ranks: int, mib: int, costs: dict[str, float]) -> float:
    """Milliseconds of the last of three steps."""
    line = [str(SIMULATE), "--json", "--steps", "3", "--tensors", f"{mib}M"]
    line += ["--hosts", str(hosts), "--ranks-per-host", str(ranks)]
    for name, value in costs.items():
        line += [f"--{name.replace('_', '-')}", f"{value:.9g}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(done.stderr)
    return float(json.loads(done.stdout)["steps"][-1]["seconds"]) * 1e3


def link_of(probes: list[dict[str, float]]) -> dict[str, float]:
    """By the quickest of each: what a byte more takes is the link's."""
    best = {name: min(probe[name] for probe in probes) for name in ("latency", "short", "long")}
    seconds = (best["long"] - best["short"]) / (LONG - SHORT)
    fastest = {name: max(probe[name] for probe in probes) for name in ("reduce", "copy")}
    return {"latency": best["latency"], "bandwidth": 8e-9 / seconds, **fastest}


def compare(rate: str) -> list[Comparison]:
    """All settings with links of one rate."""
    with Lab(2, rate=rate) as lab:
        probes = [start(lab, 1, "link") for _ in range(STARTS)]
    link = link_of(probes)
    click.echo(
        f"{rate}: {link['bandwidth']:.4f} Gbit/s, {link['latency']:.1f} us; "
        f"a rank adds {link['reduce']:.1f} GB/s, copies {link['copy']:.1f}"
    )
    lengths: dict[tuple[int, int], list[int]] = {}
    for hosts, ranks, mib in SETTINGS:
        lengths.setdefault((hosts, ranks), []).append(mib)
    rows = []
    for (hosts, ranks), sizes in lengths.items():
        with Lab(hosts, rate=rate) as lab:
            within = start(lab, ranks, "host") if ranks > 1 else {}
            each = json.dumps([size * MIB for size in sizes])
            starts = [start(lab, ranks, "allreduce", each) for _ in range(STARTS)]
            times = {length: min(one[length] for one in starts) for length in starts[0]}
        if within:
            click.echo(
                f"{hosts} hosts with {ranks} ranks each: {within['memory']:.2f} GB/s, "
                f"{within['memory_latency']:.1f} us"
            )
        for mib in sizes:
            simulated = simulate(hosts, ranks, mib, {**link, **within})
            rows.append(Comparison(rate, hosts, ranks, mib, times[str(mib * MIB)], simulated))
            report(rows[-1])
    return rows


def report(row: Comparison) -> None:
    """One line of the table."""
    click.echo(
        f"{row.rate:>8} {row.hosts} x {row.ranks} {row.mib:>4} MiB "
        f"measured {row.measured:9.2f} ms  simulated {row.simulated:9.2f} ms  {row.error:+7.2%}"
    )


@click.command(help=__doc__)
@click.option("--rates", default=",".join(RATES), show_default=True, help="As tc reads them.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write them here.")
def main(rates: str, path: Path | None) -> None:
    """The command."""
    rows = [row for rate in rates.split(",") for row in compare(rate)]
    errors = sorted(abs(row.error) for row in rows)
    click.echo(
        f"{len(rows)} settings: median error {statistics.median(errors):.2%}, worst {errors[-1]:.2%}"
    )
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
