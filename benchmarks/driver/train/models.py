"""The models: the same on every rank, with different data on each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

Loss = Callable[[nn.Module, int], torch.Tensor]


@dataclass(frozen=True)
class Training:
    """A model and what it learns."""

    make: Callable[[], nn.Module]
    loss: Loss  # of (model, step), on this rank's data
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
    """Parameters of given shapes. Forward and backward each cost one pass over their elements."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(torch.randn(shape) * 0.01 for shape in shapes)

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """The sum of all elements, with each tensor weighted by one element of ``scale``."""
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


def mlp() -> nn.Module:
    """67 MB of parameters, half of them in one matrix."""
    widths = (1024, 2048, 4096, 1536, 10)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def conv_blocks(blocks: int, width: int) -> nn.Module:
    """Many small parameters: repeated blocks of convolution, normalization and activation."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    for _ in range(blocks):
        layers += [
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Embeddings(nn.Module):
    """A small network on top of a large table. A step uses few rows, but the table's gradient is dense."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width)
        self.layers = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits, for rows of shape [batch, length]."""
        result: torch.Tensor = self.layers(self.table(words))
        return result


def trainings(rank: int) -> dict[str, Training]:
    """All models, by name, with this rank's data."""
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

    def classification(shape: tuple[int, ...]) -> Loss:
        def loss(model: nn.Module, step: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(1000 * step + rank)
            classes = torch.randint(0, 10, shape[:1], generator=generator)
            return F.cross_entropy(model(torch.randn(shape, generator=generator)), classes)

        return loss

    def word_classification(model: nn.Module, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        words = torch.randint(0, 100_000, (64, 32), generator=generator)
        return F.cross_entropy(model(words), torch.randint(0, 10, (64,), generator=generator))

    return {
        "mlp": Training(mlp, classification((16, 1024)), 1e-3),
        "conv": Training(lambda: conv_blocks(40, 32), classification((4, 3, 24, 24)), 1e-3),
        "embedding": Training(lambda: Embeddings(100_000, 128), word_classification, 1e-2),
        "synthetic": Training(lambda: Tensors(shapes), weighted_sum, 1e-4),
        "transformer": Training(lambda: Transformer(tokens, 256, 4, length), prediction, 1e-2),
    }
