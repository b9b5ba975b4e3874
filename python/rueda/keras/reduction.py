"""Reduces the gradients of one step together, on each Keras backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import rueda
from rueda.errors import RuedaError, UnsupportedError
from rueda.keras.agreement import Entry, agree_on_presence
from rueda.keras.tracing import TracedStep
from rueda.operations import ReduceOp
from rueda.process_sets import ProcessSet

__all__ = ["Reduction"]


class Reduction:
    """Reduces lists of gradients; ``None`` stands for a missing gradient.

    A gradient that some ranks lack counts as zeros there; one that all ranks lack stays ``None``. In compiled steps
    (JAX, TensorFlow), ranks agree on the existing gradients once, while they trace the first step, and check them in
    each step; with ``agree=False`` all ranks must have the same gradients, and tracing needs no other rank.
    ``factors``: the multipliers before and after the reduction. ``half``: send and reduce floating-point numbers as
    float16. ``translate``: maps a Rueda error to the one that TensorFlow gets in a compiled step.
    """

    def __init__(
        self,
        label: str,
        op: ReduceOp,
        process_set: ProcessSet,
        agree: bool = True,
        factors: tuple[float, float] = (1.0, 1.0),
        half: bool = False,
        translate: Callable[[RuedaError], Exception] | None = None,
    ):
        self.label = label
        self._op = op
        self._process_set = process_set
        self._agree = agree
        self._factors = factors
        self._half = half
        self._translate = translate
        self._traced: dict[tuple[Entry, ...], TracedStep] = {}

    def __call__(
        self, backend: str, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Returns the reduced gradients; ``variables`` give the paths and the shapes of missing gradients.

        Raises :class:`rueda.MismatchError` on every rank if they differ in number, shape or dtype, and as
        :func:`rueda.grouped_allreduce`; in compiled steps JAX and TensorFlow raise their own error with its text.
        """
        if not gradients:
            return []
        reduce = {"torch": self._of_torch, "jax": self._of_jax, "tensorflow": self._of_tensorflow}
        if backend not in reduce:
            raise UnsupportedError(
                f"rueda.keras works on the backends torch, jax and tensorflow, not on {backend!r}"
            )
        return reduce[backend](list(gradients), list(variables))

    def _of_torch(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        import torch

        import rueda.torch

        def zeros(variable: Any) -> Any:
            return torch.zeros_like(variable.value if hasattr(variable, "value") else variable)

        def reduced(chosen: list[Any]) -> list[Any]:
            with torch.no_grad():
                sent = [g.half() if self._half and g.is_floating_point() else g for g in chosen]
                found = rueda.torch.grouped_allreduce(
                    sent, self.label, self._op, *self._factors, self._process_set
                )
                return [r.to(g.dtype) for r, g in zip(found, chosen, strict=True)]

        return self._at_once(gradients, variables, zeros, reduced)

    def _of_jax(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        import jax
        import jax.numpy as jnp
        from jax.experimental import io_callback

        def on_host(arrays: list[Any], on_arrays: Callable[..., list[Any]]) -> list[Any]:
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
            result: list[Any] = io_callback(on_arrays, shapes, *arrays, ordered=True)
            return result

        def zeros(variable: Any) -> Any:
            return jnp.zeros(variable.shape, str(variable.dtype))

        return self._compiled(gradients, variables, zeros, on_host)

    def _of_tensorflow(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        import tensorflow as tf

        _refuse_xla(tf)

        def zeros(variable: Any) -> Any:
            return tf.zeros(variable.shape, variable.dtype)

        # Embedding gradients are IndexedSlices.
        dense = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        if tf.executing_eagerly():

            def reduced(chosen: list[Any]) -> list[Any]:
                found = self._reduced([np.asarray(tensor.numpy()) for tensor in chosen])
                return [tf.convert_to_tensor(array) for array in found]

            return self._at_once(dense, variables, zeros, reduced)

        def on_host(tensors: list[Any], on_arrays: Callable[..., list[Any]]) -> list[Any]:
            def translated(*arrays: Any) -> list[Any]:
                try:
                    return on_arrays(*arrays)
                except RuedaError as error:
                    if self._translate is None:
                        raise
                    raise self._translate(error) from error

            types = [tensor.dtype for tensor in tensors]
            results = tf.nest.flatten(tf.numpy_function(translated, tensors, types, stateful=True))
            for result, tensor in zip(results, tensors, strict=True):
                result.set_shape(tensor.shape)
            return list(results)

        return self._compiled(dense, variables, zeros, on_host)

    def _at_once(
        self,
        gradients: list[Any],
        variables: list[Any],
        zeros: Callable[[Any], Any],
        reduced: Callable[[list[Any]], list[Any]],
    ) -> list[Any]:
        """Reduces in an uncompiled step; the set of existing gradients may change from step to step."""
        layout = [_entry(v) for v in variables]
        present = [g is not None for g in gradients]
        possible = [True] * len(present) if self._agree else present
        union = agree_on_presence(self.label, layout, present, possible, self._process_set)
        chosen = [
            zeros(v) if g is None else g
            for g, v, wanted in zip(gradients, variables, union, strict=True)
            if wanted
        ]
        results = iter(reduced(chosen) if chosen else [])
        return [next(results) if wanted else None for wanted in union]

    def _compiled(
        self,
        gradients: list[Any],
        variables: list[Any],
        zeros: Callable[[Any], Any],
        on_host: Callable[[list[Any], Callable[..., list[Any]]], list[Any]],
    ) -> list[Any]:
        """Adds one host call for all gradients to the step that is being traced."""
        layout = tuple(_entry(v) for v in variables)
        present = [g is not None for g in gradients]
        traced = self._trace(layout, present) if self._agree else None
        possible = traced.possible if traced else present
        here = [p or q for p, q in zip(present, possible, strict=True)]
        arrays = [
            zeros(v) if g is None else g
            for g, v, taken in zip(gradients, variables, here, strict=True)
            if taken
        ]

        def on_arrays(*values: Any) -> list[Any]:
            if traced:
                traced.begin()
            union = agree_on_presence(self.label, layout, present, here, self._process_set)
            places = [index for index, taken in enumerate(here) if taken]
            wanted = [place for place, index in enumerate(places) if union[index]]
            results = [np.asarray(value) for value in values]
            reduced = self._reduced([results[place] for place in wanted])
            for place, value in zip(wanted, reduced, strict=True):
                results[place] = value
            return results

        # A rank without gradients calls the host, too: other ranks may have some and would wait.
        results = iter(on_host(arrays or [zeros(variables[0])], on_arrays))
        return [next(results) if taken else None for taken in here]

    def _trace(self, layout: tuple[Entry, ...], present: list[bool]) -> TracedStep:
        """Returns the step of these variables; tracing it again does not communicate unless the world has changed."""
        found = self._traced.get(layout)
        if found is not None:
            found.follow_world()
            return found
        everything = [True] * len(present)
        label = f"{self.label}.traced"
        step = TracedStep(
            lambda: agree_on_presence(label, layout, present, everything, self._process_set)
        )
        self._traced[layout] = step
        return step

    def _reduced(self, arrays: list[Any]) -> list[Any]:
        if not arrays:
            return []
        sent = [self._sent(array) for array in arrays]
        found = rueda.grouped_allreduce(
            sent, self.label, self._op, *self._factors, self._process_set
        )
        return [f.astype(a.dtype, copy=False) for f, a in zip(found, arrays, strict=True)]

    def _sent(self, array: Any) -> Any:
        floats = self._half and np.issubdtype(array.dtype, np.floating)
        return array.astype(np.float16) if floats else array


def _entry(variable: Any) -> Entry:
    path = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    dtype = variable.dtype
    name = getattr(dtype, "name", None) or str(dtype)
    return Entry(
        str(path),
        tuple(-1 if n is None else int(n) for n in variable.shape),
        name.removeprefix("torch."),
    )


def _refuse_xla(tf: Any) -> None:
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.IsXLAContext():
            raise UnsupportedError(
                "jit_compile=True on TensorFlow compiles the step with XLA, which cannot call Rueda: "
                "model.compile(..., jit_compile=False)"
            )
        graph = getattr(graph, "outer_graph", None)
