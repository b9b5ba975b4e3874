"""Trains on scikit-learn's digits. If a rank is lost, returns to the end of the last epoch.

    rueda run -np 3 --min-np 1 --max-np 3 python examples/python/elastic_run.py

Kill a rank while it runs: the others continue, and a new one takes its place.
"""

import argparse

import numpy as np
import rueda
import rueda.elastic
import rueda.torch
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

BATCH = 96  # of all ranks together

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=15)
options = parser.parse_args()
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
x, y = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
rueda.init()
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
)


@rueda.elastic.run
def train(state: rueda.elastic.State) -> None:
    while state.epoch < options.epochs:
        shuffled = np.random.default_rng(state.epoch).permutation(np.arange(360, len(y)))
        for batch in shuffled[: len(shuffled) // BATCH * BATCH].reshape(-1, BATCH):
            own = torch.from_numpy(np.array_split(batch, rueda.size())[rueda.rank()])
            optimizer.zero_grad()
            # The average over ranks is the batch's average, even if their shares differ by one.
            loss = F.cross_entropy(model(x[own]), y[own], reduction="sum") * rueda.size() / BATCH
            loss.backward()
            optimizer.step()
        state.epoch += 1
        if rueda.rank() == 0:
            print(f"epoch {state.epoch} of {options.epochs} on {rueda.size()} ranks", flush=True)
        state.commit()


train(rueda.elastic.State(model=model, optimizer=optimizer, epoch=0))
if rueda.rank() == 0:
    accuracy = (model(x[:360]).argmax(1) == y[:360]).float().mean().item()
    print(f"accuracy {accuracy:.4f}")
