"""The state shared by ranks that train together: tensors in a fixed order, and the pieces into which they are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from rueda.torch.fingerprints import BLOCK_BYTES, bits_of, number_of
from rueda.torch.state import outline_of

__all__ = ["Piece", "TensorState", "cut", "deal", "digest"]

# Small enough that ranks get even shares, large enough that the cost per piece is small; whole blocks of fingerprints.
_PIECE_BYTES = 128 * BLOCK_BYTES


@dataclass(frozen=True)
class Piece:
    """Bytes ``begin`` to ``end`` of tensor number ``tensor``."""

    tensor: int
    begin: int
    end: int

    def of(self, contents: Sequence[torch.Tensor]) -> torch.Tensor:
        """Its bytes; ``contents``: the bytes of each tensor."""
        return contents[self.tensor][self.begin : self.end]


def cut(sizes: Iterable[int]) -> list[Piece]:
    """Pieces of tensors with these sizes in bytes, in order; none for an empty tensor."""
    return [
        Piece(number, begin, min(size, begin + _PIECE_BYTES))
        for number, size in enumerate(sizes)
        for begin in range(0, size, _PIECE_BYTES)
    ]


def deal(pieces: Sequence[Piece], members: int) -> list[int]:
    """For each piece, the member that sends it: each member sends consecutive pieces and about as many bytes."""
    ends = list(accumulate(piece.end - piece.begin for piece in pieces))
    total = max(1, ends[-1]) if ends else 1
    middles = [
        end - (piece.end - piece.begin + 1) // 2 for end, piece in zip(ends, pieces, strict=True)
    ]
    return [middle * members // total for middle in middles]


def digest(content: torch.Tensor) -> int:
    """A 64-bit number that identifies the bytes, see fingerprints.py."""
    return number_of(content)


class TensorState:
    """The tensors of modules and of an optimizer, as they are now.

    ``tensors``: first all of the modules' ``state_dict()``, then parameters of the optimizer that belong to none of the
    modules, then the tensors of the optimizer's state. ``outline``: of the optimizer's state, see
    :func:`rueda.torch.state.outline_of`. ``trained``: for each parameter of the optimizer, its index among the tensors.
    ``names``: all but the optimizer's state, as module index and name; the index of what belongs to no module is the
    number of modules. ``strays``: the parameters that belong to none. ``others``: for each module, what its
    ``state_dict()`` has besides tensors (extra state).
    """

    def __init__(
        self, modules: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None
    ) -> None:
        self.names: list[tuple[int, str]] = []
        self.tensors: list[torch.Tensor] = []
        self.others: list[dict[str, Any]] = []
        numbers: dict[int, int] = {}
        for number, module in enumerate(modules):
            state = module.state_dict(keep_vars=True)
            self.others.append(
                {name: each for name, each in state.items() if not isinstance(each, torch.Tensor)}
            )
            for name, tensor in state.items():
                if name in self.others[number]:
                    continue
                numbers.setdefault(id(tensor), len(self.tensors))
                self.names.append((number, name))
                self.tensors.append(tensor.detach())
        self.outline: Any = None
        self.strays: list[torch.Tensor] = []
        self.trained: list[int] = []
        if optimizer is not None:
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if id(parameter) not in numbers:
                    numbers[id(parameter)] = len(self.tensors)
                    name = f"parameter {len(self.trained)} of the optimizer"
                    self.names.append((len(modules), name))
                    self.tensors.append(parameter.detach())
                    self.strays.append(parameter)
                self.trained.append(numbers[id(parameter)])
            self.outline, own = outline_of(optimizer)
            self.tensors += own

    def of_models(self) -> int:
        """The number of tensors besides those of the optimizer's state."""
        return len(self.names)

    def agreed(self) -> set[int]:
        """Tensors with the same bits on all ranks. Others, such as BatchNorm statistics, may differ."""
        return {*self.trained, *range(self.of_models(), len(self.tensors))}

    def sizes(self) -> list[int]:
        """Of the tensors, in bytes."""
        return [tensor.numel() * tensor.element_size() for tensor in self.tensors]

    def contents(self) -> list[torch.Tensor]:
        """The tensors' bytes: their own memory if possible, otherwise copies."""
        return [bits_of(tensor) for tensor in self.tensors]
