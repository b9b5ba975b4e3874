"""Reports to which later runs are added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rueda.launcher.errors import LaunchError


def require_same(
    path: Path, before: Mapping[str, str], here: Mapping[str, str], names: Iterable[str]
) -> None:
    """Raises LaunchError if one of `names` (things that affect the results) differs from the runs in `path`."""
    for name in names:
        if before.get(name) != here.get(name):
            raise LaunchError(
                f"--add {path}: the runs in there differ in {name}: {before.get(name, 'none')}; "
                f"here: {here.get(name, 'none')}"
            )
