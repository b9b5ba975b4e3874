"""Timelines with Horovod's signatures."""

from __future__ import annotations

import rueda.observation
from rueda.horovod.exceptions import translated

__all__ = ["start_timeline", "stop_timeline"]


@translated
def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins to write a Chrome trace; rank 0 alone writes, unless ``%r`` in ``file_path`` stands for the rank.

    Names and layout of the events are Horovod's. Rueda has no cycles: with ``mark_cycles`` there is a mark where
    tensors that were agreed on together begin. Raises :class:`HorovodInternalError` for a file that
    cannot be written, and :class:`HorovodInvalidArgumentError` while another timeline is being written. To start the
    same one again has no effect, so a function under ``hvd.elastic.run`` may do so each time it is run.

    Example::

        >>> hvd.start_timeline("/dev/null")  # "/tmp/timeline.json", say
        >>> hvd.stop_timeline()
    """
    rueda.observation.start_timeline(file_path, "horovod", mark_cycles)


@translated
def stop_timeline() -> None:
    """Ends the timeline.

    Example::

        >>> hvd.stop_timeline()
    """
    rueda.observation.stop_timeline()
