"""The report as text: tables for a terminal and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from .limits import FLAG_EXCHANGE, LIMITS, SHARED_SUMS, YIELD_HANDOFF
from .report import Report
from .samples import Samples
from .sizes import format_size

_ABSENT = "-"


@dataclass(frozen=True)
class Table:
    """A table of text cells."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def as_text(self) -> str:
        """Right-aligned columns under a header line that begins with #, as nccl-tests prints them."""
        widths = [
            max(len(cell) for cell in column)
            for column in zip(self.columns, *self.rows, strict=True)
        ]
        lines = [f"# {self.title}"]
        for number, row in enumerate([self.columns, *self.rows]):
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append(("# " if number == 0 else "  ") + "  ".join(cells))
        return "\n".join(lines)

    def as_markdown(self) -> str:
        """A Markdown table below its title."""
        lines = [f"**{self.title}**", "", _row(self.columns), _row(["---:"] * len(self.columns))]
        return "\n".join([*lines, *(_row(row) for row in self.rows)])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def microseconds(seconds: float) -> str:
    """With about three significant digits: `0.163`, `12.3`, `1230`."""
    value = seconds * 1e6
    for limit, digits in ((1, 3), (10, 2), (100, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def times_table(report: Report, size: int) -> Table:
    """nccl-tests' columns for every contender at one size."""
    plan = report.plan
    count = plan.collective.shown_count(plan.count(size), plan.ranks)
    rows = []
    for label, samples in report.sizes[size].items():
        if label in SHARED_SUMS:
            continue
        op = plan.op if plan.collective.reduces else "none"
        shown = [str(size), str(count), plan.dtype, op, label]
        rows.append(shown + _cells(report, size, samples))
    columns = ["size", "count", "type", "op", "contender", "time", "min", "p10", "p90"]
    columns += ["algbw", "busbw", "wrong"]
    title = f"{format_size(size)}B: µs (median, least, spread) and GB/s"
    return Table(title, columns, rows)


def _cells(report: Report, size: int, samples: Samples) -> list[str]:
    if not samples.known:
        return [_ABSENT] * 6 + [samples.unsupported]
    times = [samples.median, *(samples.quantile(share) for share in (0, 0.1, 0.9))]
    bandwidths = [f"{value:.2f}" for value in report.bandwidths(size, samples.median)]
    return [*(microseconds(time) for time in times), *bandwidths, str(samples.wrong)]


def summary_table(report: Report) -> Table:
    """The medians of all contenders, one row per size."""
    labels = [entry.label for entry in report.entries if not entry.sizes]
    best = [name for name in report.peers() if name not in labels and name != "Open MPI"]
    rows = []
    for size in report.sizes:
        known = [report.seconds(size, label) for label in [*labels, *best]]
        rows.append(
            [format_size(size)]
            + [_ABSENT if time is None else microseconds(time) for time in known]
            + [report.tuned[size][0] if size in report.tuned else _ABSENT] * bool(report.tuned)
        )
    columns = ["bytes", *labels, *best] + ["setting of its best"] * bool(report.tuned)
    return Table(f"{report.plan.collective.name}: medians in µs", columns, rows)


def ratio_tables(report: Report) -> list[Table]:
    """For each of Rueda's columns: its speedup over the peers, and its ratio to the limits."""
    return [_ratio_table(report, label) for label in report.ours()]


def _ratio_table(report: Report, label: str) -> Table:
    peers = report.peers()
    unit = YIELD_HANDOFF if report.plan.oversubscribed else FLAG_EXCHANGE
    exchange = report.constant(unit.name)
    rows = []
    for size in report.sizes:
        ours = report.seconds(size, label)
        if ours is None:
            continue
        row = [format_size(size), microseconds(ours)]
        for peer in peers:
            theirs = report.seconds(size, peer)
            row.append(_ABSENT if theirs is None else _ratio(theirs / ours))
        row.append(_ABSENT if exchange is None else _ratio(ours / exchange))
        limit = report.limit(size)
        row += [_ABSENT] * 2 if limit is None else [microseconds(limit), _ratio(limit / ours)]
        rows.append(row)
    columns = ["bytes", "µs", *(f"{peer} ÷ it" for peer in peers)]
    columns += ["it ÷ yield hand-off" if unit is YIELD_HANDOFF else "it ÷ flag exchange"]
    columns += ["limit µs", "limit ÷ it"]
    return Table(f"{label} and its peers", columns, rows)


def limits_table(report: Report) -> Table:
    """The machine's limits."""
    rows = []
    for limit in LIMITS:
        if limit.name not in report.limits:
            continue
        samples = report.limits[limit.name]
        shown = (
            limit.describe(samples.median, report.plan.ranks)
            if samples.known
            else samples.unsupported
        )
        rows.append([limit.what, shown])
    return Table("The machine's limits in this run", ["what", "measured"], rows)


def markdown(report: Report) -> str:
    """The whole report."""
    parts = ["\n".join(f"- {name}: {value}" for name, value in report.head.items())]
    if report.notes:
        parts.append("\n".join(f"- {note}" for note in report.notes))
    tables = [summary_table(report), *ratio_tables(report)]
    if report.limits:
        tables.append(limits_table(report))
    parts += [table.as_markdown() for table in tables]
    return "\n\n".join(parts) + "\n"
