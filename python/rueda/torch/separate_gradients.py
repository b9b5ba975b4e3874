"""Gradients that are reduced separately, each under its parameter's name."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rueda import _native
from rueda.adapter import Refusal
from rueda.compression import Codec, Feedback
from rueda.errors import InvalidArgumentError, MismatchError
from rueda.handles import Handle
from rueda.objects import allgather_object
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet
from rueda.submission import (
    NO_WIRE,
    Collectives,
    changed_in_flight,
    refuse,
    replaced_in_flight,
    written_in_flight,
)
from rueda.torch.buckets import Slot
from rueda.torch.compression import (
    CompressionPolicy,
    Compressor,
    options_of,
    require_same_options,
)
from rueda.torch.shards import as_placed, like, local_of
from rueda.torch.sparse import no_rows, sparse_allreduce_async
from rueda.torch.tensors import TorchAdapter, version_of

__all__ = [
    "MISFIT",
    "Group",
    "InFlight",
    "Reduction",
    "SeparateGradients",
    "Watched",
    "WhenReduced",
]

# Called with parameters whose ``.grad`` has been reduced.
WhenReduced = Callable[[Sequence[torch.Tensor]], None]

_collectives = Collectives(TorchAdapter(gpus=True))

# With this reason, the other ranks know that they can do without a bucket, or that a parameter was frozen, possibly on
# all of them.
MISFIT = "gradient_misfit"
_NOT_FINITE = "not_finite"
_FROZEN = (
    "the parameter needs no gradient there (requires_grad=False), but does on other ranks: freeze it on all "
    "ranks or on none"
)

_SPARSE_MOMENTUM = (
    "the gradient is sparse, so its codec, which should correct momentum, does not apply: give such parameters no "
    "codec, or sparse_as_dense=True"
)


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced over the ranks."""

    op: ReduceOp
    predivide_factor: float
    process_set: ProcessSet
    wire: int = NO_WIRE

    def _factors(self) -> tuple[float, float]:
        factor = self.predivide_factor if self.op == Average else 1.0
        return 1.0 / factor, factor

    def start(
        self,
        tensor: torch.Tensor,
        name: str,
        codec: Codec | None = None,
        feedback: Feedback | None = None,
        priority: int = 0,
    ) -> Handle[torch.Tensor]:
        """Starts reducing a contiguous tensor in place."""
        wire = self.wire if codec is None else NO_WIRE
        factors = self._factors()
        return _collectives.allreduce(
            tensor, name, self.op, *factors, self.process_set, True, wire, codec, feedback, priority
        )

    def start_group(
        self,
        tensors: Sequence[torch.Tensor],
        name: str,
        codec: Codec | None = None,
        feedback: Sequence[Feedback] = (),
        priority: int = 0,
    ) -> Handle[list[torch.Tensor]]:
        """Starts reducing contiguous tensors in place, none before all are ready on all ranks."""
        wire = self.wire if codec is None else NO_WIRE
        factors = self._factors()
        return _collectives.grouped_allreduce(
            tensors,
            name,
            self.op,
            *factors,
            self.process_set,
            True,
            wire,
            codec,
            feedback,
            priority,
        )

    def gather(
        self, tensor: torch.Tensor, name: str, compression: Compressor
    ) -> Handle[torch.Tensor]:
        """Starts reducing a sparse tensor."""
        return sparse_allreduce_async(tensor, name, self.op, self.process_set, compression)

    def refuse(
        self, name: str, why: str, unsupported: bool = False, group_size: int = 0, reason: str = ""
    ) -> Handle[None]:
        """Makes the operation with this name fail on every rank."""
        return refuse(name, self.process_set, Refusal(why, unsupported, reason), group_size)


@dataclass
class InFlight:
    """One gradient in flight, outside of any bucket."""

    name: str
    parameter: torch.Tensor
    handle: Handle[torch.Tensor] | Handle[list[torch.Tensor]] | Handle[None]
    wire: torch.Tensor | None  # the tensor reduced in place; None if the handle has the result
    dtype: Any  # context for decompress()
    sparse_dimensions: int = 0  # of a sparse gradient sent as a dense one
    gradient: torch.Tensor | None = None  # as it was submitted; `wire` may be another tensor
    shape: torch.Size | None = None  # of the gradient
    version: int | None = None  # the gradient's after submission, if that can reveal writes
    submitted: torch.Tensor | None = field(init=False)  # ``.grad`` at that time

    def __post_init__(self) -> None:
        self.submitted = self.parameter.grad


