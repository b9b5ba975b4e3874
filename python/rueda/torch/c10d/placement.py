"""Where the tensors of an operation are, and in what order a GPU's streams come to see its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol, cast

import torch

from rueda import _native
from rueda.adapter import Refusal, View
from rueda.torch.tensors import current_stream

__all__ = [
    "ON_HOST",
    "Cuda",
    "Event",
    "InPlaceOnGpu",
    "OnGpu",
    "Placement",
    "Stream",
    "placement_of",
]


class Event(Protocol):
    """A point in a stream; what is used of ``torch.cuda.Event``."""

    def record(self, stream: Any) -> None: ...
    def query(self) -> bool: ...


class Stream(Protocol):
    """What is used of ``torch.cuda.Stream``."""

    @property
    def cuda_stream(self) -> int: ...
    def wait_event(self, event: Any) -> None: ...


class Cuda(Protocol):
    """What is used of ``torch.cuda``."""

    def __hash__(self) -> int: ...
    def current_stream(self, device: Any) -> Stream: ...
    def device(self, device: Any) -> AbstractContextManager[object]: ...
    def stream(self, stream: Any) -> AbstractContextManager[object]: ...
    def Stream(self, device: Any, priority: int) -> Stream: ...  # noqa: N802 - torch's name
    def Event(self) -> Event: ...  # noqa: N802 - torch's name


class Placement(Protocol):
    """What an operation on tensors in one place needs of that place."""

    devices: Sequence[torch.device]
    """What a future of its tensors has to be told."""

    def settling(
        self, natives: Iterable[_native.Handle], tensors: Iterable[torch.Tensor], aside: bool
    ) -> AbstractContextManager[None]:
        """A block in which results are brought to their places, once all ``natives`` are done. Entered once.

        ``tensors``: what the operation touches, which may be let go of afterwards. ``aside``: leave the current stream
        alone.
        """

    def join(self) -> None:
        """What the current stream does from now on finds the results."""

    def is_over(self) -> bool:
        """Whether nothing is at work on the results any more. After settling."""


class _OnHost:
    """In the host's memory, where an operation that is done is done."""

    devices: Sequence[torch.device] = ()

    def settling(
        self, natives: Iterable[_native.Handle], tensors: Iterable[torch.Tensor], aside: bool
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        pass

    def is_over(self) -> bool:
        return True


ON_HOST: Placement = _OnHost()


class OnGpu:
    """On a GPU, where an operation that is done has only been enqueued. Made when the operation is submitted.

    Results are brought to their places once, on one stream: that of whoever waits first, or one of its own where
    nobody does. An event after that is what all others wait for. No stream is made to wait but the one that asks, so
    that a program which waits on a stream of its own goes on computing on the one that submitted.

    ``after_submission``: the results are not written before the submitting stream has got to where it was at the
    submission. Of the engine's collectives that is true in any case.
    """

    def __init__(
        self, device: torch.device, after_submission: bool = False, cuda: Cuda | None = None
    ) -> None:
        self.devices: Sequence[torch.device] = (device,)
        self._device = device
        self._cuda = cuda if cuda is not None else cast(Cuda, torch.cuda)
        self._submitted_on = self._cuda.current_stream(device)
        self._submitted = self._mark(self._submitted_on) if after_submission else None
        self._settled_on: Stream | None = None
        self._settled: Event | None = None

    @contextmanager
    def settling(
        self, natives: Iterable[_native.Handle], tensors: Iterable[torch.Tensor], aside: bool
    ) -> Iterator[None]:
        """See Placement."""
        # Not an empty stream where none is needed: whoever waits first is most often the submitting one.
        stream = (
            _side_stream(self._cuda, self._device)
            if aside
            else self._cuda.current_stream(self._device)
        )
        with self._made_current(stream) if aside else nullcontext():
            if self._submitted is not None:
                stream.wait_event(self._submitted)
            for native in natives:
                native.wait_on(stream.cuda_stream)
            try:
                yield
            finally:
                self._settled_on, self._settled = stream, self._mark(stream)
                if stream != self._submitted_on:
                    # The submitting stream knows nothing of this one. Memory that is let go of now is not given out
                    # again before this one has got here.
                    for tensor in tensors:
                        if tensor.is_cuda:
                            tensor.record_stream(cast(torch.Stream, stream))

    @contextmanager
    def _made_current(self, stream: Stream) -> Iterator[None]:
        # Without the first, torch would go back to this thread's own device, GPU 0 where it has none yet, and make a
        # context there.
        with self._cuda.device(self._device), self._cuda.stream(stream):
            yield

    def join(self) -> None:
        """See Placement."""
        if self._settled is None:
            return
        current = self._cuda.current_stream(self._device)
        if current != self._settled_on:
            current.wait_event(self._settled)

    def is_over(self) -> bool:
        """See Placement."""
        return self._settled is None or self._settled.query()

    def _mark(self, stream: Stream) -> Event:
        event = self._cuda.Event()
        event.record(stream)
        return event


class InPlaceOnGpu:
    """On a GPU, where the engine writes the results to their places and nothing is left to be brought there.

    As :class:`OnGpu`, but the handles themselves tell streams what to wait for: no event is made, and no stream made
    current, which together take longer than all the rest of an operation.
    """

    def __init__(
        self,
        device: torch.device,
        cuda: Cuda | None = None,
        current_stream: Callable[[int], int] = current_stream,
    ) -> None:
        self.devices: Sequence[torch.device] = (device,)
        self._device = device
        self._cuda = cuda if cuda is not None else cast(Cuda, torch.cuda)
        self._current_stream = current_stream
        self._submitted_on = current_stream(device.index)
        self._settled_on = -1  # no stream
        self._natives: tuple[_native.Handle, ...] = ()

    def settling(
        self, natives: Iterable[_native.Handle], tensors: Iterable[torch.Tensor], aside: bool
    ) -> AbstractContextManager[None]:
        """See Placement."""
        self._natives = tuple(natives)
        current = self._current_stream(self._device.index)
        if aside or current != self._submitted_on:
            # The submitting stream knows nothing of this one. Memory that is let go of now is not given out again
            # before this one has got here.
            stream = (
                _side_stream(self._cuda, self._device)
                if aside
                else self._cuda.current_stream(self._device)
            )
            for tensor in tensors:
                if tensor.is_cuda:
                    tensor.record_stream(cast(torch.Stream, stream))
            current = stream.cuda_stream
        for native in self._natives:
            native.wait_on(current)
        self._settled_on = current
        return nullcontext()

    def join(self) -> None:
        """See Placement."""
        current = self._current_stream(self._device.index)
        if current != self._settled_on:
            for native in self._natives:
                native.wait_on(current)

    def is_over(self) -> bool:
        """See Placement."""
        return all(native.finished() for native in self._natives)


@cache
def _side_stream(cuda: Cuda, device: torch.device) -> Stream:
    """For what is done while nobody waits; what comes here is short, and others wait for it."""
    return cuda.Stream(device, priority=-1)


def placement_of(*views: View, in_place: bool = False) -> Placement:
    """Where all of ``views`` are. Raises Refusal where they are not in one place.

    ``in_place``: the engine writes the results where they belong.
    """
    device = views[0].device if views else -1
    for view in views:
        if view.device != device:
            raise Refusal(
                f"the tensors are on different devices: {_name_of(device)} and {_name_of(view.device)}"
            )
    if device < 0:
        return ON_HOST
    where = torch.device("cuda", device)
    return InPlaceOnGpu(where) if in_place else OnGpu(where)


def _name_of(device: int) -> str:
    return "cpu" if device < 0 else f"cuda:{device}"
