"""Compares signatures in docs/ with those of a module."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

_ENGINES = Path(__file__).resolve().parents[3] / "docs" / "horovod_engines_signatures.txt"


def require_signatures_of_horovod(module: ModuleType, heading: str) -> None:
    """Checks against ``horovod.spark`` or ``horovod.ray``: same names, order and defaults."""
    sections = _ENGINES.read_text().split("\n## ")[1:]
    (lines,) = [
        rest for title, _, rest in (s.partition("\n") for s in sections) if title == heading
    ]
    for line in lines.split("\n"):
        name = line.partition("(")[0]
        if not name:
            continue
        found = module
        for part in name.split("."):
            found = getattr(found, part)
        wanted = ast.parse(f"def _{line[len(name) :]}: pass").body[0].args
        has = inspect.signature(found).parameters.values()
        assert [each.name for each in has] == [each.arg for each in wanted.args], line
        defaults = [each.default for each in has if each.default is not inspect.Parameter.empty]
        found_none = [default or None for default in defaults]  # an empty default counts as None
        wanted_none = [ast.literal_eval(node) or None for node in wanted.defaults]
        assert found_none == wanted_none, line
