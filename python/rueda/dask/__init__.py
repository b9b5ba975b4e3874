"""Ranks as Dask tasks: one on each worker, as a group that succeeds, fails and restarts together.

Needs Dask's ``distributed``, which ``import rueda`` does not. docs/dask.md has an example and says what is guaranteed.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.dask",
    "Dask",
    "distributed",
    (2026, 8),  # the oldest that was tried
    "pip install 'distributed>=2026.8'",
    newest=(2026, 8),
)
_needs.require()

with _needs.understood():
    from rueda.dask.running import run

__all__ = ["run"]
