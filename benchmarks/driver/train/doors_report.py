"""The report of `rueda bench train --doors`: as text, and its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rueda.launcher.errors import LaunchError

from .doors import DOORS
from .report import aligned, markdown_table

SCHEMA = 1


def read_report(path: Path) -> dict[str, Any] | None:
    """The report to continue, or None if the file does not exist. Raises LaunchError."""
    if not path.exists():
        return None
    try:
        report = json.loads(path.read_text())
        dict(report["head"])
        if report["schema"] != SCHEMA or report["kind"] != "doors":
            raise KeyError("schema")
    except OSError as error:
        raise LaunchError(f"--add {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path} is no report of `rueda bench train --doors`") from error
    return dict(report)


def merged(before: dict[str, Any] | None, report: dict[str, Any]) -> dict[str, Any]:
    """The older report plus the new one, whose runs replace those of the same model and number of ranks."""
    if before is None:
        return report
    new = {(run["ranks"], run["model"]) for run in report["runs"]}
    kept = [run for run in before["runs"] if (run["ranks"], run["model"]) not in new]
    return {**report, "runs": [*kept, *report["runs"]]}


def _rows(results: dict[str, dict[str, float]]) -> list[list[str]]:
    rows = [["", "step ms", "p10", "p90", "exposed ms", "of the best", "page faults"]]
    for name, result in results.items():
        exposed = result.get("exposed_ms")
        rows.append(
            [
                DOORS[name],
                *(f"{result[key]:.1f}" for key in ("median_ms", "p10_ms", "p90_ms")),
                "" if name == "alone" or exposed is None else f"{exposed:.1f}",
                f"{result['of_best']:.2f}" if "of_best" in result else "",
                f"{result['page_faults']:.0f}",
            ]
        )
    return rows


def render_run(run: dict[str, Any], markdown: bool = False) -> str:
    """One model's results with one number of ranks."""
    title = (
        f"{run['model']}, {run['ranks']} ranks with {run['threads']} threads each: "
        f"{run['tensors']} tensors, {run['bytes'] / 1e6:.1f} MB of gradients"
    )
    rows = _rows(run["results"])
    lines = [f"### {title}" if markdown else title, ""]
    lines += markdown_table(rows) if markdown else aligned(rows)
    lines += ["", *(f"WRONG: {each}" for each in run["wrong"] or [])]
    lines += [] if run["wrong"] else ["wrong: nothing"]
    return "\n".join(lines) + "\n"


def render(report: dict[str, Any], markdown: bool = False) -> str:
    """The whole report."""
    head = [f"{name}: {value}" for name, value in report["head"].items()]
    parts = ["\n".join([f"- {line}" for line in head] if markdown else head) + "\n"]
    return "\n".join([*parts, *(render_run(run, markdown) for run in report["runs"])])
