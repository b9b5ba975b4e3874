"""Gradient reduction for Horovod's optimizers and tapes, on top of :mod:`rueda.keras`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rueda.errors import UnsupportedError
from rueda.horovod.process_sets import ProcessSet
from rueda.horovod.tensorflow.compression import Compression
from rueda.horovod.tensorflow.host import in_graph
from rueda.horovod.tensorflow.reduce_ops import Average, element_wise
from rueda.keras.reduction import Reduction

__all__ = ["Gradients", "check_groups"]


def check_groups(num_groups: int, groups: Any) -> None:
    """Raises ``ValueError`` if the groups are neither a positive number nor a list; otherwise they have no effect.

    All gradients are reduced as one group.
    """
    groups = groups if groups is not None or num_groups == 0 else num_groups
    if groups is not None and not (isinstance(groups, list) or groups > 0):
        raise ValueError("groups should be a positive integer or a list of lists of variables")


class Gradients:
    """Reduces lists of gradients over ``process_set``; only scales those of local variables and of other ranks.

    ``predivide``: divides gradients before they are averaged, and multiplies them afterwards. ``factor``: multiplies
    every result. ``scale_local``: whether to divide gradients of local variables by the number of ranks. ``agree``: as
    in :class:`rueda.keras.reduction.Reduction`.
    """

    def __init__(
        self,
        label: str,
        op: Any,
        process_set: ProcessSet,
        compression: Any = Compression.none,
        predivide: float = 1.0,
        factor: float = 1.0,
        scale_local: bool = True,
        agree: bool = True,
    ) -> None:
        wanted = element_wise(op)
        if predivide != 1.0 and wanted != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if compression not in (Compression.none, Compression.fp16):
            raise UnsupportedError(
                f"gradients are compressed by Compression.none and Compression.fp16, not by {compression!r}"
            )
        half = compression is Compression.fp16
        factors = 1.0 / predivide, predivide * factor
        self._reduction = Reduction(label, wanted, process_set, agree, factors, half, in_graph)
        self._process_set = process_set
        self._factor = factor
        self._scale_local = scale_local
        self._local: dict[int, Any] = {}

    def register(self, variable: Any) -> None:
        """Keeps this variable's gradients on their rank from now on."""
        self._local[id(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        """Whether the variable's gradients stay on their rank."""
        return id(variable) in self._local

    def __call__(
        self, backend: str, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Returns the reduced gradients of ``variables``; ``backend``: Keras' name for the backend."""
        results = [None if g is None else g for g in gradients]
        ranks = self._process_set.size() or 1
        if not self._process_set.included():
            return [self._scaled(g, self._factor) for g in results]
        shared = [i for i, variable in enumerate(variables) if not self.is_local(variable)]
        reduced = self._reduction(
            backend, [results[i] for i in shared], [variables[i] for i in shared]
        )
        for index, gradient in enumerate(results):
            if self.is_local(variables[index]):
                share = 1 / ranks if self._scale_local else 1.0
                results[index] = self._scaled(gradient, self._factor * share)
        for index, gradient in zip(shared, reduced, strict=True):
            results[index] = gradient
        return results

    @staticmethod
    def _scaled(gradient: Any, factor: float) -> Any:
        if gradient is None or factor == 1.0:
            return gradient
        # Test the class name: a torch tensor has indices and values, too.
        if type(gradient).__name__ == "IndexedSlices":
            kind, values = type(gradient), gradient.values * factor
            return kind(values, gradient.indices, gradient.dense_shape)
        return gradient * factor
