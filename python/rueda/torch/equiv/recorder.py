"""Records a training, in a run that `rueda equiv` has started."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rueda.arguments import shown
from rueda.equivalence.record_files import Layout, Writer, loss_cell
from rueda.equivalence.run_settings import RunSettings, settings_of_environment
from rueda.errors import InvalidArgumentError, RuedaError
from rueda.torch.equiv.sketch import Signs, hash_of, norm_of, perturb, values_of
from rueda.torch.model_tensors import tensors_of

__all__ = [
    "Recorder",
    "is_active",
    "note_step",
    "record",
    "result",
    "seed",
    "strategy",
    "watch",
    "watch_wrapped",
]

Model = torch.nn.Module | Mapping[str, Any]
Number = float | torch.Tensor | np.generic


def _float(value: Number, name: str) -> float:
    try:
        if isinstance(value, torch.Tensor):
            value = value.detach().to("cpu", torch.float64)
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InvalidArgumentError(f"{name}={shown(value)} is not one number") from None


def _sent() -> float:
    """Bytes of tensors that this rank has sent so far; 0 without a world."""
    import rueda

    try:
        counters = rueda.metrics()
    except (RuedaError, ImportError):
        return 0.0
    return float(
        sum(
            value
            for name, value in counters.items()
            if name.endswith("_payload_bytes_sent")
            or name in ("point_to_point_bytes_sent", "table_bytes_sent")
        )
    )


def _rank() -> int:
    import rueda

    try:
        return rueda.rank()
    except (RuedaError, ImportError):
        return int(os.environ.get("RUEDA_RANK", "0"))


def _size() -> int | None:
    """How many ranks the world has now; None if nothing tells, as where a script forms no world of Rueda's."""
    import rueda

    try:
        return rueda.size()
    except (RuedaError, ImportError):
        told = os.environ.get("RUEDA_SIZE", "")
        return int(told) if told.isdecimal() else None


