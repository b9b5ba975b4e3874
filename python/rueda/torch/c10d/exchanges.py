"""The collectives of a process group that move tensors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from rueda import _native, dtypes
from rueda.adapter import Refusal, View
from rueda.errors import MismatchError
from rueda.torch.c10d.arguments import Target, flatten, read, target_of
from rueda.torch.c10d.compiling import never_compiled
from rueda.torch.c10d.operations import Operations, part_of
from rueda.torch.c10d.work import RuedaWork
from rueda.torch.tensors import TorchAdapter

__all__ = ["Exchanges"]

_adapter = TorchAdapter()


@never_compiled
class Exchanges(Operations):
    """broadcast, allgather, gather, scatter and alltoall in all their forms.

    Where lists of tensors of each rank are taken or given, their sizes may differ, but every two ranks must agree
    on what one gives the other.
    """

    def broadcast(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> RuedaWork:
        """Gives every rank the tensor of ``opts.rootRank``, a rank of the group."""
        tensor = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        options = timeout if timeout is not None else opts
        world_root = self._world_rank(root)
        try:
            target = target_of(tensor, keep_elements=root == self.rank())
        except Refusal as refusal:
            return self._refused("broadcast", refusal, options)
        pointer, shape, code, _ = target.view
        set_id = self._membership.set_id

        def finish(_: Sequence[_native.Handle]) -> list[torch.Tensor]:
            if root != self.rank():
                target.give()
            return [tensor]

        return self._collective(
            "broadcast",
            (10, shape, code, root),
            lambda name: [_native.broadcast(pointer, shape, code, world_root, name, set_id)],
            finish,
            target,
            options,
        )

    # --- Everything to everybody

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
        except (Refusal, ValueError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(str(error))
            return self._refused("all-gather", refusal, options, parts=len(outputs))
        set_id = self._membership.set_id

        def begin(name: str) -> list[_native.Handle]:
            return [
                _native.allgather(
                    view.pointer,
                    view.shape,
                    view.dtype,
                    part_of(name, number),
                    set_id,
                )
                for number, view in enumerate(views)
            ]

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            for native, each in zip(natives, targets, strict=True):
                _hand_out(native, each, "all-gather")
            return [output for each in outputs for output in each]

        return self._collective(
            "all-gather",
            (11, tuple((view.shape[1:], view.dtype) for view in views)),
            begin,
            finish,
            (sources, targets),
            options,
        )

    # --- Some of it to some

    def gather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> RuedaWork:
        """Gives the rank ``opts.rootRank`` the tensors of all; the others pass no output."""
        if isinstance(input_tensors, torch.Tensor):
            outputs, source = list(output_tensors), input_tensors
        else:
            outputs = list(output_tensors[0]) if output_tensors else []
            source = input_tensors[0]
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        options = timeout if timeout is not None else opts
        self._world_rank(root)
        rows = [int(rank == root) for rank in range(self.size())]
        expected = [1] * self.size() if root == self.rank() else [0] * self.size()
        return self._alltoall(
            "gather", lambda: read(source)[0].reshape(1, -1), rows, outputs, expected, options
        )

    def scatter(
        self,
        output_tensors: torch.Tensor | Sequence[torch.Tensor],
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> RuedaWork:
        """Gives each rank one of the tensors of ``opts.rootRank``; the others pass no input."""
        if isinstance(output_tensors, torch.Tensor):
            output, inputs = output_tensors, list(input_tensors)
        else:
            output = output_tensors[0]
            inputs = list(input_tensors[0]) if input_tensors else []
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        options = timeout if timeout is not None else opts
        self._world_rank(root)
        is_root = root == self.rank()
        rows = [int(is_root)] * self.size()
        expected = [int(rank == root) for rank in range(self.size())]

        def source() -> torch.Tensor:
            if not is_root:
                return torch.empty((0, output.numel()), dtype=output.dtype)
            if len(inputs) != self.size():
                raise Refusal(f"scatter has {len(inputs)} tensors for {self.size()} ranks")
            if any(tensor.numel() != output.numel() for tensor in inputs):
                raise Refusal(
                    f"scatter has tensors of {[tensor.numel() for tensor in inputs]} elements for outputs of "
                    f"{output.numel()}"
                )
            return flatten(inputs).view(self.size(), -1)

        return self._alltoall("scatter", source, rows, [output], expected, options)

    def alltoall(
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> RuedaWork:
        """Gives rank r the r-th of the inputs and takes its into the r-th of the outputs."""
        rows = [tensor.numel() for tensor in input_tensors]
        expected = [tensor.numel() for tensor in output_tensors]
        return self._alltoall(
            "all-to-all",
            lambda: flatten(input_tensors),
            rows,
            list(output_tensors),
            expected,
            opts,
        )

    def all_to_all_single(  # type: ignore[override]
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> RuedaWork:
        """Gives rank r the next ``input_split_sizes[r]`` rows of the input, by default equally many."""
        size = self.size()

        def rows(tensor: torch.Tensor, splits: Sequence[int], what: str) -> list[int]:
            extent = tensor.shape[0] if tensor.dim() else 0
            if len(splits) == 0:
                if extent % size != 0:
                    raise Refusal(f"the {extent} rows of the {what} do not divide by {size} ranks")
                return [extent // size] * size
            if len(splits) != size or sum(splits) != extent:
                raise Refusal(
                    f"the splits {list(splits)} of the {what} must be {size} numbers that add up to {extent}"
                )
            return [int(split) for split in splits]

        options = timeout if timeout is not None else opts
        try:
            sent = rows(input, input_split_sizes, "input")
            expected = rows(output, output_split_sizes, "output")
        except Refusal as refusal:
            return self._refused("all-to-all", refusal, options)
        return self._alltoall(
            "all-to-all", lambda: read(input)[0], sent, [output], expected, options
        )

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _alltoall(
        self,
        what: str,
        source_of: Any,
        rows: list[int],
        outputs: Sequence[torch.Tensor],
        expected: list[int],
        options: Any,
    ) -> RuedaWork:
        """Sends ``rows[r]`` rows to rank r; ``expected[r]`` come from it, into the outputs one after the other."""
        set_id = self._membership.set_id
        try:
            source, view = read(source_of())
            targets = [target_of(output) for output in outputs]
            for target in targets:
                _require_dtype(target, view)
        except Refusal as refusal:
            return self._refused(what, refusal, options)

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            received = natives[0].received_splits()
            if received != expected:
                raise MismatchError(
                    f"{what}: rank {self.rank()} expects {expected} rows from the ranks of the group, but was sent "
                    f"{received}"
                )
            _hand_out(natives[0], targets, what)
            return list(outputs)

        return self._collective(
            what,
            (12, view.shape[1:], view.dtype),
            lambda name: [
                _native.alltoall(view.pointer, view.shape, view.dtype, rows, name, set_id)
            ],
            finish,
            (source, targets),
            options,
        )


def _gathered(source: torch.Tensor, targets: list[Target], size: int) -> View:
    """What a rank gives to an all-gather, in a shape by which ranks see that they agree."""
    for target in targets:
        _require_dtype(target, read(source)[1])
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


def _require_dtype(target: Target, view: View) -> None:
    if target.view.dtype != view.dtype:
        raise Refusal(
            f"the output is {dtypes.name_of(target.view.dtype)}, the input {dtypes.name_of(view.dtype)}"
        )


def _hand_out(native: _native.Handle, targets: Sequence[Target], what: str) -> None:
    """Copies a result to where it belongs, piece after piece."""
    if not targets:
        return
    memory, shape = native.output(dtypes.item_size(targets[0].view.dtype))
    flat = _adapter.from_memory(memory, shape, targets[0].tensor).reshape(-1)
    numbers = [target.tensor.numel() for target in targets]
    if flat.numel() != sum(numbers):
        raise MismatchError(
            f"{what}: the outputs have {numbers} elements, but {flat.numel()} have come"
        )
    for target, part in zip(targets, torch.split(flat, numbers), strict=True):
        target.fill(part)
