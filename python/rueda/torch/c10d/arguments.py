"""Arguments of a process group's functions: tensors, options, reductions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rueda import _native, dtypes
from rueda.adapter import Refusal, View, unusable
from rueda.errors import MismatchError
from rueda.operations import Average, BitAnd, BitOr, BitXor, Max, Min, Product, ReduceOp, Sum
from rueda.submission import changed_in_flight
from rueda.torch.c10d.placement import placement_of
from rueda.torch.tensors import TorchAdapter, usual_view_of

__all__ = [
    "Target",
    "as_refusal",
    "hand_out",
    "hand_out_usual",
    "is_in_place",
    "only",
    "overwrite",
    "read",
    "read_flat",
    "read_rows",
    "reduction_of",
    "require_like",
    "require_own_elements",
    "reshaped",
    "result_memory",
    "root_of",
    "seconds_of",
    "target_of",
    "tensors_in",
    "usual_result_memory",
]

_adapter = TorchAdapter(gpus=True)

_reductions: dict[Any, ReduceOp] = {
    dist.ReduceOp.SUM: Sum,
    dist.ReduceOp.AVG: Average,
    dist.ReduceOp.PRODUCT: Product,
    dist.ReduceOp.MIN: Min,
    dist.ReduceOp.MAX: Max,
    dist.ReduceOp.BAND: BitAnd,
    dist.ReduceOp.BOR: BitOr,
    dist.ReduceOp.BXOR: BitXor,
}


def reduction_of(op: Any) -> tuple[ReduceOp, float]:
    """Rueda's reduction and the factor for each input. Raises Refusal for a reduction that Rueda lacks."""
    # ReduceOp.SUM is an enumerator; an option's reduceOp is an object that compares equal to it.
    for known, reduction in _reductions.items():
        if op == known:
            return reduction, 1.0
    if op == dist.ReduceOp.PREMUL_SUM:
        factor = op.__getstate__()[1]
        if isinstance(factor, torch.Tensor):
            factor = factor.item()
        return Sum, float(factor)
    raise Refusal(f"the reduction {op} is not one of SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR")


def root_of(opts: Any, size: int) -> int:
    """The root rank in a group of ``size``: ``opts.rootRank``, or ``opts`` itself if it is an int; by default 0.

    Raises Refusal if there is no such rank.
    """
    root: int = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
    if not 0 <= root < size:
        raise Refusal(f"there is no rank {root} in a group of {size} ranks")
    return root


def only(items: Sequence[Any]) -> Any:
    """The single item, where torch's interface takes a list. Raises Refusal."""
    if len(items) != 1:
        raise Refusal(f"one tensor or list of tensors is wanted, not {len(items)}")
    return items[0]


def as_refusal(error: Refusal | ValueError | RuntimeError) -> Refusal:
    """The refusal that tells every rank about an error in one rank's arguments."""
    return error if isinstance(error, Refusal) else Refusal(str(error))


def seconds_of(options: Any, default: float) -> float:
    """An operation's timeout in seconds: that of ``options`` if positive, else ``default``."""
    timeout = options if isinstance(options, timedelta) else getattr(options, "timeout", None)
    seconds = 0.0 if timeout is None else timeout.total_seconds()
    return seconds if seconds > 0 else default


def read(tensor: object) -> tuple[torch.Tensor, View]:
    """A contiguous tensor with the elements of ``tensor``: itself if possible, else a copy. Raises Refusal."""
    return _adapter.read(tensor)


class Target:
    """The destination of a result: contiguous memory to write to, and how it gets from there to ``tensor``."""

    def __init__(self, tensor: torch.Tensor, keep_elements: bool, written: bool = True) -> None:
        self._given = tensor
        usual = usual_view_of(tensor)
        if usual is not None:
            self.tensor, self.view = usual
            self.memory = self.tensor
            if written and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
            return
        self.tensor = _adapter.dense(tensor)
        if not written:
            self.memory, self.view = read(self.tensor)
            return
        require_own_elements(self.tensor)
        if self.tensor.is_contiguous() and not self.tensor.is_conj() and not self.tensor.is_neg():
            self.memory, self.view = _adapter.write(self.tensor)
        elif keep_elements:
            self.memory, self.view = _adapter.write(_adapter.copy(tensor))
        else:
            read(tensor)  # refuses tensors without elements of their own
            self.memory, self.view = _adapter.write(_adapter.empty_like(tensor))

    def is_in_place(self) -> bool:
        """Whether results are written directly to the tensor's own memory."""
        return self.memory is self.tensor

    def give(self) -> None:
        """Copies the result to the tensor, unless in place: then raises if it was resized or its memory replaced."""
        if not self.is_in_place():
            overwrite(self.tensor, self.memory)
        elif (change := _adapter.change_of(self._given, self.view)) is not None:
            raise changed_in_flight("the tensor", change)

    def fill(self, flat: torch.Tensor) -> None:
        """Copies the elements of ``flat`` to the tensor."""
        overwrite(self.tensor, flat.view(self.tensor.shape))