class Recorder:
    """Records one rank. A row is a step: the state after it, its loss, and the time and bytes so far.

    The time does not include the recorder's own work.
    """

    def __init__(self, folder: os.PathLike[str], settings: RunSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._model: Model | None = None
        self._writer: Writer | None = None
        self._signs: dict[str, Signs] = {}
        self._pending: np.ndarray[Any, np.dtype[np.float64]] | None = None
        self._has_loss = False  # record() has been called for the pending row
        self._step = 0
        self._began = 0.0
        self._own_time = 0.0
        self._sent_before = 0.0
        self._ended = False
        self.used: set[str] = set()  # settings that the script asked for: "seed", "strategy"
        atexit.register(self.end)

    def watch(self, model: Model, *, by_default: bool = False) -> None:
        """Records ``model`` from now on; its current state is step 0. ``by_default``: keeps a model watched earlier."""
        if by_default and self._model is not None and (self._step or self._model is not model):
            return
        if not isinstance(model, torch.nn.Module | Mapping):
            raise InvalidArgumentError(
                f"watch(): {shown(model)} is neither a model nor a mapping of tensors and arrays by name"
            )
        if self._step:
            raise InvalidArgumentError(
                "call rueda.torch.equiv.watch() before the first step: a step was recorded already"
            )
        is_first = self._model is None
        self._model = model
        self._writer = None
        if is_first:
            self._perturb()
        self._pending = self._row(0)
        self._has_loss = True
        self._began = time.perf_counter()
        self._own_time = 0.0
        self._sent_before = _sent()

    def end_step(self) -> None:
        """Called after an optimizer's step: completes the pending row and opens the next one."""
        if self._ended:
            return
        entered = time.perf_counter()
        if self._model is None:
            raise InvalidArgumentError(
                "nothing to record: call rueda.torch.equiv.watch(model) before the first step, or rueda.torch.wrap()"
            )
        self._step += 1
        self._flush()
        self._perturb()
        seconds = entered - self._began - self._own_time
        self._pending = self._row(self._step, seconds)
        self._has_loss = False
        self._own_time += time.perf_counter() - entered

    def record(self, loss: Number | None, metrics: Mapping[str, Number]) -> None:
        """Records the loss and metrics of the step that has just ended."""
        if self._ended:
            return
        if self._pending is None or self._has_loss:
            self.end_step()
        entered = time.perf_counter()
        assert self._pending is not None
        self._has_loss = True
        if loss is not None:
            self._pending[Layout.LOSS] = loss_cell(_float(loss, "loss"))
        for name, value in metrics.items():
            self._writer_of_now().metric(self._step, name, _float(value, name), is_result=False)
        self._own_time += time.perf_counter() - entered

    def result(self, metrics: Mapping[str, Number]) -> None:
        """Records the training's result: the current state, and metrics."""
        if self._ended:
            raise InvalidArgumentError("call rueda.torch.equiv.result() once, at the end")
        if self._model is None:
            raise InvalidArgumentError(
                "no result without a training: call rueda.torch.equiv.watch(model) before the first step, or "
                "rueda.torch.wrap()"
            )
        writer = self._writer_of_now()
        for name, value in metrics.items():
            writer.metric(self._step, name, _float(value, name), is_result=True)
        self._write_end()

    def end(self) -> None:
        """Records the final state at the end of the process, unless result() has done so."""
        if self._model is not None:
            self._write_end()

    def _write_end(self) -> None:
        if self._ended:
            return
        self._ended = True
        writer = self._writer_of_now()
        seconds = time.perf_counter() - self._began - self._own_time
        self._flush()
        writer.end(self._row(self._step, seconds), self.used)

    def _flush(self) -> None:
        if self._pending is None:
            return
        writer = self._writer_of_now()
        if int(self._pending[Layout.STEP]) % self._settings.every == 0:
            writer.row(self._pending)
        else:
            writer.row(self._pending[: Layout.HEAD])
        self._pending = None

    def _tensors(self) -> dict[str, torch.Tensor]:
        model = self._model
        assert model is not None
        state: Mapping[str, Any] = model if isinstance(model, Mapping) else _state_of(model)
        return {
            name: value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
            for name, value in state.items()
            if isinstance(value, torch.Tensor | np.ndarray)
        }

    def _perturb(self) -> None:
        if self._settings.perturbation:
            for name, tensor in self._tensors().items():
                perturb(tensor, self._settings.seed, self._step, name)

    def _writer_of_now(self) -> Writer:
        if self._writer is None:
            tensors = self._tensors()
            layout = Layout(
                tuple(tensors),
                tuple(t.numel() * (2 if t.is_complex() else 1) for t in tensors.values()),
                tuple(_eps_of(t.dtype) for t in tensors.values()),
            )
            self._signs = {
                name: Signs(name, numel)
                for name, numel in zip(layout.names, layout.numels, strict=True)
            }
            self._writer = Writer(self._folder, _rank(), layout, _size())
        return self._writer

    def _row(self, step: int, seconds: float = 0.0) -> np.ndarray[Any, np.dtype[np.float64]]:
        writer = self._writer_of_now()
        row = np.empty(writer.layout.width)
        row[: Layout.HEAD] = step, np.nan, seconds, _sent() - self._sent_before
        if step % self._settings.every and not self._ended:
            return row
        tensors = self._tensors()
        if list(tensors) != list(writer.layout.names):
            raise InvalidArgumentError(
                f"the model has different tensors in step {step} than at the beginning: "
                f"{', '.join(sorted(set(tensors) ^ set(writer.layout.names)))}"
            )
        for name, tensor in tensors.items():
            place = writer.layout.places[name]
            values = values_of(tensor)
            sketch = self._signs[name].sketch(values)
            row.view(np.int64)[place.start] = hash_of(tensor)
            row[place.start + 1] = norm_of(values)
            row[place.start + 2 : place.stop] = sketch.numpy()
        return row


def _state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's tensors themselves, as runs perturb them, and its ``state_dict()`` may have copies."""
    return {name: each.detach() for name, each in tensors_of(model).items()}


def _eps_of(dtype: torch.dtype) -> float:
    """The dtype's machine epsilon; 0 for integers, which are not rounded."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


# The process's recorder, from the first call on; its entry is None if `rueda equiv` has not started this run.
_recorders: list[Recorder | None] = []


def _recorder() -> Recorder | None:
    if not _recorders:
        told = settings_of_environment()
        _recorders.append(None if told is None else Recorder(*told))
    return _recorders[0]


def is_active() -> bool:
    """Whether `rueda equiv` has started this run.

    Example::

        >>> rueda.torch.equiv.is_active()
        False
    """
    return _recorder() is not None


def seed(default: int = 0) -> int:
    """The seed of this run, from 0 on; ``default`` outside of `rueda equiv`.

    Derive everything random from it: the initial model and the order of samples. Runs of the same seed are compared
    with each other; differences between seeds show the effect of chance alone.

    Example::

        >>> torch.manual_seed(rueda.torch.equiv.seed()).initial_seed()
        0
    """
    recorder = _recorder()
    if recorder is None:
        return default
    recorder.used.add("seed")
    return recorder._settings.seed


def strategy(default: str = "sync") -> str:
    """The strategy of this run as a text for :func:`rueda.torch.wrap`; ``default`` outside of `rueda equiv`.

    ``wrap()`` without a strategy calls this itself. Call it if the script passes a strategy or implements its own:
    ``wrap(model, optimizer, strategy=rueda.torch.equiv.strategy("local:8"))``.

    Example::

        >>> rueda.torch.equiv.strategy("local:8")
        'local:8'
    """
    recorder = _recorder()
    if recorder is None:
        return default
    recorder.used.add("strategy")
    return recorder._settings.strategy


def watch(model: Model) -> None:
    """Sets what to record, before the first step: the state of ``model``, or tensors and arrays by name.

    Not needed with :func:`rueda.torch.wrap`, which calls it. Call it once the model has its initial state on all
    ranks; then call :func:`record` once after each step.

    Example::

        >>> rueda.torch.equiv.watch(torch.nn.Linear(3, 1))
    """
    recorder = _recorder()
    if recorder is not None:
        recorder.watch(model)


def watch_wrapped(model: torch.nn.Module) -> None:
    """Called by wrap() for the model of its optimizer."""
    recorder = _recorder()
    if recorder is not None:
        recorder.watch(model, by_default=True)


def note_step() -> None:
    """Called after a step of an optimizer of wrap()."""
    recorder = _recorder()
    if recorder is not None:
        recorder.end_step()


def record(loss: Number | None = None, **metrics: Number) -> None:
    """Records this rank's loss, and other numbers by name; call it once after each step.

    Raises :class:`rueda.InvalidArgumentError` if there is no model to record, see :func:`watch`, or if a value is not a
    single number. Costs a pass over the model's state in each step that is recorded in full.

    Example::

        >>> rueda.torch.equiv.record(loss=torch.tensor(0.25), learning_rate=0.1)
    """
    recorder = _recorder()
    if recorder is not None:
        recorder.record(loss, metrics)


def result(**metrics: Number) -> None:
    """Records the training's result: numbers such as ``accuracy=0.97`` that measure quality.

    Call it once, at the end, after ``consolidate()``: the model's current state counts as the final one. Raises as
    :func:`record`, and :class:`rueda.InvalidArgumentError` if called again.

    Example::

        >>> rueda.torch.equiv.result(accuracy=0.97)
    """
    recorder = _recorder()
    if recorder is not None:
        recorder.result(metrics)
