"""Plots the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rueda.launcher.figures import new_pyplot, save_plot

from .report import Report
from .sizes import format_size


def draw(report: Report, path: Path) -> None:
    """Plots time, with its spread, and bus bandwidth over size, one line per contender.

    Raises LaunchError if the file cannot be written.
    """
    pyplot = new_pyplot()
    pyplot.rcParams["svg.hashsalt"] = "rueda"  # the same report gives the same file
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    for entry in report.entries:
        _line(report, entry.label, axes, bool(entry.contender.peer))
    _limit(report, axes)
    sizes = list(report.sizes)
    for axis, name in zip(axes, ("time in µs", "bus bandwidth in GB/s"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(sizes, [format_size(size) for size in sizes], rotation=45)
        axis.set_xlabel("bytes")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[0].legend()
    plan = report.plan
    figure.suptitle(
        f"{plan.collective.name}, {plan.ranks} ranks, {plan.dtype}: {report.head['CPU']}"
    )
    save_plot(figure, path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _line(report: Report, label: str, axes: Any, is_peer: bool) -> None:
    known = [
        (size, results[label])
        for size, results in report.sizes.items()
        if label in results and results[label].known
    ]
    if not known:
        return
    sizes = [size for size, _ in known]
    style = {"linestyle": "--" if is_peer else "-", "linewidth": 1.2 if is_peer else 2.2}
    (line,) = axes[0].plot(sizes, [s.median * 1e6 for _, s in known], label=label, **style)
    low, high = ([s.quantile(share) * 1e6 for _, s in known] for share in (0.1, 0.9))
    axes[0].fill_between(sizes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    buses = [report.bandwidths(size, s.median)[1] for size, s in known]
    axes[1].plot(sizes, buses, color=line.get_color(), **style)


def _limit(report: Report, axes: Any) -> None:
    known = [(size, limit) for size in report.sizes if (limit := report.limit(size)) is not None]
    if not known:
        return
    sizes = [size for size, _ in known]
    style: dict[str, Any] = {"color": "black", "linestyle": ":"}
    axes[0].plot(sizes, [seconds * 1e6 for _, seconds in known], label="limit", **style)
    axes[1].plot(sizes, [report.bandwidths(size, s)[1] for size, s in known], **style)
