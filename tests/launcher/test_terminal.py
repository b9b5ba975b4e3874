"""The width of tables."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table
from rueda.launcher.terminal import console, print_table

PROGRAM = (
    "from rich.table import Table\n"
    "from rueda.launcher.terminal import console\n"
    "table = Table()\n"
    "table.add_column('many words')\n"
    "table.add_row('x' * 300)\n"
    "console().print(table)\n"
)


def printed(**variables: str) -> str:
    rest = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**rest, **variables},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_table_in_a_file_or_a_pipe_is_whole() -> None:
    assert "x" * 300 in printed()


def test_who_asks_for_a_width_gets_it() -> None:
    assert max(map(len, printed(COLUMNS="60").splitlines())) == 60


def test_a_width_of_nothing_is_none() -> None:
    assert printed(COLUMNS="0") == printed()


@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
def test_figures_are_whole_however_narrow_it_is(width: int) -> None:
    table = Table(title="A title that is not short")
    table.add_column("rank", no_wrap=True)
    table.add_column("what", justify="left")
    for _ in range(5):
        table.add_column("exposed\ncommunication", justify="right")
    table.add_row("mean", "[green]same bits[/]", *["12345.67"] * 5)
    out = io.StringIO()
    print_table(Console(file=out, width=width), table)
    shown = out.getvalue()
    assert shown.count("12345.67") == 5
    for word in ("mean", "same", "bits"):
        assert word in shown
    rows = shown.splitlines()[-5:]
    assert len({len(row) for row in rows}) == 1, "the lines of a table end together"
    assert len(rows[0]) <= max(width, 80)


def test_a_terminal_is_as_wide_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert console().width < 1000
