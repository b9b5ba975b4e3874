"""One rank's model in training, and what moves its tensors between ranks."""

from __future__ import annotations

import time
import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from rueda.compression import Codec
from rueda.errors import InvalidArgumentError
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.handles import Handle, combine
from rueda.lifecycle import world_number
from rueda.observation import options
from rueda.process_sets import ProcessSet
from rueda.torch.exchanges import allgather
from rueda.torch.point_to_point import recv_async, send_async
from rueda.torch.reductions import allreduce_async, grouped_allreduce_async
from rueda.torch.shards import as_placed, is_cut, like, local_of
from rueda.torch.strategies.named import Named, assign

__all__ = ["Averaging", "Meeting", "Replica"]

# Far from what programs number their own messages with.
_FIRST_TAG = 0x5275_6564 << 31


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

    def wait(self) -> None:
        """Waits until all have ended, well or not."""
        self._handle.wait()

    def result(self) -> dict[str, torch.Tensor]:
        """Waits for all, and returns them; raises the first error of those that failed, once all have ended."""
        self.wait()
        return dict(zip(self._names, self._handle.result(), strict=True))


class Meeting:
    """Tensors that this rank and one other are swapping; through the CPU's memory, where they are those of a GPU."""

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
        """Whether all have ended, well or not, within so many seconds; it goes on where they have not."""
        end = None if timeout is None else time.monotonic() + timeout
        return all(
            each.wait(None if end is None else max(0.0, end - time.monotonic()))
            for each in self._pending
        )

    def result(self) -> dict[str, torch.Tensor]:
        """Waits for all, and returns the other's, where this rank's are.

        Raises the first error of those that failed, once all have ended.
        """
        self.wait(None)
        for each in self._pending:
            each.result()
        return {name: each.to(self._devices[name]) for name, each in self._received.items()}


