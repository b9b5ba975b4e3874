"""Trains a small transformer on the characters of the licence with several codecs, and tells what that costs.

    rueda run -np 4 python benchmarks/compression/train_transformer.py [--steps N] [CODEC ...]

CODEC is described in specs.py. With each seed all codecs
begin with the same parameters and see the same batches. The table has the mean loss over the last tenth of the steps,
how much that is above the one without compression, as mean and standard error over the seeds, and the mean squared
error over the mean square of the sum over ranks of the gradients that the uncompressed training of the last seed ends
with: of all together, and of the parameter with the largest. `--save` keeps these gradients, for hosts/measure.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import rueda.torch as rueda
import specs
import torch
import torch.nn.functional as F
from torch import nn

CODECS = ["none", "fp16", "bf16", "int8", "topk:0.01", "topk:0.01-feedback"]
CONTEXT = 64
WIDTH = 96
BATCH = 8  # of each rank


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, characters: int, width: int = WIDTH, context: int = CONTEXT) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits of the next character at each place."""
        hidden = self.embedding(text) + self.position
        return self.output(self.layers(hidden, mask=self.mask, is_causal=True))


def load() -> torch.Tensor:
    """The text as numbers of characters."""
    text = (Path(__file__).resolve().parents[2] / "LICENSE").read_text()
    characters = sorted(set(text))
    return torch.tensor([characters.index(each) for each in text])


def loss_of(model: Transformer, text: torch.Tensor, seed: int, step: int) -> torch.Tensor:
    """Of this rank's batch."""
    random = np.random.default_rng((seed, step, rueda.rank()))
    starts = random.integers(0, len(text) - CONTEXT - 1, BATCH)
    batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def make_optimizer(model: Transformer, spec: str, steps: int, kind: str) -> Any:
    """Adam, or SGD with momentum; with momentum correction, that is Adam's first moment."""
    momentum = 0.0 if specs.corrects_momentum(spec) else specs.MOMENTUM
    inner: torch.optim.Optimizer
    if kind == "sgd":
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    else:
        inner = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(momentum, 0.999))
    policy = specs.policy_of(spec, steps)
    return rueda.DistributedOptimizer(inner, model.named_parameters(), compression=policy)


def train(
    spec: str, text: torch.Tensor, seed: int, steps: int, kind: str
) -> tuple[float, Transformer]:
    """The loss at the end, and the model."""
    torch.manual_seed(seed)
    model = Transformer(int(text.max()) + 1)
    optimizer = make_optimizer(model, spec, steps, kind)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, text, seed, step)
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
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
    parser.add_argument("--save", type=Path, help="A folder for each rank's gradients at the end.")
    options = parser.parse_args()
    rueda.init()
    torch.set_num_threads(1)
    text = load()
    losses: dict[str, list[float]] = {spec: [] for spec in options.codecs}
    above: dict[str, list[float]] = {spec: [] for spec in options.codecs}
    for seed in range(options.seeds):
        plain, model = train("none", text, seed, options.steps, options.optimizer)
        for spec in options.codecs:
            loss = plain
            if spec != "none":
                loss, _ = train(spec, text, seed, options.steps, options.optimizer)
            losses[spec].append(loss)
            above[spec].append(100 * (loss / plain - 1))
    model.zero_grad()
    loss_of(model, text, 0, options.steps).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        arrays = {name: gradient.numpy() for name, gradient in gradients.items()}
        np.savez(options.save / f"rank{rueda.rank()}.npz", **arrays)
    exact = {
        name: rueda.allreduce(gradient.double(), name=f"exact {name}", op=rueda.Sum)
        for name, gradient in gradients.items()
    }
    if rueda.rank() == 0:
        print("| codec | loss | above none, % | NMSE of gradients | of the worst |")
        print("| --- | ---: | ---: | ---: | ---: |")
    for spec in options.codecs:
        error, worst = errors(gradients, exact, specs.codec_of(spec))
        if rueda.rank() == 0:
            print(
                f"| {specs.shown(spec)} | {np.mean(losses[spec]):.4f} "
                f"| {specs.with_error(above[spec])} | {error:.1e} | {worst:.1e} |",
                flush=True,
            )
    rueda.shutdown()


if __name__ == "__main__":
    main()
