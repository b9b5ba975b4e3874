"""What is saved: the states of an application's parts, taken apart into tensors and the rest.

Tensors get the names that torch's planner gives them (``model.0.weight``). The structure around them, with slots in
place of tensors, is pickled separately: torch's own entries support neither all kinds of dictionary keys nor tuples.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.nn.parameter import is_lazy

from rueda.checkpoint.own_states import divided
from rueda.checkpoint.strategies import require_alike
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.pickling import dumps
from rueda.torch.layouts import Strides, strides_of, strides_of_parameters
from rueda.torch.left_out import refuse_strategy
from rueda.torch.optimizer import Distributed
from rueda.torch.reproducible import Reproducible

__all__ = [
    "PARTS",
    "VALUE",
    "Content",
    "Kind",
    "Slot",
    "collect",
    "described",
    "difference",
    "is_of_value",
    "kind_of",
    "own_key",
    "pickled",
    "put_together",
    "require_loadable",
    "slots_in",
]

# Prefix of Rueda's own entries in a checkpoint, next to those of the application's parts.
_RESERVED = "rueda"
# In a rank's own entry: what each_rank is, and for each part what other ranks do not have.
VALUE, PARTS = "value", "parts"


def own_key(rank: int) -> str:
    """The entry for this rank's own data; the names of its tensors begin with it, too."""
    return f"{_RESERVED}.rank.{rank}"


def is_of_value(name: str) -> bool:
    """Whether a tensor of this name belongs to a rank's ``each_rank``."""
    return name.startswith(f"{_RESERVED}.rank.") and name.split(".")[3] == VALUE


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor, which is a separate entry, with its elements in row-major order.

    ``strides``: where it was saved; ``None`` in checkpoints of earlier versions.
    """

    name: str
    strides: Strides | None = None


@dataclass(frozen=True)
class Kind:
    """What must match where a state is loaded. ``shapes``: of an optimizer's parameters, in each group.

    ``strides``: of these parameters where the state was saved, which need not match; ``None`` in checkpoints of earlier
    versions.
    """

    name: str
    shapes: list[list[tuple[int, ...]]] | None = None
    strides: list[Strides | None] | None = field(default=None, repr=False, compare=False)


@dataclass
class Content:
    """The state of this rank. Nothing is copied yet.

    ``tensors``, ``leaves``: by name in the checkpoint, what is the same on all ranks; ``paths``: the place of each in
    the nested states. ``of_first``: tensors whose values may differ; the first rank's are saved.
    ``extra``: names of all tensors and leaves from modules' get_extra_state(), which may differ between ranks in number
    and size; the first rank's are saved. ``states``: for each part, its kind and its state with slots.
    ``own``, ``own_tensors``: the same for data of this rank alone, under ``VALUE`` and ``PARTS``.
    """

    tensors: dict[str, torch.Tensor]
    leaves: dict[str, Any]
    paths: dict[str, Any]
    of_first: set[str]
    extra: set[str]
    states: dict[str, Any]
    own: Any
    own_tensors: dict[str, torch.Tensor]


def collect(parts: Mapping[str, Any], each_rank: object, rank: int) -> Content:
    """Gets the state of each part.

    Raises :class:`rueda.InvalidArgumentError` for parts without a state and for repeated names, and
    :class:`rueda.UnsupportedError` for tensors that are sharded, sparse, nested, quantized or without data, and for
    optimizers whose states differ between ranks.
    """
    nested: dict[str, Any] = {}
    own: dict[str, Any] = {}
    of_first: set[str] = set()
    for name, part in parts.items():
        require_alike(name, part)
        state, of_rank = divided(state_of(name, part))
        if of_rank:
            own[name] = of_rank
        if isinstance(part, torch.nn.Module):
            buffers = part.named_buffers(remove_duplicate=False)
            of_first.update(f"{name}.{buffer}" for buffer, _ in buffers)
        nested[name] = state
    flat, paths = _flattened(nested)
    tensors = {name: each for name, each in flat.items() if isinstance(each, torch.Tensor)}
    for name, tensor in tensors.items():
        _require_plain(name, tensor)
    names = {id(tensor): name for name, tensor in tensors.items()}
    states = {
        name: (kind_of(name, part), _taken_apart(nested[name], names))
        for name, part in parts.items()
    }
    own_nested = {own_key(rank): {VALUE: each_rank, PARTS: own}}
    own_flat, _ = _flattened(own_nested)
    own_tensors = {name: each for name, each in own_flat.items() if isinstance(each, torch.Tensor)}
    for name, tensor in own_tensors.items():
        _require_plain(name, tensor)
    own_names = {id(tensor): name for name, tensor in own_tensors.items()}
    leaves = {name: each for name, each in flat.items() if name not in tensors}
    extra = {
        name
        for name, path in paths.items()
        if isinstance(parts[path[0]], torch.nn.Module) and _is_extra(path[1])
    }
    own_state = _taken_apart(own_nested[own_key(rank)], own_names)
    return Content(tensors, leaves, paths, of_first, extra, states, own_state, own_tensors)


def described(content: Content) -> dict[str, object]:
    """What must be the same on all ranks, for each part."""
    told: dict[str, list[str]] = {name: [str(kind)] for name, (kind, _) in content.states.items()}
    for name, tensor in content.tensors.items():
        if name not in content.extra:
            told[content.paths[name][0]].append(f"{name} {_told(tensor.shape, tensor.dtype)}")
    for name in content.leaves:
        if name not in content.extra:
            told[content.paths[name][0]].append(name)
    return {f"the state '{name}'": "; ".join(each) for name, each in told.items()}


def state_of(name: str, part: Any) -> Any:
    """A part's ``state_dict()``."""
    if name.partition(".")[0] == _RESERVED or not name:
        raise InvalidArgumentError(f"{name!r} cannot be the name of a state: Rueda uses it")
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        raise InvalidArgumentError(
            f"{name}: a {type(part).__name__} has no state_dict() and load_state_dict(); plain values go into extra"
        )
    return part.state_dict()


