"""An optimizer whose parameters have the same bits regardless of the number of ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from rueda.errors import InvalidArgumentError
from rueda.leaves import LeafBatch, Leaves, allreduce_leaves, leaf_seed
from rueda.process_sets import ProcessSet, takes_part
from rueda.torch.compiling import never_compiled, never_traced
from rueda.torch.layered import laid_over, load_in_place, note_step
from rueda.torch.leaf_gradients import LeafGradients, LeafSum

__all__ = ["LEAF_STATE", "Leaf", "Reproducible", "make_reproducible"]

# The key under which the optimizer's state_dict() has the state of the leaves.
LEAF_STATE = "rueda_leaves"


class Leaf:
    """One leaf of a step, while it is computed."""

    def __init__(
        self,
        number: int,
        step: int,
        seed: int,
        batch: LeafBatch | None,
        kept: dict[str, float],
    ) -> None:
        self.number = number
        self.step = step
        # The same for this leaf and step on every rank. Torch's CPU generator has been seeded with it.
        self.seed = seed
        self.samples = None if batch is None else torch.from_numpy(batch.samples[number])
        self.weight = 1.0 if batch is None else batch.weight(number)
        self._kept = kept

    def keep(self, **values: torch.Tensor | float) -> None:
        """Stores numbers of this leaf; averages() returns their averages over all leaves."""
        for name, value in values.items():
            number = value.detach() if isinstance(value, torch.Tensor) else value
            self._kept[name] = float(number) * self.weight


@never_compiled
class Reproducible(torch.optim.Optimizer):
    """The methods that DistributedOptimizer(reproducible=True) adds on top of the class of its optimizer."""

    _rueda_leaves: Leaves
    _rueda_gradients: LeafGradients
    _rueda_names: dict[torch.Tensor, str]  # of the trained parameters
    _rueda_buffer_names: dict[torch.Tensor, str]
    _rueda_prefix: str
    _rueda_bucket_bytes: int
    _rueda_trained: list[LeafSum]
    _rueda_buffers: list[LeafSum]
    _rueda_seed: int
    _rueda_threads: int
    _rueda_step: int
    _rueda_kept: dict[int, dict[str, float]]  # by leaf, of the current step
    _rueda_synchronized: bool
    _rueda_before: list[torch.Tensor]  # the buffers before the current step, as each leaf sees them

    def leaves(self, batch: LeafBatch | None = None) -> Iterator[Leaf]:
        """This rank's leaves of the next step, in the order in which they must be computed.

        Call backward() once for each. Gradients are reset with the first leaf. With a ``batch`` from a
        :class:`rueda.LeafSampler`, a leaf has its ``samples`` and ``weight``; multiply its mean loss by the weight.
        While a leaf is computed, torch's CPU generator is the leaf's own, and so are the optimizer's ``named_buffers``;
        torch computes with ``leaf_threads`` threads.
        """
        gradients = self._rueda_gradients
        if batch is not None and len(batch.samples) != self._rueda_leaves.count:
            raise InvalidArgumentError(
                f"the batch is divided into {len(batch.samples)} leaves, and the optimizer has "
                f"{self._rueda_leaves.count}"
            )
        gradients.begin()
        self._rueda_synchronized = False
        self._rueda_kept = {}
        for each in self._rueda_trained:
            each.tensor.grad = None
        before = self._rueda_before = [each.tensor.clone() for each in self._rueda_buffers]
        for number in self._rueda_leaves.own:
            kept = self._rueda_kept.setdefault(number, {})
            seed = leaf_seed(self._rueda_seed, self._rueda_step, number)
            leaf = Leaf(number, self._rueda_step, seed, batch, kept)
            if leaf.samples is None or len(leaf.samples) > 0:
                yield from self._computed(leaf)
            with torch.no_grad():
                for each, old in zip(self._rueda_buffers, before, strict=True):
                    gradients.add(each, each.tensor.clone())
                    each.tensor.copy_(old)
            gradients.end_leaf()
        self._rueda_before = []
        gradients.end()

    def _computed(self, leaf: Leaf) -> Iterator[Leaf]:
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        torch.default_generator.manual_seed(leaf.seed)
        if threads != self._rueda_threads:
            torch.set_num_threads(self._rueda_threads)
        try:
            yield leaf
        finally:
            torch.set_rng_state(state)
            if threads != self._rueda_threads:
                torch.set_num_threads(threads)

    def divide_anew(self) -> None:
        """Divides the leaves evenly over the ranks of a changed world: see :meth:`redistribute`."""
        self.redistribute(Leaves(self._rueda_leaves.count))

    def redistribute(self, leaves: Leaves) -> None:
        """Redistributes the leaves from the next step on: over other ranks, as after a loss, or in another way.

        Every rank of ``leaves.process_set`` calls it. The number of leaves does not change. An unfinished step is given
        up: buffers get the values that they had before it.

        Example::

            survivors = rueda.add_process_set([0, 1, 3])
            optimizer.redistribute(rueda.Leaves(8, survivors))
        """
        if leaves.count != self._rueda_leaves.count:
            raise InvalidArgumentError(
                f"{leaves.count} leaves were given, and the optimizer has {self._rueda_leaves.count}"
            )
        self._rueda_gradients.abandon()
        self.give_up_step()
        self._rueda_take(leaves)

    def give_up_step(self) -> None:
        """Gives up an unfinished step: restores the buffers from before it. Does not involve other ranks."""
        before, self._rueda_before = self._rueda_before, []
        with torch.no_grad():
            for each, old in zip(self._rueda_buffers, before, strict=False):
                each.tensor.copy_(old)

    def _rueda_take(self, leaves: Leaves) -> None:
        if not takes_part(leaves.process_set):
            raise InvalidArgumentError("reproducible=True: this rank is not in the process set")
        gradients = LeafGradients(self._rueda_prefix, leaves, self._rueda_bucket_bytes)
        self._rueda_leaves = leaves
        self._rueda_gradients = gradients
        self._rueda_trained = gradients.add_tensors(self._rueda_names)
        self._rueda_buffers = gradients.add_tensors(self._rueda_buffer_names)
        self._rueda_kept = {}
        self._rueda_before = []
        self._rueda_synchronized = False

    def synchronize(self) -> None:
        """Waits until every parameter's ``.grad`` is the average over the leaves."""
        if self._rueda_synchronized:
            return
        gradients = self._rueda_gradients
        if not gradients.is_begun() or not gradients.is_complete():
            raise InvalidArgumentError(
                "step() was called before all leaves of this rank were computed: go through leaves() to its end"
            )
        gradients.wait()
        for each in self._rueda_trained:
            each.tensor.grad = each.result
        with torch.no_grad():
            for each in self._rueda_buffers:
                each.tensor.copy_(each.result)
        self._rueda_synchronized = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the gradients' averages over the leaves, then takes the optimizer's step."""
        if closure is not None:
            raise InvalidArgumentError("reproducible=True: step() takes no closure")
        note_step(self)
        self.synchronize()
        self._rueda_gradients.forget()
        self._rueda_synchronized = False
        self._rueda_step += 1
        return super().step()

    def averages(self, *names: str) -> list[float]:
        """Averages of numbers that each leaf of the last step has kept, see :meth:`Leaf.keep`; same bits on every rank.

        A leaf that has not kept one of them counts as 0. Collective: every rank must ask for the same names.
        """
        sums = self._rueda_leaves.sums()
        for number in self._rueda_leaves.own:
            kept = self._rueda_kept.get(number, {})
            sums.add(np.array([kept.get(name, 0.0) for name in names]))
        partials = sums.partials((len(names),), np.float64)
        averages: list[float] = allreduce_leaves(partials, self._rueda_leaves).tolist()
        return averages

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with the step number, from which the leaves' seeds follow."""
        state: dict[str, Any] = super().state_dict()
        leaves = self._rueda_leaves.count
        state[LEAF_STATE] = {"step": self._rueda_step, "leaves": leaves, "seed": self._rueda_seed}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state. Raises InvalidArgumentError if it has a different number of leaves."""
        rest = dict(state_dict)
        kept = rest.pop(LEAF_STATE, None)
        if kept is not None:
            if kept["leaves"] != self._rueda_leaves.count:
                raise InvalidArgumentError(
                    f"the state is of {kept['leaves']} leaves, and the optimizer has {self._rueda_leaves.count}"
                )
            self._rueda_step = kept["step"]
            self._rueda_seed = kept["seed"]
        load_in_place(self, partial(super().load_state_dict, rest))

    def __reduce__(self) -> Any:
        raise InvalidArgumentError(
            "reproducible=True: the optimizer cannot be copied: make another, and load its state_dict()"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuses once the leaves are known."""
        if hasattr(self, "_rueda_gradients"):
            raise InvalidArgumentError("reproducible=True: parameters cannot be added later")
        super().add_param_group(param_group)


