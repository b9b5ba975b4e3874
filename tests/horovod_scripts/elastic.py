"""A script as users of Horovod have it: elastic training. Knows nothing of Rueda.

Collectives fail on one rank or on all, and hosts are said to change; the result must be that of a run without.
"""

import sys

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.common.exceptions import HorovodInternalError
from torch import nn, optim

EPOCHS = 4
failures = set(sys.argv[1:])
resets = []


def fail_once(what):
    if what in failures:
        failures.discard(what)
        return True
    return False


hvd.init()
torch.manual_seed(7)
torch.set_num_threads(1)
features = torch.randn(64, 6)
dataset = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = hvd.DistributedOptimizer(
    optim.Adam(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True)
loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler)


@hvd.elastic.run
def train(state):
    while state.epoch < EPOCHS:
        for batch, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            F.mse_loss(model(data), target).backward()
            if state.epoch == 1 and batch == 0 and fail_once("all"):
                raise HorovodInternalError("as on every rank")
            if state.epoch == 2 and batch == 1 and hvd.rank() == 0 and fail_once("one"):
                raise HorovodInternalError("as on one rank")
            optimizer.step()
            state.sampler.record_batch(batch, 8)
            state.batches += 1
        if state.epoch == 2 and hvd.rank() == hvd.size() - 1 and fail_once("hosts"):
            state.on_hosts_updated(1.0, 2)
        state.sampler.set_epoch(state.epoch + 1)
        state.epoch += 1
        state.commit()
    return "finished"


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, epoch=0, batches=0
)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
assert train(state) == "finished"
bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
assert len(set(hvd.allgather_object(bits))) == 1, "ranks hold different parameters"
if hvd.rank() == 0:
    total = sum(p.double().sum().item() for p in model.parameters())
    print(f"resets {len(resets)} batches {state.batches} sum {total:.12f}", flush=True)
