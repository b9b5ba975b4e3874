"""Ray Train's workers as ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from rueda import lifecycle, rendezvous
from rueda.ray.resources import check_room

__all__ = ["RuedaConfig", "RuedaTrainer"]

# In a worker: where it is to enter a world, with which options. Ray runs the training function in a thread of its own,
# and has no other place for what its backend has told the process before.
_meeting: dict[str, Any] = {}


class RuedaConfig(BackendConfig):  # type: ignore[misc]
    """Makes Ray Train's workers a world while the training function runs, numbered as Ray has numbered them.

    ``interface``: at which rank 0 listens, as :func:`rueda.rendezvous.open` takes it. ``options``: those of
    :func:`rueda.init`.

    Example::

        >>> trainer = DataParallelTrainer(train, backend_config=rueda.ray.RuedaConfig())  # doctest: +SKIP
    """

    def __init__(self, interface: str = "", **options: Any) -> None:
        self.interface = interface
        self.options = options

    @property
    def backend_cls(self) -> type[Backend]:
        return _RuedaBackend

    @property
    def train_func_context(self) -> Callable[[], Any]:
        return _in_world


class _RuedaBackend(Backend):  # type: ignore[misc]
    """Tells all workers the address that the first has opened, anew for each group of workers."""

    def on_training_start(self, worker_group: Any, backend_config: RuedaConfig) -> None:
        size = len(worker_group)
        address = worker_group.execute_single(0, _open, size, backend_config.interface)
        worker_group.execute(_remember, address, size, backend_config.options)


def _open(size: int, interface: str) -> str:
    return str(rendezvous.open(size, interface))


def _remember(address: str, size: int, options: Mapping[str, Any]) -> None:
    _meeting.update(address=address, size=size, options=dict(options))


@contextmanager
def _in_world() -> Iterator[None]:
    rank = ray.train.get_context().get_world_rank()
    meeting = _meeting
    with lifecycle.world(rank, meeting["size"], meeting["address"], **meeting["options"]):
        yield


class RuedaTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Ray Train's ``DataParallelTrainer`` with :class:`RuedaConfig`: its arguments are that one's.

    ``check_resources``: whether more workers than the cluster has room for are refused before the start, with
    :class:`rueda.InvalidArgumentError`, instead of waiting for a larger cluster; true by default.

    What the function raises on a rank reaches the driver in Ray's ``WorkerGroupError``, by rank; the other ranks raise
    :class:`rueda.PeerLostError` with its text. By ``FailureConfig(max_failures=)`` all begin anew in a new world.

    Example::

        >>> scaling = ray.train.ScalingConfig(num_workers=4)  # doctest: +SKIP
        >>> rueda.ray.RuedaTrainer(train, scaling_config=scaling).fit()  # doctest: +SKIP
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        backend_config: RuedaConfig | None = None,
        check_resources: bool = True,
        **kwargs: Any,
    ) -> None:
        self._check_resources = check_resources
        super().__init__(
            train_loop_per_worker, backend_config=backend_config or RuedaConfig(), **kwargs
        )

    def fit(self) -> Any:
        """As Ray Train's."""
        scaling = self.scaling_config
        if self._check_resources and isinstance(scaling.num_workers, int):
            if not ray.is_initialized():
                ray.init()
            each = scaling._resources_per_worker_not_none
            check_room("RuedaTrainer", scaling.num_workers, each)
        return super().fit()
