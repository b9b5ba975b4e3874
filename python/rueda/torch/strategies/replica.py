"""One rank's model in training, and the exchange of its tensors with other ranks."""

from __future__ import annotations

import time
import weakref
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from rueda.compression import Codec
from rueda.errors import InvalidArgumentError
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.handles import Handle, combine, transformed
from rueda.lifecycle import world_number
from rueda.observation import options
from rueda.process_sets import ProcessSet
from rueda.torch.exchanges import allgather
from rueda.torch.layouts import laid_out_like
from rueda.torch.point_to_point import recv_async, send_async
from rueda.torch.reductions import allreduce_async, grouped_allreduce_async
from rueda.torch.shards import as_placed, is_cut, like, local_of
from rueda.torch.sparse import sparse_allreduce_async
from rueda.torch.strategies.named import Named, assign

__all__ = ["Averaging", "Meeting", "Replica", "replicas_of"]

# Far from the tags that programs use for their own messages.
_FIRST_TAG = 0x5275_6564 << 31
_replicas: weakref.WeakSet[Replica] = weakref.WeakSet()


class Averaging:
    """An average of tensors over the ranks that is in progress.

    Example::

        >>> from rueda.torch.strategies import Averaging
        >>> handle = rueda.torch.grouped_allreduce_async([torch.ones(2)], name="example")
        >>> Averaging(["weight"], handle).result()
        {'weight': tensor([1., 1.])}
    """

    def __init__(self, names: Iterable[str], handle: Handle[list[torch.Tensor]]) -> None:
        self._names = list(names)
        self._handle = handle

    def done(self) -> bool:
        """Whether all have completed, successfully or not."""
        return self._handle.done()

    def wait(self) -> None:
        """Waits until all have completed, successfully or not."""
        self._handle.wait()

    def result(self) -> dict[str, torch.Tensor]:
        """Waits for all and returns the averages; raises the first error, if any, once all have completed."""
        self.wait()
        return dict(zip(self._names, self._handle.result(), strict=True))


class Meeting:
    """Tensors that this rank and one other are swapping; GPU tensors go through CPU memory."""

    def __init__(
        self,
        received: dict[str, torch.Tensor],
        pending: Sequence[Handle[int] | Handle[None]],
        devices: Mapping[str, torch.device],
    ) -> None:
        self._received = received
        self._pending = pending
        self._devices = devices

    def wait(self, timeout: float | None) -> bool:
        """Whether all complete within ``timeout`` seconds, successfully or not; others stay in progress."""
        end = None if timeout is None else time.monotonic() + timeout
        return all(
            each.wait(None if end is None else max(0.0, end - time.monotonic()))
            for each in self._pending
        )

    def result(self) -> dict[str, torch.Tensor]:
        """Waits for all and returns the other rank's tensors, on the devices of this rank's.

        Raises the first error, if any, once all have completed.
        """
        self.wait(None)
        for each in self._pending:
            each.result()
        return {name: each.to(self._devices[name]) for name, each in self._received.items()}


