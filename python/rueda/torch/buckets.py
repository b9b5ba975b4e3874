"""Gradients packed side by side in buckets, each of which is reduced as a whole and in place.

CPU gradients are in memory that the ranks of a host share, GPU gradients in GPU memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rueda import _native, dtypes
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.submission import changed_in_flight, replaced_in_flight, written_in_flight
from rueda.torch.gathering import Gathering
from rueda.torch.layouts import is_dense, laid_out_like
from rueda.torch.shards import is_cut
from rueda.torch.tensors import (
    code_of,
    increment_versions,
    is_without_memory,
    version_of,
)

__all__ = [
    "NOT_WANTED",
    "Bucket",
    "Description",
    "GradientBuckets",
    "Slot",
    "describe",
    "plan_buckets",
]

# Gradients begin at multiples of this, so that kernels process whole cache lines.
ALIGNMENT = 64
# Small, so that the first reduction starts early in the backward pass.
FIRST_BUCKET_BYTES = 1 << 20
# Why a gradient does not fit: its parameter was frozen.
NOT_WANTED = "is not wanted any more"
# By kind of device. Small enough to be reduced while the backward pass is still running, large enough that agreeing on
# each costs little. On a GPU each bucket costs the host more, and NCCL's rate grows with its size.
DEFAULT_BUCKET_BYTES = {"cpu": 8 << 20, "cuda": 25 << 20}


@dataclass(frozen=True)
class GradientBuckets:
    """How a DistributedOptimizer keeps gradients; the result of ``gradient_buckets()``.

    - ``names``: the parameters in each bucket, in memory order; empty if there is no bucket.
    - ``sizes``: bytes of each bucket.
    - ``left_out``: parameters whose gradients are reduced separately although there are buckets, and why.
    - ``why_not``: why there is no bucket; empty if there is one.
    """

    names: tuple[tuple[str, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    why_not: str = ""


class Description(NamedTuple):
    """What the ranks must agree on about a parameter before its gradient may be in a bucket."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # of the gradient, in elements
    dtype: int  # number of the element type, see rueda.dtypes
    why_not: str  # why its gradient cannot be in a bucket; empty if it can
    device: str = "cpu"  # or "cuda"; each rank chooses which GPU

    def kind(self) -> tuple[int, str]:
        """What gradients that share a bucket have in common."""
        return self.dtype, self.device

    def bytes(self) -> int:
        """Bytes in a bucket, including the padding before the next gradient."""
        size = math.prod(self.shape) * dtypes.item_size(self.dtype)
        return -(-size // ALIGNMENT) * ALIGNMENT


def describe(
    parameter: torch.Tensor, name: str, bytes_limit: int | None = None, why_not: str = ""
) -> Description:
    """A parameter as it currently is on this rank.

    ``bytes_limit``: a gradient on the CPU of this size or more is not put into a bucket. ``why_not``: a reason to leave
    it out in any case.
    """
    why_not = _why_not(parameter) or why_not
    if not why_not and bytes_limit is not None and parameter.is_cpu:
        size = parameter.numel() * parameter.element_size()
        if size >= bytes_limit:
            why_not = f"its {size} bytes are reduced where autograd puts them"
    if why_not:
        return Description(name, (), (), 0, why_not)
    shape = tuple(parameter.shape)
    stride = _stride_of_gradient(shape, parameter.stride())
    code = code_of(parameter.dtype)
    assert code is not None
    return Description(name, shape, stride, code, "", parameter.device.type)


def _stride_of_gradient(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Of one made by autograd: its parameter's strides if those leave no gaps, else row-major ones."""
    return tuple(stride) if is_dense(shape, stride) else row_major(shape)


def _why_not(parameter: torch.Tensor) -> str:
    gradient = parameter.grad
    if not parameter.requires_grad:
        return "it needs no gradient"
    if torch.nn.parameter.is_lazy(parameter):
        return "it has no shape yet"
    if is_cut(parameter):
        return "it is sharded over ranks"
    if parameter.layout != torch.strided or (
        gradient is not None and gradient.layout != torch.strided
    ):
        return "its gradient is sparse"
    if not (parameter.is_cpu or parameter.is_cuda):
        return f"it is on the device '{parameter.device}'"
    if code_of(parameter.dtype) is None:
        return f"its dtype is {parameter.dtype}"
    if parameter.numel() == 0:
        return "it is empty"
    if is_without_memory(parameter):
        return "it has no memory of its own"
    return ""


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def plan_buckets(
    descriptions: Sequence[Description],
    order: Sequence[int],
    bucket_bytes: int | None,
    groups: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Which parameters share a bucket, as indices into ``descriptions``.

    ``order``: the parameters in the order in which their gradients become ready; missing ones follow, the last one
    first, as in a backward pass. Only gradients of one dtype and kind of device share a bucket. A bucket is closed once
    it has ``bucket_bytes`` or more (if ``None``, the device's default), the first of each kind already at 1 MiB.
    Parameters of one of the ``groups`` share a bucket with no others, however large. The result is in the order in
    which buckets become complete.
    """
    if groups:
        return _plan_groups(descriptions, order, bucket_bytes, groups)
    seen = set(order)
    rest = [number for number in reversed(range(len(descriptions))) if number not in seen]
    open_buckets: dict[tuple[int, str], tuple[list[int], int]] = {}
    limits: dict[tuple[int, str], int] = {}
    buckets = []
    for number in [*order, *rest]:
        description = descriptions[number]
        if description.why_not:
            continue
        members, size = open_buckets.pop(description.kind(), ([], 0))
        members.append(number)
        size += description.bytes()
        most = bucket_bytes or DEFAULT_BUCKET_BYTES[description.device]
        limit = limits.get(description.kind(), min(FIRST_BUCKET_BYTES, most))
        if size < limit:
            open_buckets[description.kind()] = (members, size)
        else:
            limits[description.kind()] = most
            buckets.append(members)
    buckets.extend(members for members, _ in open_buckets.values())
    return buckets


def _plan_groups(
    descriptions: Sequence[Description],
    order: Sequence[int],
    bucket_bytes: int | None,
    groups: Sequence[Sequence[int]],
) -> list[list[int]]:
    whole = [*order, *(n for n in reversed(range(len(descriptions))) if n not in set(order))]
    place = {number: place for place, number in enumerate(whole)}
    plan: list[list[int]] = []
    for group in groups:
        by_kind: dict[tuple[int, str], list[int]] = {}
        for number in sorted(group, key=lambda member: place[member]):
            if not descriptions[number].why_not:
                by_kind.setdefault(descriptions[number].kind(), []).append(number)
        plan.extend(by_kind.values())
    grouped = {number for group in groups for number in group}
    rest = [
        each._replace(why_not="in a group") if number in grouped else each
        for number, each in enumerate(descriptions)
    ]
    plan.extend(plan_buckets(rest, order, bucket_bytes))
    return sorted(plan, key=lambda members: place[members[-1]])


class Slot:
    """The place of one parameter's gradient in its bucket."""

    __slots__ = (
        "_memory",
        "_offset",
        "_stride",
        "_stride_of_parameter",
        "_submitted",
        "_view",
        "bucket",
        "dtype",
        "parameter",
        "pointer",
        "shape",
        "version",
    )

    def __init__(
        self,
        bucket: Bucket,
        parameter: torch.Tensor,
        description: Description,
        memory: torch.Tensor,
        offset: int,
    ) -> None:
        self.bucket = bucket
        self.parameter = parameter
        self.dtype = parameter.dtype
        self.shape = parameter.shape
        self._memory = memory
        self._offset = offset
        self._stride = description.stride
        self._stride_of_parameter: tuple[int, ...] = parameter.stride()  # when that was decided
        self._view = self._make_view()
        self.pointer = self._view.data_ptr()
        self.version = 0  # of the view, when the bucket was submitted
        self._submitted: torch.Tensor | None = None  # ``.grad`` at that time

    def _make_view(self) -> torch.Tensor:
        # A storage of its own: a copy or a file of one gradient does not contain its whole bucket, and autograd does
        # not mistake a change of one gradient for a change of another.
        size = self.shape.numel() * self.dtype.itemsize
        storage = self._memory.untyped_storage()[self._offset : self._offset + size]
        view = torch.empty(0, dtype=self.dtype, device=self._memory.device)
        return view.set_(storage, 0, self.shape, self._stride)

    def view(self) -> torch.Tensor:
        """The gradient's memory as a tensor: the same object each time, unless it was given other memory meanwhile."""
        view = self._view
        if view.data_ptr() != self.pointer or view.dtype != self.dtype or view.shape != self.shape:
            # Module.to() replaces the memory of gradients.
            self._view = self._make_view()
        return self._view

    def take_in(self) -> str:
        """Copies ``.grad`` into the bucket; returns why that is impossible, or an empty string.

        A missing ``.grad`` counts as zeros. Afterwards ``.grad`` is in the bucket, unless it is part of a graph.
        """
        why_not, gradient = self.outside()
        if gradient is not None:
            with torch.no_grad():
                self.view().copy_(gradient)
            self.exchange(gradient)
        return why_not

    def adopt(self) -> None:
        """Called once the bucket's memory holds ``.grad``, which may still be the view that a former slot made."""
        gradient = self.parameter.grad
        if gradient is not None and self._holds(gradient):
            self.exchange(gradient)

    def outside(self) -> tuple[str, torch.Tensor | None]:
        """Why ``.grad`` cannot be moved into the bucket, or an empty string; and the tensor still to be copied, if any.

        A missing ``.grad`` becomes zeros in the bucket.
        """
        gradient = self.parameter.grad
        if self.parameter.stride() != self._stride_of_parameter:
            why_not = self._follow_parameter()
            if why_not:
                return why_not, None
        if gradient is None:
            if not self.parameter.requires_grad:  # frozen meanwhile
                return NOT_WANTED, None
            why_not = self._misfit(self.parameter)
            if not why_not:
                view = self.view()
                with torch.no_grad():
                    view.zero_()
                self.parameter.grad = view
            return why_not, None
        if self._holds(gradient):
            return "", None
        why_not = self._misfit(gradient)
        return why_not, None if why_not else gradient

    def exchange(self, gradient: torch.Tensor) -> None:
        """Makes ``.grad`` the bucket's memory, after ``gradient`` has been copied into it."""
        if not gradient.requires_grad:
            self.parameter.grad = self.view()

    def note_submitted(self) -> None:
        """From now on the gradient must not be written or replaced."""
        self.version = version_of(self._view)
        self._submitted = self.parameter.grad

    def _name(self) -> str:
        return self.bucket.names[self.bucket.slots.index(self)]

    def give_out(self) -> torch.Tensor | None:
        """Sets ``.grad`` to the bucket's content; returns it if autograd must still be told that it was written.

        Raises InvalidArgumentError if it was written, resized or replaced meanwhile.
        """
        gradient, submitted, self._submitted = self.parameter.grad, self._submitted, None
        if gradient is None or gradient is not submitted:
            raise replaced_in_flight(self._name())
        if gradient.shape != self.shape:
            change = f"was resized from {list(self.shape)} to {list(gradient.shape)}"
            raise changed_in_flight(f"the gradient of '{self._name()}'", change)
        if gradient is self._view and version_of(gradient) != self.version:
            raise written_in_flight(self._name())
        if self._holds(gradient):
            return gradient
        with torch.no_grad():  # part of a graph
            gradient.copy_(self.view())
        return None

    def _follow_parameter(self) -> str:
        """Called when the parameter's strides have changed, as by ``model.to(memory_format=torch.channels_last)``.

        Returns why the gradient cannot be in the bucket, or an empty string. Fused optimizers pass through the memory
        of parameter and gradient without looking at strides: a ``.grad`` that was left with the old ones is replaced.
        """
        parameter, stride = self.parameter, self.parameter.stride()
        if parameter.shape != self.shape:
            return ""  # found when the gradient is compared
        if _stride_of_gradient(self.shape, stride) == self._stride:
            self._stride_of_parameter = stride
            return ""
        gradient = parameter.grad
        if gradient is not None and gradient.shape == self.shape and not gradient.requires_grad:
            parameter.grad = laid_out_like(gradient, parameter)
        return f"belongs to a parameter with the strides {list(stride)}, and was laid out with {list(self._stride)}"

    def _holds(self, gradient: torch.Tensor) -> bool:
        try:
            return gradient.data_ptr() == self.pointer
        except RuntimeError:  # a sparse tensor has no single address
            return False

    def _misfit(self, tensor: torch.Tensor) -> str:
        if tensor.layout != torch.strided:
            return "is sparse"
        device = self._memory.device
        if tensor.dtype != self.dtype or tensor.device != device or tensor.shape != self.shape:
            return (
                f"is now {tensor.dtype} of shape {list(tensor.shape)} on '{tensor.device}', and was "
                f"{self.dtype} of shape {list(self.shape)} on '{device}'"
            )
        return ""


class Bucket:
    """Gradients that are reduced together, in place. Raises MemoryError if there is no memory for them.

    ``spare``: buckets that are not used any more. If one had the same gradients, this one takes over its memory, in
    which they still are.
    """

    memory: torch.Tensor  # as bytes

    def __init__(
        self,
        name: str,
        parameters: Sequence[torch.Tensor],
        descriptions: Sequence[Description],
        spare: Iterable[Bucket] = (),
    ) -> None:
        self._descriptions = tuple(descriptions)
        device = parameters[0].device
        memory = next(
            (each.memory for each in spare if each.held(self._descriptions, device)), None
        )
        if memory is None:
            memory = _memory_for(sum(each.bytes() for each in descriptions), device)
        self.memory = memory  # as bytes
        self.name = name
        self.names = tuple(description.name for description in descriptions)
        self.flat = memory.view(parameters[0].dtype)
        self.slots: list[Slot] = []
        offset = 0
        for parameter, description in zip(parameters, descriptions, strict=True):
            self.slots.append(Slot(self, parameter, description, memory, offset))
            offset += description.bytes()
        self.waiting = len(self.slots)  # gradients that are not ready yet in this step
        self.misfit = ""  # why this rank cannot use the bucket in this step
        self.priority = 0
        # On a GPU, launching a copy per gradient costs the host more than the copies: they are batched.
        self.gathering = Gathering(self.flat.device) if self.flat.is_cuda else None
        self.handle: Handle[torch.Tensor] | Handle[None] | None = None  # while it is being reduced

    def held(self, descriptions: tuple[Description, ...], device: torch.device) -> bool:
        """Whether its memory is that of such gradients, in this order."""
        return self._descriptions == descriptions and self.memory.device == device

    def start_over(self) -> None:
        """Waits for all its gradients again."""
        self.waiting = len(self.slots)
        self.misfit = ""
        if self.gathering is not None:
            self.gathering.start_over()

    def note_submitted(self) -> None:
        """Called before the bucket is reduced: from now on its gradients must not be written or replaced."""
        for slot in self.slots:
            slot.note_submitted()

    def give_out(self) -> list[Exception]:
        """Sets each ``.grad`` to the bucket's content; returns an error for each that was changed meanwhile."""
        errors: list[Exception] = []
        written = []
        for slot in self.slots:
            try:
                gradient = slot.give_out()
            except InvalidArgumentError as error:
                errors.append(error)
                continue
            if gradient is not None:
                written.append(gradient)
        increment_versions(written)
        return errors


def _memory_for(size: int, device: torch.device) -> torch.Tensor:
    """Zeroed memory of ``size`` bytes that is reduced without packing. Raises MemoryError."""
    if device.type == "cpu":
        return torch.frombuffer(_native.allocate(size), dtype=torch.uint8)
    try:
        return torch.zeros(size, dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
