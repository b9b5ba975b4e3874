"""Training to the same bits on any number of ranks, with ordinary training as a control."""

from __future__ import annotations

import re
import signal
from functools import cache
from pathlib import Path

import pytest
from forked import launched
from hosts import check_on_hosts
from launching import check, find_mpirun, mpirun_line, run, run_to_end
from net.lab.fixture import MakeLab

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
PROGRAM = EXAMPLES / "reproducible_digits.py"
EPOCHS = ("--epochs", "1")

# Without leaves: each rank sums its own share of the batch.
ORDINARY = """
import sys
import numpy as np, torch, rueda.torch as rueda
import torch.nn.functional as F
sys.path.insert(0, sys.argv[1])
from digits import load
from reproducible_digits import hash_of
rueda.init()
torch.manual_seed(0)
x, y, _, _ = load()
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 10))
optimizer = rueda.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
for step in range(10):
    own = np.arange(96 * step, 96 * (step + 1))[rueda.rank() :: rueda.size()]
    optimizer.zero_grad()
    F.cross_entropy(model(x[own]), y[own]).backward()
    optimizer.step()
print("parameters", hash_of(model))
rueda.shutdown()
"""

BAD_USE = """
import rueda.torch as rueda, torch
rueda.init()
model = torch.nn.Linear(3, 2)
def make(**options):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return rueda.DistributedOptimizer(inner, model.named_parameters(), **options)
def fails(text, action):
    try:
        action()
    except rueda.InvalidArgumentError as error:
        assert text in str(error), error
        return
    raise AssertionError(f"nothing raised: {text}")
fails("needs leaves", lambda: make(reproducible=True))
fails("leaves= needs", lambda: make(leaves=8))
fails("excludes compression", lambda: make(reproducible=True, leaves=8, compression="int8"))
fails("excludes backward_passes", lambda: make(reproducible=True, leaves=8, backward_passes_per_step=2))
fails("leaf_threads=0", lambda: make(reproducible=True, leaves=8, leaf_threads=0))
fails("leaves=0", lambda: make(reproducible=True, leaves=0))
optimizer = make(reproducible=True, leaves=4)
fails("already", lambda: rueda.DistributedOptimizer(optimizer, reproducible=True, leaves=4))
fails("go through leaves()", optimizer.step)
fails("within the loop", lambda: model(torch.ones(1, 3)).sum().backward())
def twice():
    for leaf in optimizer.leaves():
        loss = model(torch.ones(1, 3)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
fails("once per leaf", twice)
def early():
    for leaf in optimizer.leaves():
        break
    optimizer.step()
fails("go through leaves()", early)
import copy
fails("cannot be copied", lambda: copy.deepcopy(optimizer))
fails("added later", lambda: optimizer.add_param_group({"params": [torch.zeros(1)]}))
state = optimizer.state_dict()
state["rueda_leaves"]["leaves"] = 5
fails("from 5 leaves", lambda: optimizer.load_state_dict(state))
for leaf in optimizer.leaves():
    model(torch.ones(1, 3)).sum().backward()
optimizer.step()
assert torch.equal(model.weight.grad, torch.ones(2, 3)), model.weight.grad
# A model outlives its optimizers: one that is gone must not take gradients any more.
import gc
del optimizer
gc.collect()
model.zero_grad()
model(torch.ones(1, 3)).sum().backward()
assert torch.equal(model.weight.grad, torch.ones(2, 3)), model.weight.grad
rueda.shutdown()
"""

# A layer that only some leaves use, like an expert, and two parameters whose gradients share
# memory, as autograd returns them.
UNUSED = """
import rueda.torch as rueda, torch
rueda.init()
torch.manual_seed(0)
used, rare = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
flat, tall = torch.nn.Parameter(torch.zeros(1, 3)), torch.nn.Parameter(torch.zeros(3, 1))
named = [*used.named_parameters("used"), *rare.named_parameters("rare"), ("flat", flat), ("tall", tall)]
inner = torch.optim.SGD([p for _, p in named], lr=0.1)
optimizer = rueda.DistributedOptimizer(inner, named, reproducible=True, leaves=8)
for step in range(3):
    for leaf in optimizer.leaves():
        torch_random = torch.rand(1, 3)
        output = used(torch_random)
        if leaf.number == 5:
            output = output + rare(torch_random)
        together = (flat.view(-1) + tall.view(-1)) @ torch_random.view(-1)
        (output.square().sum() + together).backward()
    optimizer.step()
import hashlib
print("parameters", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for _, p in named)).hexdigest()[:16])
rueda.shutdown()
"""


