"""The collectives of a process group that bring the same to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from rueda import _native
from rueda.adapter import Refusal, View
from rueda.torch.c10d.arguments import (
    Target,
    as_refusal,
    flatten,
    hand_out,
    read,
    require_like,
    result_memory,
    root_of,
    target_of,
)
from rueda.torch.c10d.compiling import never_compiled
from rueda.torch.c10d.operations import Operations, part_of
from rueda.torch.c10d.placement import placement_of
from rueda.torch.c10d.work import RuedaWork

__all__ = ["Exchanges"]


@never_compiled
class Exchanges(Operations):
    """broadcast and allgather in all their forms. The sizes of what ranks contribute to a list may differ."""

    def broadcast(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> RuedaWork:
        """Gives every rank the tensor of ``opts.rootRank``, a rank of the group."""
        tensor = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        root = root_of(opts)
        options = timeout if timeout is not None else opts
        world_root = self._world_rank(root)
        try:
            is_root = root == self.rank()
            target = target_of(tensor, keep_elements=is_root, written=not is_root)
            placement = placement_of(target.view, in_place=target.is_in_place())
        except Refusal as refusal:
            return self._refused("broadcast", refusal, options)
        view = target.view
        set_id = self._membership.set_id

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            if root != self.rank():
                target.give()
            return [tensor]

        return self._collective(
            "broadcast",
            (10, view.shape, view.dtype, root),
            lambda name: [
                _native.broadcast(
                    view.pointer,
                    view.shape,
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
        )

    def allgather(  # type: ignore[override]  # all overloads in one
        self,
        output_tensors: Sequence[Any],
        input_tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> RuedaWork:
        """Gives every rank the tensors of all."""
        if isinstance(input_tensors, torch.Tensor):
            outputs, source = list(output_tensors), input_tensors
        else:
            outputs, source = list(output_tensors[0]), input_tensors[0]
        return self._allgather([outputs], [source], timeout if timeout is not None else opts)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> RuedaWork:
        """Gives every rank the tensors of all, one after the other in ``output``."""
        return self._allgather([[output]], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> RuedaWork:
        """:meth:`all_gather_single` of several tensors."""
        return self._allgather([[output] for output in outputs], list(inputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        input_list: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> RuedaWork:
        """:meth:`allgather` of several tensors; ``output_lists[r]`` takes those of rank r."""
        by_tensor = [list(tensors) for tensors in zip(*output_lists, strict=True)]
        return self._allgather(by_tensor, list(input_list), opts)

    def _allgather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        options: Any,
    ) -> RuedaWork:
        size = self.size()
        try:
            targets = [[target_of(output) for output in each] for each in outputs]
            sources = [flatten([tensor]) for tensor in inputs]
            views = [
                _gathered(source, each, size) for source, each in zip(sources, targets, strict=True)
            ]
            memories = [
                result_memory(each, view, self.rank() * source.numel() * source.element_size())
                for each, view, source in zip(targets, views, sources, strict=True)
            ]
            placement = placement_of(*views, in_place=all(size > 0 for _, size in memories))
        except (Refusal, ValueError) as error:
            return self._refused("all-gather", as_refusal(error), options, parts=len(outputs))
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
            for native, each in zip(natives, targets, strict=True):
                hand_out(native, each, "all-gather")
            return [output for each in outputs for output in each]

        return self._collective(
            "all-gather",
            (11, tuple((view.shape[1:], view.dtype) for view in views)),
            begin,
            finish,
            (sources, targets),
            options,
            placement,
        )


def _gathered(source: torch.Tensor, targets: list[Target], size: int) -> View:
    """What a rank gives to an all-gather, in a shape by which ranks see that they agree."""
    for target in targets:
        require_like(target, read(source)[1])
    numbers = [target.tensor.numel() for target in targets]
    if len(targets) == 1 and size > 1:
        if numbers[0] != size * source.numel():
            raise Refusal(
                f"the output has {numbers[0]} elements, not {size} times the input's {source.numel()}"
            )
    elif len(targets) != size:
        raise Refusal(f"there are {len(targets)} tensors for {size} ranks")
    elif any(number != source.numel() for number in numbers):
        return read(source)[1]  # each rank has a size of its own
    return read(source.view(1, -1) if source.numel() else source.view(1, 0))[1]