class Watched:
    """A parameter and the progress of its gradient."""

    __slots__ = (
        "codec",
        "group",
        "in_flight",
        "name",
        "number",
        "parameter",
        "passes_left",
        "residual",
        "slot",
        "sparse_dimensions",
        "velocity",
        "was_sent",
    )

    def __init__(self, parameter: torch.Tensor, name: str, number: int, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.number = number  # in the order in which they were added
        self.passes_left = passes
        self.slot: Slot | None = None  # the gradient's place in a bucket, if it is in one
        self.in_flight: InFlight | None = None  # while it is being reduced separately
        self.was_sent = False  # separately, so that other ranks may expect it again
        self.group: Group | None = None  # with which it is reduced outside of buckets
        self.sparse_dimensions = 0  # of its last gradient
        self.codec: Codec | None = None  # with which the core compresses its gradient
        self.residual: torch.Tensor | None = None  # the codec's loss, if it is kept
        self.velocity: torch.Tensor | None = (
            None  # accumulated momentum, if the policy has momentum
        )

    def fit(self, elements: int) -> None:
        """Resets what is kept if the parameter's size has changed: it belongs to other elements."""
        if self.residual is not None and self.residual.numel() != elements:
            self.residual = self.residual.new_zeros(elements)
        if self.velocity is not None and self.velocity.numel() != elements:
            self.velocity = self.velocity.new_zeros(elements)

    def forget(self) -> None:
        """Resets what is kept between steps."""
        for kept in (self.residual, self.velocity):
            if kept is not None:
                kept.zero_()

    def priority(self) -> int:
        """Earlier parameters first, as forward() mostly uses them in that order; below operations without priority."""
        return -1 - self.number


class Group:
    """Parameters whose gradients are reduced together when there are no buckets."""

    def __init__(self, members: Sequence[Watched]) -> None:
        self.members = list(members)
        self.waiting = len(self.members)
        first, last = self.members[0].name, self.members[-1].name
        self.name = first if first == last else f"{first}..{last}"

    def start_over(self) -> None:
        """Waits for all its gradients again."""
        self.waiting = len(self.members)


class _Unfit(Exception):
    """A gradient that Rueda cannot reduce; the text says why."""


class SeparateGradients:
    """Submits gradients that are in no bucket, and receives them."""

    def __init__(
        self,
        prefix: str,
        compression: Compressor,
        policy: CompressionPolicy | None,
        reduction: Reduction,
        sparse_as_dense: bool,
        has_priorities: bool = False,
    ) -> None:
        self._prefix = prefix
        self._compression = compression
        self._policy = policy
        self._reduction = reduction
        self._sparse_as_dense = sparse_as_dense
        self._has_priorities = has_priorities  # what forward() needs first goes first
        # So that randomly chosen elements differ in each step, and for warm-up.
        self.steps = 0
        # Parameters whose gradients are NaN on all ranks in this step because a codec could not represent them, with
        # the codec's error.
        self.not_finite: list[tuple[torch.Tensor, Exception]] = []

    def submit(self, watched: Watched) -> None:
        """Starts reducing ``.grad``; a missing one counts as zeros."""
        watched.was_sent = True
        name = self._name_of(watched)
        gradient = self._gradient_of(watched)
        if gradient.layout == torch.sparse_coo and not self._sparse_as_dense:
            if self._policy is not None and self._policy.corrects_momentum(watched.codec):
                refused = self._reduction.refuse(name, _SPARSE_MOMENTUM, unsupported=True)
                watched.in_flight = InFlight(watched.name, watched.parameter, refused, None, None)
                return
            gathered = self._reduction.gather(gradient, name, self._compression)
            watched.in_flight = InFlight(watched.name, watched.parameter, gathered, None, None)
            return
        try:
            wire, dtype, sparse = self._wire_of(gradient)
        except _Unfit as unfit:
            refused = self._reduction.refuse(name, str(unfit), unsupported=True)
            watched.in_flight = InFlight(watched.name, watched.parameter, refused, None, None)
            return
        self._clip(watched, wire)
        handle = self._reduction.start(
            wire,
            name,
            self._codec(watched),
            self._feedback(watched, wire),
            self._priority_of([watched]),
        )
        watched.in_flight = _sent(watched, handle, (wire, dtype, sparse), gradient)

    def submit_group(self, group: Group) -> None:
        """Starts reducing the gradients of a group together; missing ones count as zeros."""
        name = self._name_of_group(group)
        wires, gradients = [], []
        for member in group.members:
            member.was_sent = True
            gradient = self._gradient_of(member)
            gradients.append(gradient)
            try:
                if gradient.layout == torch.sparse_coo and not self._sparse_as_dense:
                    raise _Unfit(
                        "a sparse gradient cannot be in a group unless sparse_as_dense=True"
                    )
                wires.append(self._wire_of(gradient))
            except _Unfit as unfit:
                why = f"the gradient of '{member.name}': {unfit}"
                refused = self._reduction.refuse(name, why, True, len(group.members))
                for each in group.members:
                    each.in_flight = InFlight(each.name, each.parameter, refused, None, None)
                return
        for member, (wire, _, _) in zip(group.members, wires, strict=True):
            self._clip(member, wire)
        codec = self._codec(group.members[0])
        given = [wire for wire, _, _ in wires]
        every = map(self._feedback, group.members, given)
        feedback = [kept for kept in every if kept is not None]
        handle = self._reduction.start_group(
            given, name, codec, feedback, self._priority_of(group.members)
        )
        for member, gradient, sent in zip(group.members, gradients, wires, strict=True):
            member.in_flight = _sent(member, handle, sent, gradient)

    def refuse(self, watched: Watched, group: Group | None, reason: str = "") -> None:
        """Makes a gradient that is frozen here, or its group, fail on ranks that want it.

        ``reason``: MISFIT if it is not known yet whether there are any.
        """
        members = [watched] if group is None else group.members
        name = self._name_of(watched) if group is None else self._name_of_group(group)
        size = 0 if group is None else len(members)
        refused = self._reduction.refuse(name, _FROZEN, group_size=size, reason=reason)
        for each in members:
            each.in_flight = InFlight(each.name, each.parameter, refused, None, None)

    def frozen(self, watched: Iterable[Watched]) -> dict[int, bool]:
        """The parameters that are frozen on some rank, by number, and whether they are on all. Collective.

        Raises MismatchError on every rank if their policies of compression differ.
        """
        numbers = [each.number for each in watched if not each.parameter.requires_grad]
        mine = (numbers, _native.rank(), options_of(self._policy))
        process_set = self._reduction.process_set
        told: list[tuple[list[int], int, dict[str, str]]]
        told = allgather_object(mine, f"{self._prefix}/frozen", process_set)
        require_same_options(self._prefix, [(rank, options) for _, rank, options in told])
        on = Counter(number for numbers, _, _ in told for number in numbers)
        return {number: count == len(told) for number, count in on.items()}

    def receive(
        self, gradients: Iterable[InFlight], when_reduced: WhenReduced | None = None
    ) -> tuple[list[Exception], list[tuple[torch.Tensor, Exception]]]:
        """Waits for all of them, also after an error.

        Returns the errors, and the parameters that are frozen on some rank, with the error to raise if not on all.
        Values that a codec could not represent are in ``not_finite`` instead. ``when_reduced`` is called with each
        parameter whose gradient has been reduced.
        """
        errors: list[Exception] = []
        frozen: list[tuple[torch.Tensor, Exception]] = []
        for gradient in gradients:
            try:
                self._take(gradient, gradient.handle.result())
            except MismatchError as error:
                errors.append(_explained(error))
            except InvalidArgumentError as error:
                if error.reason == MISFIT:
                    frozen.append((gradient.parameter, error))
                elif error.reason == _NOT_FINITE and gradient.wire is not None:
                    self._spoil(gradient, error, errors)
                else:
                    errors.append(error)
            except Exception as error:
                errors.append(error)
            else:
                if when_reduced is not None:
                    when_reduced([gradient.parameter])
        return errors, frozen

    def _name_of(self, watched: Watched) -> str:
        return f"{self._prefix}/{watched.name}"

    def _name_of_group(self, group: Group) -> str:
        return f"{self._prefix}/group/{group.name}"

    def _priority_of(self, watched: Sequence[Watched]) -> int:
        return max(each.priority() for each in watched) if self._has_priorities else 0

    def _codec(self, watched: Watched) -> Codec | None:
        return self._policy.codec_at(watched.codec, self.steps) if self._policy else None

    def _clip(self, watched: Watched, gradient: torch.Tensor) -> None:
        """Clips on each rank separately; the norm of the sum of independent gradients then stays below the limit."""
        limit = self._policy.clip_norm if self._policy else None
        if limit is None or watched.codec is None:
            return
        limit /= math.sqrt(self._reduction.process_set.size())
        # The squares of finite gradients are certain to be finite in float64 only.
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        gradient.mul_(torch.clamp(limit / norm.clamp(min=1e-30), max=1.0))

    def _feedback(self, watched: Watched, gradient: torch.Tensor) -> Feedback | None:
        if watched.codec is None or self._policy is None:
            return None
        watched.fit(gradient.numel())
        seed = zlib.crc32(watched.name.encode()) << 32 | self.steps & 0xFFFFFFFF
        residual, velocity = watched.residual, watched.velocity
        if not self._policy.corrects_momentum(watched.codec):
            velocity = None
        return Feedback(
            0 if residual is None else residual.data_ptr(),
            seed,
            (residual, velocity),
            0 if velocity is None else velocity.data_ptr(),
            self._policy.momentum,
        )

    def _gradient_of(self, watched: Watched) -> torch.Tensor:
        """``.grad``, or this rank's part of it; created if it is missing.

        Sparse if it was sparse before, since it may be sparse on other ranks.
        """
        parameter = watched.parameter
        gradient = parameter.grad
        if gradient is None:
            _native.count_filled_gradient()
            if watched.sparse_dimensions:
                gradient = no_rows(parameter, watched.sparse_dimensions)
            else:
                gradient = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        placed = as_placed(gradient, parameter)
        # The optimizer would step with the gradient of a frozen parameter, which is in a group with others.
        if placed is not parameter.grad and parameter.requires_grad:
            parameter.grad = placed
        gradient = local_of(placed)
        is_sparse = gradient.layout == torch.sparse_coo
        watched.sparse_dimensions = gradient.sparse_dim() if is_sparse else 0
        return gradient

    def _wire_of(self, gradient: torch.Tensor) -> tuple[torch.Tensor, Any, int]:
        """The tensor to reduce instead, the context for decompress(), and the number of sparse dimensions."""
        sparse = 0
        gradient = gradient.detach()
        if gradient.layout == torch.sparse_coo:
            sparse = gradient.sparse_dim()
            gradient = gradient.to_dense()
        elif gradient.layout != torch.strided:
            raise _Unfit(f"a gradient of layout {gradient.layout} cannot be reduced")
        gradient = gradient.resolve_conj().resolve_neg()
        if self._reduction.wire != NO_WIRE:  # converted during packing
            return gradient.contiguous(), gradient.dtype, sparse
        wire, context = self._compression.compress(gradient)
        return wire.contiguous(), context, sparse

    def _spoil(self, gradient: InFlight, error: Exception, errors: list[Exception]) -> None:
        """Makes a gradient NaN, as it would be without a codec: its content is undefined and differs between ranks."""
        assert gradient.wire is not None
        gradient.wire.data.fill_(math.nan)  # does not change `version`
        try:
            self._take(gradient, gradient.wire)
        except Exception as other:
            errors.append(other)
        else:
            self.not_finite.append((gradient.parameter, error))

    def _take(self, gradient: InFlight, result: object) -> None:
        parameter, wire = gradient.parameter, gradient.wire
        of_rows = result if wire is None and isinstance(result, torch.Tensor) else None
        if wire is None and of_rows is None:
            return  # was refused
        if parameter.grad is not gradient.submitted:
            raise replaced_in_flight(gradient.name)
        if wire is None:
            parameter.grad = of_rows
            return
        if gradient.sparse_dimensions:
            reduced = self._compression.decompress(wire, gradient.dtype)
            parameter.grad = reduced.to_sparse(gradient.sparse_dimensions)
            return
        if parameter.grad is None:
            return  # of a frozen parameter, which is in a group with others
        target = local_of(parameter.grad)
        if gradient.shape is not None and target.shape != gradient.shape:
            change = f"was resized from {list(gradient.shape)} to {list(target.shape)}"
            raise changed_in_flight(f"the gradient of '{gradient.name}'", change)
        is_the_same = target is gradient.gradient and gradient.version is not None
        if is_the_same and version_of(target) != gradient.version:
            raise written_in_flight(gradient.name)
        is_dense = target.layout == torch.strided
        with torch.no_grad():
            reduced = self._compression.decompress(wire, gradient.dtype)
            if is_dense and reduced.numel() and reduced.data_ptr() == target.data_ptr():
                return  # was reduced in place
            if is_dense and _overlaps(target):
                parameter.grad = like(reduced.clone(), parameter)
            else:
                target.copy_(reduced)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as in the gradient that autograd.grad() returns for a sum."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return any(extent > 1 and stride == 0 for extent, stride in strides)


def _sent(
    watched: Watched,
    handle: Handle[torch.Tensor] | Handle[list[torch.Tensor]],
    sent: tuple[torch.Tensor, Any, int],
    gradient: torch.Tensor,
) -> InFlight:
    """The record of a gradient in flight; ``sent``: see ``_wire_of``."""
    return InFlight(
        watched.name,
        watched.parameter,
        handle,
        *sent,
        gradient,
        gradient.shape,
        _version_of(gradient),
    )


def _version_of(gradient: torch.Tensor) -> int | None:
    """``None`` for part of a tensor: all parts share one version, so writing one looks like writing all."""
    try:
        is_whole = gradient.untyped_storage().nbytes() == gradient.nbytes
    except RuntimeError:
        return None
    return version_of(gradient) if is_whole else None


def _explained(error: MismatchError) -> MismatchError:
    if error.field != "operation" or not {"allgather", "allreduce"} <= {*error.values}:
        return error
    why = "the gradient is sparse on some ranks and dense on others"
    explained = MismatchError(
        f"{error}; {why}: DistributedOptimizer(sparse_as_dense=True) reduces both, and so does the strategy "
        f"'accumulate:1' of wrap()",
        error.peer,
        tensor=error.tensor,
        field=error.field,
        values=error.values,
    )
    explained.__cause__ = error
    return explained
