"""A script as users of Horovod have it: how many samples a second all ranks train on. Knows nothing of Rueda."""

import argparse
import timeit

import horovod.torch as hvd
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--num-iters", type=int, default=3)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = optim.SGD(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
data, target = torch.randn(args.batch_size, 64), torch.randint(0, 10, (args.batch_size,))


def benchmark_step():
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


timeit.timeit(benchmark_step, number=2)
rates = []
for _ in range(args.num_iters):
    seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
    rates.append(args.batch_size * args.num_batches_per_iter / seconds)
log(f"samples per second and rank: {np.mean(rates):.1f}")
log(f"total on {hvd.size()} ranks: {hvd.size() * np.mean(rates):.1f}")
