"""An operation in flight, as torch.distributed sees it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
from torch.distributed import Work

from rueda import _native
from rueda.errors import (
    PeerLostError,
    ShutdownError,
    StalledError,
)
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.handles import Handle
from rueda.torch.c10d.arguments import tensors_in
from rueda.torch.c10d.placement import ON_HOST, Placement
from rueda.torch.c10d.registry import Registration
from rueda.torch.c10d.shapes import show_shapes
from rueda.torch.compiling import never_compiled
from rueda.torch.completions import Completions
from rueda.torch.profiling import marked

__all__ = [
    "DEADLINE",
    "FATAL",
    "DoneWork",
    "ReceiveWork",
    "RuedaWork",
    "SendWork",
    "say_timed_out",
    "timed_out",
]

E = TypeVar("E", bound=Exception)

# Errors that make the world and every group in it unusable.
FATAL = (PeerLostError, ShutdownError, RuedaTimeoutError)
# The reason of errors whose text gives the timeout.
DEADLINE = "deadline"
# The most elements, and bytes of storage, of a tensor that is cheap to keep.
SMALL = 512
# Age in seconds at which a completed operation that nobody asks for is settled when another one begins.
OLD = 1.0
# The engine's wording.
_WAITED = re.compile(r" has waited for ([0-9.]+) s: ")

completions = Completions("rueda-c10d")
"""The threads that complete futures."""


def timed_out(seconds: float) -> str:
    """The wording of torch's own backends, which users and tests search for."""
    return f"Timed out waiting {round(seconds * 1000)}ms"


def say_timed_out(error: Exception, seconds: float) -> None:
    """Adds this wording to a stall or timeout error of the engine.

    ``seconds``: the operation's own timeout. A shorter limit of the world may have been hit first.
    """
    if isinstance(error, StalledError | RuedaTimeoutError) and error.reason != DEADLINE:
        waited = _WAITED.search(str(error))
        struck = float(waited[1]) if waited is not None else seconds
        words = timed_out(seconds)
        if struck < 0.9 * seconds:
            words = (
                f"{timed_out(struck)}: the world's stall_error, or the time limit of the first rank, is shorter than "
                f"the {seconds:g} s of this operation"
            )
        error.args = (f"{error}. {words}",)
        error.reason = DEADLINE


