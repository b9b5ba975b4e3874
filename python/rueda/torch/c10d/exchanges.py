"""The collectives of a process group that give all ranks the same result without reducing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from rueda import _native, dtypes
from rueda.adapter import Refusal, View
from rueda.torch.c10d.arguments import (
    Target,
    as_refusal,
    hand_out,
    hand_out_usual,
    only,
    read,
    require_like,
    reshaped,
    result_memory,
    root_of,
    target_of,
    usual_result_memory,
)
from rueda.torch.c10d.keywords import also_named
from rueda.torch.c10d.operations import Operations, part_of
from rueda.torch.c10d.placement import placement_of
from rueda.torch.c10d.shapes import ONE, are_alike, as_rows, compared
from rueda.torch.c10d.uneven import hand_out_shaped, with_shape
from rueda.torch.compiling import never_compiled
from rueda.torch.tensors import usual_memory_of

__all__ = ["Exchanges"]


@never_compiled
class Exchanges(Operations):
    """broadcast and allgather in all their forms. If allgather fills a list, shapes may differ between ranks."""

    @also_named(tensor="tensors", root="opts")
    def broadcast(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Sends every rank the tensor of ``opts.rootRank``, a rank of the group."""
        options = timeout if timeout is not None else opts
        try:
            tensor = tensors if isinstance(tensors, torch.Tensor) else only(tensors)
            root = root_of(opts, self._size)
        except Refusal as refusal:
            return self._refused("broadcast", refusal, options, outputs=tensors)
        world_root = self._world_rank(root)
        if self._waits_at_once(options):
            usual = usual_memory_of(tensor)
            if usual is not None:
                return self._broadcast_usual(tensor, usual, root, options)
        try:
            is_root = root == self.rank()
            target = target_of(tensor, keep_elements=is_root, written=not is_root)
            placement = placement_of(target.view, in_place=target.is_in_place())
        except Refusal as refusal:
            return self._refused("broadcast", refusal, options, outputs=tensors)
        view, shape = target.view, compared(target.view.shape)
        set_id = self._membership.set_id

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            if not is_root:
                target.give()
            return [tensor]

        return self._collective(
            "broadcast",
            (10, shape, view.dtype, root),
            lambda name: [
                _native.broadcast(
                    view.pointer,
                    shape,
                    view.dtype,
                    world_root,
                    name,
                    set_id,
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

    def _broadcast_usual(
        self, tensor: torch.Tensor, usual: tuple[int, int, int], root: int, options: Any
    ) -> Work:
        """For a caller that would wait immediately, on a tensor that can be used in place."""
        pointer, count, code = usual
        shape = ONE if count == 1 else tensor.shape
        world_root, set_id = self._membership.ranks[root], self._membership.set_id
        if root != self._rank and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
        return self._collective_at_once(
            "broadcast",
            (10, shape, code, root),
            lambda name, begun, limit: _native.broadcast(
                pointer, shape, code, world_root, name, set_id, begun=begun, limit=limit
            ),
            lambda _: [tensor],
            tensor,
            options,
        )

    @also_named(input_tensor="input_tensors")
    def allgather(  # type: ignore[override]  # all overloads in one
        self,
        output_tensors: Sequence[Any],
        input_tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Gathers the tensors of all ranks on every rank."""
        options = timeout if timeout is not None else opts
        if isinstance(input_tensors, torch.Tensor):
            return self._allgather([output_tensors], [input_tensors], options)
        try:
            outputs, source = only(output_tensors), only(input_tensors)
        except Refusal as refusal:
            return self._refused("all-gather", refusal, options, outputs=output_tensors)
        return self._allgather([outputs], [source], options)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Gathers the tensors of all ranks on every rank, concatenated in ``output``."""
        if self._waits_at_once(opts):
            source, target = usual_memory_of(input), usual_memory_of(output)
            if source is not None and target is not None:
                same_type = source[2] == target[2]
                if same_type and target[1] == self._size * source[1]:
                    return self._all_gather_usual(output, target[0], input, source, opts)
        return self._allgather([[output]], [input], opts, whole=True)

    _allgather_base = all_gather_single

    def _all_gather_usual(
        self,
        output: torch.Tensor,
        target: int,
        input: torch.Tensor,
        source: tuple[int, int, int],
        options: Any,
    ) -> Work:
        """For a caller that would wait immediately, on tensors of matching size that can be used in place."""
        pointer, count, code = source
        length = count * dtypes.item_size(code)
        set_id = self._membership.set_id
        memory = usual_result_memory(
            target, self._size * length, pointer, length, self._rank * length
        )
        if not output.is_inference():
            torch.autograd.graph.increment_version(output)

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            hand_out_usual(natives[0], output, code, "all-gather")
            return [output]

        return self._collective_at_once(
            "all-gather",
            (11, (((count,), code),)),
            lambda name, begun, limit: _native.allgather(
                pointer, (1, count), code, name, set_id, -1, 0, *memory, begun=begun, limit=limit
            ),
            finish,
            (input, output),
            options,
        )

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """:meth:`all_gather_single` for several tensors."""
        return self._allgather([[output] for output in outputs], list(inputs), opts, whole=True)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """:meth:`allgather` for several tensors; ``output_lists[r]`` receives those of rank r."""
        lengths = [len(tensors) for tensors in output_lists]
        if lengths.count(len(input_list)) != len(lengths):
            refusal = Refusal(f"there are lists of {lengths} outputs for {len(input_list)} inputs")
            return self._refused(
                "all-gather", refusal, opts, parts=len(input_list), outputs=output_lists
            )
        by_tensor = [[tensors[n] for tensors in output_lists] for n in range(len(input_list))]
        return self._allgather(by_tensor, list(input_list), opts)

    def _allgather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        options: Any,
        whole: bool = False,
    ) -> Work:
        """``whole``: each output is one tensor for all ranks, of any shape."""
        targets, sources, views, memories, receivers = [], [], [], [], []
        try:
            if len(outputs) != len(inputs) or not inputs:
                raise Refusal(f"there are {len(outputs)} outputs for {len(inputs)} inputs")
            for each, tensor in zip(outputs, inputs, strict=True):
                into = [target_of(output) for output in each]
                source, view = read(tensor)
                _require_sizes(view, into, self._size, self._rank)
                uneven = False
                if whole or len(into) < self._size:
                    view = reshaped(view, (1, math.prod(view.shape)))
                else:
                    uneven = _is_uneven(into, view, self._rank)
                    if uneven:
                        source, view = read(with_shape(source))
                    else:
                        view = as_rows(view, 1, view.shape)
                own = self._rank * math.prod(view.shape) * dtypes.item_size(view.dtype)
                targets.append(into)
                sources.append(source)
                views.append(view)
                memories.append(result_memory(into, view, own))
                receivers.append(hand_out_shaped if uneven else hand_out)
            placement = placement_of(*views, in_place=all(size > 0 for _, size in memories))
        except (Refusal, ValueError, RuntimeError) as error:
            refusal = as_refusal(error)
            return self._refused("all-gather", refusal, options, parts=len(inputs), outputs=outputs)
        set_id = self._membership.set_id

        def begin(name: str) -> list[_native.Handle]:
            return [
                _native.allgather(
                    view.pointer,
                    view.shape,
                    view.dtype,
                    part_of(name, number),
                    set_id,
                    view.device,
                    view.stream,
                    *memory,
                )
                for number, (view, memory) in enumerate(zip(views, memories, strict=True))
            ]

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            for receive, native, each in zip(receivers, natives, targets, strict=True):
                receive(native, each, "all-gather")
            return [output for each in outputs for output in each]

        return self._collective(
            "all-gather",
            (11, tuple([(view.shape[1:], view.dtype) for view in views])),
            begin,
            finish,
            (sources, targets),
            options,
            placement,
            outputs=outputs,
        )


def _require_sizes(view: View, targets: list[Target], size: int, rank: int) -> None:
    """Raises Refusal if an all-gather's outputs do not fit this rank's own contribution."""
    for target in targets:
        require_like(target, view)
    count = math.prod(view.shape)
    numbers = [math.prod(target.view.shape) for target in targets]
    if len(targets) == 1 and size > 1:
        if numbers[0] != size * count:
            raise Refusal(
                f"the output has {numbers[0]} elements, not {size} times the input's {count}"
            )
    elif len(targets) != size:
        raise Refusal(f"there are {len(targets)} tensors for {size} ranks")
    elif numbers[rank] != count:
        raise Refusal(
            f"rank {rank} sends {count} elements, but its outputs have {numbers}, and so {numbers[rank]} for its own"
        )


def _is_uneven(targets: list[Target], view: View, rank: int) -> bool:
    """Whether ranks contribute different shapes. Otherwise the engine checks that all agree.

    Raises Refusal if this rank's output for itself has another shape than its input.
    """
    own = targets[rank].view.shape
    if own != view.shape and not are_alike(own, view.shape):
        raise Refusal(
            f"rank {rank} sends a tensor of shape {list(view.shape)}, but its own output has shape {list(own)}"
        )
    shapes = [compared(target.view.shape) for target in targets]
    return shapes.count(shapes[rank]) < len(shapes)
