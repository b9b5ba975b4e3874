"""The reducing collectives of a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from rueda import _native, dtypes
from rueda.adapter import Refusal, View, change_among
from rueda.aliases import are_apart, repeated
from rueda.errors import RuedaError, StalledError
from rueda.operations import Average, ReduceOp, Sum
from rueda.process_sets import ProcessSet
from rueda.submission import NO_WIRE, changed_in_flight
from rueda.torch.c10d.arguments import (
    Target,
    as_refusal,
    hand_out,
    hand_out_usual,
    only,
    overwrite,
    read,
    read_flat,
    read_rows,
    reduction_of,
    require_like,
    require_own_elements,
    result_memory,
    root_of,
    seconds_of,
    target_of,
    usual_result_memory,
)
from rueda.torch.c10d.keywords import also_named
from rueda.torch.c10d.operations import Operations, part_of
from rueda.torch.c10d.placement import Placement, placement_of
from rueda.torch.c10d.recurring import RecurringTensors
from rueda.torch.c10d.shapes import ONE, are_alike, compared
from rueda.torch.c10d.sparse import SparseExchange, SparseWork
from rueda.torch.c10d.work import FATAL, DoneWork, say_timed_out
from rueda.torch.compiling import never_compiled
from rueda.torch.compression import Compression
from rueda.torch.profiling import marked
from rueda.torch.sparse_steps import SparseAllreduce
from rueda.torch.tensors import TorchAdapter, usual_memory_of

__all__ = ["Reductions"]

_adapter = TorchAdapter(gpus=True)
_recurring = RecurringTensors()


@dataclass(frozen=True)
class _Members:
    """The engine's arguments for an allreduce of several tensors, by column."""

    pointers: list[int]
    shapes: Sequence[Sequence[int]]
    dtypes: list[int]
    devices: list[int]
    stream: int
    placement: Placement
    references: object
    give: Callable[[], None]  # brings the results to the tensors


def _members(tensors: Sequence[torch.Tensor]) -> _Members:
    """The arguments for arbitrary tensors. Raises Refusal."""
    targets = [target_of(tensor, keep_elements=True) for tensor in tensors]
    views = [target.view for target in targets]
    pointers = [view.pointer for view in views]
    spares = []
    for number in repeated(views):
        # Reduces a copy and drops it: the result is that of the first tensor in this memory.
        spares.append(_adapter.copy(targets[number].tensor))
        pointers[number] = spares[-1].data_ptr()

    def give() -> None:
        for target in targets:
            target.give()

    return _Members(
        pointers,
        [compared(view.shape) for view in views],
        [view.dtype for view in views],
        [view.device for view in views],
        views[0].stream,
        placement_of(*views),
        [*targets, *spares],
        give,
    )


def _usual_members(tensors: Sequence[torch.Tensor]) -> _Members | None:
    """The arguments for tensors that can be used in place and do not overlap; ``None`` if any cannot."""
    views = _adapter.usual_views(tensors, to_write=True)
    if views is None or not are_apart(views.pointers, views.sizes):
        return None
    first = View(views.pointers[0], views.shapes[0], views.dtypes[0], device=views.device)

    def give() -> None:
        if (found := change_among(_adapter, tensors, views)) is not None:
            raise changed_in_flight("the tensor", found[1])

    return _Members(
        views.pointers,
        [compared(shape) for shape in views.shapes],
        views.dtypes,
        [views.device] * len(tensors),
        views.stream,
        placement_of(first, in_place=True),
        views.owners,
        give,
    )