# After two steps only some ranks continue, with their own leaves and those of the others.
FEWER = """
import sys
import rueda, rueda.torch, torch, hashlib
rueda.init()
rest = rueda.ProcessSet([r for r in range(rueda.size()) if r != 1])
rueda.add_process_set(rest)
torch.manual_seed(0)
layers = torch.nn.Linear(5, 40), torch.nn.BatchNorm1d(40), torch.nn.Dropout(0.3), torch.nn.Linear(40, 2)
model = torch.nn.Sequential(*layers)
inner = torch.optim.Adam(model.parameters())
leaves = rueda.Leaves(8)
optimizer = rueda.torch.DistributedOptimizer(
    inner, model.named_parameters(), reproducible=True, leaves=leaves, named_buffers=model.named_buffers()
)
def steps(number):
    for _ in range(number):
        for leaf in optimizer.leaves():
            model(torch.rand(6, 5)).square().mean().backward()
        optimizer.step()
steps(2)
try:
    optimizer.redistribute(rueda.Leaves(9))
    raise AssertionError("nothing raised")
except rueda.InvalidArgumentError as error:
    assert "9 leaves" in str(error)
if rest.included():
    if rueda.size() > 1:
        optimizer.redistribute(leaves.without([1], rest))
    steps(2)
    bits = b"".join(v.reshape(-1).view(torch.uint8).numpy().tobytes() for v in model.state_dict().values())
    print("parameters", hashlib.sha256(bits).hexdigest()[:16])
rueda.shutdown()
"""


# One rank is killed in a step; the others take over its leaves and repeat that step.
KILLED = """
import copy, hashlib, os, signal, sys
import numpy as np
import rueda, rueda.torch, torch
rueda.init(recovery="on")
first_rank, kill_at, phase = rueda.rank(), int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
layers = torch.nn.Linear(5, 40), torch.nn.BatchNorm1d(40), torch.nn.Dropout(0.3), torch.nn.Linear(40, 2)
model = torch.nn.Sequential(*layers)
leaves = rueda.Leaves(8)
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.Adam(model.parameters()),
    model.named_parameters(),
    reproducible=True,
    leaves=leaves,
    named_buffers=model.named_buffers(),
)
def die(where, step):
    if (step, where, first_rank) == (kill_at, phase, 1):
        os.kill(os.getpid(), signal.SIGKILL)
def state():
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))
step, before, now = 0, None, state()
while step < 6:
    try:
        for leaf in optimizer.leaves():
            model(torch.rand(6, 5)).square().mean().backward()
            die("leaves", step)
        die("reducing", step)
        optimizer.step()
        before, now, step = now, state(), step + 1
    except rueda.PeerLostError:
        lost = rueda.recover().lost
        leaves = leaves.without(lost, rueda.global_process_set)
        optimizer.redistribute(leaves)
        common = int(rueda.allreduce(np.array([step]), op=rueda.Min, name="common")[0])
        if common < step:  # others have not seen the end of this step
            step, now = common, before
        model.load_state_dict(now[0])
        optimizer.load_state_dict(copy.deepcopy(now[1]))
bits = b"".join(v.reshape(-1).view(torch.uint8).numpy().tobytes() for v in model.state_dict().values())
print("parameters", hashlib.sha256(bits).hexdigest()[:16])
rueda.shutdown()
"""


@pytest.fixture(autouse=True)
def libraries() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")


def hash_in(output: str) -> str:
    found = re.findall(r"parameters (\w{16})$", output, re.M)
    assert len(found) == 1, output
    return found[0]


@cache
def hash_of_one_rank(*arguments: str) -> str:
    return hash_in(check(PROGRAM, 1, [*EPOCHS, *arguments])[0].output)


