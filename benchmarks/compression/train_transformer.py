"""Trains a small transformer on the characters of the licence with several codecs, and tells what that costs.

    rueda run -np 4 python benchmarks/compression/train_transformer.py [--steps N] [CODEC ...]

A codec is one of rueda.compression, by its name, with ``-feedback`` behind it for none of the error feedback that it
has by default. All begin with the same parameters and see the same batches. The table has the mean loss over the last
tenth of the steps, how much that is above the one without compression, and the mean squared error over the mean square
of the sum over ranks of the gradients that the uncompressed training ends with: of all together, and of the parameter
with the largest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import rueda.torch as rueda
import torch
import torch.nn.functional as F
from torch import nn

CODECS = ["none", "fp16", "bf16", "int8", "topk:0.01", "topk:0.01-feedback"]
CONTEXT = 64
WIDTH = 96
BATCH = 8  # of each rank


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, WIDTH)
        self.position = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits of the next character at each place."""
        hidden = self.embedding(text) + self.position
        return self.output(self.layers(hidden, mask=self.mask, is_causal=True))


def load() -> torch.Tensor:
    """The text as numbers of characters."""
    text = (Path(__file__).resolve().parents[2] / "LICENSE").read_text()
    characters = sorted(set(text))
    return torch.tensor([characters.index(each) for each in text])


def loss_of(model: Transformer, text: torch.Tensor, step: int) -> torch.Tensor:
    """Of this rank's batch."""
    random = np.random.default_rng((step, rueda.rank()))
    starts = random.integers(0, len(text) - CONTEXT - 1, BATCH)
    batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def train(spec: str, text: torch.Tensor, steps: int) -> tuple[float, Transformer]:
    """The loss at the end, and the model."""
    torch.manual_seed(0)
    model = Transformer(int(text.max()) + 1)
    codec, _, without = spec.partition("-")
    policy = rueda.CompressionPolicy({"*": codec}, error_feedback=False if without else None)
    inner = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer = rueda.DistributedOptimizer(inner, model.named_parameters(), compression=policy)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, text, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return rueda.allreduce(torch.tensor(float(np.mean(losses[-steps // 10 :])))).item(), model


def errors(
    gradients: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], codec: str
) -> tuple[float, float]:
    """Of all gradients together, and of the worst."""
    error, square, worst = 0.0, 0.0, 0.0
    for name, gradient in gradients.items():
        reduced = rueda.allreduce(gradient, name=name, op=rueda.Sum, compression=codec).double()
        own_error = float(((reduced - exact[name]) ** 2).sum())
        own_square = float((exact[name] ** 2).sum())
        error, square = error + own_error, square + own_square
        worst = max(worst, own_error / own_square if own_square else 0.0)
    return error / square, worst


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("codecs", nargs="*", default=CODECS, metavar="CODEC")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    rueda.init()
    torch.set_num_threads(1)
    text = load()
    if rueda.rank() == 0:
        print("| codec | loss | above none | NMSE of gradients | of the worst |")
        print("| --- | ---: | ---: | ---: | ---: |")
    plain, model = train("none", text, options.steps)
    model.zero_grad()
    loss_of(model, text, options.steps).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    exact = {
        name: rueda.allreduce(gradient.double(), name=f"exact {name}", op=rueda.Sum)
        for name, gradient in gradients.items()
    }
    for spec in options.codecs:
        loss = plain if spec == "none" else train(spec, text, options.steps)[0]
        error, worst = errors(gradients, exact, spec.partition("-")[0])
        if rueda.rank() == 0:
            shown = spec.replace("-feedback", ", no error feedback")
            above = 100 * (loss / plain - 1)
            print(
                f"| {shown} | {loss:.4f} | {above:+.1f} % | {error:.1e} | {worst:.1e} |", flush=True
            )
    rueda.shutdown()


if __name__ == "__main__":
    main()
