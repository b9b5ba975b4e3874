"""Numbers that one rank sends to another, which may wait for them for as long as a trial takes."""

from __future__ import annotations

import numpy as np

from rueda.messages import Messages
from rueda.numpy_arrays import NumpyAdapter
from rueda.process_sets import ProcessSet

__all__ = ["receive_word", "send_word"]

_messages = Messages(NumpyAdapter())


def send_word(word: int, target: int, process_set: ProcessSet, tag: int = 0) -> None:
    """Sends a number to ``target``, a world rank in ``process_set``."""
    _messages.send(np.array([word], np.int64), target, tag, process_set).result()


def receive_word(source: int | None, process_set: ProcessSet, tag: int = 0) -> tuple[int, int]:
    """The next number from ``source``, or from anyone, and who has sent it.

    Waits as long as both ranks live, which is not reported as a stall.
    """
    word = np.zeros(1, np.int64)
    sender = _messages.recv(word, source, tag, process_set, may_wait_long=True).result()
    return int(word[0]), sender