def _flattened(nested: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flattens like torch, so that torch finds everything under the names that it expects."""
    planner = DefaultSavePlanner()
    try:
        planner.set_up_planner(nested)
    except ValueError as error:
        raise InvalidArgumentError(f"the state has a name twice: {error}") from error
    return dict(planner.state_dict), dict(planner.mappings)


def _require_plain(name: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise UnsupportedError(
            f"'{name}' has no shape and no data yet: pass a batch through the lazy module first"
        )
    if hasattr(tensor, "__create_write_items__") or hasattr(tensor, "local_shards"):
        raise UnsupportedError(
            f"'{name}' is sharded, a {type(tensor).__name__}: rueda.checkpoint saves what every rank has as a whole. "
            "Use torch.distributed.checkpoint, which works over the backend rueda"
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else "sparse"
        raise UnsupportedError(f"'{name}' is {kind}: only dense tensors can be saved")
    if tensor.is_quantized:
        raise UnsupportedError(
            f"'{name}' is quantized: save its int_repr(), scales and zero points"
        )
    if tensor.is_meta:
        raise UnsupportedError(f"'{name}' is on the device meta and has no data")


def _taken_apart(value: Any, names: Mapping[int, str]) -> Any:
    """``value`` with a slot for each tensor that has a name; others, such as tensors in tuples, stay."""
    if isinstance(value, torch.Tensor):
        name = names.get(id(value))
        return value.detach().cpu().clone() if name is None else Slot(name, strides_of(value))
    if type(value) in (dict, OrderedDict):
        made = type(value)((key, _taken_apart(item, names)) for key, item in value.items())
        if hasattr(value, "_metadata"):  # a module's: the versions of its layers
            made._metadata = value._metadata
        return made
    if type(value) in (list, tuple):
        return type(value)(_taken_apart(item, names) for item in value)
    return value


def put_together(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The inverse of :func:`_taken_apart`."""
    if isinstance(value, Slot):
        return tensors[value.name]
    if type(value) in (dict, OrderedDict):
        made = type(value)((key, put_together(item, tensors)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            made._metadata = value._metadata
        return made
    if type(value) in (list, tuple):
        return type(value)(put_together(item, tensors) for item in value)
    return value


def slots_in(value: Any) -> Iterator[Slot]:
    """The slots for tensors."""
    if isinstance(value, Slot):
        yield value
    elif type(value) in (dict, OrderedDict):
        for item in value.values():
            yield from slots_in(item)
    elif type(value) in (list, tuple):
        for item in value:
            yield from slots_in(item)


def pickled(what: str, value: object) -> bytes:
    """Pickles ``value``. Raises :class:`rueda.InvalidArgumentError` if pickle refuses it."""
    try:
        return dumps(value)
    except Exception as error:  # whatever the object's own __reduce__ raises
        raise InvalidArgumentError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}"
        ) from error


def kind_of(name: str, part: Any) -> Kind:
    """The kind of an object whose state is saved or loaded.

    Raises :class:`rueda.InvalidArgumentError` for an optimizer of parameters that have no shape yet.
    """
    if isinstance(part, torch.optim.Optimizer):
        for where, each in _parameters_of(part):
            if is_lazy(each):
                raise InvalidArgumentError(
                    f"{name}: {where} has no shape yet: pass a batch through the lazy module first"
                )
        shapes = [[tuple(each.shape) for each in group["params"]] for group in part.param_groups]
        return Kind(type(part).__name__, shapes, strides_of_parameters(part))
    if isinstance(part, torch.nn.Module):
        return Kind("Module")  # of any class: its tensors' names and shapes count
    return Kind(type(part).__name__)


def require_loadable(name: str, part: Any, state: Any) -> None:
    """Raises :class:`rueda.UnsupportedError` for a module or an optimizer into which nothing can be copied."""
    tensors: Iterable[tuple[str, Any]] = ()
    if isinstance(part, torch.nn.Module):
        tensors = ((f"'{name}.{key}'", each) for key, each in state.items())
    elif isinstance(part, torch.optim.Optimizer):
        tensors = ((f"{name}: {where}", each) for where, each in _parameters_of(part))
    for where, each in tensors:
        if isinstance(each, torch.Tensor) and each.is_meta:
            raise UnsupportedError(
                f"{where} is on the device meta and has no memory: call the module's to_empty() before loading"
            )


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    for number, group in enumerate(optimizer.param_groups):
        for position, each in enumerate(group["params"]):
            yield f"parameter {position} of group {number}", each


def difference(
    name: str, part: Any, kind: Kind, state: Any, shapes: Mapping[str, tuple[Any, Any]]
) -> str | None:
    """Why a state cannot be loaded into a part; ``shapes``: extents and dtype of the checkpoint's tensors."""
    own = kind_of(name, part)
    if own.name != kind.name:
        return f"{name}: the checkpoint has the state of a {kind.name}, but this is a {own.name}"
    if isinstance(part, Distributed | Reproducible):
        try:
            refuse_strategy(state)
        except InvalidArgumentError as error:
            return f"{name}: {error}"
    if own.shapes is not None:
        return _difference_of_groups(name, kind.shapes or [], own.shapes)
    if isinstance(part, torch.nn.Module):
        return _difference_of_modules(name, part, state, shapes)
    return None


def _difference_of_groups(
    name: str, saved: list[list[tuple[int, ...]]], own: list[list[tuple[int, ...]]]
) -> str | None:
    if len(saved) != len(own):
        return f"{name}: the checkpoint has {len(saved)} groups of parameters, and this optimizer {len(own)}"
    for group, (theirs, mine) in enumerate(zip(saved, own, strict=True)):
        if len(theirs) != len(mine):
            return (
                f"{name}: group {group} has {len(theirs)} parameters in the checkpoint, and {len(mine)} in this "
                "optimizer"
            )
        for number, (its, shape) in enumerate(zip(theirs, mine, strict=True)):
            if its != shape:
                return (
                    f"{name}: parameter {number} of group {group} has the shape {list(its)} in the checkpoint, and "
                    f"{list(shape)} in this optimizer"
                )
    return None


def _difference_of_modules(
    name: str, module: torch.nn.Module, state: Any, shapes: Mapping[str, tuple[Any, Any]]
) -> str | None:
    saved = {
        key: _told(*shapes[slot.name]) if isinstance(slot, Slot) else "no tensor"
        for key, slot in state.items()
    }
    mine = {
        key: _told_in(value, shapes, state.get(key))
        if isinstance(value, torch.Tensor)
        else "no tensor"
        for key, value in module.state_dict().items()
    }
    for each in (mine, saved):
        each.update({key: "extra state" for key in each if _is_extra(key)})
    differing = [
        key for key in [*mine, *(set(saved) - set(mine))] if mine.get(key) != saved.get(key)
    ]
    if not differing:
        return None
    told_of = [
        f"'{key}' is {saved.get(key, 'missing')} in the checkpoint, and {mine.get(key, 'missing')} in this model"
        for key in differing[:3]
    ]
    more = f"; {len(differing) - 3} more differ" if len(differing) > 3 else ""
    return f"{name}: {'; '.join(told_of)}{more}"


def _is_extra(key: object) -> bool:
    """Whether it comes from a module's get_extra_state(): it may be of any kind and size, such as a byte tensor."""
    return str(key).rpartition(".")[2] == _EXTRA_STATE_KEY_SUFFIX


def _told(extents: Any, dtype: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(extents)}"


def _told_in(value: torch.Tensor, shapes: Mapping[str, tuple[Any, Any]], saved: Any) -> str:
    """A module's tensor; that of a lazy module takes the shape of the ``saved`` one."""
    if not is_lazy(value):
        return _told(value.shape, value.dtype)
    if isinstance(saved, Slot):
        return _told(shapes[saved.name][0], value.dtype)
    return f"{str(value.dtype).removeprefix('torch.')} of any shape"