@never_compiled
class Reductions(Operations):
    """allreduce, reduce and reduce_scatter in all their forms.

    ``opts`` is what torch.distributed passes; without it, ``op`` and ``timeout`` apply.
    """

    @also_named(tensor="tensors")
    def allreduce(  # type: ignore[override]  # all overloads in one
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        op: Any = dist.ReduceOp.SUM,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduces one tensor in place. A sparse one must be on the CPU, is summed or averaged, and then coalesced."""
        options, op = _options(opts, op, timeout)
        try:
            tensor = tensors if isinstance(tensors, torch.Tensor) else only(tensors)
            if tensor.layout is torch.sparse_coo:
                return self._allreduce_sparse(tensor, op, options)
            reduction, factor = reduction_of(op)
            if opts is options and not getattr(opts, "asyncOp", True):
                done = self._allreduce_now(tensor, reduction, factor, opts)
                if done is not None:
                    return done
            target = target_of(tensor, keep_elements=True)
            placement = placement_of(target.view, in_place=target.is_in_place())
        except Refusal as refusal:
            return self._refused("allreduce", refusal, options, outputs=tensors)
        view, shape = target.view, compared(target.view.shape)
        set_id = self._membership.set_id

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            target.give()
            return [tensor]

        work = self._collective(
            "allreduce",
            (0, shape, view.dtype, reduction, factor),
            lambda name: [
                _native.allreduce(
                    view.pointer,
                    view.pointer,
                    shape,
                    view.dtype,
                    name,
                    reduction,
                    factor,
                    1.0,
                    set_id,
                    NO_WIRE,
                    view.device,
                    view.stream,
                )
            ],
            finish,
            target,
            options,
            placement,
            outputs=tensor,
        )
        _recurring.note(tensor, set_id)
        return work

    def _allreduce_sparse(self, tensor: torch.Tensor, op: Any, options: Any) -> Work:
        """Sums or averages sparse tensors, whose number of values may differ by rank. The result is coalesced."""
        try:
            reduction, factor = reduction_of(op)
            if reduction not in (Sum, Average):
                raise Refusal(
                    f"unsupported reduction operation {reduction.name}: sparse tensors are summed"
                )
            if not tensor.is_cpu:
                raise Refusal(f"sparse tensors are summed on the CPU, not on {tensor.device}", True)
            members = ProcessSet(self._membership.ranks)
            members.process_set_id = self._membership.set_id
            wanted = SparseAllreduce(
                None, reduction, (factor, 1.0), members, Compression.none, "auto"
            )
            exchange = SparseExchange(wanted, tensor)
        except Refusal as refusal:
            return self._refused("sparse allreduce", refusal, options)

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            with torch.no_grad():
                tensor.copy_(exchange.result())
            return [tensor]

        signature = ("sparse", tensor.shape, tensor.sparse_dim(), tensor.dtype, reduction, factor)
        return self._collective(
            "sparse allreduce",
            signature,
            exchange.begin,
            finish,
            tensor,
            options,
            make=partial(SparseWork, exchange),
            outputs=tensor,
        )

    def _allreduce_now(
        self, tensor: torch.Tensor, reduction: ReduceOp, factor: float, options: Any
    ) -> Work | None:
        """For a caller that would wait immediately: runs the allreduce here; ``None`` if not usable in place."""
        usual = usual_memory_of(tensor)
        if usual is None:
            return None
        pointer, count, code = usual
        shape = ONE if count == 1 else tensor.shape
        self._require_open()
        seconds = seconds_of(options, self._timeout)
        grace = self._grace_after(seconds)
        name = self._names.next((0, shape, code, reduction, factor))
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
        try:
            with marked("allreduce"):
                _native.allreduce_memory(
                    tensor,
                    tensor,
                    pointer,
                    pointer,
                    shape,
                    code,
                    name,
                    reduction,
                    factor,
                    1.0,
                    self._membership.set_id,
                    seconds,
                    grace,
                )
        except FATAL as error:
            say_timed_out(error, seconds)
            self._fatal_listener()(error)
            raise
        except RuedaError as error:
            say_timed_out(error, seconds)
            if isinstance(error, StalledError):
                self._fatal_listener()(error)
            self._names.restart()
            raise
        return DoneWork([tensor])

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Reduces several tensors in place, together."""
        options, op = _options(opts, dist.ReduceOp.SUM, None)
        if not tensors:
            return self._refused("allreduce", Refusal("there is no tensor"), options)
        try:
            reduction, factor = reduction_of(op)
            members = _usual_members(tensors) or _members(tensors)
        except Refusal as refusal:
            return self._refused("allreduce", refusal, options, len(tensors), outputs=tensors)
        set_id = self._membership.set_id

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            members.give()
            return list(tensors)

        return self._collective(
            "allreduce of several tensors",
            (1, tuple(members.shapes), tuple(members.dtypes), reduction, factor),
            lambda name: [
                _native.grouped_allreduce(
                    members.pointers,
                    members.pointers,
                    members.shapes,
                    members.dtypes,
                    name,
                    reduction,
                    factor,
                    1.0,
                    set_id,
                    NO_WIRE,
                    members.devices,
                    members.stream,
                )
            ],
            finish,
            members.references,
            options,
            members.placement,
            outputs=tensors,
        )

    @also_named(tensor="tensors", root="opts")
    def reduce(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        op: Any = dist.ReduceOp.SUM,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduces one tensor in place on rank ``opts.rootRank`` only; the other ranks' tensors do not change."""
        options, op = _options(opts, op, timeout)
        try:
            tensor = tensors if isinstance(tensors, torch.Tensor) else only(tensors)
            is_root = root_of(opts, self._size) == self._rank
            reduction, factor = reduction_of(op)
            source, view = read(tensor)
            if is_root:
                require_own_elements(tensor)
            result, output = _adapter.write(_adapter.empty_like(source))
            placement = placement_of(view)
        except Refusal as refusal:
            return self._refused("reduce", refusal, options, outputs=tensors)
        shape, set_id = compared(view.shape), self._membership.set_id

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            if is_root:
                overwrite(tensor.detach(), result)
            return [tensor]

        return self._collective(
            "reduce",
            (2, shape, view.dtype, reduction, factor),
            lambda name: [
                _native.allreduce(
                    view.pointer,
                    output.pointer,
                    shape,
                    view.dtype,
                    name,
                    reduction,
                    factor,
                    1.0,
                    set_id,
                    NO_WIRE,
                    view.device,
                    view.stream,
                )
            ],
            finish,
            (source, result, tensor),
            options,
            placement,
            outputs=tensor,
        )

    @also_named(output="output_tensors", input="input_tensors")
    def reduce_scatter(  # type: ignore[override]  # all overloads in one
        self,
        output_tensors: torch.Tensor | Sequence[torch.Tensor],
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
        op: Any = dist.ReduceOp.SUM,
    ) -> Work:
        """Reduces a list with one tensor per rank; rank r gets the r-th result. Shapes may differ."""
        what = "reduce-scatter"
        options, op = _options(opts, op, timeout)
        if isinstance(output_tensors, torch.Tensor):
            return self._reduce_scatter([output_tensors], [input_tensors], options, op, what, False)
        try:
            output, inputs = only(output_tensors), only(input_tensors)
        except Refusal as refusal:
            return self._refused(what, refusal, options, outputs=output_tensors)
        return self._reduce_scatter([output], [inputs], options, op, what, False)

    @also_named(outputTensor="output", inputTensor="input")
    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduces ``input`` and scatters it in rank order; each rank gets ``output.numel()`` elements."""
        if self._waits_at_once(opts):
            source, target = usual_memory_of(input), usual_memory_of(output)
            if source is not None and target is not None:
                same_type = source[2] == target[2]
                if same_type and source[1] == self._size * target[1]:
                    return self._reduce_scatter_usual(output, target, input, source[0], opts)
        options, op = _options(opts, dist.ReduceOp.SUM, None)
        return self._reduce_scatter([output], [[input]], options, op, "reduce-scatter")

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # in newer torch deprecated

    def _reduce_scatter_usual(
        self,
        output: torch.Tensor,
        target: tuple[int, int, int],
        input: torch.Tensor,
        source: int,
        options: Any,
    ) -> Work:
        """For a caller that would wait immediately, on tensors of matching size that can be used in place."""
        pointer, count, code = target
        size, set_id = self._size, self._membership.set_id
        try:
            reduction, factor = reduction_of(options.reduceOp)
        except Refusal as refusal:
            return self._refused("reduce-scatter", refusal, options)
        length = count * dtypes.item_size(code)
        memory = usual_result_memory(pointer, length, source, size * length, -self._rank * length)
        if not output.is_inference():
            torch.autograd.graph.increment_version(output)
        shape, rows = (size * count,), [count] * size

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            hand_out_usual(natives[0], output, code, "reduce-scatter")
            return [output]

        return self._collective_at_once(
            "reduce-scatter",
            (3, ((shape, code),), reduction, factor),
            lambda name, begun, limit: _native.reduce_scatter(
                source,
                shape,
                code,
                name,
                reduction,
                factor,
                1.0,
                rows,
                set_id,
                -1,
                0,
                *memory,
                begun=begun,
                limit=limit,
            ),
            finish,
            (input, output),
            options,
        )

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """:meth:`reduce_scatter_single` for several tensors."""
        options, op = _options(opts, dist.ReduceOp.SUM, None)
        what = "reduce-scatter of several tensors"
        return self._reduce_scatter(outputs, [[tensor] for tensor in inputs], options, op, what)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def _reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[Sequence[torch.Tensor]],
        options: Any,
        op: Any,
        what: str,
        whole: bool = True,
    ) -> Work:
        """``whole``: each input is one tensor for all ranks, of any shape."""
        targets, sources, views, splits, memories = [], [], [], [], []
        try:
            reduction, factor = reduction_of(op)
            if len(outputs) != len(inputs) or not inputs:
                raise Refusal(f"there are {len(outputs)} outputs for {len(inputs)} inputs")
            for output, tensors in zip(outputs, inputs, strict=True):
                target = target_of(output)
                flat = whole or len(tensors) < self._size
                source, view = read_flat(tensors) if flat else read_rows(tensors)
                require_like(target, view)
                rows = _splits(tensors, target, self._size, self._rank, flat)
                own = -sum(rows[: self._rank]) * dtypes.item_size(view.dtype)
                if len(view.shape) > 1:
                    rows = [1] * self._size
                targets.append(target)
                sources.append(source)
                views.append(view)
                splits.append(rows)
                memories.append(result_memory([target], view, own))
            placement = placement_of(*views, in_place=all(size > 0 for _, size in memories))
        except (Refusal, ValueError, RuntimeError) as error:
            refusal = as_refusal(error)
            return self._refused(what, refusal, options, parts=len(inputs), outputs=outputs)
        set_id = self._membership.set_id

        def begin(name: str) -> list[_native.Handle]:
            return [
                _native.reduce_scatter(
                    view.pointer,
                    view.shape,
                    view.dtype,
                    part_of(name, number),
                    reduction,
                    factor,
                    1.0,
                    rows,
                    set_id,
                    view.device,
                    view.stream,
                    *memory,
                )
                for number, (view, rows, memory) in enumerate(
                    zip(views, splits, memories, strict=True)
                )
            ]

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            for target, native in zip(targets, natives, strict=True):
                hand_out(native, [target], what)
            return list(outputs)

        return self._collective(
            what,
            (3, tuple([(view.shape, view.dtype) for view in views]), reduction, factor),
            begin,
            finish,
            (sources, targets),
            options,
            placement,
            outputs=outputs,
        )


def _splits(
    tensors: Sequence[torch.Tensor], target: Target, size: int, rank: int, flat: bool
) -> list[int]:
    """How many elements each rank gets. Raises Refusal. ``flat``: shapes do not matter."""
    output = target.tensor
    if len(tensors) == 1 and size > 1:
        if tensors[0].numel() != size * output.numel():
            raise Refusal(
                f"the input has {tensors[0].numel()} elements, not {size} times the output's {output.numel()}"
            )
        return [output.numel()] * size
    if len(tensors) != size:
        raise Refusal(f"there are {len(tensors)} tensors for {size} ranks")
    if tensors[rank].numel() != output.numel():
        raise Refusal(
            f"the output has {output.numel()} elements, the tensor for this rank {tensors[rank].numel()}"
        )
    if not flat and not are_alike(tensors[rank].shape, target.view.shape):
        raise Refusal(
            f"the output has shape {list(output.shape)}, the tensor for this rank {list(tensors[rank].shape)}"
        )
    return [tensor.numel() for tensor in tensors]


def _options(opts: Any, op: Any, timeout: timedelta | None) -> tuple[Any, Any]:
    """The object that carries the timeout, and the reduction, from any form in which torch passes them."""
    if opts is None or isinstance(opts, int):
        return timeout, op
    if hasattr(opts, "reduceOp"):
        return opts, opts.reduceOp
    return timeout, opts  # the reduction instead of options