@pytest.mark.parametrize("size", [4, 8])
def test_any_number_of_ranks_gives_the_bits_of_one(size: int) -> None:
    output = check(PROGRAM, size, EPOCHS)[0].output
    assert hash_in(output) == hash_of_one_rank(), output


@pytest.mark.parametrize(
    ("size", "extra", "arguments"),
    [
        (3, {"RUEDA_TRANSPORT": "tcp", "RUEDA_ALGORITHM": "ring"}, ()),
        (4, {"RUEDA_TRANSPORT": "tcp", "RUEDA_FUSION_THRESHOLD": "0"}, ("--bucket-bytes", "1")),
        (2, {"RUEDA_FUSION_THRESHOLD": "4096"}, ("--bucket-bytes", "100")),
    ],
)
def test_transports_fusion_and_buckets_change_no_bits(
    size: int, extra: dict[str, str], arguments: tuple[str, ...]
) -> None:
    output = check(PROGRAM, size, [*EPOCHS, *arguments], extra)[0].output
    assert hash_in(output) == hash_of_one_rank(), output


def test_threads_change_no_bits() -> None:
    program = f"""
import runpy, sys, torch
torch.set_num_threads(3)  # as OMP_NUM_THREADS=3, with which a rank would have to import torch itself
sys.path.insert(0, {str(EXAMPLES)!r})
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
assert torch.get_num_threads() == 3
"""
    output = check(program, 3, EPOCHS)[0].output
    assert hash_in(output) == hash_of_one_rank(), output


def test_bfloat16() -> None:
    output = check(PROGRAM, 3, [*EPOCHS, "--dtype", "bfloat16"])[0].output
    assert hash_in(output) == hash_of_one_rank("--dtype", "bfloat16"), output


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
def test_under_mpirun() -> None:
    extra = {"RUEDA_TRANSPORT": "mpi", "RUEDA_ALGORITHM": "ring"}
    ended = run_to_end(mpirun_line(3, launched(PROGRAM, EPOCHS)), extra, 240, "mpirun")
    assert ended.returncode == 0, ended.output
    assert hash_in(ended.output) == hash_of_one_rank()


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
def test_two_hosts_with_two_ranks_each(make_lab: MakeLab) -> None:
    ended = check_on_hosts(make_lab(2), PROGRAM, 2, EPOCHS)
    assert hash_in(ended.output) == hash_of_one_rank(), ended.output


def test_the_number_of_ranks_may_change_between_runs(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    for size in (4, 3, 4):
        output = check(PROGRAM, size, ["--epochs", "1", "--state", state])[0].output
    assert hash_in(output) == hash_in(check(PROGRAM, 1, ["--epochs", "3"])[0].output)


def test_leaves_in_which_a_parameter_is_not_used() -> None:
    hashes = {hash_in(check(UNUSED, size)[0].output) for size in (1, 3, 4)}
    assert len(hashes) == 1


def test_ranks_that_go_on_without_others() -> None:
    hashes = {hash_in(check(FEWER, size)[0].output) for size in (1, 3, 4)}
    assert len(hashes) == 1


@pytest.mark.parametrize(("kill_at", "phase"), [(0, "leaves"), (5, "reducing")])
def test_a_rank_that_is_killed_changes_no_bits(kill_at: int, phase: str) -> None:
    undisturbed = hash_in(check(KILLED, 1, ["-1", "never"])[0].output)
    ended = run(KILLED, 4, [str(kill_at), phase])
    assert ended[1].returncode == -signal.SIGKILL, ended[1].output
    for rank in (0, 2, 3):
        assert ended[rank].returncode == 0, ended[rank].output
        assert hash_in(ended[rank].output) == undisturbed


def test_without_leaves_the_number_of_ranks_changes_bits() -> None:
    hashes = {hash_in(check(ORDINARY, size, [str(EXAMPLES)])[0].output) for size in (1, 3)}
    assert len(hashes) == 2


@pytest.mark.parametrize("size", [1, 2])
def test_bad_use(size: int) -> None:
    check(BAD_USE, size)
