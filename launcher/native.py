"""The native extension as far as the launcher needs it: its options, or why it is missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Native:
    """The extension `rueda._native`, or the reason why it cannot be imported."""

    module: ModuleType | None = None
    why_not: str = ""
    option_table: list[dict[str, Any]] = field(default_factory=list)
    # Of names of variables, a sentence for each that is misspelled.
    unknown_variables: Callable[[list[str]], list[str]] = lambda _: []

    @property
    def lacks_mpi(self) -> bool:
        """Whether the extension is there, but the plug-in for MPI was not built."""
        return self.module is not None and not mpi_plugin().exists()


def mpi_plugin() -> Path:
    """Where the plug-in for MPI lies if it was built."""
    return Path(__file__).parents[1] / "lib" / "librueda_mpi.so"


def load_native() -> Native:
    """Imports the extension; never raises."""
    try:
        module = importlib.import_module("rueda._native")
    except ImportError as error:  # not built, built for another Python, or librueda.so not found
        return Native(why_not=str(error))
    return Native(
        module,
        option_table=list(module.option_table()),
        unknown_variables=module.unknown_variables,
    )