def overwrite(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copies ``values`` into a tensor, even one created in inference mode."""
    with torch.inference_mode() if target.is_inference() else nullcontext():
        target.copy_(values)


def target_of(tensor: torch.Tensor, keep_elements: bool = False, written: bool = True) -> Target:
    """Creates a Target. Raises Refusal.

    ``keep_elements``: the memory initially holds the tensor's elements. ``written``: it is written, not only read.
    """
    try:
        return Target(tensor, keep_elements, written)
    except Exception as error:
        raise unusable(tensor, error) from None


def require_own_elements(tensor: torch.Tensor) -> None:
    """Raises Refusal if a dense tensor has expanded dimensions, as from ``expand()``: torch refuses to copy into it."""
    if any(
        stride == 0 and extent > 1
        for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        raise Refusal(
            f"several elements of the tensor of shape {list(tensor.shape)} share memory (strides "
            f"{list(tensor.stride())}), so it cannot hold a result: use .contiguous()"
        )


def _flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _readable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    pairs = [read(tensor) for tensor in tensors]
    placement_of(*(view for _, view in pairs))
    parts = [part for part, _ in pairs]
    if len({part.dtype for part in parts}) > 1:
        raise Refusal(f"the tensors differ in dtype: {', '.join(str(t.dtype) for t in tensors)}")
    return parts


def read_flat(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, View]:
    """All elements in one tensor, without a copy for a single contiguous one, and a flat view. Raises Refusal."""
    if len(tensors) != 1:
        return read(_flat(_readable(tensors)))
    tensor, view = read(tensors[0])
    return tensor, reshaped(view, (math.prod(view.shape),))


def read_rows(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, View]:
    """Tensors of one shape as rows of a tensor, others as in :func:`read_flat`. Raises Refusal.

    Rows have a dimension at least, so that a view of one dimension tells that shapes differ. Tensors of one element
    are rows of one dimension, whatever their shapes.
    """
    parts = _readable(tensors)
    if all(part.numel() == 1 for part in parts):
        return read(_flat(parts)[:, None])
    shape = parts[0].shape
    if [part.shape for part in parts].count(shape) < len(parts):
        return read(_flat(parts))
    return read(torch.stack(parts) if len(parts) > 1 else parts[0][None])


def reshaped(view: View, shape: tuple[int, ...]) -> View:
    """The same elements in another shape."""
    return View(view.pointer, shape, *view[2:])


def tensors_in(references: object) -> Iterator[torch.Tensor]:
    """All tensors that an operation references, which may be tensors, targets, or nested lists and tuples of these."""
    if isinstance(references, torch.Tensor):
        yield references
    elif isinstance(references, Target):
        yield references.tensor
        if not references.is_in_place():
            yield references.memory
    elif isinstance(references, (list, tuple)):
        for each in references:
            yield from tensors_in(each)


def require_like(target: Target, view: View) -> None:
    """Raises Refusal if a result would differ from its target in dtype or device."""
    if target.view.device != view.device:
        placement_of(target.view, view)  # raises
    if target.view.dtype != view.dtype:
        raise Refusal(
            f"the output is {dtypes.name_of(target.view.dtype)}, the input {dtypes.name_of(view.dtype)}"
        )


def result_memory(
    targets: Sequence[Target], source: View, in_place_at: int | None = None
) -> tuple[int, int]:
    """Address and bytes of memory into which the engine may write the result directly; zeros if there is none.

    There is none for several targets, or if the source overlaps the target, unless it begins ``in_place_at`` bytes
    after the target's start, as in an in-place collective. :func:`is_in_place` tells whether the engine wrote there.
    """
    if len(targets) != 1:
        return 0, 0
    view = targets[0].view
    return usual_result_memory(
        view.pointer,
        math.prod(view.shape) * dtypes.item_size(view.dtype),
        source.pointer,
        math.prod(source.shape) * dtypes.item_size(source.dtype),
        in_place_at,
    )


def usual_result_memory(
    target: int, length: int, source: int, source_length: int, in_place_at: int | None = None
) -> tuple[int, int]:
    """:func:`result_memory` of one target, given addresses and bytes."""
    distance = source - target
    if -source_length < distance < length and distance != in_place_at:
        return 0, 0
    return target, length


def is_in_place(memory: _native.Memory, shape: Sequence[int]) -> bool:
    """Whether the engine wrote the result to the memory from :func:`result_memory`."""
    return len(memory) == 0 and math.prod(shape) > 0


def hand_out(native: _native.Handle, targets: Sequence[Target], what: str) -> None:
    """Copies a result to its targets, one piece after another, unless the engine wrote it there."""
    if not targets:
        return
    memory, shape = native.output(dtypes.item_size(targets[0].view.dtype))
    if is_in_place(memory, shape):
        targets[0].give()
        return
    numbers = [math.prod(target.view.shape) for target in targets]
    with _adapter.lent(memory, shape, targets[0].tensor) as result:
        flat = result.reshape(-1)
        if flat.numel() != sum(numbers):
            raise MismatchError(
                f"{what}: the outputs have {numbers} elements, but {flat.numel()} have come"
            )
        parts = flat.split_with_sizes(numbers) if len(targets) > 1 else (flat,)
        for target, part in zip(targets, parts, strict=True):
            target.fill(part)


def hand_out_usual(native: _native.Handle, target: torch.Tensor, code: int, what: str) -> None:
    """:func:`hand_out` for one tensor that can be used in place, of dtype ``code``."""
    memory, shape = native.output(dtypes.item_size(code))
    if not is_in_place(memory, shape):
        hand_out(native, [target_of(target)], what)
