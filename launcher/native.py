"""The parts of the native extension that the launcher needs: its options, or why it is missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Native:
    """The extension `rueda._native`, or why it cannot be imported."""

    module: ModuleType | None = None
    why_not: str = ""
    option_table: list[dict[str, Any]] = field(default_factory=list)
    # Given names of variables, returns a sentence for each misspelled one.
    unknown_variables: Callable[[list[str]], list[str]] = lambda _: []

    @property
    def lacks_mpi(self) -> bool:
        """Whether the extension exists, but the MPI plug-in was not built."""
        return self.module is not None and not mpi_plugin().exists()


def mpi_plugin() -> Path:
    """The path of the MPI plug-in, if it was built."""
    return Path(__file__).parents[1] / "lib" / "librueda_mpi.so"


def load_native() -> Native:
    """Imports the extension. Never raises."""
    try:
        module = importlib.import_module("rueda._native")
    except ImportError as error:  # not built, built for another Python, or librueda.so not found
        return Native(why_not=str(error))
    return Native(
        module,
        option_table=list(module.option_table()),
        unknown_variables=module.unknown_variables,
    )
