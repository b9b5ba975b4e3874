"""What this rank has done, and with which options."""

from __future__ import annotations

from rueda import _native

__all__ = ["metrics", "options"]


def metrics() -> dict[str, int]:
    """Counters of this rank since :func:`rueda.init`, by name; ``docs/observability.md`` lists them.

    Raises :class:`rueda.NotInitializedError`.

    Example::

        before = rueda.metrics()
        rueda.allreduce(x)
        print({k: v - before[k] for k, v in rueda.metrics().items() if v != before[k]})
    """
    return _native.metrics()


def options() -> dict[str, str]:
    """The options in force, by name, as text that :func:`rueda.init` accepts.

    Raises :class:`rueda.NotInitializedError`.

    Example::

        print(rueda.options()['transport'])    # the one in use
    """
    return _native.options()