class Replica:
    """This rank's model and optimizer, as a :class:`Strategy` sees them.

    - ``parameters``: those of the optimizer, by their names in the model; of those that are cut over ranks
      (``DTensor``) the part that this rank holds, which all ranks of the set do. ``originals``: these as they are.
    - ``optimizer``: the one that wrap() has returned.
    - ``steps``: how many steps the optimizer has taken since the strategy began, ``batches`` how often step() was
      called, from the beginning of the epoch on in which it began: strategies may let the optimizer take fewer. The
      same on all ranks.
    - ``process_set``: who trains together.

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
        self._are_cut = any(map(is_cut, self.originals.values()))
        self.process_set = process_set
        self.prefix = prefix  # of the names of operations
        self._begun = 0
        self.begin()

    def begin(self, steps: int = 0, batches: int = 0) -> None:
        """A strategy begins, or goes on from a state that was saved after so many; on all ranks alike."""
        self.steps = steps
        self.batches = batches
        self._begun += 1
        self._world = world_number()

    def agree_on_beginning(self) -> None:
        """Numbers this beginning alike on all ranks; in start() of strategies that exchange(). Collective.

        Ranks may have begun different numbers of times: a rank was lost while some had ended a switch() and others had
        not, or a state could not be loaded on one of them.
        """
        begun = self.gather(torch.tensor([self._begun], device="cpu"), "beginning")
        self._begun = int(begun.max())

    def require_same_world(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError` in another world than that of the beginning.

        For the head of a step of strategies that exchange(), so that all ranks raise in the same step, also those that
        would meet nobody in it.
        """
        if self._world != world_number():
            raise InvalidArgumentError(
                f"this is another world than that in which '{self.prefix}' began to train or loaded a state, and its "
                f"ranks may have come to different exchanges: let all load_state_dict() what they saved at the same "
                f"step, or all switch(), which begins anew with the mean of theirs; either takes ranks that have all "
                f"been in this training, no newcomers"
            )

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        if not self._are_cut:
            return self.originals
        return {name: local_of(each) for name, each in self.originals.items()}

    def gradients(self) -> dict[str, torch.Tensor]:
        """What this rank holds of the gradients of those parameters that have one."""
        return {
            name: local_of(as_placed(each.grad, each))
            for name, each in self.originals.items()
            if each.grad is not None
        }

    def set_gradients(self, gradients: Named) -> None:
        """Gives each parameter that needs one the gradient of its name, and none where there is none."""
        for name, each in self.originals.items():
            gradient = gradients.get(name) if each.requires_grad else None
            each.grad = None if gradient is None else like(gradient, each)

    def optimizer_state(self, name: str) -> dict[str, Any]:
        """What the optimizer keeps for a parameter; of what is cut as that is, the part that this rank holds."""
        kept: dict[str, Any] = self.optimizer.state.get(self.originals[name], {})
        if not self._are_cut:
            return kept
        return {
            key: local_of(value) if isinstance(value, torch.Tensor) else value
            for key, value in kept.items()
        }

    def set_optimizer_state(self, name: str, entries: Mapping[str, Any]) -> None:
        """Gives the optimizer entries to keep for a parameter, those of its shape cut as it is."""
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
        """The one that wrap() has returned."""
        optimizer = self._optimizer()
        assert optimizer is not None, "the optimizer is gone, and so no step can be under way"
        return optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        # Which keeps this: what a strategy has hooked into a model goes with the last reference to the optimizer.
        self._optimizer = weakref.ref(optimizer)

    def average_async(
        self, tensors: Named, what: str, compression: Codec | str | None = None
    ) -> Averaging:
        """Begins to average tensors over the ranks; they must not be written before the result is there.

        ``what`` they are, as errors and the timeline name them: no two of the same name may be on their way at a time.
        ``compression`` as for :func:`rueda.torch.allreduce`.
        """
        name = f"{self.prefix}/{what}"
        values = [each.detach() for each in tensors.values()]
        if compression is None and values:
            # Together, so that the ring is cut in the same places each time, and a run repeats its bits.
            handle = grouped_allreduce_async(values, name, process_set=self.process_set)
            return Averaging(tensors, handle)
        # Each is encoded by itself anyway, and a number that a codec cannot hold is told by the parameter's name.
        each_alone = [
            allreduce_async(
                value, f"{name}/{label}", process_set=self.process_set, compression=compression
            )
            for label, value in zip(tensors, values, strict=True)
        ]
        return Averaging(tensors, combine(each_alone))

    def average(
        self, tensors: Named, what: str, compression: Codec | str | None = None
    ) -> dict[str, torch.Tensor]:
        """New tensors: the mean over the ranks, the same bits on all. Raises as :func:`rueda.torch.allreduce`."""
        return self.average_async(tensors, what, compression).result()

    def average_parameters(self) -> None:
        """Gives all ranks the mean of their parameters; where that fails, they stay as they are."""
        assign(self.parameters, self.average(self.parameters, "parameters"))

    def gather(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """The tensors of all ranks, one behind the other in the order of the ranks."""
        return allgather(tensor, f"{self.prefix}/{what}", self.process_set)

    def exchange(
        self, tensors: Named, partner: int, number: int, timeout: float | None = None
    ) -> dict[str, torch.Tensor]:
        """Swaps tensors with one other rank, of the world, which calls this with this rank; returns the other's.

        ``number``: that of the exchange, from 0 on, the same on both. No third rank takes part or waits. Raises
        :class:`rueda.TimeoutError` after ``timeout`` seconds without an answer, by default ``RUEDA_STALL_ERROR``,
        :class:`rueda.InvalidArgumentError` in another world than that in which the training began or has loaded its
        state, as after :func:`rueda.recover`: ranks may have come to different exchanges; and as
        :func:`rueda.torch.send`. After a time-out what was sent and what was to be received stay pending, with the
        memory of both, until the partner comes to this exchange or the world ends.
        """
        self.require_same_world()
        # What was sent before a state was loaded must not be taken for what follows.
        meeting = self.meet(tensors, partner, f"{self._begun}/{number}")
        limit = timeout or float(options()["stall_error"]) or None
        if not meeting.wait(limit):
            raise RuedaTimeoutError(
                f"rank {partner} has not swapped tensors with this one within {limit:g} s: it has taken fewer "
                f"steps, or is at work on something else (exchange {number} of '{self.prefix}')",
                partner,
                reason="deadline",
            )
        return meeting.result()

    def meet(self, tensors: Named, partner: int, what: str) -> Meeting:
        """Begins an exchange(); the tensors must not be written before it is over.

        ``what`` it is, the same on both: what goes by one name arrives in its order. Of each model by itself.
        """
        received = {
            name: torch.empty(each.shape, dtype=each.dtype, device="cpu")
            for name, each in tensors.items()
        }
        tag = _FIRST_TAG + (zlib.crc32(f"{self.prefix}/{what}".encode()) >> 1)
        where = self.process_set
        # Receives first, so that what the other sends has where to go. Both are complete before either waits.
        pending: list[Handle[int] | Handle[None]] = [
            recv_async(each, partner, tag, where) for each in received.values()
        ]
        pending += [
            send_async(each.detach().cpu(), partner, tag, where) for each in tensors.values()
        ]
        return Meeting(received, pending, {name: each.device for name, each in tensors.items()})
