"""Trains a small convolutional network on scikit-learn's handwritten digits."""

import argparse

import numpy as np
import rueda.torch as rueda
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

GLOBAL_BATCH = 96  # divisible by 1, 2, 3 and 4 ranks


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """1437 digits to train on and 360 to test on: images (n, 1, 8, 8) in 0..1, labels (n,)."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(images[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels[order])
    return x[360:], y[360:], x[:360], y[:360]


def save(path: str, model: nn.Module, **numbers: float) -> None:
    """Writes the parameters and some numbers about them to a NumPy archive."""
    np.savez(path, **{name: value.numpy() for name, value in model.state_dict().items()}, **numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--result", metavar="PATH", help="save what came out to PATH.npz")
    options = parser.parse_args()

    rueda.init()
    options.quiet |= rueda.rank() != 0  # only rank 0 prints
    torch.manual_seed(0)
    x, y, test_x, test_y = load()
    model = nn.Sequential(  # smooth, so that training does not amplify rounding differences
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = rueda.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    rueda.broadcast_parameters(model.state_dict(), root_rank=0)
    shuffle = np.random.default_rng(1)

    for epoch in range(options.epochs):
        order = shuffle.permutation(len(y))[: len(y) // GLOBAL_BATCH * GLOBAL_BATCH]
        for batch in order.reshape(-1, GLOBAL_BATCH):
            batch = batch[rueda.rank() :: rueda.size()]  # this rank's share
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
        if not options.quiet:
            print(f"epoch {epoch + 1:2}  loss {loss.item():.4f}", flush=True)

    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    if not options.quiet:
        print(f"test accuracy {100 * accuracy:.2f} %")
    if options.result:
        save(f"{options.result}.{rueda.rank()}", model, accuracy=accuracy, **rueda.metrics())


if __name__ == "__main__":
    main()
