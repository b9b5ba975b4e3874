"""The report of `rueda bench train` as text."""

from __future__ import annotations

from typing import Any

TITLES = {
    "none": "no communication",
    "buckets": "rueda, gradients in buckets",
    "copies": "rueda, gradients anywhere",
    "ddp": "DistributedDataParallel, gloo",
    "ddp-rueda": "DistributedDataParallel, rueda",
    "mpi": "MPI_Allreduce, one tensor",
    "gloo": "gloo, one tensor",
}
Row = list[str]


def _training_rows(results: dict[str, dict[str, float]]) -> list[Row]:
    rows = [["", "step ms", "p10", "p90", "exposed ms", "of DDP's"]]
    peer = results.get("ddp", {}).get("exposed_ms", 0.0)
    for name, result in results.items():
        exposed = result["exposed_ms"]
        rows.append(
            [
                TITLES[name],
                *_times(result),
                "" if name == "none" else f"{exposed:.2f}",
                "" if name == "none" or peer <= 0 else f"{exposed / peer:.2f}",
            ]
        )
    return rows


def _gradient_rows(results: dict[str, dict[str, float]]) -> list[Row]:
    rows = [["", "ms", "p10", "p90", "speed against MPI"]]
    peer = results.get("mpi", {}).get("median_ms", 0.0)
    for name, result in results.items():
        speed = f"{peer / result['median_ms']:.2f}" if peer > 0 else ""
        rows.append([TITLES[name], *_times(result), speed])
    return rows


def _times(result: dict[str, float]) -> Row:
    return [f"{result[key]:.2f}" for key in ("median_ms", "p10_ms", "p90_ms")]


def aligned(rows: list[Row]) -> list[str]:
    """Aligned columns for a terminal. The first is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown_table(rows: list[Row]) -> list[str]:
    """The rows as a Markdown table."""
    ruler = ["---"] + ["---:"] * (len(rows[0]) - 1)
    return ["| " + " | ".join(row) + " |" for row in [rows[0], ruler, *rows[1:]]]


def render(report: dict[str, Any], markdown: bool = False) -> str:
    """One table per model, for a terminal or in Markdown."""
    lines = [
        f"{report['ranks']} ranks with {report['threads']} threads each, torch {report['torch']}, "
        f"transport {report['transport']}, buckets of {report['bucket_bytes']} bytes"
    ]
    lines += report["notes"]
    for model, measured in report["models"].items():
        rows_of = _gradient_rows if model == "gradients" else _training_rows
        rows = rows_of(measured["results"])
        title = (
            f"{model}: {measured['tensors']} tensors, {measured['bytes'] / 1e6:.1f} MB of gradients"
        )
        lines += ["", f"### {title}" if markdown else title, ""]
        lines += markdown_table(rows) if markdown else aligned(rows)
        wrong = measured["wrong"]
        lines += ["", *(f"WRONG: {each}" for each in wrong)] if wrong else ["", "wrong: nothing"]
    return "\n".join(lines) + "\n"


def is_right(report: dict[str, Any]) -> bool:
    """Whether every result was correct."""
    return not any(measured["wrong"] for measured in report["models"].values())
