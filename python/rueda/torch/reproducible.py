"""An optimizer whose parameters have the same bits regardless of the number of ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from rueda import _native
from rueda.errors import InvalidArgumentError
from rueda.leaves import LeafBatch, Leaves, allreduce_leaves, leaf_seed
from rueda.lifecycle import rank
from rueda.process_sets import ProcessSet, takes_part
from rueda.torch.compiling import never_compiled, never_traced
from rueda.torch.layered import laid_over, load_in_place, note_step, require_known
from rueda.torch.layouts import laid_out_like
from rueda.torch.leaf_gradients import LeafGradients
from rueda.torch.leaf_sum import Nodes, leaves_of
from rueda.torch.left_out import LEAF_STATE, marked, refuse_strategy, require_whole, unmarked
from rueda.trial_step import is_trial_step

__all__ = ["Leaf", "Reproducible", "make_reproducible"]


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


@dataclass(frozen=True)
class _Computed:
    """What this rank has computed of an unfinished step."""

    sums: Mapping[torch.Tensor, Nodes] = field(default_factory=dict)
    kept: Mapping[int, dict[str, float]] = field(default_factory=dict)  # by leaf, see Leaf.keep()
    unfinished: int | None = None  # the leaf that was interrupted

    def leaves(self) -> list[int]:
        """The leaves of which it has the result for at least one tensor."""
        return sorted({leaf for nodes in self.sums.values() for leaf in leaves_of(nodes)})


@never_compiled
class Reproducible(torch.optim.Optimizer):
    """The methods that DistributedOptimizer(reproducible=True) adds on top of the class of its optimizer."""

    _rueda_leaves: Leaves
    _rueda_gradients: LeafGradients
    _rueda_all_names: dict[torch.Tensor, str]  # of all parameters
    _rueda_names: dict[torch.Tensor, str]  # of those that require gradients in this step
    _rueda_numbers: dict[torch.Tensor, int]  # of the trained ones among the sums of the gradients
    _rueda_watched: set[torch.Tensor]  # the parameters that have a hook
    _rueda_buffer_names: dict[torch.Tensor, str]
    _rueda_prefix: str
    _rueda_bucket_bytes: int
    _rueda_trained: range  # the numbers of the parameters among the sums of the gradients
    _rueda_buffers: range
    _rueda_seed: int
    _rueda_threads: int
    _rueda_step: int
    _rueda_kept: dict[int, dict[str, float]]  # by leaf, of the current step
    _rueda_synchronized: bool
    # Each buffer, and its value before the current step, with which each leaf begins; until the step is over.
    _rueda_before: list[tuple[torch.Tensor, torch.Tensor]]
    _rueda_computed: _Computed  # of a step that was given up
    _rueda_has_results: bool  # whether the gradients have some that resume_step() may use
    _rueda_resumed: int | None  # the step for which the leaves are divided by who has computed them

    def leaves(self, batch: LeafBatch | None = None) -> Iterator[Leaf]:
        """This rank's leaves of the next step, in the order in which they must be computed.

        Call backward() once for each. Gradients are reset with the first leaf. Of a step that is resumed after a loss,
        these are only the leaves that this rank has not computed yet. With a ``batch`` from a
        :class:`rueda.LeafSampler`, a leaf has its ``samples`` and ``weight``; multiply its mean loss by the weight.
        While a leaf is computed, torch's CPU generator is the leaf's own, and so are the optimizer's ``named_buffers``;
        torch computes with ``leaf_threads`` threads.
        """
        self._rueda_follow_frozen()
        if self._rueda_resumed not in (None, self._rueda_step):
            self.divide_anew()
        # Without a step() in between, these may be the leaves of other samples.
        is_again = self._rueda_gradients.is_begun()
        if is_again and self._rueda_resumed is not None:
            resumed = self._rueda_resumed
            self._rueda_gradients.abandon()
            self._rueda_take(self._rueda_leaves)
            self._rueda_resumed = resumed
        self._rueda_computed = _Computed()
        gradients = self._rueda_gradients
        if batch is not None and len(batch.samples) != self._rueda_leaves.count:
            raise InvalidArgumentError(
                f"the batch is divided into {len(batch.samples)} leaves, and the optimizer has "
                f"{self._rueda_leaves.count}"
            )
        self._rueda_has_results = not is_again
        gradients.begin()
        self._rueda_synchronized = False
        had = set(self._rueda_leaves.own).difference(gradients.missing)
        self._rueda_kept = {leaf: self._rueda_kept.get(leaf, {}) for leaf in had}
        for each in self._rueda_names:
            each.grad = None
        buffers = [(number, gradients.sums[number].tensor) for number in self._rueda_buffers]
        self._rueda_before = [(buffer, buffer.clone()) for _, buffer in buffers]
        for number in gradients.missing:
            kept = self._rueda_kept.setdefault(number, {})
            seed = leaf_seed(self._rueda_seed, self._rueda_step, number)
            leaf = Leaf(number, self._rueda_step, seed, batch, kept)
            if leaf.samples is None or len(leaf.samples) > 0:
                yield from self._computed(leaf)
            with torch.no_grad():
                for (position, buffer), (_, old) in zip(buffers, self._rueda_before, strict=True):
                    gradients.add(position, buffer.clone())
                    buffer.copy_(old)
            gradients.end_leaf()
        gradients.end()

    def _rueda_follow_frozen(self) -> None:
        """Trains from now on the parameters that require gradients now."""
        names = {p: name for p, name in self._rueda_all_names.items() if p.requires_grad}
        if names.keys() == self._rueda_names.keys():
            return
        for frozen in self._rueda_names.keys() - names.keys():
            frozen.grad = None  # or the optimizer would step with it
        self._rueda_gradients.abandon()
        self._rueda_names = names
        self._rueda_take(self._rueda_leaves)
        self._rueda_watch()

    def _rueda_watch(self) -> None:
        """Takes the gradients of the trained parameters as they are computed."""
        # A model outlives its optimizers, so its hooks must not keep them alive.
        reference = weakref.ref(self)

        @never_traced
        def take(parameter: torch.Tensor) -> None:
            optimizer = reference()
            if optimizer is None:
                return
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            optimizer._rueda_gradients.add(optimizer._rueda_numbers[parameter], gradient)

        for parameter in self._rueda_names.keys() - self._rueda_watched:
            parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]
            self._rueda_watched.add(parameter)

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
        """Divides the leaves evenly over the ranks of a changed world, and gives an unfinished step up.

        See :meth:`redistribute`, and :meth:`resume_step`, which must come before the next :meth:`leaves`.
        """
        self._rueda_gradients.abandon()
        self.give_up_step()
        self._rueda_take(Leaves(self._rueda_leaves.count))

    def end_step(self) -> None:
        """Ends a step of :func:`rueda.elastic.steps`: it is not resumed any more, even if step() was not called."""
        self._rueda_gradients.abandon()
        self._rueda_gradients.forget()
        self._rueda_forget_results()

    def computed_leaves(self) -> list[int]:
        """The leaves that this rank need not compute again in resume_step(). It must have given the step up."""
        return self._rueda_computed.leaves()

    def resume_step(self, computed: Sequence[Sequence[int]]) -> None:
        """Divides the leaves of the step that was given up so that each is computed by a rank that has it already.

        ``computed``: by rank of the world, its computed_leaves(), the same on every rank. Leaves that nobody has, those
        of lost ranks, go to the ranks that have the fewest. From the next step on, leaves are divided evenly again.
        Does nothing if no rank has any.
        """
        if not any(computed):
            self._rueda_computed = _Computed()
            return
        count, size = self._rueda_leaves.count, len(computed)
        owners = [size] * count  # nobody
        for owner, leaves in reversed(list(enumerate(computed))):
            for leaf in leaves:
                owners[leaf] = owner
        ranks = _native.reassign_leaves(owners, list(range(size)))
        # A rank that announced none may have some of an earlier step.
        own = self._rueda_computed if computed[rank()] else _Computed()
        self._rueda_take(Leaves(count, ranks=ranks), own)
        self._rueda_computed = _Computed()
        self._rueda_resumed = self._rueda_step

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
        self._rueda_computed = _Computed()
        self._rueda_take(leaves)

    def give_up_step(self) -> None:
        """Gives up an unfinished step: restores the buffers from before it. Does not involve other ranks.

        In a world that can lose ranks, keeps what this rank has computed of it until the next :meth:`leaves`.
        """
        gradients = self._rueda_gradients
        if self._rueda_has_results:
            self._rueda_computed = _Computed(
                gradients.computed(), self._rueda_kept, gradients.unfinished
            )
        with torch.no_grad():
            for buffer, old in self._rueda_before:
                buffer.copy_(old)
        self._rueda_before = []

    def _rueda_forget_results(self) -> None:
        self._rueda_computed = _Computed()
        self._rueda_has_results = False
        self._rueda_before = []
        if self._rueda_resumed is not None:
            self._rueda_resumed = -1  # leaves() divides anew

    def _rueda_take(self, leaves: Leaves, computed: _Computed | None = None) -> None:
        if not takes_part(leaves.process_set):
            raise InvalidArgumentError("reproducible=True: this rank is not in the process set")
        computed = computed or _Computed()
        gradients = LeafGradients(
            self._rueda_prefix,
            leaves,
            self._rueda_bucket_bytes,
            computed.sums,
            computed.unfinished,
        )
        self._rueda_leaves = leaves
        self._rueda_gradients = gradients
        self._rueda_trained = gradients.add_tensors(self._rueda_names)
        self._rueda_numbers = {gradients.sums[n].tensor: n for n in self._rueda_trained}
        self._rueda_buffers = gradients.add_tensors(self._rueda_buffer_names)
        self._rueda_kept = {leaf: computed.kept.get(leaf, {}) for leaf in leaves.own}
        self._rueda_before = []
        self._rueda_has_results = bool(computed.sums)
        self._rueda_resumed = None
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
        for number in self._rueda_trained:
            tensor = gradients.sums[number].tensor
            # Averages are contiguous.
            tensor.grad = laid_out_like(gradients.results[number], tensor)
        with torch.no_grad():
            for number in self._rueda_buffers:
                gradients.sums[number].tensor.copy_(gradients.results[number])
        self._rueda_synchronized = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the gradients' averages over the leaves, then takes the optimizer's step."""
        if closure is not None:
            raise InvalidArgumentError("reproducible=True: step() takes no closure")
        if is_trial_step():
            return super().step()
        note_step(self)
        require_known(self.param_groups, self._rueda_all_names, "make another distributed one")
        self.synchronize()
        self._rueda_gradients.forget()
        self._rueda_forget_results()
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
        return marked(state, [LEAF_STATE] if self._rueda_step else [])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state.

        Raises InvalidArgumentError if it has a different number of leaves, if it is that of an optimizer of wrap()
        whose strategy has something to lose, or if it is of torch's get_state_dict() and lacks the number of the step.
        """
        refuse_strategy(state_dict)
        require_whole(state_dict, LEAF_STATE)
        rest = unmarked(dict(state_dict))
        kept = rest.pop(LEAF_STATE, None)
        if kept is not None:
            if kept["leaves"] != self._rueda_leaves.count:
                raise InvalidArgumentError(
                    f"the state is from {kept['leaves']} leaves, but the optimizer has {self._rueda_leaves.count}"
                )
            self._rueda_step = kept["step"]
            self._rueda_seed = kept["seed"]
        self._rueda_forget_results()
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
    made._rueda_all_names = dict(names)
    made._rueda_names = {p: name for p, name in names.items() if p.requires_grad}
    made._rueda_watched = set()
    made._rueda_buffer_names = {buffer: name for name, buffer in named_buffers}
    made._rueda_prefix = prefix
    made._rueda_bucket_bytes = bucket_bytes
    made._rueda_seed = seed
    made._rueda_threads = threads
    made._rueda_step = 0
    made._rueda_computed = _Computed()
    made._rueda_take(leaves if isinstance(leaves, Leaves) else Leaves(leaves, process_set))

    made._rueda_watch()
    return made
