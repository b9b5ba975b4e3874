"""Strategies by name: from texts, and from Elephas' ``mode`` and ``frequency``."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from difflib import get_close_matches

import numpy as np

from rueda.errors import InvalidArgumentError
from rueda.torch.strategies.accumulation import GradientAccumulation
from rueda.torch.strategies.aeasgd import AEASGD, EAMSGD
from rueda.torch.strategies.des_loc import DESLOC
from rueda.torch.strategies.diloco import DiLoCo
from rueda.torch.strategies.downpour import ADAG, Downpour, DynSGD, Hogwild
from rueda.torch.strategies.easgd import EASGD
from rueda.torch.strategies.gossip import ADPSGD, NoLoCo
from rueda.torch.strategies.local_sgd import EpochAveraging, LocalSGD, PostLocalSGD
from rueda.torch.strategies.sparse_loco import SparseLoCo
from rueda.torch.strategies.ssp import SSP
from rueda.torch.strategies.strategy import Strategy
from rueda.torch.strategies.synchronous import Synchronous

__all__ = ["parse_strategy", "strategy_of"]

_KINDS: tuple[type[Strategy], ...] = (
    Synchronous,
    GradientAccumulation,
    LocalSGD,
    PostLocalSGD,
    EpochAveraging,
    DiLoCo,
    SparseLoCo,
    DESLOC,
    ADPSGD,
    NoLoCo,
    EASGD,
    SSP,
    AEASGD,
    EAMSGD,
    Downpour,
    ADAG,
    DynSGD,
    Hogwild,
)
# Elephas' names.
_SYNONYMS: dict[str, type[Strategy]] = {
    "synchronous": Synchronous,
    "asynchronous": Downpour,
    "async": Downpour,
}


def parse_strategy(text: str) -> Strategy:
    """Returns the strategy that a text such as ``"local:8"`` or ``"diloco:16,codec=int8"`` describes.

    After the name and a colon follow its parameters, separated by commas: ``name=value``, or plain values in the order
    of the class's fields. Raises :class:`rueda.InvalidArgumentError` for an unknown name or parameter.

    Example::

        >>> from rueda.torch.strategies import parse_strategy
        >>> parse_strategy("postlocal:8,after=500")
        PostLocalSGD(period=8, after=500)
    """
    name, _, rest = text.partition(":")
    word = name.strip()
    kind = next((each for each in _KINDS if each.name == word), _SYNONYMS.get(word))
    if kind is None:
        names = [each.name for each in _KINDS]
        near = get_close_matches(re.sub(r"\W|_", "", name).lower(), names, 1, 0.75)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        first = name.partition(",")[0].strip()
        if first != name and first in names:
            hint = f"; parameters come after a colon: '{first}:{name.partition(',')[2].strip()}'"
        raise InvalidArgumentError(
            f"strategy={text!r}: there is no '{name}'; there are {', '.join(names)}{hint}"
        )
    in_order = [field.name for field in fields(kind) if not field.kw_only]
    types = {field.name: str(field.type) for field in fields(kind)}
    values: dict[str, object] = {}
    for position, part in enumerate(filter(None, (each.strip() for each in rest.split(",")))):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = (in_order + [""] * (position + 1))[position], key
        if key not in types or key in values:
            raise InvalidArgumentError(
                f"strategy={text!r}: '{part}' is {'given twice' if key in values else 'no parameter'} of "
                f"{kind.__name__}, which has {', '.join(types) or 'none'}"
            )
        values[key] = _value(text, key, value, types[key])
    return kind(**values)


def _value(text: str, key: str, value: str, kind: str) -> object:
    if kind == "bool":
        if value not in ("yes", "no"):
            raise InvalidArgumentError(f"strategy={text!r}: {key}={value!r} is neither yes nor no")
        return value == "yes"
    if kind == "int | str" and value == "epoch":
        return value
    if kind not in ("int", "float", "int | str"):
        return None if value == "none" else value
    try:
        return float(value) if kind == "float" else int(value)
    except ValueError:
        raise InvalidArgumentError(
            f"strategy={text!r}: {key}={value!r} is not a {'' if kind == 'float' else 'whole '}number"
        ) from None


def strategy_of(
    strategy: Strategy | str | None, mode: str | None, frequency: str | int | None
) -> Strategy:
    """The strategy that wrap()'s arguments select. Raises InvalidArgumentError."""
    if strategy is not None and (mode is not None or frequency is not None):
        raise InvalidArgumentError("strategy= excludes mode= and frequency=, which name one, too")
    if isinstance(strategy, Strategy):
        return _with_plain_numbers(strategy)
    if isinstance(strategy, str):
        return parse_strategy(strategy)
    if strategy is not None:
        raise InvalidArgumentError(f"strategy={strategy!r} is neither a Strategy nor a text")
    if mode not in (None, "synchronous", "asynchronous", "hogwild"):
        raise InvalidArgumentError(
            f"mode={mode!r} is not 'synchronous', 'asynchronous' or 'hogwild'"
        )
    batches = _batches(frequency)
    if mode in ("asynchronous", "hogwild"):
        if batches == 0:
            raise InvalidArgumentError("frequency=0 is not 'batch', 'epoch' or a number of batches")
        kind = Downpour if mode == "asynchronous" else Hogwild
        return kind("epoch" if batches is None else batches)
    if batches is None:
        return EpochAveraging()
    return Synchronous() if batches == 1 else LocalSGD(batches)


def _with_plain_numbers(strategy: Strategy) -> Strategy:
    """The strategy with Python's numbers for NumPy's, whose texts differ though they are equal."""
    values = {field.name: getattr(strategy, field.name) for field in fields(strategy)}
    plain = {name: each.item() for name, each in values.items() if isinstance(each, np.generic)}
    return replace(strategy, **plain) if plain else strategy


def _batches(frequency: str | int | None) -> int | None:
    """The number of batches between exchanges; ``None`` for an epoch."""
    if frequency in (None, "batch"):
        return 1
    if frequency == "epoch":
        return None
    if isinstance(frequency, int | np.integer) and not isinstance(frequency, bool):
        return int(frequency)
    raise InvalidArgumentError(
        f"frequency={frequency!r} is not 'batch', 'epoch' or a number of batches"
    )