@never_compiled
class RuedaWork(Work):
    """The future of one operation of a process group.

    ``what`` describes it in errors; ``timeout`` is the number of seconds it may take from now on, and ``grace`` how
    many more the engine's error, which tells more, is waited for; ``on_longer`` is called with the seconds if a caller
    is about to wait for longer, and returns the grace for that; ``on_settled`` is called with the work once it is
    settled; ``on_error`` before :meth:`wait` raises an error that all ranks get; ``on_fatal`` with an error that makes
    the group unusable, before callers see it: possibly several times, from any thread. ``collective``: which one it is,
    for :func:`show_shapes`.

    On GPU tensors an operation is done once all its work is enqueued. The host waits only for that; streams wait for
    the results: the current stream in :meth:`wait`, and the streams of code that waits for the future.
    """

    _LACKING = "for all ranks: some rank has not taken part"  # after a timeout

    def __init__(
        self,
        what: str,
        submit: Callable[[], Sequence[_native.Handle]],
        finish: Callable[[Sequence[_native.Handle]], list[torch.Tensor]],
        references: object,
        timeout: float,
        grace: float = 0.0,
        on_longer: Callable[[float], float] | None = None,
        on_settled: Callable[[RuedaWork], object] | None = None,
        on_error: Callable[[], None] | None = None,
        on_fatal: Callable[[Exception], object] | None = None,
        placement: Placement = ON_HOST,
        collective: str = "",
    ) -> None:
        super().__init__()
        self._what = what
        self._placement = placement
        self._touched = references
        self._timeout = timeout
        self._grace = grace
        self._begun = time.monotonic()
        self.deadline = self._begun + timeout + grace
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._outputs: list[torch.Tensor] = []
        self._is_known_to_all = (
            True  # whether all ranks get the error, so that all can restart with the same names
        )
        self._settled = False
        self._done: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None  # follows self._done
        self._on_longer = on_longer
        self._on_settled = on_settled
        self._on_error = on_error
        self._on_fatal = on_fatal
        self._collective = collective
        self._source = -1
        self._registration: Registration | None = None
        self._handle: Handle[list[torch.Tensor]] = Handle(submit, finish, references)
        self._natives = self._handle._submitted()

    # --- What torch.distributed calls

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Blocks until the operation is done; raises its error. A GPU's current stream waits for the results.

        ``timeout``: replaces the operation's own, unless zero. When it expires, raises :class:`rueda.TimeoutError`; the
        operation then continues and keeps its tensors, and the group should no longer be used.
        """
        self._outlast(timeout.total_seconds())
        if self._error is not None:
            if self._on_error is not None and self._is_known_to_all:
                self._on_error()
                self._on_error = None
            raise self._error
        self._placement.join()
        registration = self._registration
        if registration is not None:
            self._registration = None
            registration.end()
        return True

    def register(self, outputs: object) -> None:
        """Makes ``wait_tensor()``, for any of ``outputs``, wait for this work; see :func:`tensors_in`."""
        self._registration = Registration(self, tensors_in(outputs))

    def _outlast(self, seconds: float) -> None:
        if self._settled:
            return
        on_longer = self._on_longer  # another thread may clear it
        grace = self._grace if seconds >= self._timeout else 0.0
        if seconds > self._timeout and on_longer is not None:
            grace = on_longer(seconds)
        now = time.monotonic()
        end = now + seconds + grace if seconds > 0 else max(now, self.deadline)
        with marked("wait"):
            for native in self._awaited():
                if not native.wait(max(0.0, end - time.monotonic())):
                    raise self._tell_fatal(self._late(seconds if seconds > 0 else self._timeout))
            self._settle(aside=False)

    def is_completed(self) -> bool:
        """Whether the operation is done, with results in place or with an error.

        On a GPU: whether the GPU has finished the results, so that any stream may use them.
        """
        return self._is_settled() and (self._error is not None or self._placement.is_over())

    def is_success(self) -> bool:
        """Whether the operation is done without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """The operation's error, once it is done."""
        return self._error if self._is_settled() else None

    def _is_settled(self) -> bool:
        if not self._settled and all(native.done() for native in self._awaited()):
            self._settle(aside=True)
        return self._settled

    def _awaited(self) -> Sequence[_native.Handle]:
        """What must be done before :meth:`_settle` is called."""
        return self._natives

    def settle_if_old(self) -> None:
        """Settles a completed operation that began more than a second ago and has no future, to release its memory.

        The completion threads settle works with a future, so that its callbacks run there.
        """
        if self._done is not None or self._begun + OLD >= time.monotonic():
            return
        if all(native.done() for native in self._awaited()):
            self._settle(aside=True)

    def is_small(self) -> bool:
        """Whether the settled work keeps only negligible memory alive."""
        if self._error is not None:  # its traceback keeps the variables of its callers alive
            return False
        try:
            return all(
                output.numel() <= SMALL and output.untyped_storage().nbytes() <= SMALL
                for output in self._outputs
            )
        except RuntimeError:  # a tensor without storage of its own
            return False

    def result(self) -> list[torch.Tensor]:
        """Waits; returns the tensors that the operation has written."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def devices(self) -> list[torch.device]:
        """The GPUs that hold the tensors, for a future of them."""
        return [*self._placement.devices]

    def source_rank(self) -> int:
        """The group rank that a receive has received from."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that completes with the operation, even if nobody waits.

        Its value is the list of tensors that the operation has written. On a GPU, the streams of callbacks and of
        waiters are ordered after the results. Its error is a ``RuntimeError`` with the class name and the message of
        the operation's error, which :meth:`exception` returns.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            self._done = torch.futures.Future(devices=[*self._placement.devices])
            # C++ does not see an error from set_exception(): DistributedDataParallel would take the exception for
            # gradients. An exception raised in a callback is an error for both.
            self._future = self._done.then(self._outcome)
            settled = self._settled
        if settled:
            self._done.set_result(None)
        else:
            self._be_completed()
        return self._future

    def _be_completed(self) -> None:
        """Arranges for another thread to call :meth:`on_done`."""
        completions.add(self)

    def _outcome(self, _: object) -> list[torch.Tensor]:
        """The future's value. On a GPU, called on a stream of torch's for which the future's waiters then wait."""
        if self._error is not None:
            raise self._error
        self._placement.join()
        return self._outputs

    # --- Called by the completion threads

    def natives(self) -> tuple[_native.Handle, ...]:
        """See Completable."""
        return self._natives

    def on_done(self) -> None:
        """See Completable."""
        self._settle(aside=True)

    def on_deadline(self) -> None:
        """See Completable."""
        if not self._settled:
            self._give_up(self._tell_fatal(self._late(self._timeout)))

    def on_end(self) -> None:
        """See Completable."""
        self._give_up(ShutdownError(f"the process has ended before {self._what} has completed"))

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            if self._settled:
                return
            self._error = error
            self._is_known_to_all = False
            self._settled = True
            done = self._done
        if done is not None:
            done.set_result(None)

    # --- Completion

    def _settle(self, aside: bool) -> None:
        """Puts the results in place; only the first call has an effect.

        ``aside``: on a GPU, uses a side stream; the current stream does not wait for the results.
        """
        with self._lock:
            if self._settled:
                return
            touched, self._touched = self._touched, None
            try:
                with self._placement.settling(self._natives, tensors_in(touched), aside):
                    for native in self._natives:
                        native.check()
                    self._is_known_to_all = False  # errors from here on are this rank's alone
                    self._outputs = self._handle.result()
            except Exception as error:
                say_timed_out(error, self._timeout)
                show_shapes(error, self._collective)
                self._error = error
                self._is_known_to_all = self._is_known_to_all and not isinstance(error, FATAL)
            self._settled = True
            self._natives = ()  # releases the memory of results, which may be large
            done = self._done
        if isinstance(self._error, (*FATAL, StalledError)):
            self._tell_fatal(self._error)
        on_settled, self._on_settled = self._on_settled, None
        if on_settled is not None:
            on_settled(self)
        if self._error is None:  # they reference the group, which may keep this work
            self._on_longer = self._on_error = self._on_fatal = None
        if done is not None:
            done.set_result(None)

    def _tell_fatal(self, error: E) -> E:
        on_fatal = self._on_fatal
        if on_fatal is not None:
            on_fatal(error)
        return error

    def _late(self, seconds: float) -> RuedaTimeoutError:
        return RuedaTimeoutError(
            f"{self._awaiting()} has not completed within {seconds:g} s. {timed_out(seconds)} {self._LACKING}",
            reason=DEADLINE,
        )

    def _awaiting(self) -> str:
        """What has not been done yet, for an error."""
        return self._what


@never_compiled
class DoneWork(Work):
    """An operation that completed before its caller got this work."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._outputs = outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Does not block."""
        return True

    def is_completed(self) -> bool:
        """Always true."""
        return True

    def is_success(self) -> bool:
        """Always true: an error is raised instead of returning a work."""
        return True

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation has written."""
        return self._outputs

    def synchronize(self) -> None:
        """Does not block."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A completed future."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class SendWork(RuedaWork):
    """A send."""

    _LACKING = "for the message to be received"


class ReceiveWork(RuedaWork):
    """A receive, which then knows its source. ``group_rank`` converts a world rank to a group rank."""

    _LACKING = "for the message to be sent"

    def __init__(
        self,
        what: str,
        submit: Callable[[], Sequence[_native.Handle]],
        finish: Callable[[Sequence[_native.Handle]], list[torch.Tensor]],
        references: object,
        timeout: float,
        group_rank: Callable[[int], int],
        on_fatal: Callable[[Exception], object] | None = None,
        placement: Placement = ON_HOST,
    ) -> None:
        def receive(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            self._source = group_rank(natives[0].source())
            return finish(natives)

        super().__init__(
            what, submit, receive, references, timeout, on_fatal=on_fatal, placement=placement
        )
