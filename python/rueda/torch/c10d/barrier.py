"""A barrier, which also waits for the group's collectives that have begun before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda import _native
from rueda.torch.c10d.placement import together
from rueda.torch.c10d.work import RuedaWork
from rueda.torch.compiling import never_compiled

__all__ = ["BarrierWork"]


@never_compiled
class BarrierWork(RuedaWork):
    """The future of a barrier, which settles the works in flight that are ``earlier``.

    Their errors stay with them: which of them are in flight depends on how quick a rank is, and an error that only some
    ranks get here would let these alone begin anew with the names. The engine's barrier begins at once, and not after
    the earlier collectives: that order would need a thread, and a rank on which one of them fails would be missing at
    the barrier.
    """

    def __init__(self, earlier: Sequence[RuedaWork], *arguments: Any, **options: Any) -> None:
        self._earlier = earlier
        placement = together(work._placement for work in earlier)
        super().__init__(*arguments, **(options | {"placement": placement}))

    def _awaited(self) -> Sequence[_native.Handle]:
        # Of the works themselves only: those that an earlier barrier waits for are among the works.
        of_earlier = [native for work in self._unsettled() for native in work._natives]
        return [*of_earlier, *self._natives]

    def _unsettled(self) -> list[RuedaWork]:
        return [work for work in self._earlier if not work._settled]

    def on_done(self) -> None:
        """See Completable. Called again when an earlier collective has ended: a native handle has only one watcher."""
        late = next((work for work in self._earlier if not work._is_settled()), None)
        if late is None:
            super().on_done()
        else:
            late.get_future().add_done_callback(lambda _: self.on_done())

    def _settle(self, aside: bool) -> None:
        if self._settled:
            return
        # Without the lock: callbacks of their futures may ask for this work.
        for work in self._earlier:
            work._settle(aside)
        self._earlier = []  # their tensors must not live as long as this work
        super()._settle(aside)

    def _awaiting(self) -> str:
        late = next((work._what for work in self._unsettled()), None)
        return self._what if late is None else f"{self._what}, which waits for {late} before it,"
