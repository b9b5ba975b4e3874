"""Operations that torch.distributed starts one by one and waits for together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch.distributed import Work

from rueda.torch.c10d.work import RuedaWork
from rueda.torch.compiling import never_compiled

__all__ = ["JointWork"]


@never_compiled
class JointWork(Work):
    """The joint future of several operations."""

    def __init__(self, works: Sequence[RuedaWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for all operations, then raises the first error, if any."""
        errors = []
        for work in self._works:
            try:
                work.wait(timeout)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return True

    def is_completed(self) -> bool:
        """Whether all operations are completed."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all operations are completed without an error."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """The first operation's error, if any."""
        errors = [work.exception() for work in self._works]
        return next((error for error in errors if error is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The output tensors of all operations."""
        self.wait()
        return [tensor for work in self._works for tensor in work.result()]

    def devices(self) -> list[torch.device]:
        """The GPUs that hold the tensors."""
        return list(dict.fromkeys(device for work in self._works for device in work.devices()))

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the output tensors of all operations."""
        done: torch.futures.Future[None] = torch.futures.Future(devices=[*self.devices()])
        together = torch.futures.collect_all([work.get_future() for work in self._works])
        together.add_done_callback(lambda _: done.set_result(None))
        # Waiting for torch's collected future makes no stream wait; this future's callback waits for each operation.
        return done.then(lambda _: self.result())
