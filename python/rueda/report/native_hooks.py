"""Times the engine's functions, where a recording is asked for: they are replaced then, and cost nothing otherwise.

Whatever reaches the engine from Python goes through them: NumPy arrays and tensors, DistributedOptimizer, strategies,
torch.distributed and Horovod's functions.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
import zlib
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any
from weakref import WeakKeyDictionary

from rueda import _native, dtypes
from rueda.report.recorder import Recorder, clock, now, recorder
from rueda.report.recording_format import NO_ALLREDUCE, ON_GPU, Header, Kind

__all__ = ["begin_if_asked", "install"]

# Of functions that begin an operation: where their arguments have the name, the process set, the shape and the element
# type, and the device; -1 where there is none.
_BEGINNING = {
    "allreduce": (4, 8, 2, 3, 10),
    "grouped_allreduce": (4, 8, 2, 3, 10),
    "reduce_scatter": (3, 8, 1, 2, 9),
    "allgather": (3, 4, 1, 2, 5),
    "broadcast": (4, 5, 1, 2, 6),
    "alltoall": (4, 5, 1, 2, 6),
    "barrier": (0, 1, -1, -1, -1),
    "send": (-1, 5, 1, 2, -1),
    "recv": (-1, 5, 1, 2, -1),
    "refuse": (0, 1, -1, -1, -1),
}
# The same of those that return when it is done.
_BLOCKING = {
    "allreduce_arrays": ("allreduce", 2, 6, -1, -1),
    "allreduce_memory": ("allreduce", 6, 10, 4, 5),
    "pass_barrier": ("barrier", 0, 1, -1, -1),
}
_ALLREDUCES = ("allreduce", "grouped_allreduce")
# Messages between two ranks belong to no operation of all.
_OF_TWO = ("send", "recv")
_OPTIONS = ("fusion_threshold", "ring_chunk", "batches_in_flight", "cache_capacity", "algorithm")


@lru_cache(maxsize=4096)
def key_of(collective: str, name: object, process_set: object) -> int:
    """The same on all ranks, for what has the same name; 0 is none."""
    return zlib.crc32(f"{collective}/{process_set}/{name or ''}".encode()) or 1


def _bytes(shape: Any, dtype: Any) -> int:
    if isinstance(dtype, int):
        return int(math.prod(shape)) * dtypes.item_size(dtype)
    return sum(_bytes(one, code) for one, code in zip(shape, dtype, strict=True))


def _at(arguments: tuple[Any, ...], place: int) -> Any:
    return arguments[place] if 0 <= place < len(arguments) else None


class _Hooks:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._keys: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of handles

    def beginning(self, collective: str, original: Callable[..., Any]) -> Callable[..., Any]:
        name, process_set, shape, dtype, device = _BEGINNING[collective]

        @wraps(original)
        def begin(*arguments: Any, **named: Any) -> Any:
            began = now()
            handle = original(*arguments, **named)
            key = 0
            if collective not in _OF_TWO:
                key = key_of(collective, _at(arguments, name), _at(arguments, process_set))
            self._keys[handle] = key
            size = _bytes(arguments[shape], arguments[dtype]) if shape >= 0 else 0
            placed = _at(arguments, device)
            devices = placed if isinstance(placed, list) else [placed]
            flags = ON_GPU if any(each is not None and each >= 0 for each in devices) else 0
            if shape >= 0 and collective not in _ALLREDUCES:
                flags |= NO_ALLREDUCE
            kind = Kind.SUBMIT if named.get("begun") is None else Kind.CALL
            self._recorder.add(kind, began, now(), key, size, flags)
            return handle

        return begin

    def blocking(self, function: str, original: Callable[..., Any]) -> Callable[..., Any]:
        collective, name, process_set, shape, dtype = _BLOCKING[function]

        @wraps(original)
        def block(*arguments: Any, **named: Any) -> Any:
            began = now()
            done = False
            try:
                done = original(*arguments, **named) is not False
                return done if function != "pass_barrier" else None
            finally:
                if done:
                    ended = now()
                    key = key_of(collective, arguments[name], arguments[process_set])
                    size = 0
                    if shape >= 0:
                        size = _bytes(arguments[shape], arguments[dtype])
                    elif function == "allreduce_arrays":
                        size = arguments[0].nbytes
                    self._recorder.add(Kind.CALL, began, ended, key, size)

        return block

    def waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def wait(handle: Any, *arguments: Any, **named: Any) -> Any:
            if not self._recorder.is_training_thread() or handle.done():
                return original(handle, *arguments, **named)
            began = now()
            try:
                return original(handle, *arguments, **named)
            finally:
                key = self._keys.get(handle, 0)
                kind = Kind.PULL if key < 0 else Kind.WAIT
                self._recorder.add(kind, began, now(), abs(key))

        return wait

    def waiting_for_all(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def wait(handles: Any, stream: int) -> Any:
            began = now()
            try:
                return original(handles, stream)
            finally:
                for handle in handles:
                    self._recorder.add(Kind.WAIT, began, now(), self._keys.get(handle, 0))

        return wait

    def persistent(self, kind: type[Any]) -> None:
        """Of a persistent allreduce: a start submits."""
        make, start, wait = kind.__init__, kind.start, kind.wait
        known: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()

        @wraps(make)
        def remember(operation: Any, *arguments: Any) -> None:
            make(operation, *arguments)
            key = key_of("persistent", arguments[4], arguments[8])
            known[operation] = (key, _bytes(arguments[2], arguments[3]))

        @wraps(start)
        def begin(operation: Any, *arguments: Any) -> Any:
            began = now()
            start(operation, *arguments)
            self._recorder.add(Kind.SUBMIT, began, now(), *known[operation])

        @wraps(wait)
        def block(operation: Any) -> Any:
            began = now()
            try:
                return wait(operation)
            finally:
                self._recorder.add(Kind.WAIT, began, now(), known[operation][0])

        kind.__init__, kind.start, kind.wait = remember, begin, block

    def completions(self, kind: type[Any]) -> None:
        """Of a thread that hears of completions: torch's C++ waits for what it tells."""
        watch, wait = kind.watch, kind.wait
        keys: dict[tuple[int, int], list[int]] = {}

        @wraps(watch)
        def remember(queue: Any, handle: Any, token: int) -> Any:
            keys.setdefault((id(queue), token), []).append(self._keys.get(handle, 0))
            return watch(queue, handle, token)

        @wraps(wait)
        def hear(queue: Any, timeout: float) -> Any:
            tokens = wait(queue, timeout)
            at = now()
            for token in tokens:
                for key in keys.pop((id(queue), token), ()):
                    self._recorder.add(Kind.DONE, at, at, key)
            return tokens

        kind.watch, kind.wait = remember, hear

    def tables(self, kind: type[Any]) -> None:
        """Of tables: what a get with a clock waits for is other ranks."""
        for function in ("get", "get_rows"):
            original = getattr(kind, function)

            def pull(
                table: Any, *arguments: Any, _original: Callable[..., Any] = original, **named: Any
            ) -> Any:
                began = now()
                handle = _original(table, *arguments, **named)
                self._keys[handle] = -1 if arguments[-1] > 0 else 0
                self._recorder.add(Kind.SUBMIT, began, now(), flags=NO_ALLREDUCE)
                return handle

            setattr(kind, function, wraps(original)(pull))

    def entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def enter(*arguments: Any, **named: Any) -> Any:
            is_new = original.__name__ != "init" or not _native.is_initialized()
            began = now()
            result = original(*arguments, **named)
            if is_new:
                epoch = 0 if original.__name__ == "init" else int(result[0])
                self._recorder.enter_world(began, self._header(epoch))
            return result

        return enter

    def _header(self, epoch: int) -> Header:
        options = _native.options()
        links = [
            (kind, latency, rate)
            for kind, latency, rate, obstacle in _native.host_links()
            if not obstacle
        ]
        return Header(
            _native.rank(),
            _native.size(),
            _native.local_size(),
            _native.cross_size(),
            socket.gethostname(),
            os.getpid(),
            clock(),
            self._recorder.run(),
            time.time(),
            sys.argv[:],
            links,
            {name: options[name] for name in _OPTIONS if name in options},
            epoch,
        )


def install(recorder: Recorder) -> None:
    """Once in a process, before anything has been submitted."""
    hooks = _Hooks(recorder)
    for name in _BEGINNING:
        setattr(_native, name, hooks.beginning(name, getattr(_native, name)))
    for name in _BLOCKING:
        setattr(_native, name, hooks.blocking(name, getattr(_native, name)))
    for name in ("init", "enter_world", "recover"):
        setattr(_native, name, hooks.entering(getattr(_native, name)))
    for kind in (_native.Handle, _native.GroupHandle):
        kind.wait = hooks.waiting(kind.wait)  # type: ignore[method-assign]
    _native.wait_on_all = hooks.waiting_for_all(_native.wait_on_all)
    hooks.persistent(_native.PersistentAllreduce)
    hooks.completions(_native.CompletionQueue)
    hooks.tables(_native.Table)


def begin_if_asked() -> None:
    """Begins to record, if the environment says so; at the import of rueda."""
    recording = recorder()
    if recording is not None:
        install(recording)
