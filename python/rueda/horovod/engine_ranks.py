"""Lets ranks that Spark or Ray has placed form a world with Horovod's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rueda.horovod.alias import install
from rueda.horovod.settings import defaults, understood, warn_of_unused

__all__ = ["as_horovod"]


@contextmanager
def as_horovod(knows_alias: bool) -> Iterator[dict[str, str]]:
    """Context in which a rank forms its world; yields the options that ``hvd.init()`` would use.

    ``knows_alias``: whether to alias ``import horovod`` to Rueda on this rank, as on the driver.
    """
    if knows_alias:
        install()
    warn_of_unused()
    with understood() as settings:
        yield {**defaults(), **settings}
