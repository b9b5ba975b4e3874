"""The state shared by ranks that train together: tensors in a fixed order, and the pieces into which they are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from rueda.torch.fingerprints import BLOCK_BYTES, bits_of, number_of
from rueda.torch.model_tensors import tensors_of
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

    ``tensors``: first all of the modules' ``state_dict()``, then what these lack, which are parameters and persistent
    buffers that an overridden ``state_dict()`` leaves out and parameters of the optimizer that belong to none of the
    modules, then the tensors of the optimizer's state, of sparse ones their parts. ``outline``: of the
    optimizer's state, see :func:`rueda.torch.state.outline_of`. ``trained``: for each parameter of the optimizer, its
    index among the tensors. ``names``: all but the optimizer's state, as module index and name; the index of what no
    ``state_dict()`` has is the number of modules. ``strays``: the tensors that none has. ``others``: for each module,
    what its ``state_dict()`` has besides tensors (extra state).
    """

    def __init__(
        self, modules: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None
    ) -> None:
        self.names: list[tuple[int, str]] = []
        self.tensors: list[torch.Tensor] = []
        self.others: list[dict[str, Any]] = []
        self.strays: list[torch.Tensor] = []
        numbers: dict[int, int] = {}
        left_out: list[tuple[str, torch.Tensor]] = []
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
            rest = tensors_of(module).items()
            left_out += [(name, tensor) for name, tensor in rest if name not in state]
        parameters: list[torch.Tensor] = []
        if optimizer is not None:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            left_out += [
                (f"parameter {number} of the optimizer", each)
                for number, each in enumerate(parameters)
            ]
        for name, tensor in left_out:
            if id(tensor) not in numbers:
                numbers[id(tensor)] = len(self.tensors)
                self.names.append((len(modules), name))
                self.tensors.append(tensor.detach())
                self.strays.append(tensor)
        self.trained = [numbers[id(each)] for each in parameters]
        self.outline: Any = None
        if optimizer is not None:
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
