"""A sparse allreduce, exchange by exchange.

First, every rank learns what the others have. Then, depending on the cost, every rank gets all rows, or each sums a
range of rows for all, or the tensors are sent dense. Sums are formed in rank order, by one rank or by all alike, so
every rank has the same bits.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from rueda import _native
from rueda.adapter import Refusal, unusable
from rueda.arguments import factor_of
from rueda.errors import MismatchError, RuedaError
from rueda.operations import Average, BitOr, ReduceOp, Sum
from rueda.process_sets import ProcessSet
from rueda.submission import Collectives, refuse
from rueda.torch.compression import Compressor
from rueda.torch.differences import difference
from rueda.torch.phases import Steps
from rueda.torch.sparse_choice import (
    ALGORITHMS,
    Exchange,
    SparseChoice,
    algorithm_number,
    choose_sparse_algorithm,
)
from rueda.torch.sparse_messages import Header, Layout, Received, headers_in
from rueda.torch.sparse_rows import (
    SIGNED,
    Rows,
    indices_of,
    keys_of,
    sum_at,
    sum_of,
)
from rueda.torch.sparse_sample import sample_of
from rueda.torch.tensors import TorchAdapter, code_of

__all__ = ["SparseAllreduce"]

_collectives = Collectives(TorchAdapter())


@dataclass(frozen=True)
class SparseAllreduce:
    """The arguments of a sparse allreduce.

    ``name``: None for an unnamed operation. ``copies``: for a caller who may write the tensor before the end.
    """

    name: str | None
    op: ReduceOp
    factors: tuple[float, float]
    process_set: ProcessSet
    compression: Compressor
    algorithm: str
    copies: bool = False

    def steps(
        self, tensor: torch.Tensor, tell: Callable[[SparseChoice], None]
    ) -> Steps[torch.Tensor]:
        """The exchanges for one tensor; raises Refusal immediately if it cannot be used.

        ``tell`` is called with the algorithm, once the ranks have agreed on it.
        """
        try:
            exchange = _Exchange(self, tensor, tell)
        except (Refusal, RuedaError):
            raise
        except Exception as error:  # from torch or the compressor: every rank is told
            raise unusable(tensor, error) from error
        return exchange.steps()

    def check(self, tensor: torch.Tensor) -> None:
        """Raises Refusal if such tensors are not supported."""
        if not isinstance(tensor, torch.Tensor):
            raise Refusal(f"rueda.torch takes tensors, not a {type(tensor).__name__}")
        if not hasattr(self.compression, "compress"):
            raise Refusal(
                f"compression={self.compression!r}: a codec is for dense tensors; sparse ones take "
                "rueda.torch.Compression.fp16, bf16 or a compressor of your own"
            )
        if self.op not in (Average, Sum):
            raise Refusal(f"op={self.op!r}: sparse tensors are averaged or summed")
        if tensor.layout != torch.sparse_coo:
            raise Refusal(f"the tensor's layout is {tensor.layout}, not torch.sparse_coo", True)
        dtype = tensor.dtype
        if code_of(dtype) is None or tensor.device.type != "cpu":
            raise Refusal(f"sparse {dtype} on '{tensor.device}' is not supported", True)
        if dtype == torch.bool and self.op == Average:
            raise Refusal("average of bool is not defined", True)
        if not all(math.isfinite(factor_of(factor)) for factor in self.factors):
            raise Refusal(f"scale factors must be finite, got {self.factors}")
        if not (dtype.is_floating_point or dtype.is_complex) and self.factors != (1.0, 1.0):
            raise Refusal(f"sparse tensors of {dtype} are not scaled: scale the result", True)


class _Exchange:
    def __init__(
        self, how: SparseAllreduce, tensor: torch.Tensor, tell: Callable[[SparseChoice], None]
    ) -> None:
        how.check(tensor)
        self._how = how
        self._tell = tell
        self._exchange = Exchange.of_world()
        like = self._like = tensor.detach()
        self._extents = like.shape[: like.sparse_dim()]
        self._dense_shape = like.shape[like.sparse_dim() :]
        values = like._values()
        width = math.prod(self._dense_shape)
        keys = keys_of(like._indices(), self._extents)
        rows = Rows(keys, values.reshape(len(keys), width))
        if not like.is_coalesced() or how.factors[0] != 1.0:
            rows = sum_of(rows, how.factors[0])
        elif how.copies:
            rows = Rows(rows.keys.clone(), rows.values.clone())
        narrow = rows.values.reshape(len(rows.keys), *self._dense_shape)
        wire, self._context = how.compression.compress(narrow)
        wire_code = code_of(wire.dtype)
        if wire_code is None:
            raise Refusal(f"{wire.dtype}, to which it was compressed, is not supported", True)
        self._rows = Rows(rows.keys, wire.reshape(len(rows.keys), width))
        self._layout = Layout(math.prod(self._extents), width, wire.dtype)
        is_inline = (
            how.algorithm == "auto"
            and len(rows.keys) * self._layout.sent_bytes <= self._exchange.inline_bytes
        )
        self._header = Header(
            _native.rank(),
            0 if how.name else secrets.randbits(62),
            len(rows.keys),
            int(how.op),
            how.factors,
            (code_of(like.dtype) or 0, wire_code),
            algorithm_number(how.algorithm),
            like.sparse_dim(),
            tuple(like.shape),
            rows.keys if is_inline else sample_of(rows.keys),
            self._rows if is_inline else None,
        )
        # Built before anything is submitted: until then, other ranks can still be told that this rank fails.
        self._message = self._header.message(self._layout)

    def steps(self) -> Steps[torch.Tensor]:
        how, layout = self._how, self._layout
        (memory,) = yield [_collectives.allgather(self._message, how.name, how.process_set)]
        headers = headers_in(memory, self._header.agreed(), layout)
        _require_agreement(how.name, headers)
        divisor = len(headers)
        if divisor < how.process_set.size() and _native.options()["join_average"] == "all":
            divisor = how.process_set.size()
        counts = [header.rows for header in headers]
        if all(header.values for header in headers):
            places = [(header.keys, header.values, header.rows) for header in headers]
            rows = self._summed(places, divisor)
            self._tell(self._choice(counts, len(rows.keys))._replace(algorithm="gather"))
            return self._result(rows)
        sample = _native.UnionSample(
            [(header.keys, header.key_count, header.rows) for header in headers],
            layout.key_dtype.itemsize,
            layout.extent,
        )
        choice = self._choice(counts, sample.rows)
        if choice.algorithm == "split" and len(headers) < how.process_set.size():
            # Some ranks have joined, and cannot take part in an alltoall.
            is_less = choice.dense_bytes < choice.gather_bytes
            choice = choice._replace(algorithm="dense" if is_less else "gather")
        self._tell(choice)
        if not any(counts):
            return self._result(self._rows)
        name = how.name or f"sparse {headers[0].token}"
        if choice.algorithm == "split":
            rows = yield from self._split(name, divisor, sample.boundaries(len(headers)))
        elif choice.algorithm == "dense":
            rows = yield from self._dense(name)
        else:
            rows = yield from self._gather(name, divisor, counts)
        return self._result(rows)

    def _choice(self, counts: Sequence[int], union: int) -> SparseChoice:
        choice = choose_sparse_algorithm(
            counts,
            union,
            self._layout.extent,
            self._layout.row_bytes,
            self._exchange.equal_bytes,
        )
        wanted = self._how.algorithm
        return choice if wanted == "auto" else choice._replace(algorithm=wanted)

    def _gather(self, name: str, divisor: int, counts: Sequence[int]) -> Steps[Rows]:
        rows = yield from self._gathered(f"{name}/rows", self._rows)
        if len(rows.keys) != sum(counts):
            raise MismatchError(
                f"'{name}': a rank has joined before its sparse tensor had been reduced: wait for its handle before "
                f"join()",
                tensor=name,
            )
        return self._summed(rows.places(counts), divisor)

    def _split(self, name: str, divisor: int, boundaries: Sequence[int]) -> Steps[Rows]:
        how, rows = self._how, self._rows
        places = [
            0,
            *torch.searchsorted(rows.keys, torch.tensor(boundaries, device="cpu")).tolist(),
            len(rows.keys),
        ]
        sizes = [end - begin for begin, end in pairwise(places)]
        (values, received), (keys, _) = yield [
            _collectives.alltoall_with_counts(sent, sizes, f"{name}/{what}", how.process_set)
            for sent, what in ((rows.values, "rows"), (self._layout.sent(rows.keys), "rows' keys"))
        ]
        sums = self._summed(Rows(keys, values).places(received.tolist()), divisor)
        rows = yield from self._gathered(f"{name}/sums", sums)
        return Rows(rows.keys.to(torch.int64), rows.values)

    def _gathered(self, name: str, rows: Rows) -> Steps[Rows]:
        """All ranks' rows, in rank order."""
        keys = self._layout.sent(rows.keys)
        values, keys = yield [
            _collectives.allgather(rows.values, name, self._how.process_set),
            _collectives.allgather(keys, f"{name}' keys", self._how.process_set),
        ]
        return Rows(keys, values)

    def _dense(self, name: str) -> Steps[Rows]:
        how, layout, rows = self._how, self._layout, self._rows
        computed = SIGNED.get(layout.dtype, layout.dtype)
        try:
            dense = torch.zeros(layout.extent, layout.width, dtype=computed, device="cpu")
            present = torch.zeros(layout.extent, dtype=torch.uint8, device="cpu")
        except (RuntimeError, MemoryError):  # torch's error for too much memory is a RuntimeError
            size = layout.extent * (layout.row_bytes + 1)
            why = Refusal(
                f"there is no memory for the {size} bytes of the dense tensor: algorithm='gather' or 'split' needs none"
            )
            yield [refuse(f"{name}/{part}", how.process_set, why) for part in ("dense", "present")]
            raise AssertionError("refused operations do not succeed") from None
        dense.index_copy_(0, rows.keys, rows.values.view(computed))
        dense = dense.view(layout.dtype)
        present[rows.keys] = 1
        yield [
            _collectives.allreduce(
                dense, f"{name}/dense", how.op, 1.0, how.factors[1], how.process_set, True
            ),
            _collectives.allreduce(
                present, f"{name}/present", BitOr, 1.0, 1.0, how.process_set, True
            ),
        ]
        keys = present.nonzero().squeeze(1)
        return Rows(keys, dense.view(computed).index_select(0, keys).view(layout.dtype))

    def _summed(self, places: Sequence[tuple[int, int, int]], divisor: int) -> Rows:
        """The scaled sum of parts as they were sent, given as for ``sum_at``."""
        layout = self._layout
        divided_by = divisor if self._how.op == Average else 1
        factor = self._how.factors[1]
        return sum_at(places, layout.key_dtype, layout.width, layout.dtype, divided_by, factor)

    def _result(self, rows: Rows) -> torch.Tensor:
        values: Any = rows.values.reshape(len(rows.keys), *self._dense_shape)
        values = self._how.compression.decompress(values, self._context).to(self._like.dtype)
        return torch.sparse_coo_tensor(
            indices_of(rows.keys, self._extents),
            values,
            self._like.shape,
            device=self._like.device,
            is_coalesced=True,
            check_invariants=False,
        )


_FIELDS = ("op", "scale factors", "dtype", "algorithm", "sparse_dim", "shape")


def _described(field: str, value: Any) -> str:
    if field == "shape":
        return str([*value])
    if field == "op":
        return ReduceOp(value).name.lower()
    if field == "algorithm":
        return ALGORITHMS[value]
    if field == "dtype":
        names = [name for name, _ in _native.data_types()]
        tensor, wire = (names[code] for code in value)
        return tensor if tensor == wire else f"{tensor} as {wire}"
    return str(value)


def _require_agreement(name: str | None, headers: Sequence[Received]) -> None:
    """Raises the same error on every rank if tensors or arguments differ."""
    if all(header.agreed == headers[0].agreed for header in headers):
        return
    told = [header.agreed for header in headers]
    number = next(i for i in range(len(_FIELDS)) if len({each[i] for each in told}) > 1)
    field = _FIELDS[number]
    what = f"'{name}'" if name else "a sparse allreduce without a name"
    given = [
        (header.rank, _described(field, each[number]))
        for header, each in zip(headers, told, strict=True)
    ]
    raise difference(name, f"{what}: {field} of the sparse tensors", field, given)
