"""Messages between two ranks, written once for every array library."""

from __future__ import annotations

import operator
from functools import partial
from typing import Generic, TypeVar

from rueda import _native
from rueda.adapter import Adapter, Refusal
from rueda.arguments import RANK_BITS, fits
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.handles import Handle
from rueda.process_sets import ProcessSet, identify

__all__ = ["Messages"]

A = TypeVar("A")
ANY_SOURCE = -1
_TAG_BITS = 64


class Messages(Generic[A]):
    """Sends and receives arrays of one library.

    An array that cannot be used raises immediately, and on this rank only: no other rank can learn of a message that
    was never offered.
    """

    def __init__(self, adapter: Adapter[A]) -> None:
        self._adapter = adapter

    def send(
        self, array: object, target_rank: int, tag: int, process_set: ProcessSet
    ) -> Handle[None]:
        """See :func:`rueda.send_async`."""
        try:
            source, view = self._adapter.read(array)
            target = _whole("target_rank", target_rank)
            number = _whole("tag", tag, _TAG_BITS)
        except Refusal as refusal:
            raise _error("send", refusal) from None
        begin = partial(
            _native.send,
            view.pointer,
            view.shape,
            view.dtype,
            target,
            number,
            identify(process_set),
        )
        return Handle(lambda: [begin()], lambda _: None, (source, view.owner))

    def recv(
        self,
        array: object,
        source_rank: int | None,
        tag: int,
        process_set: ProcessSet,
        may_wait_long: bool = False,
    ) -> Handle[int]:
        """See :func:`rueda.recv_async`. ``may_wait_long``: it is not reported as stalled."""
        try:
            source = ANY_SOURCE if source_rank is None else _whole("source_rank", source_rank)
            if source_rank is not None and source < 0:
                raise Refusal(f"there is no rank {source}")
            number = _whole("tag", tag, _TAG_BITS)
            target, view = self._adapter.write(array)
        except Refusal as refusal:
            raise _error("recv", refusal) from None
        begin = partial(
            _native.recv,
            view.pointer,
            view.shape,
            view.dtype,
            source,
            number,
            identify(process_set),
            may_wait_long,
        )
        return Handle(lambda: [begin()], lambda natives: natives[0].source(), (target, view.owner))


def _whole(what: str, value: object, bits: int = RANK_BITS) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise Refusal(f"{what}={value!r} is not a whole number") from None
    if not fits(number, bits):
        raise Refusal(f"{what}={number} is too large")
    return number


def _error(what: str, refusal: Refusal) -> InvalidArgumentError | UnsupportedError:
    kind = UnsupportedError if refusal.unsupported else InvalidArgumentError
    return kind(f"{what}: {refusal}")
