"""How ranks that an engine has placed form a world in which they find what Horovod's users expect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rueda.horovod.alias import install
from rueda.horovod.settings import defaults, understood, warn_of_unused

__all__ = ["as_horovod"]


@contextmanager
def as_horovod(knows_alias: bool) -> Iterator[dict[str, str]]:
    """Within it a rank forms its world; gives the options with which ``hvd.init()`` would do so.

    ``knows_alias``: whether ``import horovod`` is to be Rueda on this rank, as where the driver runs.
    """
    if knows_alias:
        install()
    warn_of_unused()
    with understood() as settings:
        yield {**defaults(), **settings}
