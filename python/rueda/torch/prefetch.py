"""Loads the next batches while the current one is processed."""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from rueda.arguments import whole_number
from rueda.errors import InvalidArgumentError
from rueda.read_ahead import ReadAhead
from rueda.report.recorder import now, recorder
from rueda.report.torch_hooks import note_input

__all__ = ["InputWait", "PrefetchLoader"]

T = TypeVar("T")
# Share of an epoch's time spent waiting for input that triggers a warning.
TOLERATED = 0.05
# A shorter epoch, in seconds, says nothing.
_SHORTEST = 0.5
# What of a DataLoader several threads replace: a class that overrides any of it may yield other batches.
_ITERATION = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation")


@dataclass(frozen=True)
class InputWait:
    """How long an epoch of a :class:`PrefetchLoader` waited for input.

    - ``batches``: the number of batches yielded.
    - ``seconds``: from the first batch to the end; ``waited``: of these, the time spent waiting for later batches.
    - ``loading``: seconds spent loading all batches, summed over all threads.
    """

    batches: int
    seconds: float
    waited: float
    loading: float

    @property
    def share(self) -> float:
        """The share of the epoch's time spent waiting, from 0 to 1."""
        return self.waited / self.seconds if self.seconds > 0 else 0.0


_END = object()


class PrefetchLoader(Generic[T]):
    """Iterates over ``loader`` in another thread, so that the next batches are ready when they are needed.

    The batches are those of ``loader``, in its order. A ``DataLoader`` without workers reads in the training thread;
    this moves it to another thread. One with ``num_workers`` already prefetches; this still measures the waiting. A
    thread does not speed up Python code that holds the GIL: use ``num_workers`` for that.

    ``loader``: a ``DataLoader`` or any iterable; iterated over again for each epoch.
    ``depth``: how many batches are kept ready; memory grows accordingly.
    ``threads``: how many batches are loaded at the same time, for a disk that is faster with several requests at once.
    More than one needs a ``DataLoader`` without workers and ``pin_memory``, of a class that iterates as ``DataLoader``
    does, over a dataset with ``__getitem__``, which is then called from several threads, so its random numbers come in
    another order.

    Batches are loaded in the modes of the iterating thread: gradients, inference, autocast, devices, NumPy's errors.

    Batches are loaded in parallel with the training, which uses the same random number generators. If a dataset or
    transform draws from the global ones of torch, NumPy or Python and the training does too (as for dropout), it gets
    different numbers than without this, and different ones in each run. Give it its own generator, or use
    ``num_workers``, whose processes have their own.

    If ``loader`` has ``state_dict()``, as torchdata's ``StatefulDataLoader`` does, this object's is the loader's state
    after the last batch that was yielded, not after the last that was read. With several threads there is none.

    After each epoch, :attr:`last` says how long it waited. If that is more than 5% of the epoch, a warning says how
    long a batch takes to load and to train on, and what may help when the source cannot keep up.

    Raises :class:`rueda.InvalidArgumentError` if ``depth`` or ``threads`` is not a whole number of at least 1, and for
    threads that ``loader`` does not support. Errors from loading are raised where the batch is requested.

    Example::

        >>> loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2)
        >>> [batch.tolist() for batch in rueda.torch.PrefetchLoader(loader)]
        [[0.0, 1.0], [2.0, 3.0]]
    """

    def __init__(self, loader: Iterable[T], depth: int = 2, threads: int = 1) -> None:
        depth = whole_number("PrefetchLoader(): depth", depth, 1)
        threads = whole_number("PrefetchLoader(): threads", threads, 1)
        if threads > 1 and not _can_be_shared(loader):
            raise InvalidArgumentError(
                f"PrefetchLoader(threads={threads}) needs a DataLoader with num_workers=0 and without "
                f"pin_memory over a dataset with __getitem__{_in_its_own_way(loader)}; use threads=1 and the "
                "DataLoader's num_workers"
            )
        self.loader = loader
        self.depth = depth
        self.threads = threads
        self._forsaken: ReadAhead[Any] | None = None  # of an abandoned epoch; may still read
        # Within an epoch: the loader's state after the last batch that was yielded.
        self._state: list[Any] = []
        self.last: InputWait | None = None
        """What the last epoch that has come to its end waited for; None before that."""

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        """The loader's attributes: ``dataset``, ``sampler`` and others."""
        if name == "loader":  # asked for during unpickling
            raise AttributeError(name)
        found = getattr(self.loader, name)
        ours = {"state_dict": self._state_dict, "load_state_dict": self._load_state_dict}
        return ours.get(name, found)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_forsaken": None}

    def _state_dict(self) -> Any:
        self._refuse_state()
        loader: Any = self.loader
        return copy.deepcopy(self._state[-1]) if self._state else loader.state_dict()

    def _load_state_dict(self, state: Any) -> Any:
        self._refuse_state()
        self._state.clear()
        loader: Any = self.loader
        return loader.load_state_dict(state)

    def _refuse_state(self) -> None:
        if self.threads > 1:
            raise InvalidArgumentError(
                f"PrefetchLoader(threads={self.threads}) does not iterate over the DataLoader, whose state does not "
                "tell which batches were handed out then: use threads=1"
            )

    def __iter__(self) -> Iterator[T]:
        make = self._in_one_thread if self.threads == 1 else self._in_threads
        source = _Source()
        return self._handed_out(make(source), source)

    def _handed_out(self, batches: Iterator[T], source: _Source) -> Iterator[T]:
        recording = recorder()
        first = time.perf_counter()
        waited = 0.0
        count = 0
        try:
            while True:
                asked, asked_at = time.perf_counter(), now()
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                finally:
                    if recording is not None and recording.is_training_thread():
                        note_input(recording, asked_at)
                came = time.perf_counter()
                if count == 0:
                    first = came
                else:
                    waited += came - asked
                count += 1
                yield batch
        finally:
            batches.close()  # type: ignore[attr-defined]  # a generator
        self.last = InputWait(count, time.perf_counter() - first, waited, source.loading)
        self._say()

    def _say(self) -> None:
        last = self.last
        assert last is not None
        if last.seconds < _SHORTEST or last.share <= TOLERATED or last.batches < 3:
            return
        load = last.loading / last.batches
        train = (last.seconds - last.waited) / (last.batches - 1)
        each = f" in each of {self.threads} threads" if self.threads > 1 else ""
        warnings.warn(
            f"{100 * last.share:.0f}% of the epoch was spent waiting for input: a batch takes {1e3 * load:.1f} ms to "
            f"load{each} and {1e3 * train:.1f} ms to train on. {self._remedy(load / self.threads > train)}",
            RuntimeWarning,
            stacklevel=3,
        )

    def _remedy(self, is_too_slow: bool) -> str:
        if not is_too_slow:
            return (
                "Batches come unevenly, or Python cannot load while it trains: raise depth=, or use the DataLoader's "
                "num_workers"
            )
        last_resort = "fewer bytes for each sample, or a faster disk"
        if self.threads > 1:
            return f"The source cannot keep up: it needs more threads, {last_resort}"
        if _can_be_shared(self.loader):
            return (
                f"The source cannot keep up with one thread: use threads= or the DataLoader's num_workers, and if "
                f"these do not help, {last_resort}"
            )
        return f"The source cannot keep up: use more of a DataLoader's num_workers, {last_resort}"

    def _in_one_thread(self, source: _Source) -> Iterator[T]:
        forsaken, loader = self._forsaken, self.loader
        keeps_state = callable(getattr(loader, "state_dict", None))
        self._state.clear()

        def read() -> Iterator[tuple[T, list[Any]]]:
            if forsaken is not None:
                forsaken.join()  # it may still use the same iterator
            yield from source.batches(loader, keeps_state)

        ahead = ReadAhead(read(), self.depth, "rueda-prefetch")
        try:
            for batch, state in ahead:
                self._state[:] = state
                yield batch
            self._state.clear()  # the loader's own state reflects its end
        finally:
            # A DataLoader soon yields its next batch; of a stream, nobody knows when it does, or whether.
            if keeps_state or isinstance(loader, DataLoader):
                ahead.stop()
            else:
                ahead.forsake()
                self._forsaken = ahead

    def _in_threads(self, source: _Source) -> Iterator[T]:
        loader: Any = self.loader

        def load(indices: Any) -> Any:
            dataset = loader.dataset
            if loader.batch_sampler is None:
                return source.timed_in_modes(lambda: loader.collate_fn(dataset[indices]))
            many = getattr(dataset, "__getitems__", None)
            if many is None:
                return source.timed_in_modes(
                    lambda: loader.collate_fn([dataset[i] for i in indices])
                )
            return source.timed_in_modes(lambda: loader.collate_fn(many(indices)))

        samples = iter(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        # Draw as a DataLoader's iterator does for its workers, since a sampler with the same generator draws after it.
        torch.empty((), dtype=torch.int64, device="cpu").random_(generator=loader.generator)
        under_way: list[Future[Any]] = []
        with ThreadPoolExecutor(self.threads, "rueda-prefetch") as pool:
            try:
                while True:
                    while len(under_way) < max(self.depth, self.threads):
                        indices = next(samples, _END)
                        if indices is _END:
                            break
                        under_way.append(pool.submit(load, indices))
                    if not under_way:
                        return
                    try:
                        batch = under_way.pop(0).result()
                    except StopIteration:  # from the dataset: ends the epoch, as a DataLoader's
                        return
                    yield batch
            finally:
                for future in under_way:
                    future.cancel()


class _Modes:
    """torch's and NumPy's modes of the thread that creates this: a new thread has none of them."""

    def __init__(self) -> None:
        self._infers = torch.is_inference_mode_enabled()
        self._has_gradients = torch.is_grad_enabled()
        default = getattr(torch, "get_default_device", None)  # since torch 2.3
        self._device = default() if default is not None else torch.device("cpu")
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._gpu = torch.cuda.current_device() if in_use else None
        self._casts = {kind: _cast_on(kind) for kind in ("cpu", "cuda")}
        self._errors: Any = {**np.geterr(), "call": np.geterrcall()}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Applies them in another thread."""
        with ExitStack() as modes:
            if self._gpu is not None:
                modes.enter_context(torch.cuda.device(self._gpu))
            if self._device.type != "cpu":
                modes.enter_context(self._device)
            modes.enter_context(torch.inference_mode(self._infers))
            modes.enter_context(torch.set_grad_enabled(self._has_gradients))
            modes.enter_context(np.errstate(**self._errors))
            for kind, dtype in self._casts.items():
                if dtype is not None:
                    # All threads share one cache of what was cast: it is the training's.
                    modes.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield


def _cast_on(kind: str) -> torch.dtype | None:
    """What autocast casts to on this kind of device in this thread; ``None`` if it is off."""
    if hasattr(torch, "get_autocast_dtype"):  # since torch 2.4
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


class _Source:
    """Loads batches in the iterating thread's modes; measures the time."""

    def __init__(self) -> None:
        self.loading = 0.0
        self._modes = _Modes()
        self._lock = threading.Lock()

    def timed(self, load: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return load()
        finally:
            with self._lock:
                self.loading += time.perf_counter() - began

    def batches(self, loader: Iterable[T], keeps_state: bool) -> Iterator[tuple[T, list[Any]]]:
        """Each batch with the loader's state after it, in a list that is empty unless ``keeps_state``."""
        of_loader: Any = loader

        def state() -> list[Any]:
            if not keeps_state:
                return []
            try:
                return [copy.deepcopy(of_loader.state_dict())]
            except Exception:  # it has none, such as Accelerate's wrapper of torch's DataLoader
                return []

        # Entered once, as a loader may keep its own modes from batch to batch.
        with self._modes.entered():
            batches = self.timed(lambda: iter(loader))
            while (batch := self.timed(lambda: next(batches, _END))) is not _END:
                yield batch, self.timed(state)

    def timed_in_modes(self, load: Callable[[], Any]) -> Any:
        """For one of several threads, which take the next batch each."""
        with self._modes.entered():
            return self.timed(load)


def _can_be_shared(loader: object) -> bool:
    return (
        isinstance(loader, DataLoader)
        and loader.num_workers == 0
        and not loader.pin_memory
        and not isinstance(loader.dataset, IterableDataset)
        and not _in_its_own_way(loader)
    )


def _in_its_own_way(loader: object) -> str:
    """Whether a DataLoader is of a class that may yield other batches than a DataLoader, for an error's text."""
    kind = type(loader)
    if not isinstance(loader, DataLoader) or kind is DataLoader:
        return ""
    if all(getattr(kind, name, None) is getattr(DataLoader, name, None) for name in _ITERATION):
        return ""
    return f", and {kind.__name__} iterates in its own way"
