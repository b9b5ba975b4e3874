"""Facts combined over all ranks: asked in a step, answered after it, so that no rank waits in between."""

from __future__ import annotations

import numpy as np

from rueda import _native
from rueda.arguments import reduction_of
from rueda.dtypes import code_of
from rueda.lifecycle import world_number
from rueda.operations import Max
from rueda.process_sets import global_process_set, identify

__all__ = ["Question"]

# The extension's constants for CPU memory, and for elements sent in their own type.
_HOST, _NO_WIRE = -1, -1


class Question:
    """Whether any rank states a fact, for up to ``count`` facts. The first use in each world negotiates.

    Implemented as a persistent operation, since it is asked again and again. On one host, if it fits into a cache line,
    a rank writes its facts there and later reads those of all. That needs no message, no other thread and, if the
    others have asked by then, no waiting.

    Collective over the world, in the order of calls. Both methods raise what :class:`rueda.torch.PersistentAllreduce`
    raises, including :class:`rueda.PeerLostError`; in the next world it can be asked again.

    Example::

        >>> question = Question(2)
        >>> question.ask(False, True)
        True
        >>> question.answer()
        [False, True]
    """

    def __init__(self, count: int) -> None:
        self._operation: _native.PersistentAllreduce | None = None  # first: destroyed first
        self._told = np.zeros(count, np.int32)
        self._heard = np.zeros(count, np.int32)
        self._facts: tuple[bool, ...] = (False,) * count  # as in _told
        self._world = -1
        self._is_asked = False

    @property
    def is_asked(self) -> bool:
        """Whether it was asked in the current world and has not been answered yet."""
        return self._is_asked and self._world == world_number()

    def ask(self, *facts: bool, may_agree: bool = True) -> bool:
        """Sends this rank's facts; does not wait for the others', except on the first call in a world.

        ``may_agree``: if false, that first call does nothing, and returns false.
        """
        if self._world != world_number() or self._operation is None:
            if not may_agree:
                return False
            self._operation = None  # before the next: it may wait for ranks that still read it
            self._operation = self._agree()
            self._world = world_number()
        if facts != self._facts:
            self._told[:] = self._facts = facts
        self._operation.start(0)
        self._is_asked = True
        return True

    def answer(self) -> list[bool]:
        """For each fact, whether any rank has stated it."""
        assert self._operation is not None
        self._operation.wait()
        self._is_asked = False
        return [each != 0 for each in self._heard.tolist()]

    def _agree(self) -> _native.PersistentAllreduce:
        kind = code_of("int32")
        assert kind is not None
        return _native.PersistentAllreduce(
            self._told.ctypes.data,
            self._heard.ctypes.data,
            list(self._told.shape),
            kind,
            "elastic.question",
            reduction_of(Max),
            1.0,
            1.0,
            identify(global_process_set),
            _NO_WIRE,
            _HOST,
            0,
        )
