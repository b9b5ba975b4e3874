"""A sparse allreduce, which consists of several operations, as one operation of a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from rueda import _native
from rueda.torch.c10d.work import RuedaWork
from rueda.torch.compiling import never_compiled
from rueda.torch.sparse import SparseHandle, begun
from rueda.torch.sparse_rows import keys_of
from rueda.torch.sparse_steps import SparseAllreduce

__all__ = ["SparseExchange", "SparseWork"]


class SparseExchange:
    """Implements the part of a native handle that :class:`RuedaWork` and its handle use.

    Raises Refusal for a tensor that cannot be used.
    """

    def __init__(self, wanted: SparseAllreduce, tensor: torch.Tensor) -> None:
        wanted.check(tensor)
        keys_of(tensor._indices(), tensor.shape[: tensor.sparse_dim()])  # only for its checks
        self._wanted = wanted
        self._tensor = tensor
        self._handle: SparseHandle | None = None

    def begin(self, name: str) -> Sequence[_native.Handle]:
        """Begins the allreduce under the name from the group; returns this object in place of native handles."""
        self._handle = begun(replace(self._wanted, name=name), self._tensor)
        return (cast(_native.Handle, self),)

    def when_ended(self, call: Callable[[], object]) -> None:
        """Calls ``call`` once the allreduce has ended."""
        self._begun().when_ended(call)

    def result(self) -> torch.Tensor:
        """Waits for the result; raises the allreduce's error."""
        return self._begun().result()

    def wait(self, timeout: float | None = None) -> bool:
        """See Handle."""
        return self._begun().wait(timeout)

    def done(self) -> bool:
        """See Handle."""
        return self._begun().done()

    def finished(self) -> bool:
        """See Handle. Starts no further phase, as it may be called while one is being started."""
        return self._begun()._is_over()

    def check(self) -> None:
        """Raises the allreduce's error, if any."""
        self.result()

    def _begun(self) -> SparseHandle:
        assert self._handle is not None
        return self._handle


@never_compiled
class SparseWork(RuedaWork):
    """The future of a sparse allreduce."""

    def __init__(self, exchange: SparseExchange, *arguments: Any, **options: Any) -> None:
        self._exchange = exchange
        super().__init__(*arguments, **options)

    def _be_completed(self) -> None:
        self._exchange.when_ended(self.on_done)
