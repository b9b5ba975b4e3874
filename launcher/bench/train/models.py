"""What is trained: the same on every rank, with data that differ between ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

Loss = Callable[[nn.Module, int], torch.Tensor]


@dataclass(frozen=True)
class Training:
    """A model and what it learns."""

    make: Callable[[], nn.Module]
    loss: Loss  # of the model in a step, on this rank's data
    learning_rate: float


def resnet50_shapes() -> list[tuple[int, ...]]:
    """Shapes of ResNet-50's 161 parameters, 25.6 million numbers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            outputs = 4 * width
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (outputs, width, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(outputs, inputs, 1, 1), (outputs,), (outputs,)]
            inputs = outputs
    return [*shapes, (1000, 2048), (1000,)]


class Tensors(nn.Module):
    """Parameters of given shapes, each of which costs forward and backward one pass over its elements."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.randn(shape) * 0.01 for shape in shapes)

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """The sum of all elements, each tensor's weighed with one of ``scale``."""
        sums = [(tensor * weight).sum() for tensor, weight in zip(self.tensors, scale, strict=True)]
        return torch.stack(sums).sum()


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self, tokens: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits, for tokens of shape [batch, length]."""
        hidden = self.embedding(text) + self.position
        result: torch.Tensor = self.head(self.layers(hidden, self.mask, is_causal=True))
        return result


def trainings(rank: int) -> dict[str, Training]:
    """By name."""
    shapes = resnet50_shapes()
    tokens, length, batch = 4096, 64, 4

    def weighted_sum(model: nn.Module, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        loss: torch.Tensor = model(torch.randn(len(shapes), generator=generator))
        return loss

    def prediction(model: nn.Module, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        text = torch.randint(0, tokens, (batch, length + 1), generator=generator)
        return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return {
        "synthetic": Training(lambda: Tensors(shapes), weighted_sum, 1e-4),
        "transformer": Training(lambda: Transformer(tokens, 256, 4, length), prediction, 1e-2),
    }