# As for Distributed.step.
Reproducible.step.hooked = True  # type: ignore[attr-defined]


def make_reproducible(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    prefix: str,
    leaves: int | Leaves,
    seed: int,
    threads: int,
    named_buffers: Iterable[tuple[str, torch.Tensor]],
    process_set: ProcessSet,
    bucket_bytes: int,
) -> Any:
    """Builds the result of DistributedOptimizer(reproducible=True)."""
    made = laid_over(Reproducible, optimizer)
    made._rueda_names = {p: name for p, name in names.items() if p.requires_grad}
    made._rueda_buffer_names = {buffer: name for name, buffer in named_buffers}
    made._rueda_prefix = prefix
    made._rueda_bucket_bytes = bucket_bytes
    made._rueda_seed = seed
    made._rueda_threads = threads
    made._rueda_step = 0
    made._rueda_take(leaves if isinstance(leaves, Leaves) else Leaves(leaves, process_set))

    # A model outlives its optimizers, so its hooks must not keep them alive.
    reference = weakref.ref(made)

    @never_traced
    def take(number: int, parameter: torch.Tensor) -> None:
        optimizer = reference()
        if optimizer is None:
            return
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        optimizer._rueda_gradients.add(optimizer._rueda_trained[number], gradient)

    for number, each in enumerate(made._rueda_trained):
        each.tensor.register_post_accumulate_grad_hook(partial(take, number))
    return made
