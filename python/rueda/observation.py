"""What this rank has done, and with which options."""

from __future__ import annotations

import os
from typing import NamedTuple

from rueda import _native
from rueda.errors import InvalidArgumentError

__all__ = [
    "AlgorithmChoice",
    "HostLink",
    "choose_algorithm",
    "host_links",
    "metrics",
    "options",
    "start_timeline",
    "stop_timeline",
    "write_flight_record",
]


class AlgorithmChoice(NamedTuple):
    """The algorithm for an allreduce of one size, and the time that measurements at init predict for it.

    Example::

        >>> choice = rueda.choose_algorithm(4)
        >>> choice.predicted_us >= 0
        True
    """

    algorithm: str
    """On one host ``"line"`` (within one cache line), ``"flat"``, ``"staged"`` or ``"direct"``; across hosts
    ``"hierarchical"``, ``"doubling"``, ``"halving"`` or ``"tree"``; ``"ring"``."""
    registered: str
    """The same for arrays from :func:`rueda.empty`."""
    predicted_us: float
    """Microseconds; across hosts what the links take; 0 where nothing was measured."""
    predicted_registered_us: float


def choose_algorithm(size: int) -> AlgorithmChoice:
    """The algorithm that the world uses for an allreduce of ``size`` bytes.

    ``RUEDA_ALGORITHM`` overrides what is chosen, see ``docs/options.md``. Raises
    :class:`rueda.NotInitializedError`, and :class:`rueda.InvalidArgumentError` where ``size`` is negative.

    Example::

        >>> rueda.choose_algorithm(1 << 20).algorithm in ("line", "flat", "staged", "direct", "ring")
        True
    """
    return AlgorithmChoice(*_native.choose_algorithm(size))


class HostLink(NamedTuple):
    """A kind of link between hosts that was tried at init, described by its slowest link.

    Example::

        >>> [link for link in rueda.host_links() if link.obstacle]
        []
    """

    transport: str
    """``"mpi"`` or ``"tcp"``."""
    latency_us: float
    """Microseconds that a message of one byte takes."""
    gbit_per_second: float
    """Of large messages, in one direction while the other is in use, too; 0 where that was too quick to measure."""
    obstacle: str
    """Why it cannot be used; empty where it can."""


def host_links() -> list[HostLink]:
    """The kinds of links tried between hosts at :func:`rueda.init`; the first is in use. Empty on one host.

    Where another world follows, as after :func:`rueda.recover`, these are the links in use, with the figures of then.

    Where ranks have met through MPI, MPI and TCP are both measured, unless ``RUEDA_TRANSPORT`` names one; otherwise
    there is TCP alone. Raises :class:`rueda.NotInitializedError`.

    Example::

        >>> [link.transport for link in rueda.host_links()]
        []
    """
    return [HostLink(*link) for link in _native.host_links()]


def metrics() -> dict[str, int]:
    """Counters of this process since :func:`rueda.init`, by name; ``docs/observability.md`` lists them.

    They go on where another world follows, as after :func:`rueda.recover`.

    Raises :class:`rueda.NotInitializedError`.

    Example::

        >>> before = rueda.metrics()["allreduce_tensors"]
        >>> total = rueda.allreduce(np.ones(3))
        >>> rueda.metrics()["allreduce_tensors"] - before
        1
    """
    return _native.metrics()


def start_timeline(
    path: str | os.PathLike[str], format: str = "rueda", mark_cycles: bool = False
) -> None:
    """Starts a Chrome trace of every tensor, as option ``timeline`` does; ``mark_cycles`` needs Horovod's format.

    ``path``: ``%r`` in it stands for the rank; without it rank 0 alone writes. Each rank starts and stops by itself.
    The trace goes on where another world follows, as after :func:`rueda.recover`, under the same name. To call this
    again with the same arguments has no effect, so a function under :func:`rueda.elastic.run` may call it each time
    it is run. In a later world a file that this process has not begun itself is not replaced, since another rank may
    still be writing it: the new one is ``<path>.epoch<number>``, with the world's number.
    ``format``: ``"rueda"`` or ``"horovod"``, whose names and layout tools for Horovod's timelines read.
    ``mark_cycles``: mark where tensors that were agreed on together begin; without effect in Rueda's format.

    Raises :class:`rueda.NotInitializedError`, :class:`rueda.InvalidArgumentError` while another one is being written
    and for an unknown format, and :class:`rueda.InitializationError` where the file cannot be written.

    Example::

        >>> rueda.start_timeline("/dev/null")  # "/tmp/trace-%r.json", say
        >>> total = rueda.allreduce(np.ones(3))
        >>> rueda.stop_timeline()
    """
    if format not in ("rueda", "horovod"):
        raise InvalidArgumentError(f'format={format!r} is neither "rueda" nor "horovod"')
    _native.start_timeline(os.fspath(path), format == "horovod", mark_cycles)


def stop_timeline() -> None:
    """Stops writing the trace, if one is being written. Raises :class:`rueda.NotInitializedError`.

    Example::

        >>> rueda.stop_timeline()
    """
    _native.stop_timeline()


def write_flight_record() -> None:
    """Writes this rank's last operations to the folder that ``RUEDA_FLIGHT_RECORDER`` names.

    The same is done by itself when the world fails or a tensor is waited for too long; ``rueda analyze`` reads it.
    Raises :class:`rueda.NotInitializedError`, :class:`rueda.InvalidArgumentError` where there is no such folder, and
    :class:`rueda.InitializationError` where the file cannot be written.

    Example::

        >>> if rueda.options()["flight_recorder"]:
        ...     rueda.write_flight_record()
    """
    _native.write_flight_record()


def options() -> dict[str, str]:
    """The options in force, by name, as text that :func:`rueda.init` accepts.

    Raises :class:`rueda.NotInitializedError`.

    Example::

        >>> rueda.options()["log_level"]
        'warning'
    """
    return _native.options()
