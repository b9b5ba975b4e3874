"""Shared code of the checks that every rank runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rueda
from serving import requested

Check = Callable[[], None]


def run(checks: dict[str, Any]) -> None:
    """Runs the functions named ``check_...`` of a module, on all ranks in the same order."""
    rueda.init()
    for name in requested([name for name in checks if name.startswith("check_")]):
        checks[name]()
        rueda.barrier(name=f"after {name}")
        if rueda.rank() == 0:
            print("ok", name, flush=True)
    rueda.shutdown()


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that does not exist yet, the same on all ranks, removed when all have finished with it."""
    own = tempfile.mkdtemp(prefix="rueda-") if rueda.rank() == 0 else None
    path = Path(rueda.broadcast_object(own))
    try:
        yield path / "of a run"
    finally:
        rueda.barrier()
        if rueda.rank() == 0:
            shutil.rmtree(path)


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """The block must raise exactly this class, and the text must contain all ``parts``."""
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
    assert raised is not None, f"expected {kind.__name__}, but nothing was raised"
    if type(raised) is not kind:
        raise AssertionError(f"expected {kind.__name__}, got {raised!r}") from raised
    missing = [part for part in parts if part not in str(raised)]
    assert not missing, f"{missing} not in: {raised}"


def still_works() -> None:
    """Checks that the world survives: an allreduce gives the right sum."""
    total = rueda.allreduce(np.full(7, rueda.rank() + 1), name="still works", op=rueda.Sum)
    np.testing.assert_array_equal(total, np.full(7, rueda.size() * (rueda.size() + 1) // 2))
