"""Gradients of a GPU that are brought into their bucket together, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch

from rueda.torch.tensors import current_stream

__all__ = ["Cuda", "Gathering", "Place"]


class Cuda(Protocol):
    """What is used of ``torch.cuda``."""

    def current_stream(self, device: Any) -> Any: ...


class Place(Protocol):
    """Where one gradient belongs; what is used of :class:`rueda.torch.buckets.Slot`."""

    def outside(self) -> tuple[str, torch.Tensor | None]: ...
    def view(self) -> torch.Tensor: ...
    def exchange(self, gradient: torch.Tensor) -> None: ...


P = TypeVar("P", bound=Place)


class Gathering:
    """The gradients of one bucket, on their way into it.

    They are copied on the stream that is current when the last one is ready, after what has been enqueued on the
    streams on which the others became ready: autograd works on a parameter's gradient where its forward pass ran.
    """

    def __init__(
        self,
        device: torch.device,
        cuda: Cuda | None = None,
        current_stream: Callable[[int], int] = current_stream,
    ) -> None:
        self._device = device
        self._cuda = cuda if cuda is not None else cast(Cuda, torch.cuda)
        self._current_stream = current_stream
        # By their handles. ExternalStream() of the default stream's, which is 0, would be another one.
        self._streams: dict[int, Any] = {}

    def start_over(self) -> None:
        """Forgets on which streams gradients became ready."""
        self._streams.clear()

    def note(self) -> None:
        """A gradient is ready on the current stream."""
        handle = self._current_stream(self._device.index)
        if handle not in self._streams:
            self._streams[handle] = self._cuda.current_stream(self._device)

    def take_in(self, places: Sequence[P], refuse: Callable[[P, str], object]) -> None:
        """Brings what the parameters have as ``.grad`` into its places, as :meth:`Slot.take_in` does.

        ``refuse`` is called with each place into which it cannot be brought, and why.
        """
        here = self._current_stream(self._device.index)
        others = [stream for handle, stream in self._streams.items() if handle != here]
        for stream in others:
            self._cuda.current_stream(self._device).wait_stream(stream)
        found: list[tuple[P, torch.Tensor]] = []
        for place in places:
            why_not, gradient = place.outside()
            if why_not:
                refuse(place, why_not)
            elif gradient is not None:
                found.append((place, gradient))
        if not found:
            return
        with torch.no_grad():
            _copy([place.view() for place, _ in found], [gradient for _, gradient in found])
        for place, gradient in found:
            if (
                others
            ):  # its memory, which is let go of now, would be given out on the stream that made it
                gradient.record_stream(self._cuda.current_stream(self._device))
            place.exchange(gradient)


def _copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


# What torch's own optimizers use; the oldest that Rueda works with have none.
_copy = getattr(torch, "_foreach_copy_", _copy_each)
