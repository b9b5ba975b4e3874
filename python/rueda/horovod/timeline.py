"""Timelines with Horovod's signatures."""

from __future__ import annotations

import rueda.observation
from rueda.horovod.exceptions import translated

__all__ = ["start_timeline", "stop_timeline"]


@translated
def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts a Chrome trace; only rank 0 writes, unless ``file_path`` has ``%r``, which stands for the rank.

    Event names and layout are Horovod's. Rueda has no cycles: ``mark_cycles`` marks the start of each batch of
    tensors that were negotiated together. Raises :class:`HorovodInternalError` if the file cannot be written, and
    :class:`HorovodInvalidArgumentError` while another timeline is being written. Starting the same timeline again has
    no effect, so a function under ``hvd.elastic.run`` may do so on each restart.

    Example::

        >>> hvd.start_timeline("/dev/null")  # "/tmp/timeline.json", say
        >>> hvd.stop_timeline()
    """
    rueda.observation.start_timeline(file_path, "horovod", mark_cycles)


@translated
def stop_timeline() -> None:
    """Stops the timeline.

    Example::

        >>> hvd.stop_timeline()
    """
    rueda.observation.stop_timeline()
