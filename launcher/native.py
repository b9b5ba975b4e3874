"""The native extension as far as the launcher needs it: its options, or why it is missing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Native:
    """The extension `rueda._native`, or the reason why it cannot be imported."""

    module: ModuleType | None = None
    why_not: str = ""
    option_table: list[dict[str, Any]] = field(default_factory=list)


def load_native() -> Native:
    """Imports the extension; never raises."""
    try:
        module = importlib.import_module("rueda._native")
    except ImportError as error:  # not built, built for another Python, or librueda.so not found
        return Native(why_not=str(error))
    return Native(module, option_table=list(module.option_table()))
