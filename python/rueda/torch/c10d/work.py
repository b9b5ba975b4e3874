"""An operation on its way, as torch.distributed sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch.distributed import Work

from rueda import _native
from rueda.errors import (
    PeerLostError,
    ShutdownError,
)
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.handles import Handle
from rueda.torch.c10d.compiling import never_compiled
from rueda.torch.c10d.completions import completions

__all__ = ["FATAL", "DoneWork", "MessageWork", "RuedaWork"]

# Errors after which the world, and every group in it, is of no use any more.
FATAL = (PeerLostError, ShutdownError, RuedaTimeoutError)


@never_compiled
class RuedaWork(Work):
    """The future of one operation of a process group.

    ``what`` describes it in errors, ``timeout`` is how many seconds it may take from now on, ``on_settled`` is called
    with this once it is done, ``on_error`` once :meth:`wait` is about to raise an error that all ranks have been told.
    """

    def __init__(
        self,
        what: str,
        submit: Callable[[], Sequence[_native.Handle]],
        finish: Callable[[Sequence[_native.Handle]], list[torch.Tensor]],
        references: object,
        timeout: float,
        on_settled: Callable[[RuedaWork], object] | None = None,
        on_error: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._what = what
        self._timeout = timeout
        self.deadline = time.monotonic() + timeout
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._outputs: list[torch.Tensor] = []
        self._is_known_to_all = (
            True  # the error, so that all ranks can begin anew with the same names
        )
        self._settled = False
        self._done: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None  # follows self._done
        self._on_settled = on_settled
        self._on_error = on_error
        self._source = -1
        self._handle: Handle[list[torch.Tensor]] = Handle(submit, finish, references)
        self._natives = self._handle._submitted()

    # --- What torch.distributed calls

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until the operation is done; raises its error.

        ``timeout``: instead of the operation's own, zero for that. Raises :class:`rueda.TimeoutError` when it has
        passed; the operation goes on then and keeps its tensors, and the group should not be used any more.
        """
        self.outlast(timeout.total_seconds())
        if self._error is not None:
            if self._on_error is not None and self._is_known_to_all:
                self._on_error()
                self._on_error = None
            raise self._error
        return True

    def outlast(self, seconds: float = 0.0) -> None:
        """Blocks until the operation is done, well or with an error, which is left to :meth:`wait`.

        ``seconds``: instead of the operation's own time-out, zero for that. Raises :class:`rueda.TimeoutError`.
        """
        if self._settled:
            return
        now = time.monotonic()
        end = now + seconds if seconds > 0 else max(now, self.deadline)
        for native in self._natives:
            if not native.wait(max(0.0, end - time.monotonic())):
                raise self._late(seconds if seconds > 0 else self._timeout)
        self._settle()

    def is_completed(self) -> bool:
        """Whether the operation is done, well or with an error, and its results are where they belong."""
        if not self._settled and all(native.done() for native in self._natives):
            self._settle()
        return self._settled

    def is_success(self) -> bool:
        """Whether the operation is done without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """The operation's error, once it is done."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation has written, once it is done."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """The same as :meth:`wait`: there is no stream to wait for on a CPU."""
        self.wait()

    def source_rank(self) -> int:
        """The rank within the group from which a receive from any source has received."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that completes with the operation, though nobody waits for it.

        Its value is the list of tensors that the operation has written. Its error is a ``RuntimeError`` with the class
        and the words of the operation's, which :meth:`exception` returns.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            self._done = torch.futures.Future()
            # set_exception() would keep an error where C++ does not see it: DistributedDataParallel would take the
            # exception for gradients. What a callback raises is an error for both.
            self._future = self._done.then(self._outcome)
            settled = self._settled
        if settled:
            self._done.set_result(None)
        else:
            completions.add(self)
        return self._future

    def _outcome(self, _: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._outputs

    # --- What the thread of completions calls

    def natives(self) -> tuple[_native.Handle, ...]:
        """See Completable."""
        return self._natives

    def on_done(self) -> None:
        """See Completable."""
        self._settle()

    def on_deadline(self) -> None:
        """See Completable."""
        with self._lock:
            if self._settled:
                return
            self._error = self._late(self._timeout)
            self._is_known_to_all = False
            self._settled = True
            done = self._done
        if done is not None:
            done.set_result(None)

    # --- Completion

    def _settle(self) -> None:
        """Brings the results to their places; once, whoever comes first."""
        with self._lock:
            if self._settled:
                return
            try:
                for native in self._natives:
                    native.check()
                self._is_known_to_all = False  # what goes wrong from now on
                self._outputs = self._handle.result()
            except Exception as error:
                self._error = error
                self._is_known_to_all = self._is_known_to_all and not isinstance(error, FATAL)
            self._settled = True
            done = self._done
        if self._on_settled is not None:
            self._on_settled(self)
        if done is not None:
            done.set_result(None)

    def _late(self, seconds: float) -> RuedaTimeoutError:
        return RuedaTimeoutError(
            f"{self._what} has not completed within {seconds:g} s: some rank has not taken part"
        )


@never_compiled
class DoneWork(Work):
    """An operation that was over when its caller got this."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._outputs = outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Does not block."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True

    def is_success(self) -> bool:
        """Always: an error was raised instead."""
        return True

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation has written."""
        return self._outputs

    def synchronize(self) -> None:
        """Does not block."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that is completed."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class MessageWork(RuedaWork):
    """A receive, which knows afterwards from whom. ``group_rank`` turns a rank of the world into one of the group."""

    def __init__(
        self,
        what: str,
        submit: Callable[[], Sequence[_native.Handle]],
        finish: Callable[[Sequence[_native.Handle]], list[torch.Tensor]],
        references: object,
        timeout: float,
        group_rank: Callable[[int], int],
    ) -> None:
        def receive(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            self._source = group_rank(natives[0].source())
            return finish(natives)

        super().__init__(what, submit, receive, references, timeout)
