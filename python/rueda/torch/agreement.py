"""Checks whether ranks still have the same parameters; repairs or reports differences."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from rueda import lifecycle
from rueda.error_texts import describe
from rueda.errors import InvalidArgumentError, MismatchError, RuedaError
from rueda.objects import allgather_object
from rueda.operations import Max
from rueda.process_sets import ProcessSet, global_process_set
from rueda.reductions import allreduce
from rueda.torch.exchanges import allgather, broadcast
from rueda.torch.fingerprints import (
    BLOCK_BYTES,
    bits_of,
    block_hashes,
    number_of,
    number_of_words,
    numbers_of,
)
from rueda.torch.shards import are_whole, local_of, part_of

__all__ = ["Divergence", "DivergenceError", "PeriodicCheck", "check_agreement"]

Tensors = (
    torch.nn.Module
    | Mapping[str, torch.Tensor]
    | Iterable[tuple[str, torch.Tensor]]
    | Iterable[torch.Tensor]
)


@dataclass(frozen=True)
class Divergence:
    """A tensor whose bits on some ranks differ from the majority's.

    - ``tensor``: its name.
    - ``ranks``: the ranks with other bits than the majority; without one, than rank ``reference``.
    - ``reference``: a rank of the majority; without one, the first rank.
    - ``has_majority``: whether more than half of the ranks agree.
    - ``element``: the index of the first element that differs on the first of ``ranks``.
    - ``elements``: how many differ there in the first differing block of 32 KiB.
    - ``blocks``: how many blocks of 32 KiB differ there.
    - ``values``: the element's bits as hexadecimal numbers, there and on ``reference``.

    Example::

        >>> from rueda.torch import Divergence
        >>> print(Divergence("weight", (2,), 0, True, (1, 0), 1, 1, ("3f800001", "3f800000")))
        'weight' differs on rank 2: element [1, 0] has the bits 3f800001 on rank 2, ...
    """

    tensor: str
    ranks: tuple[int, ...]
    reference: int
    has_majority: bool
    element: tuple[int, ...]
    elements: int
    blocks: int
    values: tuple[str, str]

    def __str__(self) -> str:
        who = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {list(self.ranks)}"
        more = f", and {self.elements - 1} more beside it" if self.elements > 1 else ""
        more += f", in {self.blocks} blocks of 32 KiB" if self.blocks > 1 else ""
        place = f"element {list(self.element)}" if self.element else "its element"
        return (
            f"'{self.tensor}' differs on {who}: {place} has the bits {self.values[0]} on rank {self.ranks[0]}, "
            f"{self.values[1]} on rank {self.reference}{more}"
        )


class DivergenceError(RuedaError):
    """The ranks no longer have the same tensors. ``divergences`` lists them, the same on every rank.

    Example::

        >>> issubclass(rueda.torch.DivergenceError, rueda.RuedaError)
        True
    """

    recurs = True
    divergences: list[Divergence]

    def __init__(self, divergences: list[Divergence], why: str) -> None:
        first, ranks = divergences[0], {rank for each in divergences for rank in each.ranks}
        more = len(divergences) - 1
        others = (
            f"; {more} more {'tensors differ' if more > 1 else 'tensor differs'}" if more else ""
        )
        peer = next(iter(ranks)) if len(ranks) == 1 and first.has_majority else None
        super().__init__(f"{first}{others}. {why}", peer, tensor=first.tensor)
        self.divergences = divergences


def check_agreement(
    tensors: Tensors,
    optimizer: torch.optim.Optimizer | None = None,
    repair: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Divergence]:
    """Compares the tensors of all ranks bit by bit, to find a flipped bit or a silent divergence.

    ``tensors``: a module, whose parameters are compared, or anything :func:`rueda.torch.broadcast_parameters` accepts.
    ``optimizer``: its state's tensors are compared as well. Any dtype and any layout but sparse; NaNs with different
    bits differ, as do 0.0 and -0.0. If all agree, the ranks reduce only 32 bytes.

    If they differ, raises :class:`DivergenceError` on every rank, which names rank, tensor and element. With
    ``repair``, ranks that differ from more than half get the majority's tensors instead, and the
    differences are returned. Without a majority, as between two ranks, nobody can tell who is right: this raises, and
    no tensor has been changed. Raises :class:`rueda.MismatchError` if the ranks' tensors differ in number, name, shape
    or dtype, and :class:`rueda.InvalidArgumentError` if one rank has something that cannot be compared (a sparse or
    nested tensor, one without data, or not a tensor); both on every rank.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> rueda.torch.check_agreement(model, repair=True)
        []
    """
    named, misfit = _pairs(tensors)
    held: list[tuple[str, torch.Tensor]] = []
    parts: list[str] = []  # which part of each tensor this rank holds; "all" of a whole one
    wholes: list[int] = []
    numbers = _INCOMPARABLE
    try:
        held = named
        parts = ["all"] * len(named)
        if not are_whole([each for _, each in named]):
            held = [(name, local_of(each)) for name, each in named]
            parts = [part_of(each) for _, each in named]
        if optimizer is not None:
            of_optimizer = _state_of(optimizer, named)
            held = held + of_optimizer
            parts += ["all"] * len(of_optimizer)
        if misfit is None and any(tensor.layout != torch.strided for _, tensor in held):
            misfit = _misfit_in(held)
        if misfit is None:
            wholes = numbers_of([tensor for _, tensor in held])
            layout = tuple(
                (name, each.dtype, each.shape, each.layout, part)
                for (name, each), part in zip(held, parts, strict=True)
            )
            numbers = (_number_of_layout(layout), number_of_words(wholes))
    except Exception as error:  # the others are waiting and must be told
        misfit = _misfit_in(held, error)
    agree = _have_all_the_same(numbers, process_set)
    if misfit is None and agree:
        return []
    _require_one_layout(held, parts, misfit, process_set)
    return _handle(held, torch.tensor(wholes, dtype=torch.int64, device="cpu"), repair, process_set)


# What a rank reports if its tensors cannot be compared; no others have these numbers.
_INCOMPARABLE = (-1, -1)


@dataclass(frozen=True)
class _Misfit:
    """Why this rank's tensors cannot be compared. ``name``: the first such tensor; ``""`` if no single one is."""

    name: str
    why: str
    cause: Exception | None = None


