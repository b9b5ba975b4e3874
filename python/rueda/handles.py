"""Futures of operations, and what keeps their tensors alive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rueda import _native
from rueda.errors import NotInitializedError, PeerLostError, ShutdownError, note_other_world
from rueda.errors import TimeoutError as RuedaTimeoutError

__all__ = ["Handle", "poll", "synchronize"]

T = TypeVar("T")
U = TypeVar("U")


class Handle(Generic[T]):
    """The future of an asynchronous operation with a result of type ``T``.

    The tensors stay alive until the operation has completed, even if the handle is dropped. Dropping it does not cancel
    the operation. Any number of threads may wait.

    An operation on GPU tensors counts as completed here once its work has been enqueued on the GPU: nothing here waits
    for the GPU. :meth:`result` makes the current stream wait, as well as the stream that was current at submission, so
    that work enqueued on either afterwards sees the result.

    Operations that are pending when a rank is lost, or when the world changes in another way, are void, and so are
    their handles in the world that follows: drop them.

    Example::

        >>> handle = rueda.allreduce_async(np.ones(2), name="layer1")
        >>> handle.wait(timeout=60)  # after something else
        True
        >>> handle.result()
        array([1., 1.])
    """

    _is_void = False  # whether result() has raised because the operation's world has ended

    def __init__(
        self,
        submit: Callable[[], Sequence[_native.Handle]],
        finish: Callable[[Sequence[_native.Handle]], T],
        references: object,
        follow: Callable[[Sequence[_native.Handle]], None] | None = None,
        begun: Sequence[_native.Handle] = (),
    ) -> None:
        """``begun``: the list in which ``submit`` stores what it has begun, before anything can interrupt it."""
        self._finish: Callable[[Sequence[_native.Handle]], T] | None = finish
        self._references: object = references
        self._worlds = _ended_worlds  # before this operation's
        self._follow = follow  # on a GPU: makes streams wait for the results
        self._result: T | None = None
        self._natives: tuple[_native.Handle, ...] | None = None
        # Keep first, then submit: Ctrl-C can end this function just after the operation has begun. If the handle was
        # not stored in `begun` by then, the tensors are never released, since nobody knows when the operation ends.
        _keep(self)
        try:
            self._natives = tuple(submit())
        except BaseException as error:
            if begun:  # whatever a signal handler raised
                self._natives = tuple(begun)
            elif isinstance(error, Exception):  # nothing was submitted
                self._natives = ()
                self._references = None
            raise

    def done(self) -> bool:
        """Whether the operation has completed, successfully or with an error. Never blocks."""
        natives = self._natives
        if natives is None:
            return False
        for native in natives:  # noqa: SIM110 - a generator costs more than one handle
            if not native.done():
                return False
        return True

    def _is_over(self) -> bool:
        """Whether nothing accesses the tensors any more, GPUs included, or all who do wait for that."""
        natives = self._natives
        if natives is None:
            return False
        for native in natives:  # noqa: SIM110 - as above
            if not native.finished():
                return False
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the operation has completed, for at most ``timeout`` seconds; ``False`` if it has not.

        Other threads run meanwhile. Raises ``KeyboardInterrupt`` on Ctrl-C; the operation continues. Does not raise the
        operation's own error; :meth:`result` does.
        """
        for native in self._submitted():  # noqa: SIM110 - as above
            if not native.wait(timeout):
                return False
        return True

    def result(self, timeout: float | None = None) -> T:
        """Waits, then returns the operation's result, or raises its error.

        Raises :class:`rueda.TimeoutError` if it has not completed after ``timeout`` seconds.
        """
        if not self.wait(timeout):
            raise late(timeout)
        finish = self._finish
        if finish is not None:
            natives = self._submitted()
            if self._follow is not None:
                # If this raises, a GPU may still be working: the tensors are kept until it has finished.
                self._follow(natives)
            try:
                for native in natives:
                    native.check()
                self._result = finish(natives)
            except (PeerLostError, ShutdownError) as error:
                if self._worlds != _ended_worlds:
                    note_other_world(error)
                    # Whoever waits for it again would do so in any world: a loop that restarts must not go on.
                    error.recurs = error.recurs or self._is_void
                    self._is_void = True
                raise
            finally:
                self._references = None
            self._finish = None
            self._natives = ()  # also frees the memory of results, which may be large
        return self._result  # type: ignore[return-value]  # set together with _finish = None

    def _submitted(self) -> tuple[_native.Handle, ...]:
        assert self._natives is not None, "the constructor did not return"
        return self._natives


def late(timeout: float | None) -> RuedaTimeoutError:
    """The error of an operation that has not completed within ``timeout`` seconds, and how to learn who is missing."""
    try:
        after = f"={float(_native.options()['stall_warning']):g}"
    except NotInitializedError:  # another thread has called shutdown() since
        after = ""
    return RuedaTimeoutError(
        f"the operation has not completed within {timeout} seconds; what has waited for other ranks for "
        f"RUEDA_STALL_WARNING{after} seconds is reported, with the ranks that are missing",
        reason="deadline",
    )


def poll(handle: Handle[T]) -> bool:
    """Whether an asynchronous operation has completed, so that :func:`synchronize` will not block.

    Example::

        >>> handle = rueda.allreduce_async(np.ones(2), name="layer1")
        >>> while not rueda.poll(handle):
        ...     pass  # prepare the next batch
        >>> rueda.synchronize(handle)
        array([1., 1.])
    """
    return handle.done()


def synchronize(handle: Handle[T]) -> T:
    """Waits for an asynchronous operation and returns its result, or raises its error.

    Example::

        >>> handles = [rueda.allreduce_async(np.ones(n), name=f"layer{n}") for n in (1, 2)]
        >>> [rueda.synchronize(handle) for handle in handles]
        [array([1.]), array([1., 1.])]
    """
    return handle.result()


def combine(handles: Sequence[Handle[T]]) -> Handle[list[T]]:
    """One handle for several, whose result is the list of theirs."""
    natives = [native for handle in handles for native in handle._submitted()]
    return Handle(lambda: natives, lambda _: [handle.result() for handle in handles], None)


def transformed(handle: Handle[T], transform: Callable[[T], U]) -> Handle[U]:
    """A handle whose result is computed from another's, by the first caller that asks for it."""
    return Handle(handle._submitted, lambda _: transform(handle.result()), None)


# Operations that may still touch memory. The coordinator never drops a reference (it would need the GIL), so
# each submission looks at the two oldest: the list shrinks whenever operations complete.
_pending: deque[Handle[object]] = deque()


def _keep(handle: Handle[T]) -> None:
    release_completed(2)
    _pending.append(handle)  # type: ignore[arg-type]


def keep_alive(native: _native.Handle, references: object) -> None:
    """Keeps an operation's tensors alive until it has completed, although nobody waits for it any more."""
    Handle(lambda: (native,), lambda _: None, references)


# The number of worlds that this process has left.
_ended_worlds = 0


def end_world() -> None:
    """Called when a world has been left: what is still pending is void."""
    global _ended_worlds
    _ended_worlds += 1
    release_completed()


def release_completed(limit: int | None = None) -> int:
    """Releases the tensors of completed operations among the ``limit`` oldest; returns how many operations remain."""
    for _ in range(len(_pending) if limit is None else limit):
        try:
            handle = _pending.popleft()
        except IndexError:  # another thread was faster
            break
        if not handle._is_over():
            _pending.append(handle)
    return len(_pending)
