"""Expensive scripts that run once with all their checks; each check is still its own test.

A module fixture runs the script, and one test per check uses it::

    @pytest.fixture(scope="module")
    def ran(...) -> OneRun: ...

    @each_check_of(SCRIPT)
    def test_checks(ran: OneRun, check: str) -> None:
        ran.require(check)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from worlds import END, checks_in


@dataclass(frozen=True)
class OneRun:
    """How a script ended, and the outputs that contain the lines ``ok check_...``."""

    ended_well: bool
    outputs: Sequence[str]

    def require(self, check: str) -> None:
        """Requires that the check passed or, for the last one, that the script ended well."""
        written = "\n".join(self.outputs)
        if check == END:
            assert self.ended_well, written
            return
        for output in self.outputs:
            assert check in re.findall(r"^ok (\w+)", output, re.MULTILINE), written


def each_check_of(script: Path) -> pytest.MarkDecorator:
    """Parametrizes a test over every check of the script and, last, its end."""
    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(check, id=check.removeprefix("check_"))
            for check in [*checks_in(script), END]
        ],
    )