def _misfit_in(
    held: Sequence[tuple[str, torch.Tensor]], error: Exception | None = None
) -> _Misfit | None:
    """The first tensor that cannot be compared. ``error``: the error from comparing them all."""
    for name, tensor in held:
        try:
            why = _strangeness(tensor)
            if not why and error is not None:
                numbers_of([tensor])
        except Exception as its:
            return _Misfit(name, f"cannot be compared: {describe(type(its), its)}", its)
        if why:
            return _Misfit(name, why, error)
    if error is None:
        return None
    return _Misfit("", f"cannot be compared: {describe(type(error), error)}", error)


def _strangeness(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "is nested: only dense tensors can be compared"
    if tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        what = "is sparse" if kind.startswith("sparse") else f"has the layout {kind}"
        return f"{what}: only dense tensors can be compared"
    return "is on the meta device: it has no elements to compare" if tensor.is_meta else ""


def _have_all_the_same(numbers: Sequence[int], process_set: ProcessSet) -> bool:
    """Gives the same answer on every rank: numbers are equal everywhere if their maximum equals their minimum."""
    told = np.array([*numbers, *(~each for each in numbers)], np.int64)
    greatest = allreduce(told, "agreement", Max, process_set=process_set)
    return bool((greatest[: len(numbers)] == ~greatest[len(numbers) :]).all())


def _handle(
    named: Sequence[tuple[str, torch.Tensor]],
    wholes: torch.Tensor,
    repair: bool,
    process_set: ProcessSet,
) -> list[Divergence]:
    """Names what differs, and repairs it or raises; the same on every rank."""
    every = allgather(wholes.view(1, -1), "agreement.tensors", process_set)
    differing = [int(i) for i in (every != every[0]).any(0).nonzero()]
    divergences = [_located(*named[i], every[:, i].tolist(), process_set) for i in differing]
    if not all(each.has_majority for each in divergences):
        raise DivergenceError(
            [each for each in divergences if not each.has_majority]
            + [each for each in divergences if each.has_majority],
            "No majority of the ranks has the same bits, so it is unknown which ranks are right",
        )
    if not repair:
        raise DivergenceError(divergences, "repair=True would copy the tensors of the majority")
    own = _members(process_set)[process_set.rank()]
    for i, each in zip(differing, divergences, strict=True):
        tensor = named[i][1].detach()
        content = bits_of(tensor).clone()
        right = broadcast(content, each.reference, "agreement.repair", process_set)
        if own in each.ranks:
            tensor.copy_(_from_bits(right, tensor))
    return divergences


def _located(
    name: str,
    tensor: torch.Tensor,
    wholes: list[int],
    process_set: ProcessSet,
) -> Divergence:
    """Finds where the first rank that differs first does so."""
    members = _members(process_set)
    value, count = Counter(wholes).most_common(1)[0]
    has_majority = 2 * count > len(wholes)
    reference = wholes.index(value) if has_majority else 0
    others = [rank for rank, whole in enumerate(wholes) if whole != wholes[reference]]
    victim = others[0]
    every = allgather(block_hashes(tensor).view(1, -1), "agreement.blocks", process_set)
    blocks = (every[victim] != every[reference]).nonzero().view(-1)
    begin = int(blocks[0]) * BLOCK_BYTES
    content = bits_of(tensor)[begin : begin + BLOCK_BYTES].view(1, -1).cpu()
    block = allgather(content, "agreement.block", process_set)
    size = tensor.element_size()
    there, right = block[victim].view(-1, size), block[reference].view(-1, size)
    elements = (there != right).any(1).nonzero().view(-1)
    first = int(elements[0])
    return Divergence(
        name,
        tuple(members[rank] for rank in others),
        members[reference],
        has_majority,
        _index(begin // size + first, tensor.shape),
        len(elements),
        len(blocks),
        (_hexadecimal(there[first]), _hexadecimal(right[first])),
    )


def _index(number: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for extent in reversed(shape):
        number, place = divmod(number, extent)
        index.append(place)
    return tuple(reversed(index))


def _hexadecimal(content: torch.Tensor) -> str:
    return "0x" + bytes(content.tolist())[::-1].hex()


def _from_bits(content: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return content.view(like.dtype).view(like.shape)


def _members(process_set: ProcessSet) -> list[int]:
    return list(process_set.ranks)


def _pairs(tensors: Tensors) -> tuple[list[tuple[str, torch.Tensor]], _Misfit | None]:
    """The tensors with their names, and the first item that is not a tensor."""
    if isinstance(tensors, torch.nn.Module):
        tensors = tensors.named_parameters()
    if isinstance(tensors, Mapping):
        tensors = tensors.items()
    named = [
        each if isinstance(each, tuple) else (str(number), each)
        for number, each in enumerate(tensors)
    ]
    wrong = [name for name, each in named if not isinstance(each, torch.Tensor)]
    if not wrong:
        return named, None
    named = [(name, each) for name, each in named if isinstance(each, torch.Tensor)]
    return named, _Misfit(wrong[0], "is not a tensor")


def _state_of(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]]
) -> list[tuple[str, torch.Tensor]]:
    names = {id(tensor): name for name, tensor in named}
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    found: list[tuple[str, torch.Tensor]] = []
    for number, parameter in enumerate(parameters):
        owner = names.get(id(parameter), str(number))
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        for key, value in sorted(state.items()):
            found += _tensors_in(f"{owner}/{key}", value)
    return found


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in an optimizer's state, also in lists, as LBFGS keeps them."""
    if isinstance(value, torch.Tensor):
        yield name, local_of(value)
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _tensors_in(f"{name}/{number}", each)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" + (
        "" if tensor.layout == torch.strided else f" {tensor.layout}"
    )


@lru_cache(maxsize=16)  # a model's layout never changes
def _number_of_layout(
    layout: tuple[tuple[str, torch.dtype, torch.Size, torch.layout, str], ...],
) -> int:
    content = repr([(name, *map(str, rest)) for name, *rest in layout]).encode()
    return number_of(torch.frombuffer(bytearray(content), dtype=torch.uint8)) + len(content)


def _require_one_layout(
    held: Sequence[tuple[str, torch.Tensor]],
    parts: Sequence[str],
    misfit: _Misfit | None,
    process_set: ProcessSet,
) -> None:
    mine: list[tuple[str, str]] = []
    if misfit is None:
        for (name, tensor), part in zip(held, parts, strict=True):
            mine.append((name, _kind(tensor) + ("" if part == "all" else f" ({part})")))
    told = (mine, None if misfit is None else (misfit.name, misfit.why))
    answers = allgather_object(told, "agreement.layout", process_set)
    members = _members(process_set)
    for rank, (_, theirs) in zip(members, answers, strict=True):
        if theirs is None:
            continue
        name, why = theirs
        what = f"'{name}'" if name else "what is compared"
        raise InvalidArgumentError(f"{what} on rank {rank} {why}", rank, tensor=name or None) from (
            misfit.cause if misfit is not None else None
        )
    every = [layout for layout, _ in answers]
    for rank, theirs in zip(members, every, strict=True):
        if theirs == every[0]:
            continue
        for (name, kind), (other, its) in zip(every[0], theirs, strict=False):
            if (name, kind) != (other, its):
                raise MismatchError(
                    f"the ranks compare different tensors: rank {members[0]} has '{name}', {kind}, where rank {rank} "
                    f"has '{other}', {its}",
                    tensor=name,
                )
        raise MismatchError(
            f"the ranks compare different tensors: rank {members[0]} has {len(every[0])}, rank {rank} {len(theirs)}"
        )


class PeriodicCheck:
    """:func:`check_agreement` with repair of an optimizer's parameters, every ``every`` steps.

    Steps are counted from the beginning of the current world, so that all its ranks count alike: the optimizers of
    ranks that have joined, or that missed a step which others took, have taken fewer steps.
    """

    def __init__(self, every: int, process_set: ProcessSet) -> None:
        self._every = every
        self._process_set = process_set
        self._world = lifecycle.world_number()
        self._steps = 0

    def is_due(self) -> bool:
        """Counts a step; whether a check is due."""
        world = lifecycle.world_number()
        if world != self._world:
            self._world, self._steps = world, 0
        self._steps += 1
        return self._every > 0 and self._steps % self._every == 0

    def run(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Runs the check and warns about each repair."""
        for each in check_agreement(named, repair=True, process_set=self._process_set):
            warnings.warn(f"{each}; it has been repaired", stacklevel=4)
