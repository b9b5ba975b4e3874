"""GPU gradients that are copied into their bucket together, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch

from rueda.torch.tensors import current_stream

__all__ = ["Cuda", "Gathering", "Place"]


class Cuda(Protocol):
    """The part of ``torch.cuda`` that is used."""

    def current_stream(self, device: Any) -> Any: ...


class Place(Protocol):
    """Where one gradient belongs; the part of :class:`rueda.torch.buckets.Slot` that is used."""

    def outside(self) -> tuple[str, torch.Tensor | None]: ...
    def view(self) -> torch.Tensor: ...
    def exchange(self, gradient: torch.Tensor) -> None: ...


P = TypeVar("P", bound=Place)


class Gathering:
    """Copies the gradients of one bucket into it.

    They are copied on the stream that is current when the last one is ready, after all work enqueued on the streams on
    which the others became ready: autograd processes a parameter's gradient on the stream of its forward pass.
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
        # By handle. For the default stream, whose handle is 0, ExternalStream() would create a different one.
        self._streams: dict[int, Any] = {}

    def start_over(self) -> None:
        """Forgets the streams on which gradients became ready."""
        self._streams.clear()

    def note(self) -> None:
        """Notes that a gradient is ready on the current stream."""
        handle = self._current_stream(self._device.index)
        if handle not in self._streams:
            self._streams[handle] = self._cuda.current_stream(self._device)

    def take_in(self, places: Sequence[P], refuse: Callable[[P, str], object]) -> None:
        """Copies the parameters' ``.grad`` into its places, as :meth:`Slot.take_in` does.

        ``refuse`` is called with each place that cannot take its gradient, and the reason.
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
            ):  # released now, its memory would otherwise be reused on the stream that made it
                gradient.record_stream(self._cuda.current_stream(self._device))
            place.exchange(gradient)


def _copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


# What torch's own optimizers use; the oldest supported versions lack it.
_copy = getattr(torch, "_foreach_copy_", _copy_each)