class Replica:
    """This rank's model and optimizer, as a :class:`Strategy` sees them.

    - ``parameters``: those of the optimizer that required gradients when the strategy started (all, if none did), also
      if a state of it is loaded, by their names in the model before torch.compile(); for sharded ones (``DTensor``),
      this rank's shard, which all ranks of the set hold. ``originals``: all parameters of the optimizer themselves.
    - ``optimizer``: the one that wrap() returned.
    - ``steps``: the number of steps that the optimizer has taken since the strategy started. ``batches``: the number of
      step() calls since the start of the epoch in which it started; strategies may skip the optimizer's step. Both are
      the same on all ranks, unless the strategy lets ranks take different numbers of steps.
    - ``process_set``: the ranks that train together.
    - ``known``: the parameters of ``originals``, as a set. ``sparse``: the names of those that only modules have
      which say that their gradients are sparse, such as ``Embedding(sparse=True)``.

    Example::

        >>> from rueda.torch.strategies import Replica
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> replica = Replica(optimizer, dict(model.named_parameters()), rueda.torch.global_process_set, "example")
        >>> sorted(replica.average(replica.parameters, "parameters"))
        ['bias', 'weight']
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, torch.Tensor],
        process_set: ProcessSet,
        prefix: str,
    ) -> None:
        self.optimizer = optimizer
        self.optimizer_class = type(optimizer)
        self.originals = dict(parameters)
        self.known = set(self.originals.values())
        self.sparse: Collection[str] = ()
        self._are_cut = any(map(is_cut, self.originals.values()))
        self.process_set = process_set
        self.prefix = prefix  # of operation names
        self._begun = 0
        self.begin()
        _replicas.add(self)

    def begin(self, steps: int = 0, batches: int = 0, trained: Iterable[str] | None = None) -> None:
        """Notes that a strategy starts, or continues from a saved state with these counts; on all ranks alike.

        ``trained``: the names of ``parameters``, if a state has them; by default those that require gradients now.
        """
        self.steps = steps
        self.batches = batches
        if trained is None:
            trained = [name for name, each in self.originals.items() if each.requires_grad]
        self._trained = {name: self.originals[name] for name in trained} or self.originals
        self._begun += 1
        self._world = world_number()

    def agree_on_beginning(self) -> None:
        """Gives this start the same number on all ranks; for start() of strategies that exchange(). Collective.

        Ranks may have started different numbers of times: a rank was lost when only some had completed a switch(), or
        one of them could not load a state.
        """
        begun = self.gather(torch.tensor([self._begun], device="cpu"), "beginning")
        self._begun = int(begun.max())

    def require_same_world(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError` in a world other than that of the start.

        Strategies that exchange() call it at the beginning of each step, so that all ranks raise in the same step,
        including those without a partner in it.
        """
        if self._world != world_number():
            raise InvalidArgumentError(
                f"the world has changed since '{self.prefix}' began to train or loaded a state, so its ranks may have "
                f"reached different exchanges: on all ranks, load_state_dict() states saved at the same step, or "
                f"switch(), which starts again from the mean of the ranks; neither works for ranks that are new to "
                f"this training"
            )

    @property
    def trained(self) -> list[str]:
        """The names of ``parameters``, for a state: not all of them need require gradients when it is loaded."""
        return list(self._trained)

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        if not self._are_cut:
            return self._trained
        return {name: local_of(each) for name, each in self._trained.items()}

    def require_trained(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError` if a parameter requires gradients only since the start."""
        if len(self._trained) == len(self.originals):
            return
        for name, each in self.originals.items():
            if each.requires_grad and name not in self._trained:
                raise InvalidArgumentError(
                    f"'{name}' requires gradients now, but did not when the strategy started, which exchanges only "
                    f"those that did: call switch() with the strategy on every rank after parameters are unfrozen"
                )

    def gradients(self) -> dict[str, torch.Tensor]:
        """This rank's part of each gradient, for the parameters that have one."""
        return {
            name: local_of(as_placed(each.grad, each))
            for name, each in self.originals.items()
            if each.grad is not None
        }

    def set_gradients(self, gradients: Named) -> None:
        """Sets each parameter's gradient by name, or to None if it is missing or the parameter requires none."""
        for name, each in self.originals.items():
            gradient = gradients.get(name) if each.requires_grad else None
            each.grad = None if gradient is None else like(laid_out_like(gradient, each), each)

    def optimizer_state(self, name: str) -> dict[str, Any]:
        """The optimizer's state of a parameter; for state that is sharded like it, this rank's shard."""
        kept: dict[str, Any] = self.optimizer.state.get(self.originals[name], {})
        if not self._are_cut:
            return kept
        return {
            key: local_of(value) if isinstance(value, torch.Tensor) else value
            for key, value in kept.items()
        }

    def set_optimizer_state(self, name: str, entries: Mapping[str, Any]) -> None:
        """Updates the optimizer's state of a parameter; entries of its shape are sharded like it."""
        parameter = self.originals[name]
        shape = local_of(parameter).shape
        self.optimizer.state[parameter].update(
            {
                key: like(value, parameter)
                if isinstance(value, torch.Tensor) and value.shape == shape
                else value
                for key, value in entries.items()
            }
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that wrap() returned."""
        optimizer = self._optimizer()
        assert optimizer is not None, "the optimizer is gone, and so no step can be under way"
        return optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        # A weak reference, since the optimizer refers to this: a strategy's hooks go with the last reference to it.
        self._optimizer = weakref.ref(optimizer)

    def average_async(
        self, tensors: Named, what: str, compression: Codec | str | None = None
    ) -> Averaging:
        """Begins to average tensors over the ranks; do not write them before the result is available.

        ``what``: their name in errors and the timeline; only one average of a name may be in flight at a time.
        ``compression``: as for :func:`rueda.torch.allreduce`; not for sparse tensors, whose averages are sparse.
        """
        name = f"{self.prefix}/{what}"
        values = [each.detach() for each in tensors.values()]
        if any(each.layout == torch.sparse_coo for each in values):
            return self._average_sparse(tensors, what)
        if compression is None and values:
            # Grouped, so that the ring is split in the same places each time and runs are bitwise reproducible.
            handle = grouped_allreduce_async(values, name, process_set=self.process_set)
            return Averaging(tensors, handle)
        # Each is encoded separately anyway, and errors about values that a codec cannot encode name the parameter.
        each_alone = [
            allreduce_async(
                value, f"{name}/{label}", process_set=self.process_set, compression=compression
            )
            for label, value in zip(tensors, values, strict=True)
        ]
        return Averaging(tensors, combine(each_alone))

    def _average_sparse(self, tensors: Named, what: str) -> Averaging:
        """average_async() of tensors of which some are sparse, the same ones on all ranks.

        Sparse ones go through CPU memory.
        """
        sparse = {
            n: each.detach() for n, each in tensors.items() if each.layout == torch.sparse_coo
        }
        dense = {n: each.detach() for n, each in tensors.items() if n not in sparse}
        name = f"{self.prefix}/{what}"
        handles = [
            transformed(
                sparse_allreduce_async(each.cpu(), f"{name}/{label}", process_set=self.process_set),
                partial(torch.Tensor.to, device=each.device),
            )
            for label, each in sparse.items()
        ]
        averages = combine(handles)
        if dense:
            others = grouped_allreduce_async(
                list(dense.values()), name, process_set=self.process_set
            )
            both = combine([others, averages])
            averages = transformed(both, lambda lists: lists[0] + lists[1])
        return Averaging([*dense, *sparse], averages)

    def average(
        self, tensors: Named, what: str, compression: Codec | str | None = None
    ) -> dict[str, torch.Tensor]:
        """Returns the mean over the ranks, bitwise equal on all. Raises as :func:`rueda.torch.allreduce`."""
        return self.average_async(tensors, what, compression).result()

    def average_parameters(self, what: str = "parameters") -> None:
        """Gives all ranks the mean of their parameters; if that fails, parameters do not change.

        ``what``: as for :meth:`average_async`. Averages for different purposes need different names, or a rank in one
        of them would take another rank in the other for its partner.
        """
        assign(self.parameters, self.average(self.parameters, what))

    def gather(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """The tensors of all ranks, concatenated in rank order."""
        return allgather(tensor, f"{self.prefix}/{what}", self.process_set)

    def exchange(
        self, tensors: Named, partner: int, number: int, timeout: float | None = None
    ) -> dict[str, torch.Tensor]:
        """Swaps tensors with ``partner``, a rank of the world that must call this with this rank; returns its tensors.

        ``number``: the exchange's number, from 0 on, the same on both. No third rank takes part or waits. Raises
        :class:`rueda.TimeoutError` after ``timeout`` seconds without an answer, by default ``RUEDA_STALL_ERROR``;
        :class:`rueda.InvalidArgumentError` in a world other than that in which the training started or loaded its
        state, as after :func:`rueda.recover`, since ranks may have reached different exchanges; and as
        :func:`rueda.torch.send`. After a timeout, the send and the receive stay pending, with their memory, until the
        partner reaches this exchange or the world ends.
        """
        self.require_same_world()
        # Messages sent before a state was loaded must not match later exchanges.
        meeting = self.meet(tensors, partner, f"{self._begun}/{number}")
        limit = timeout or float(options()["stall_error"]) or None
        if not meeting.wait(limit):
            raise RuedaTimeoutError(
                f"rank {partner} has not swapped tensors with this one within {limit:g} s: it has taken fewer "
                f"steps, or is busy with something else (exchange {number} of '{self.prefix}')",
                partner,
                reason="deadline",
            )
        return meeting.result()

    def meet(self, tensors: Named, partner: int, what: str) -> Meeting:
        """Begins an exchange(); do not write the tensors before it completes.

        ``what``: its name, the same on both ranks; exchanges of one name arrive in order. Names are separate per model.
        """
        received = {
            name: torch.empty(each.shape, dtype=each.dtype, device="cpu")
            for name, each in tensors.items()
        }
        tag = _FIRST_TAG + (zlib.crc32(f"{self.prefix}/{what}".encode()) >> 1)
        where = self.process_set
        # Receives first, so that incoming data has a destination. All are submitted before any is waited for.
        pending: list[Handle[int] | Handle[None]] = [
            recv_async(each, partner, tag, where) for each in received.values()
        ]
        pending += [
            send_async(each.detach().cpu(), partner, tag, where) for each in tensors.values()
        ]
        return Meeting(received, pending, {name: each.device for name, each in tensors.items()})


def replicas_of(parameters: Iterable[torch.Tensor]) -> list[Replica]:
    """Those, still in use, that have any of these parameters."""
    wanted = set(parameters)
    return [each for each in list(_replicas) if not wanted.isdisjoint(each.known)]
