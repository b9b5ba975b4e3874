"""TensorFlow gradient tapes that reduce their gradients over the ranks, with Horovod's signatures."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.tensorflow.compression import Compression
from rueda.horovod.tensorflow.gradients import Gradients, check_groups
from rueda.horovod.tensorflow.host import translated
from rueda.horovod.tensorflow.reduce_ops import Average
from rueda.horovod.tensorflow.reductions import allreduce

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _Tape:
    """A ``tf.GradientTape`` whose ``gradient()`` reduces over the ranks."""

    def __init__(self, tape: Any, gradients: Gradients, sparse: Any) -> None:
        self._tape = tape
        self._gradients = gradients
        self._sparse = sparse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def __enter__(self) -> Any:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def register_local_source(self, source: Any) -> None:
        """Keeps this variable's gradients on their rank from now on."""
        self._gradients.register(source)

    @translated
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> Any:
        """Like ``tf.GradientTape.gradient()``, then reduced; a gradient must be ``None`` on all ranks or on none."""
        found = self._tape.gradient(target, sources, output_gradients)
        variables = tf.nest.flatten(sources)
        results = tf.nest.flatten(found)
        slices = [
            i
            for i, g in enumerate(results)
            if self._sparse is not None
            and isinstance(g, tf.IndexedSlices)
            and not self._gradients.is_local(variables[i])
        ]
        dense = [i for i in range(len(results)) if i not in slices]
        reduced = self._gradients(
            "tensorflow", [results[i] for i in dense], [variables[i] for i in dense]
        )
        for index, gradient in zip(dense, reduced, strict=True):
            results[index] = gradient
        for index in slices:
            results[index] = self._sparse(results[index])
        return tf.nest.pack_sequence_as(sources, results)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """Returns two lists of (variable, gradient) pairs: local ones, which stay on their rank, and reduced ones."""
        found = self.gradient(target, sources, output_gradients)
        pairs = list(zip(sources, found, strict=True))
        local = [pair for pair in pairs if self._gradients.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._gradients.is_local(pair[0])]


def DistributedGradientTape(  # noqa: N802 - Horovod's name, used like a class
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a tape whose ``gradient()`` reduces over the ranks, eagerly and in ``tf.function``.

    ``sparse_as_dense``: converts ``tf.IndexedSlices`` to tensors instead of gathering them. All dense gradients are
    reduced as one group, whatever ``groups`` says.

    Example::

        >>> with tf.GradientTape() as tape:  # doctest: +SKIP
        ...     loss = model(x)
        >>> tape = hvd.DistributedGradientTape(tape)  # doctest: +SKIP
        >>> gradients = tape.gradient(loss, model.trainable_variables)  # doctest: +SKIP
    """
    check_groups(num_groups, groups)
    gradients = Gradients(
        "tensorflow.tape",
        op,
        process_set,
        compression,
        gradient_predivide_factor,
        scale_local=scale_local_gradients,
        agree=False,
    )

    def gathered(slices: Any) -> Any:
        return (
            allreduce(slices, op=op, process_set=process_set) if process_set.included() else slices
        )

    return _Tape(gradtape, gradients, None if sparse_as_dense else gathered)


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name, used like a class
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """:func:`DistributedGradientTape` that leaves the gradients of ``local_layers`` on their rank."""
    variables = local_variables(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in variables:
        tape.register_local_source(variable)
    return tape


def local_variables(layers: Any) -> list[Any]:
    """Returns the trainable variables of one or more layers. Raises ``ValueError`` for anything but Keras layers."""
    if layers is None:
        return []
    several = list(layers) if isinstance(layers, list | tuple | set) else [layers]
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in several):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in several for variable in layer.trainable_weights]
