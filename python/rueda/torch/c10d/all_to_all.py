"""The collectives of a process group that give each rank a different result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from rueda import _native, dtypes
from rueda.adapter import Refusal, View
from rueda.errors import MismatchError
from rueda.torch.c10d.arguments import (
    Target,
    as_refusal,
    hand_out,
    hand_out_usual,
    only,
    read,
    read_flat,
    read_rows,
    require_like,
    result_memory,
    root_of,
    target_of,
    usual_result_memory,
)
from rueda.torch.c10d.keywords import also_named
from rueda.torch.c10d.operations import Operations
from rueda.torch.c10d.placement import placement_of
from rueda.torch.c10d.shapes import are_alike, as_rows
from rueda.torch.compiling import never_compiled
from rueda.torch.tensors import usual_memory_of

__all__ = ["AllToAll"]


@never_compiled
class AllToAll(Operations):
    """gather, scatter and alltoall in all their forms, each implemented as a Rueda all-to-all.

    In alltoall sizes may differ, but each pair of ranks must agree on how much one sends the other.
    """

    @also_named(input_tensor="input_tensors", root="opts")
    def gather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: torch.Tensor | Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Gathers the tensors of all ranks on rank ``opts.rootRank``; the others pass no output."""
        options = timeout if timeout is not None else opts
        try:
            root = root_of(opts, self._size)
            if isinstance(input_tensors, torch.Tensor):
                outputs, tensor = list(output_tensors), input_tensors
            else:
                outputs = list(only(output_tensors)) if output_tensors else []
                tensor = only(input_tensors)
        except Refusal as refusal:
            return self._refused("gather", refusal, options, outputs=output_tensors)
        is_root = root == self.rank()
        rows = [int(rank == root) for rank in range(self.size())]
        expected = [int(is_root)] * self.size()

        def source(targets: list[Target]) -> tuple[torch.Tensor, View]:
            counts = [output.numel() for output in outputs]
            if is_root and counts != [tensor.numel()] * self.size():
                raise Refusal(
                    f"gather has outputs of {counts} elements for {self.size()} ranks that send {tensor.numel()} each"
                )
            given, view = read(tensor)
            if is_root:
                _require_shape(
                    view.shape, [target.view.shape for target in targets], "gather", "outputs"
                )
            return given, as_rows(view, 1, view.shape)

        return self._alltoall("gather", source, rows, outputs, expected, options)

    @also_named(output_tensor="output_tensors", root="opts")
    def scatter(
        self,
        output_tensors: torch.Tensor | Sequence[torch.Tensor],
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Sends each rank one of the tensors of rank ``opts.rootRank``; the others pass no input."""
        options = timeout if timeout is not None else opts
        try:
            root = root_of(opts, self._size)
            if isinstance(output_tensors, torch.Tensor):
                output, inputs = output_tensors, list(input_tensors)
            else:
                output = only(output_tensors)
                inputs = list(only(input_tensors)) if input_tensors else []
        except Refusal as refusal:
            return self._refused("scatter", refusal, options, outputs=output_tensors)
        is_root = root == self.rank()
        rows = [int(is_root)] * self.size()
        expected = [int(rank == root) for rank in range(self.size())]

        def source(targets: list[Target]) -> tuple[torch.Tensor, View]:
            shape = targets[0].view.shape
            if not is_root:
                given, view = read(torch.empty(0, dtype=output.dtype, device=output.device))
                return given, as_rows(view, 0, shape)
            if len(inputs) != self.size():
                raise Refusal(f"scatter has {len(inputs)} tensors for {self.size()} ranks")
            if any(tensor.numel() != output.numel() for tensor in inputs):
                raise Refusal(
                    f"scatter has tensors of {[tensor.numel() for tensor in inputs]} elements for outputs of "
                    f"{output.numel()}"
                )
            given, view = read_rows(inputs)
            _require_shape(shape, [each.shape for each in inputs], "scatter", "tensors")
            return given, as_rows(view, self.size(), shape)

        return self._alltoall("scatter", source, rows, [output], expected, options)

    def alltoall(  # type: ignore[override]  # all overloads in one
        self,
        output_tensors: Sequence[torch.Tensor],
        input_tensors: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Sends the r-th input to rank r and receives that rank's tensor into the r-th output."""
        rows = [tensor.numel() for tensor in input_tensors]
        expected = [tensor.numel() for tensor in output_tensors]

        def source(_: list[Target]) -> tuple[torch.Tensor, View]:
            if not len(rows) == len(expected) == self.size():
                raise Refusal(
                    f"there are {len(rows)} inputs and {len(expected)} outputs for {self.size()} ranks"
                )
            return read_flat(input_tensors)

        options = timeout if timeout is not None else opts
        return self._alltoall("all-to-all", source, rows, list(output_tensors), expected, options)

    def all_to_all_single(  # type: ignore[override]
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Sends the next ``input_split_sizes[r]`` rows of the input to rank r; by default splits them equally."""
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
        except (Refusal, RuntimeError) as error:  # a nested tensor has no shape
            return self._refused("all-to-all", as_refusal(error), options, outputs=output)
        if self._waits_at_once(options):
            source, target = usual_memory_of(input), usual_memory_of(output)
            if source is not None and target is not None and source[2] == target[2]:
                return self._all_to_all_usual(
                    output, target, expected, input, source, sent, options
                )
        return self._alltoall(
            "all-to-all", lambda _: read(input), sent, [output], expected, options
        )

    def _all_to_all_usual(
        self,
        output: torch.Tensor,
        target: tuple[int, int, int],
        expected: list[int],
        input: torch.Tensor,
        source: tuple[int, int, int],
        sent: list[int],
        options: Any,
    ) -> Work:
        """For a caller that would wait immediately, on tensors that can be used in place."""
        pointer, count, code = source
        shape, set_id = input.shape, self._membership.set_id
        item = dtypes.item_size(code)
        memory = usual_result_memory(target[0], target[1] * item, pointer, count * item)
        if not output.is_inference():
            torch.autograd.graph.increment_version(output)

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            self._require_rows(natives[0], expected, "all-to-all")
            hand_out_usual(natives[0], output, code, "all-to-all")
            return [output]

        return self._collective_at_once(
            "all-to-all",
            (12, shape[1:], code),
            lambda name, begun, limit: _native.alltoall(
                pointer, shape, code, sent, name, set_id, -1, 0, *memory, begun=begun, limit=limit
            ),
            finish,
            (input, output),
            options,
        )

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _alltoall(
        self,
        what: str,
        source_of: Callable[[list[Target]], tuple[torch.Tensor, View]],
        rows: list[int],
        outputs: Sequence[torch.Tensor],
        expected: list[int],
        options: Any,
    ) -> Work:
        """Sends ``rows[r]`` rows to rank r and receives ``expected[r]`` from it, into consecutive outputs."""
        set_id = self._membership.set_id
        try:
            targets = [target_of(output) for output in outputs]
            source, view = source_of(targets)
            for target in targets:
                require_like(target, view)
            placement = placement_of(view)
        except (Refusal, ValueError, RuntimeError) as error:
            return self._refused(what, as_refusal(error), options, outputs=outputs)

        def finish(natives: Sequence[_native.Handle]) -> list[torch.Tensor]:
            self._require_rows(natives[0], expected, what)
            hand_out(natives[0], targets, what)
            return list(outputs)

        return self._collective(
            what,
            (12, view.shape[1:], view.dtype),
            lambda name: [
                _native.alltoall(
                    view.pointer,
                    view.shape,
                    view.dtype,
                    rows,
                    name,
                    set_id,
                    view.device,
                    view.stream,
                    *result_memory(targets, view),
                )
            ],
            finish,
            (source, targets),
            options,
            placement,
            outputs=outputs,
        )

    def _require_rows(self, native: _native.Handle, expected: list[int], what: str) -> None:
        received = native.received_splits()
        if received != expected:
            raise MismatchError(
                f"{what}: rank {self.rank()} expects {expected} rows from the ranks of the group, but was sent "
                f"{received}"
            )


def _require_shape(
    expected: Sequence[int], shapes: Sequence[Sequence[int]], what: str, items: str
) -> None:
    """Raises Refusal if an item for or from the root has another shape than the tensor on the other side."""
    if not all(are_alike(shape, expected) for shape in shapes):
        raise Refusal(
            f"{what} has {items} of the shapes {[list(shape) for shape in shapes]}, the other side has {list(expected)}"
        )
