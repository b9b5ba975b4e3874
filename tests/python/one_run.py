"""Scripts that run once with all their checks, where a run costs much: each check is a test of its own none the less.

A fixture of the module's makes the run, and a test of each check asks for it::

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
    """How a script has ended, and what those of its ranks have written that say ``ok check_...``."""

    ended_well: bool
    outputs: Sequence[str]

    def require(self, check: str) -> None:
        """The check must have passed, or in the end all."""
        written = "\n".join(self.outputs)
        if check == END:
            assert self.ended_well, written
            return
        for output in self.outputs:
            assert check in re.findall(r"^ok (\w+)", output, re.MULTILINE), written


def each_check_of(script: Path) -> pytest.MarkDecorator:
    """Parametrises a test: every check of the script, and then whether it ends well."""
    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(check, id=check.removeprefix("check_"))
            for check in [*checks_in(script), END]
        ],
    )
