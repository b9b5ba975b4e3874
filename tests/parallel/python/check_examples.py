"""One rank: every public function and class has an example, and all examples are correct."""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys
from collections.abc import Iterator

import numpy as np
import parallel
import rueda
import rueda.checkpoint
import rueda.elastic
import rueda.engines.exits
import rueda.engines.given
import rueda.engines.pickling
import rueda.engines.ranks
import rueda.horovod.torch as hvd
import rueda.report
import rueda.server
import rueda.torch
import rueda.torch.c10d
import rueda.torch.equiv
import rueda.torch.parallel
import rueda.torch.strategies
import torch
import torch.distributed as dist

MODULES = [
    "rueda",
    "rueda.checkpoint",
    "rueda.compression",
    "rueda.elastic",
    "rueda.report",
    "rueda.server",
    "rueda.torch",
    "rueda.torch.c10d",
    "rueda.torch.equiv",
    "rueda.torch.parallel",
    "rueda.torch.strategies",
    "rueda.horovod.torch",
    "rueda.horovod.torch.elastic",
]
# Names that every example may use without importing them.
NAMES = {"np": np, "rueda": rueda, "torch": torch, "hvd": hvd, "dist": dist}
# Examples that end the world, so objects made in it must not be used afterwards.
LAST = {"rueda.lifecycle.abort", "rueda.lifecycle.shutdown"}


def public() -> Iterator[tuple[str, object]]:
    """Functions and classes by the names under which users find them, each once."""
    seen: set[str] = set()
    for module in MODULES:
        found = importlib.import_module(module)
        for name in found.__all__:
            thing = getattr(found, name)
            if inspect.ismodule(thing) or not callable(thing):
                continue
            where = f"{thing.__module__}.{thing.__qualname__}"
            if where not in seen:
                seen.add(where)
                yield where, thing


def others(public_names: set[str]) -> Iterator[doctest.DocTest]:
    """The examples of everything else in Rueda's modules."""
    finder = doctest.DocTestFinder()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == "rueda" and inspect.ismodule(module):
            found = finder.find(module, name, extraglobs=NAMES)
            yield from (each for each in found if each.examples and each.name not in public_names)


def check_every_example() -> None:
    parser = doctest.DocTestParser()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    silent = []
    things = sorted(public(), key=lambda pair: pair[0] in LAST)
    further = list(others({where for where, _ in things}))
    assert "rueda.horovod.exceptions.translation_of" in {each.name for each in further}
    for test in further:
        runner.run(test)
    for where, thing in things:
        text = inspect.getdoc(thing) or ""
        test = parser.get_doctest(
            text, dict(NAMES), where, inspect.getfile(inspect.unwrap(thing)), 0
        )
        if not text or not test.examples:
            silent.append(where)
        runner.run(test)
    assert not silent, f"without an example: {silent}"
    assert runner.failures == 0, f"{runner.failures} examples are not true"
    assert len(things) > 100, "the names were not found"


if __name__ == "__main__":
    parallel.run(globals())
