"""Arrow columns as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rueda.errors import InvalidArgumentError

__all__ = ["arrays", "is_list"]


def arrays(batch: pa.RecordBatch) -> dict[str, npt.NDArray[Any]]:
    """Each column of a batch as a writable array; lists, nested ones too, become further dimensions.

    Raises :class:`rueda.InvalidArgumentError` for a column whose lists differ in length or are null.

    Example::

        >>> import pyarrow as pa
        >>> batch = pa.RecordBatch.from_pydict({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
        >>> {name: array.shape for name, array in rueda.spark.arrays(batch).items()}
        {'x': (2, 2), 'y': (2,)}
    """
    return {
        name: np.require(_array(name, column), requirements="W")
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists, which become a dimension."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _array(name: str, column: pa.Array) -> npt.NDArray[Any]:
    if not is_list(column.type):
        array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return array
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) > 1 or None in lengths:
        raise InvalidArgumentError(
            f"column '{name}' has lists of {', '.join(map(str, sorted(lengths, key=str)))} values in one batch: an "
            "array needs them to be of one length"
        )
    values = _array(name, column.flatten())
    return values.reshape(len(column), lengths[0] if lengths else 0, *values.shape[1:])
