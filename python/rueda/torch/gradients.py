"""Reduces gradients during the backward pass."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from rueda import _native, lifecycle
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.operations import ReduceOp
from rueda.process_sets import ProcessSet, require_process_set, takes_part
from rueda.torch.bucketed_gradients import BucketedGradients
from rueda.torch.buckets import Bucket, GradientBuckets
from rueda.torch.compiling import never_traced
from rueda.torch.compression import (
    CompressionPolicy,
    Compressor,
    may_lie_in_buckets,
    wire_of,
)
from rueda.torch.compression_state import (
    CompressionState,
    compression_state,
    load_compression_state,
)
from rueda.torch.gradient_memory import keep_gradients_in_heap
from rueda.torch.profiling import marked
from rueda.torch.separate_gradients import (
    MISFIT,
    Group,
    InFlight,
    Reduction,
    SeparateGradients,
    Watched,
    WhenReduced,
)
from rueda.torch.shards import is_cut, local_of

__all__ = [
    "ANY_NUMBER",
    "GradientReducer",
    "ReducerOptions",
    "most_passes",
    "new_prefix",
    "prefix_counts",
    "raise_prefix_counts",
]

# Copying this much into a bucket goes through memory, not through the cache, and costs more than copying half of it
# between ranks through the kernel. Where exactly that begins was not settled: docs/benchmarks.md.
LARGE_GRADIENT_BYTES = 16 << 20

# As a number of backward passes: gradients are submitted by synchronize() alone, after as many passes as there were.
ANY_NUMBER = sys.maxsize

# The error about a gradient that comes while it is being reduced.
_TOO_OFTEN = (
    "the gradient of '{name}' was computed more often than backward_passes_per_step={passes} before step() or "
    "synchronize(): a larger backward_passes_per_step accumulates gradients first; if another DistributedOptimizer "
    "takes the steps, delete this one first"
)

# The number of reducers for each process set, by its world and number.
_reducers: defaultdict[tuple[int, int | None], int] = defaultdict(int)


@dataclass(frozen=True)
class ReducerOptions:
    """The arguments of DistributedOptimizer(), see there."""

    compression: Compressor
    op: ReduceOp
    predivide_factor: float
    process_set: ProcessSet
    bucket_views: bool | None
    bucket_bytes: int | None
    sparse_as_dense: bool = False
    groups: tuple[tuple[str, ...], ...] = ()  # names of parameters, the same on every rank
    policy: CompressionPolicy | None = None  # which gradients the core compresses
    overlap_forward: bool = False
    check_every: int = 0


def new_prefix(process_set: ProcessSet, what: str = "gradient") -> str:
    """The name prefix for the gradients (or another ``what``) of the next optimizer.

    Optimizers that exist at the same time must not use the same names. The members of a set create its optimizers in
    the same order, and other ranks know nothing of them.
    """
    require_process_set(process_set)
    process_set_id = process_set.process_set_id
    key = _counted_under(process_set_id)
    number = _reducers[key]
    _reducers[key] += 1
    of_set = "" if process_set_id == 0 else f".set{process_set_id}"
    return f"{what}{of_set}" + ("" if number == 0 else f".{number}")


def _counted_under(process_set_id: int | None) -> tuple[int, int | None]:
    # After shutdown(), another set with that number may have other members.
    of_world = lifecycle.block_number() if process_set_id == 0 else lifecycle.first_world_number()
    return of_world, process_set_id


def prefix_counts() -> dict[int, int]:
    """How many prefixes this rank has given out for each of the present process sets."""
    return {
        number: count
        for (of_world, number), count in list(_reducers.items())
        if number is not None and (of_world, number) == _counted_under(number)
    }


def raise_prefix_counts(counts: Mapping[int, int]) -> None:
    """Goes on counting where another rank does, if it has given out more."""
    for number, count in counts.items():
        key = _counted_under(number)
        _reducers[key] = max(_reducers[key], count)


def _is_accumulated(parameter: torch.Tensor) -> bool:
    """In a parameter's hook: whether its gradient goes into ``.grad``, not just to torch.autograd.grad()."""
    if torch._C._current_graph_task_id() < 0:  # not within torch's own engine, which is asked below
        return True
    with torch.enable_grad():
        use = parameter.expand_as(parameter).grad_fn
    assert use is not None
    accumulator = use.next_functions[0][0]
    assert accumulator is not None
    try:
        torch._C._will_engine_execute_node(accumulator)
    except RuntimeError:  # raised for a leaf whose gradient is returned instead
        return False
    return True


