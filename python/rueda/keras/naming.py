"""Names of optimizers' operations, by which ranks match them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from rueda.lifecycle import world_number
from rueda.process_sets import ProcessSet, number_of

__all__ = ["default_name"]

# For each world, process set and class: how many optimizers have been named.
_named: Counter[tuple[int, int, str]] = Counter()


def default_name(optimizer: Any, process_set: ProcessSet) -> str:
    """The name of the operations of an optimizer for which the program gives none.

    Keras numbers optimizers without a name of their own, also those that are never distributed, of which a rank may
    have more than others. So these are numbered again here, for each class. Raises
    :class:`rueda.InvalidArgumentError` for a set that has not been added.
    """
    own = str(getattr(optimizer, "name", ""))
    kind = re.sub(r"_\d+$", "", own)
    if kind.replace("_", "").lower() != type(optimizer).__name__.replace("_", "").lower():
        return f"keras.{own}"  # a name that the program has given
    key = world_number(), number_of(process_set), type(optimizer).__name__
    number = _named[key]
    _named[key] += 1
    return f"keras.{kind}.{number}" if number else f"keras.{kind}"
