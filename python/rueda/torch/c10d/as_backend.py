"""What torch asks of the backend that a group has for a device: a group of Rueda's is its own backend."""

from __future__ import annotations

from typing import NoReturn

import torch
import torch.distributed as dist

from rueda.torch.compiling import never_compiled

__all__ = ["AsBackend"]


@never_compiled
class AsBackend(dist.ProcessGroup):
    """The answers of torch's own ``Backend`` class for what Rueda does not have; newer versions of torch ask more."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False

    def getBackendName(self) -> str:  # noqa: N802 - by this name torch calls it
        """The name under which the backend is registered."""
        return "rueda"

    def supports_tensor_alloc(self, _: torch.device) -> bool:
        """Whether :meth:`allocate_tensor` works for a device."""
        return False

    def _get_backend(self, device: torch.device) -> AsBackend:  # type: ignore[override]  # it is one, in all that is asked of it
        """This group. Raises ``RuntimeError``, with torch's text, for a device that it does not serve."""
        if all(device.type != served.type for served in self._device_types):
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    # torch calls these for what a backend can do besides, and its own class does nothing.

    def eager_connect_single_device(self, _: torch.device) -> None:
        """Nothing: the ranks have been connected since the group was formed."""

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:  # noqa: N802 - torch's name
        """Nothing: there is no symmetric memory."""

    # torch calls these only if they are supported, and its own class raises a RuntimeError.

    @property
    def mem_allocator(self) -> NoReturn:
        """Raises ``RuntimeError``."""
        self._lacks("getMemAllocator")

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> NoReturn:
        """Raises ``RuntimeError``."""
        self._lacks("allocateTensor")

    def memory_stats(self) -> NoReturn:
        """Raises ``RuntimeError``."""
        self._lacks("getMemoryStats")

    def suspend(self) -> NoReturn:
        """Raises ``RuntimeError``."""
        self._lacks("suspend")

    def resume(self) -> NoReturn:
        """Raises ``RuntimeError``."""
        self._lacks("resume")

    def shrink(self, *_: object, **__: object) -> NoReturn:
        """Raises ``RuntimeError``."""
        self._lacks("shrink")

    def _lacks(self, what: str) -> NoReturn:
        raise RuntimeError(f"Backend {self.getBackendName()} does not support {what}")