def _is_finite(tensor: torch.Tensor) -> bool:
    values = tensor._values() if tensor.layout == torch.sparse_coo else tensor
    return bool(torch.isfinite(values).all())


def _nothing() -> None:
    """Does nothing."""


class _Reducing(NamedTuple):
    """All gradients of one step, in flight."""

    buckets: list[tuple[Bucket, Handle[object]]]
    separate: list[InFlight]
    order: list[int]  # in which they became ready before the layout was decided


class GradientReducer:
    """Submits gradients as soon as backward has accumulated them, and waits for all of them.

    A parameter's gradient is ready after ``passes`` backward passes since the last synchronize(), with their sum in
    ``.grad``. It is submitted alone immediately or, if it is in a bucket, together with the others there once all are
    ready. After fewer passes, as always with ``ANY_NUMBER``, synchronize() submits it. When a rank submits a gradient
    is its own affair: all ranks submit each gradient once per step.

    The first step never uses buckets. So differences between the ranks' models are reported by parameter, and the order
    in which gradients become ready is known when the ranks agree on the buckets, at the end of that step's
    synchronize().
    """

    def __init__(self, options: ReducerOptions, passes: int) -> None:
        prefix = new_prefix(options.process_set)
        reduction = Reduction(
            options.op,
            options.predivide_factor,
            options.process_set,
            wire_of(options.compression),
        )
        self._separate = SeparateGradients(
            prefix,
            options.compression,
            options.policy,
            reduction,
            options.sparse_as_dense,
            has_priorities=options.overlap_forward,
        )
        self._bucketed = BucketedGradients(
            f"{prefix}.buckets",
            reduction,
            options.bucket_bytes,
            has_priorities=options.overlap_forward,
        )
        self.options = options
        self.passes = passes
        self.too_often = _TOO_OFTEN
        self.synchronized = False  # nothing has changed since synchronize()
        self.scaler_decides = False  # a GradScaler was asked for a step, which it may skip
        self._is_receiving = False  # within synchronize()
        self._watched: list[Watched] = []
        self.known: set[torch.Tensor] = set()  # the parameters that are watched
        self._undecided = True  # the ranks have yet to agree on buckets
        self._order: list[int] = []  # in which gradients became ready while undecided
        self._groups: list[Group] = []
        self.is_member = takes_part(options.process_set)
        self._hooks: list[RemovableHandle] = []
        # Called before the first gradient of a step: finishes what the previous step has deferred.
        self.before_gradients: Callable[[], None] = _nothing
        # Called by synchronize() with parameters whose gradients have been reduced, while others still are.
        self.when_reduced: WhenReduced | None = None

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Watches a parameter from now on."""
        watched = Watched(parameter, name, len(self._watched), self.passes)
        self._choose_codec(watched)
        self._watched.append(watched)
        self.known.add(parameter)
        self._undecided = True
        if parameter.requires_grad and self.is_member:
            self._watch(watched)

    def form_groups(self) -> None:
        """Makes the parameters named in ``options.groups`` be reduced together when there are no buckets."""
        by_name = {watched.name: watched for watched in self._watched}
        for names in self.options.groups:
            group = Group([by_name[name] for name in names])
            self._groups.append(group)
            for member in group.members:
                member.group = group
            if len({member.codec for member in group.members}) > 1:
                raise InvalidArgumentError(
                    f"the gradients of the group '{group.name}' are reduced together and so need one codec, "
                    f"and have {', '.join(f'{m.name}: {m.codec}' for m in group.members)}"
                )

    def names(self) -> Sequence[str]:
        """The watched parameters' names."""
        return [watched.name for watched in self._watched]

    def compression_state(self) -> CompressionState | None:
        """The state, besides the optimizer's own, that the next steps need; ``None`` without compression."""
        self.forget_skipped()
        return compression_state(self._watched, self.options.policy, self._separate.steps)

    def load_compression_state(self, state: CompressionState | None) -> None:
        """The inverse; without a state, starts with no loss. Raises InvalidArgumentError."""
        self.scaler_decides = False
        self._separate.steps = load_compression_state(self._watched, self.options.policy, state)

    def _choose_codec(self, watched: Watched) -> None:
        policy = self.options.policy
        parameter = watched.parameter
        if policy is None or torch.nn.parameter.is_lazy(parameter):
            return
        count, dtype = local_of(parameter).numel(), torch.float32
        if parameter.is_complex():  # codecs are for real numbers
            dtype = parameter.dtype
        else:
            watched.codec = policy.codec_for(watched.name, count)
        if watched.codec is not None and policy.keeps_residual(watched.codec):
            watched.residual = torch.zeros(count, dtype=torch.float32, device="cpu")
        if policy.momentum > 0:
            watched.velocity = torch.zeros(count, dtype=dtype, device="cpu")

    def in_flight(self) -> list[str]:
        """Names of the parameters whose gradients are ready and so may be in flight, until they are waited for."""
        return [
            watched.name
            for watched in self._watched
            if watched.in_flight or (watched.slot and watched.passes_left <= 0)
        ]

    def is_reducing(self) -> bool:
        """Whether gradients are in flight. Any thread may ask."""
        return self._is_receiving or bool(self.in_flight())

    def buckets(self) -> GradientBuckets:
        """How gradients are kept at present."""
        return self._bucketed.describe()

    def start_over(self) -> None:
        """Counts backward passes from zero again."""
        self.synchronized = False
        self._separate.not_finite.clear()
        self._order.clear()
        for watched in self._watched:
            watched.passes_left = self.passes
        for group in self._groups:
            group.start_over()
        self._bucketed.start_over()

    def give_up(self) -> None:
        """Waits for gradients in flight, ignores their outcome, and counts from zero, as after a failed step."""
        for bucket in self._bucketed.taken():
            bucket.wait()
        for gradient in self._take_separate():
            gradient.handle.wait()
        self.start_over()

    def close(self) -> None:
        """Gives up gradients in flight, and stops watching."""
        self.give_up()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def synchronize(self) -> None:
        """Submits zeros for missing gradients, then waits until every ``.grad`` is reduced."""
        if self.is_member:
            reducing = self._begin_rest()
            self._is_receiving = True
            try:
                with marked("wait for gradients"):
                    errors, unfit = self._bucketed.receive(reducing.buckets, self.when_reduced)
                    others, frozen = self._separate.receive(reducing.separate, self.when_reduced)
            finally:
                self._is_receiving = False
            self._end_part(errors + others, unfit, frozen)
            self._gather_momentum()
            self._agree_anew(unfit, reducing.order)
        self.synchronized = True

    def require_finite(self) -> None:
        """Called before gradients are used: raises an error that a codec has found, unless they were made finite since.

        synchronize() leaves NaN there, as a reduction without a codec does, so that a GradScaler or the application
        treats it the same way on all ranks.
        """
        for parameter, error in self._separate.not_finite:
            if parameter.grad is not None and not _is_finite(local_of(parameter.grad)):
                raise error

    def forget_skipped(self) -> None:
        """Called before the gradients after a GradScaler's step: if it skipped the step, drops what codecs have kept.

        Later gradients are scaled differently, by half as much or less. Over many skipped steps, as at the start of
        training, what codecs keep would become many times the size of a gradient.
        """
        if self.scaler_decides:
            self.scaler_decides = False
            for watched in self._watched:
                watched.forget()

    def may_defer(self) -> bool:
        """Whether the step is like earlier ones, so that everything other ranks need from it has been submitted.

        Momentum accumulated here needs all gradients at once.
        """
        policy = self.options.policy
        gathers = policy is not None and policy.momentum != 0
        return self.is_member and not self._undecided and not gathers

    def defer(
        self,
    ) -> tuple[list[tuple[list[torch.Tensor], Callable[[], None]]], Callable[[], None]]:
        """Begins like synchronize(), and returns immediately.

        Returns groups of parameters, each with a function that waits for their gradients (to be called once), and a
        function to be called after all of those.
        """
        reducing = self._begin_rest()
        unfit: list[Watched] = []
        not_finite = self._separate.not_finite

        def receive_bucket(bucket: Bucket, handle: Handle[object]) -> None:
            errors, others = self._bucketed.receive([(bucket, handle)])
            self._end_part(errors, others, [])
            unfit.extend(others)

        def receive_separate(gradient: InFlight) -> None:
            errors, frozen = self._separate.receive([gradient])
            errors += [error for _, error in not_finite]  # nobody would look at these later
            not_finite.clear()
            self._end_part(errors, [], frozen)

        parts: list[tuple[list[torch.Tensor], Callable[[], None]]] = [
            ([slot.parameter for slot in bucket.slots], partial(receive_bucket, bucket, handle))
            for bucket, handle in reducing.buckets
        ]
        parts += [
            ([gradient.parameter], partial(receive_separate, gradient))
            for gradient in reducing.separate
        ]
        return parts, lambda: self._agree_anew(unfit, reducing.order)

    def _begin_rest(self) -> _Reducing:
        """Submits what is not in flight yet, and takes all that is."""
        self.forget_skipped()
        if self._bucketed.of_another_world():
            self._leave_world()
        # In the first step, ranks know nothing about each other yet: one that has frozen something refuses it.
        frozen: dict[int, bool] = {}
        if self._undecided:
            try:
                frozen = self._separate.frozen(self._watched)
            except Exception:
                self.give_up()  # so that the step can be repeated
                raise
        for watched in self._watched:
            if watched.slot or watched.in_flight:
                continue
            # A gradient that is frozen and was not sent before costs nothing in later steps.
            wanted = watched.parameter.requires_grad or watched.was_sent or watched.group
            if wanted or self._undecided:
                self._submit_rest(watched, frozen)
        self._bucketed.start_incomplete()
        order = list(self._order)
        # Taken first, so that leftovers after Ctrl-C are not mistaken for a part of the next step.
        buckets = self._bucketed.in_flight()
        separate = self._take_separate()
        self.start_over()
        self._separate.steps += 1
        return _Reducing(buckets, separate, order)

    def _submit_rest(self, watched: Watched, frozen: dict[int, bool]) -> None:
        group = self._group_of(watched)
        members = [watched] if group is None else group.members
        if watched.parameter.requires_grad:
            if group is None:
                self._separate.submit(watched)
            else:
                self._separate.submit_group(group)
        elif not any(member.parameter.requires_grad for member in members):
            if not all(frozen.get(member.number, True) for member in members):
                self._separate.refuse(watched, group)
            elif self._undecided:
                watched.was_sent = False
            elif watched.was_sent:  # frozen since then, on other ranks as well or not
                self._separate.refuse(watched, group, MISFIT)

    def _end_part(
        self,
        errors: list[Exception],
        unfit: list[Watched],
        frozen: list[tuple[torch.Tensor, Exception]],
    ) -> None:
        """Reduces gradients separately whose bucket did not fit on some rank; then raises the first error.

        ``frozen``: parameters frozen on some rank, with the error to raise if not on all.
        """
        # All ranks have been told of both, and get here.
        on_all = self._separate.frozen(self._watched) if unfit or frozen else {}
        for watched in unfit:
            if watched.parameter.requires_grad:
                self._separate.submit(watched)
            elif on_all[watched.number]:
                watched.was_sent = False
            else:
                self._separate.refuse(watched, None)
        by_parameter = {watched.parameter: watched for watched in self._watched} if frozen else {}
        for parameter, error in frozen:
            watched = by_parameter[parameter]
            if on_all.get(watched.number, False):
                watched.was_sent = False
            else:
                errors = [*errors, error]
        more, _ = self._separate.receive(self._take_separate())
        if errors := errors + more:
            raise errors[0]

    def _agree_anew(self, unfit: list[Watched], order: list[int]) -> None:
        if self._undecided or unfit:
            keep_gradients_in_heap(watched.parameter for watched in self._watched)
            groups = [[member.number for member in group.members] for group in self._groups]
            decided = self._bucketed.decide(
                self._watched, order, groups, self._refusal, self._bytes_limit()
            )
            self._undecided = self._undecided and not decided

    def _gather_momentum(self) -> None:
        """For gradients whose momentum was not accumulated before compression."""
        policy = self.options.policy
        if policy is None or policy.momentum == 0:
            return
        for watched in self._watched:
            gradient, velocity = watched.parameter.grad, watched.velocity
            if gradient is None or velocity is None or policy.corrects_momentum(watched.codec):
                continue
            gradient = local_of(gradient)
            watched.fit(gradient.numel())
            velocity = watched.velocity
            assert velocity is not None
            with torch.no_grad():
                if gradient.layout == torch.sparse_coo:  # the momentum becomes sparse, too
                    gathered = torch.mul(velocity.view(gradient.shape), policy.momentum)
                    gathered.add_(gradient)
                    watched.parameter.grad = gathered.to_sparse(gradient.sparse_dim())
                    if _is_finite(gathered):
                        velocity.copy_(gathered.view(-1))
                    continue
                gathered = torch.mul(velocity, policy.momentum).add_(gradient.reshape(-1))
                gradient.copy_(gathered.view(gradient.shape))
                if _is_finite(gathered):  # otherwise it would stay non-finite
                    velocity.copy_(gathered)

    def _group_of(self, watched: Watched) -> Group | None:
        """The group with which a gradient is submitted at present. Buckets replace groups."""
        return None if self._bucketed.exist() else watched.group

    def _take_separate(self) -> list[InFlight]:
        taken = [watched.in_flight for watched in self._watched if watched.in_flight]
        for watched in self._watched:
            watched.in_flight = None
        return taken

    def _leave_world(self) -> None:
        """Drops what was decided about buckets, since it was decided with ranks of another world."""
        ready = [watched for watched in self._bucketed.watched() if watched.passes_left <= 0]
        self._bucketed.leave_world()
        self._undecided = True
        # As in the steps before, so that the next buckets can be the same.
        self._order = [watched.number for watched in ready]
        for watched in ready:
            self._submit_ready(watched)

    def _refusal(self) -> str:
        """Why there are to be no buckets, as far as every rank knows without asking."""
        options = self.options
        if options.bucket_views is False:
            return "gradient_as_bucket_view=False"
        if not may_lie_in_buckets(options.compression):
            return "gradients are compressed"
        # A bucket needs fewer calls to a GPU's driver than separate gradients, even with one rank.
        is_on_gpu = any(watched.parameter.is_cuda for watched in self._watched)
        if options.bucket_views is None and options.process_set.size() == 1 and not is_on_gpu:
            return "there is one rank"
        return ""

    def _bytes_limit(self) -> int | None:
        """The size from which gradients on the CPU are reduced where autograd puts them; ``None`` for no limit."""
        options = self.options
        if options.bucket_views or options.groups:
            return None
        # Between hosts, large gradients are sent and received in place.
        crosses_hosts = lifecycle.local_size() != lifecycle.size()
        return LARGE_GRADIENT_BYTES if crosses_hosts or _native.has_direct_access() else None

    def _watch(self, watched: Watched) -> None:
        """Makes torch call this reducer. A model outlives its optimizers, so its hooks must not keep them alive."""
        reference = weakref.ref(self)

        @never_traced
        def before(_: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer._before_accumulation(watched)

        @never_traced
        def after(_: torch.Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer._on_gradient(watched)

        parameter = watched.parameter
        self._hooks += [
            parameter.register_hook(before),  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(after),  # type: ignore[no-untyped-call]
        ]

    def _before_accumulation(self, watched: Watched) -> None:
        """Refuses to add to a gradient that is being reduced.

        Torch also calls this when torch.autograd.grad() returns the gradient and adds nothing.
        """
        self.before_gradients()
        if watched.passes_left <= 0 and _is_accumulated(watched.parameter):
            raise InvalidArgumentError(self.too_often.format(name=watched.name, passes=self.passes))

    def _on_gradient(self, watched: Watched) -> None:
        """Counts a gradient, and submits it or its bucket once it is ready."""
        self.synchronized = False
        self.forget_skipped()
        watched.passes_left -= 1
        # After which pass a gradient counts as ready: the first one if nobody knows which is the last.
        left = ANY_NUMBER - 1 if self.passes == ANY_NUMBER else 0
        if self._undecided and watched.passes_left == left:
            self._order.append(watched.number)
        slot = watched.slot
        if slot is None:
            if watched.passes_left == 0:
                self._submit_ready(watched)
            return
        self._bucketed.take_in(slot, more_follow=watched.passes_left > 0)
        if watched.passes_left == 0:
            bucket = slot.bucket
            bucket.waiting -= 1
            if bucket.waiting == 0:
                self._start(bucket)

    def _submit_ready(self, watched: Watched) -> None:
        group = self._group_of(watched)
        if group is None:
            self._separate.submit(watched)
            return
        group.waiting -= 1
        if group.waiting == 0:
            self._separate.submit_group(group)

    def _start(self, bucket: Bucket) -> None:
        if self._bucketed.of_another_world():
            self._leave_world()
        else:
            self._bucketed.start(bucket)


def expect_sparse(reducer: GradientReducer, names: Collection[str]) -> None:
    """Says that the gradients of these parameters are sparse, for where this rank has none in its first steps.

    Otherwise it would contribute zeros of a dense one, which do not match the sparse ones of other ranks.
    """
    for watched in reducer._watched:
        if watched.name in names and not is_cut(watched.parameter):
            watched.sparse_dimensions = 1


def most_passes(reducer: GradientReducer) -> int:
    """How many backward passes the gradient with the most has had since the last synchronize() or zero_grad()."""
    return max((reducer.passes - each.passes_left for each in reducer._watched), default=0)
