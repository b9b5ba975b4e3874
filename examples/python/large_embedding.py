"""Predicts the next character of Python's own library, with an embedding too large for any rank.

rueda run -np 4 python examples/python/large_embedding.py [--steps 400]

The embedding has one row per context of seven characters. A 40-bit hash numbers the rows: 2⁴⁰ rows of 32 numbers are
128 TiB. A table holds them, divided over the ranks. A row uses memory only once it has been learnt, and a step
transfers only the rows of its batch: their numbers and values, each once. Ranks add to rows at any time, and the owner
applies Adagrad. The layer that turns a row into a prediction is small, and is trained synchronously.
"""

import argparse
import zlib
from pathlib import Path

import numpy as np
import rueda.server
import rueda.torch as rueda_torch
import torch
import torch.nn.functional as F
from torch import nn

CONTEXT, WIDTH, BATCH = 7, 32, 256


def text() -> np.ndarray:
    """Some of Python's library, as bytes below 128."""
    import argparse as module

    folder = Path(module.__file__).parent
    files = sorted(folder.glob("*.py"))[:60]
    whole = np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)
    return whole[whole < 128]


def rows_of(contexts: np.ndarray) -> np.ndarray:
    """A 40-bit number for each context."""
    numbers = [(zlib.crc32(c.tobytes()) << 8) | (zlib.adler32(c.tobytes()) & 255) for c in contexts]
    return np.array(numbers, np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    rueda_torch.init()
    torch.manual_seed(0)
    letters = text()
    windows = np.lib.stride_tricks.sliding_window_view(letters, CONTEXT + 1)
    mine = windows[rueda_torch.rank() :: rueda_torch.size()]
    head = nn.Linear(WIDTH, 128)
    optimizer = rueda_torch.DistributedOptimizer(
        torch.optim.Adagrad(head.parameters(), lr=0.1), head.named_parameters()
    )
    draw = np.random.default_rng(rueda_torch.rank())
    losses = []
    with rueda.server.RowTable(
        "contexts", WIDTH, spread=0.1, rule="adagrad", parameters=(0.3, 1e-6)
    ) as table:
        for _ in range(options.steps):
            chosen = mine[draw.integers(len(mine), size=BATCH)]
            rows = rows_of(chosen[:, :-1])
            values = torch.from_numpy(table.get(rows).result()).requires_grad_()
            optimizer.zero_grad()
            loss = F.cross_entropy(head(values), torch.from_numpy(chosen[:, -1].astype(np.int64)))
            loss.backward()
            table.add(rows, values.grad.numpy() * BATCH)
            optimizer.step()
            losses.append(loss.item())
        table.tick().result()  # reaches every owner after all of this rank's additions
        rueda_torch.barrier()
        held = [int(np.frombuffer(each, np.int64)[0]) // WIDTH for each in table.call("count")]
    tenth = max(1, options.steps // 10)
    first, last = (
        rueda_torch.allreduce(torch.tensor(np.mean(some))).item()
        for some in (losses[:tenth], losses[-tenth:])
    )
    if rueda_torch.rank() == 0:
        print(f"loss {first:.3f} at first, {last:.3f} at the end")
        print(f"{sum(held)} rows learnt, of which the ranks hold {held}")
    rueda_torch.shutdown()


if __name__ == "__main__":
    main()
