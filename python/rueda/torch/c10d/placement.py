"""Where an operation's tensors are, and how a GPU's streams are ordered with its results."""

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
    "together",
]


class Event(Protocol):
    """A point in a stream: the part of ``torch.cuda.Event`` that is used."""

    def record(self, stream: Any) -> None: ...
    def query(self) -> bool: ...


class Stream(Protocol):
    """The part of ``torch.cuda.Stream`` that is used."""

    @property
    def cuda_stream(self) -> int: ...
    def wait_event(self, event: Any) -> None: ...


class Cuda(Protocol):
    """The part of ``torch.cuda`` that is used."""

    def __hash__(self) -> int: ...
    def current_stream(self, device: Any) -> Stream: ...
    def device(self, device: Any) -> AbstractContextManager[object]: ...
    def stream(self, stream: Any) -> AbstractContextManager[object]: ...
    def Stream(self, device: Any, priority: int) -> Stream: ...  # noqa: N802 - torch's name
    def Event(self) -> Event: ...  # noqa: N802 - torch's name


class Placement(Protocol):
    """How an operation synchronizes with the place where its tensors are."""

    devices: Sequence[torch.device]
    """The devices argument of a future of its tensors."""

    def settling(
        self, natives: Iterable[_native.Handle], tensors: Iterable[torch.Tensor], aside: bool
    ) -> AbstractContextManager[None]:
        """A context in which results are copied to their places, after all ``natives`` are done. Entered once.

        ``tensors``: those that the operation touches; they may be freed afterwards. ``aside``: do not use the current
        stream.
        """

    def join(self) -> None:
        """Orders later work on the current stream after the results."""

    def is_over(self) -> bool:
        """Whether all work on the results has finished. Called after settling."""


class _OnHost:
    """In host memory: an operation that is done has written its results."""

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
    """On a GPU: an operation that is done has only been enqueued. Created when the operation is submitted.

    Results are copied to their places once, on one stream: the stream of the first waiter, or a side stream if nobody
    waits. All others wait for an event recorded after that. Only streams that ask are made to wait, so a program that
    waits on another stream keeps computing on the submitting one.

    ``after_submission``: results are not written before the submitting stream has finished the work enqueued before
    the submission. The engine's collectives guarantee this anyway.
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
        # Uses a side stream only if needed: the first waiter is usually the submitting stream.
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
                    # The allocator orders reuse of the memory only on the submitting stream. Recording this stream
                    # keeps freed memory from being reused before this stream has got here.
                    for tensor in tensors:
                        if tensor.is_cuda:
                            tensor.record_stream(cast(torch.Stream, stream))

    @contextmanager
    def _made_current(self, stream: Stream) -> Iterator[None]:
        # Without the first, torch would return to this thread's own device, by default GPU 0, and create a context
        # there.
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
    """On a GPU, if the engine writes the results in place and nothing is left to copy.

    Like :class:`OnGpu`, but the handles make streams wait: no event is created and no stream made current, which
    together take longer than the rest of an operation.
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
            # The allocator orders reuse of the memory only on the submitting stream. Recording this stream keeps freed
            # memory from being reused before this stream has got here.
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


class _Together:
    """At several places, for what is done once other operations are settled there."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self._placements = placements
        self.devices: Sequence[torch.device] = list(
            dict.fromkeys(device for placement in placements for device in placement.devices)
        )

    def settling(
        self, natives: Iterable[_native.Handle], tensors: Iterable[torch.Tensor], aside: bool
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        for placement in self._placements:
            placement.join()

    def is_over(self) -> bool:
        return all(placement.is_over() for placement in self._placements)


def together(placements: Iterable[Placement]) -> Placement:
    """Where operations with these placements have their results; nothing else is written."""
    elsewhere = [placement for placement in placements if placement is not ON_HOST]
    return _Together(elsewhere) if elsewhere else ON_HOST


@cache
def _side_stream(cuda: Cuda, device: torch.device) -> Stream:
    """The stream for results that nobody waits for yet; high priority, as its work is short and others depend on it."""
    return cuda.Stream(device, priority=-1)


def placement_of(*views: View, in_place: bool = False) -> Placement:
    """The placement of all ``views``. Raises Refusal if they are on different devices.

    ``in_place``: the engine writes the results directly to their targets.
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
