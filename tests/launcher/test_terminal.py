"""The width of tables."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from rueda.launcher.terminal import console

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


def test_a_terminal_is_as_wide_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert console().width < 1000
