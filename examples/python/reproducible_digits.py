"""Trains on scikit-learn's handwritten digits, with the same bits on any number of ranks.

rueda run -np 4 python examples/python/reproducible_digits.py
rueda run -np 3 python examples/python/reproducible_digits.py    # the same hash
"""

import argparse
import hashlib
import os

import rueda
import rueda.torch
import torch
import torch.nn.functional as F
from torch import nn

from digits import load

LEAVES = 8  # per step, on any number of ranks
LEAF_SIZE = 12  # samples per leaf


def network() -> nn.Module:
    """A network with buffers that forward() changes (BatchNorm), and with randomness (Dropout)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32 * 4 * 4, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    )


def hash_of(model: nn.Module) -> str:
    """A hash of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--bucket-bytes", type=int, default=8 << 20)
    parser.add_argument(
        "--state", metavar="PATH", help="go on from PATH, and save what comes out there"
    )
    options = parser.parse_args()

    rueda.init()
    torch.manual_seed(0)
    x, y, test_x, test_y = load()
    dtype = getattr(torch, options.dtype)
    model = network().to(dtype)
    optimizer = rueda.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(),
        reproducible=True,
        leaves=LEAVES,
        seed=3,
        named_buffers=model.named_buffers(),
        bucket_bytes=options.bucket_bytes,
    )
    first = 0
    if options.state and os.path.exists(options.state):
        state = torch.load(options.state)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epochs"]
    sampler = rueda.LeafSampler(len(y), LEAVES, LEAF_SIZE, seed=1)

    model.train()
    for epoch in range(first, first + options.epochs):
        for batch in sampler.epoch(epoch):
            for leaf in optimizer.leaves(batch):  # this rank's leaves
                loss = F.cross_entropy(model(x[leaf.samples].to(dtype)), y[leaf.samples])
                (loss * leaf.weight).backward()
                leaf.keep(loss=loss)
            optimizer.step()
        (loss,) = optimizer.averages("loss")
        if rueda.rank() == 0:
            print(f"epoch {epoch + 1:2}  loss {loss!r}", flush=True)

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x.to(dtype)).argmax(1) == test_y).float().mean().item()
    hashes = set(rueda.allgather_object(hash_of(model)))
    if options.state and rueda.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epochs": first + options.epochs}, options.state)
    if rueda.rank() == 0:
        print(f"test accuracy {100 * accuracy:.2f} %, parameters {' '.join(hashes)}", flush=True)
    rueda.shutdown()


if __name__ == "__main__":
    main()
