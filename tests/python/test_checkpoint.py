"""Checkpoints on one and several ranks, in worlds of other sizes, and with losses."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_launcher import ElasticJob
from hosts import check_on_hosts
from hypothesis import given
from hypothesis import strategies as st
from launching import PARALLEL, Ended, Job, check, find_mpirun, run
from net.lab.fixture import MakeLab
from worlds import Run, Worlds, each_check

pytest.importorskip("rueda._native")
torch = pytest.importorskip("torch")

from rueda.checkpoint.division import Shape, divide  # noqa: E402
from rueda.checkpoint.folder import available, latest  # noqa: E402

needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")

SIZES = "check_checkpoint_sizes.py"
# Ranks with a model and an optimizer, which they train identically.
PREAMBLE = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(PARALLEL)!r})
import rueda, rueda.checkpoint
from check_checkpoint_sizes import digest, parts, take_step
from rueda.checkpoint import saving

rueda.init()
folder = sys.argv[1]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

"""


@each_check(
    [Run("check_checkpoint.py", size) for size in (1, 3)]
    + [Run("check_checkpoint.py", 2, extra={"RUEDA_TRANSPORT": "tcp"})]
)
def test_checks(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


shapes = st.lists(st.integers(0, 40), max_size=4).map(tuple) | st.sampled_from(
    [(100_000,), (3, 70_000), (2, 2, 60_000), (3000, 300)]
)


@given(st.lists(shapes, max_size=8), st.integers(1, 7), st.data())
def test_every_element_is_in_one_piece(
    extents: list[tuple[int, ...]], ranks: int, data: st.DataObject
) -> None:
    tensors = [(f"t{i}", Shape(each, 4)) for i, each in enumerate(extents)]
    of_first = {name for name, _ in tensors if data.draw(st.booleans())}
    shares = divide(tensors, ranks, of_first)
    assert len(shares) == ranks
    for name, shape in tensors:
        pieces = [piece for share in shares for piece in share if piece.name == name]
        assert sum(math.prod(piece.extents) for piece in pieces) == math.prod(shape.extents)
        assert all(piece.is_whole == (len(pieces) == 1) for piece in pieces)
        if name in of_first:
            assert [piece.extents for piece in shares[0] if piece.name == name] == [shape.extents]
        cut = [axis for axis, _ in enumerate(shape.extents) if any(p.offsets[axis] for p in pieces)]
        assert len(cut) <= 1
        for axis in cut:
            begins = sorted((p.offsets[axis], p.extents[axis]) for p in pieces)
            assert begins[0][0] == 0
            ends = [begin + extent for begin, extent in begins]
            assert ends == [*(begin for begin, _ in begins[1:]), shape.extents[axis]]


def test_one_large_tensor_is_divided_evenly() -> None:
    for ranks in (2, 3, 8, 100):
        shares = divide([("w", Shape((50_000, 1000), 4)), ("b", Shape((1000,), 4))], ranks)
        sizes = [4 * sum(math.prod(piece.extents) for piece in share) for share in shares]
        assert max(sizes) - min(sizes) < 0.15 * 2e8 / ranks, sizes


def digests(ended: list[Ended]) -> set[str]:
    return {each for how in ended for each in re.findall(r"^digest (\w{16})$", how.output, re.M)}


def test_four_ranks_save_and_any_number_loads(worlds: Worlds, tmp_path: Path) -> None:
    worlds.check(Run(SIZES, 4, arguments=(str(tmp_path),)), "check_saving")
    for size in (1, 2, 3):
        worlds.check(Run(SIZES, size, arguments=(str(tmp_path),)), "check_loading")


def test_any_number_of_ranks_goes_on_with_what_a_step_has_accumulated(
    worlds: Worlds, tmp_path: Path
) -> None:
    worlds.check(Run(SIZES, 4, arguments=(str(tmp_path),)), "check_saving_within_a_step")
    for size in (1, 2, 3):
        run = Run(SIZES, size, arguments=(str(tmp_path),))
        worlds.check(run, "check_loading_within_a_step")


@needs_mpirun
def test_ranks_that_have_met_through_mpi(worlds: Worlds, tmp_path: Path) -> None:
    """A save's threads do not communicate over MPI, which need not support several threads."""
    options = {"extra": {"RUEDA_TRANSPORT": "mpi"}, "arguments": (str(tmp_path),)}
    for each in ("check_saving", "check_loading"):
        worlds.check(Run(SIZES, 2, mpirun=True, **options), each)


@needs_mpirun
def test_ranks_of_two_hosts(make_lab: MakeLab, tmp_path: Path) -> None:
    """A save's threads communicate over TCP, whatever carries the application's tensors."""
    arguments = [str(tmp_path), "check_saving", "check_loading"]
    ended = check_on_hosts(make_lab(2), PARALLEL / SIZES, 1, arguments)
    assert "ok check_saving" in ended.output
    assert "ok check_loading" in ended.output


def test_what_is_being_saved_when_a_program_ends_is_completed(tmp_path: Path) -> None:
    """Even if the program has left the world, or ends with an exception."""
    program = """
saving.save(folder, 1, **parts)
rueda.shutdown()
rueda.init()
saving.save(folder, 2, **parts)
raise SystemExit("failed") if rueda.rank() == 1 else ValueError("failed, too")
"""
    for how in run(PREAMBLE + program, 2, [str(tmp_path)]):
        assert how.returncode == 1, how.output
    assert [each.step for each in available(tmp_path)] == [1, 2]


def test_a_rank_that_dies_while_it_writes(tmp_path: Path) -> None:
    """The previous checkpoint remains; the others learn of it, recover, and save the next one."""
    program = """
rueda.checkpoint.save(folder, 1, **parts).result(60)
write, recovered, was = saving.write_share, threading.Event(), rueda.rank()
if was == 1:
    saving.write_share = die
if was == 2:  # is at work until the world has gone on without the dead one
    saving.write_share = lambda *arguments: (recovered.wait(60), write(*arguments))[1]
pending = rueda.checkpoint.save(folder, 2, **parts)
deadline = time.monotonic() + 60
while True:  # until the loss has come to the application's world, too
    try:
        rueda.barrier()
    except rueda.PeerLostError:
        break
    assert time.monotonic() < deadline
rueda.recover()
assert rueda.size() == 2
recovered.set()
assert rueda.checkpoint.load(folder, **parts).step == 1  # once the save has failed
try:
    pending.result(60)
    sys.exit("the save has succeeded")
except rueda.checkpoint.CheckpointError as error:
    assert "step 2 was not saved" in str(error), error
    if was == 0:
        assert error.peer == 1 and isinstance(error.__cause__, rueda.PeerLostError), repr(error)
assert rueda.checkpoint.save(folder, 2, **parts).result(60).step == 2
print("good")
"""
    ended = run(PREAMBLE + program, 3, [str(tmp_path)], extra={"RUEDA_RECOVERY": "on"})
    assert ended[1].returncode == -signal.SIGKILL, ended[1].output
    for rank in (0, 2):
        assert (ended[rank].returncode, "good" in ended[rank].output) == (0, True), ended[
            rank
        ].output
    assert sorted(os.listdir(tmp_path)) == ["000001-step-1", "000002-step-2"]


def test_a_job_that_is_killed_at_any_moment_leaves_whole_checkpoints(
    worlds: Worlds, tmp_path: Path
) -> None:
    program = """
for step in range(100_000):
    take_step(step)
    rueda.checkpoint.save(folder, step, **parts, extra=digest(), keep=2)
    print("saved", flush=True)
"""
    # Moments spread over a save, whichever part this machine spends its time in.
    for moment in range(2):
        with Job(PREAMBLE + program, 2, [str(tmp_path)]) as job:
            for rank in (0, 1):
                job.wait_for_output(rank, "saved\nsaved\nsaved\n")
            time.sleep(0.013 * moment)
            for process in job.ranks:
                process.kill()
    assert 1 <= len(available(tmp_path)) <= 4
    worlds.check(Run(SIZES, 1, arguments=(str(tmp_path),)), "check_loading")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_disk_that_fills(small_disk: Path) -> None:
    """Two checkpoints of 0.6 MB do not fit: the first one remains, and training continues."""
    program = """
take_step(0)
first = rueda.checkpoint.save(folder, 1, **parts).result(60)
try:
    rueda.checkpoint.save(folder, 2, **parts).result(60)
    sys.exit("the save has succeeded")
except rueda.checkpoint.CheckpointError as error:
    assert error.errno == 28 and error.path.startswith(folder), error
    assert "No space left on device" in str(error) and f"rank {error.peer}: {folder}" in str(error)
assert rueda.checkpoint.latest(folder) == first
take_step(1)
assert rueda.checkpoint.load(folder, **parts).step == 1
print("good")
"""
    check(PREAMBLE + program, 2, [str(small_disk)])
    assert os.listdir(small_disk) == ["000001-step-1"]


ELASTIC = """
import hashlib, os, signal, sys, time
import rueda, rueda.checkpoint, rueda.elastic, rueda.torch, torch

rueda.init()
number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
torch.manual_seed(number)
folder, last = os.environ["FOLDER"], int(os.environ["STEPS"])
model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 3))
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters(),
    reproducible=True, leaves=4, named_buffers=model.named_buffers(),
)

def begin():
    assert "RUEDA_JOINER" not in os.environ, "newcomers have no checkpoint to load"
    loaded = rueda.checkpoint.load(folder, model=model, optimizer=optimizer)
    return loaded.step if loaded else 0

gate = os.environ.get("GATE")
while gate and not os.path.exists(gate):
    time.sleep(0.01)
for step in rueda.elastic.steps(last, model, optimizer, begin=begin):
    with step:
        print("step", step.number, flush=True)
        if step.number % 3 == 0:
            rueda.checkpoint.save(folder, step.number, model=model, optimizer=optimizer, keep=2)
        if os.environ.get("KILL") == f"{number}:{step.number}":
            os.kill(os.getpid(), signal.SIGKILL)
        for leaf in optimizer.leaves():
            generator = torch.Generator().manual_seed(1000 * step.number + leaf.number)
            inputs = torch.rand(4, 6, generator=generator)
            torch.nn.functional.mse_loss(model(inputs), torch.ones(4, 3)).backward()
        optimizer.step()
bits = b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in model.state_dict().values())
print("digest", hashlib.sha256(bits).hexdigest()[:16], flush=True)
"""


def elastic(
    tmp_path: Path, size: int, steps: int, joiners: int = 0, **variables: str
) -> list[Ended]:
    gate = tmp_path / "gate"
    gate.unlink(missing_ok=True)
    settings = {
        "FOLDER": str(tmp_path / "run"),
        "STEPS": str(steps),
        "GATE": str(gate),
        **variables,
    }
    with ElasticJob(ELASTIC, size, **settings) as job:
        job.await_ready(*(job.start_joiner() for _ in range(joiners)))
        gate.touch()
        ended = job.ended()
        killed = int(variables.get("KILL", "-1:").partition(":")[0])
        for number, how in ended.items():
            assert how.returncode == (-signal.SIGKILL if number == killed else 0), job.outputs()
        return [how for number, how in ended.items() if number != killed]


def test_elastic_steps_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Through a loss, a newcomer and a new job of another size: the bits of an undisturbed run."""
    ended = elastic(tmp_path, 2, 8, joiners=1, KILL="1:6")
    assert all("step 7" in how.output for how in ended)
    newest = latest(tmp_path / "run")
    assert newest is not None
    assert newest.step in (3, 6)  # before the loss, no rank need have learned of 6
    ended = elastic(tmp_path, 1, 12)
    assert all(f"step {newest.step}\n" in how.output for how in ended), ended
    assert all("step 2\n" not in how.output for how in ended), ended
    (alone,) = check(ELASTIC, 1, extra={"FOLDER": str(tmp_path / "other"), "STEPS": "12"})
    assert digests(ended) == digests([alone])


def test_torchs_own_checkpoints_work_over_the_backend(tmp_path: Path) -> None:
    """Plain and asynchronous, sharded and not, while the group reduces other tensors."""
    check(
        """
        import sys, warnings
        import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
        import rueda, rueda.checkpoint, rueda.torch.c10d
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        dist.init_process_group("rueda")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        torch.manual_seed(1)
        whole, plain = torch.randn(50, 3), torch.randn(7)

        def state(fill=None):
            sharded = distribute_tensor(whole if fill is None else torch.full((50, 3), fill), mesh, [Shard(0)])
            return {"sharded": sharded, "plain": plain.clone() if fill is None else torch.full((7,), fill)}

        def require_loaded(path):
            loaded = state(fill=0.0)
            dcp.load(loaded, checkpoint_id=path)
            assert torch.equal(loaded["sharded"].full_tensor(), whole)
            assert torch.equal(loaded["plain"], plain)

        dcp.save(state(), checkpoint_id=sys.argv[1] + "/plain")
        require_loaded(sys.argv[1] + "/plain")
        # torch's thread and the application must not share a group: they would come in different orders.
        own = dist.new_group()
        pending = dcp.async_save(state(), checkpoint_id=sys.argv[1] + "/later", process_group=own)
        for number in range(50):
            total = torch.ones(1000)
            dist.all_reduce(total)
            assert total[0] == dist.get_world_size()
        pending.result()
        require_loaded(sys.argv[1] + "/later")
        # Rueda's work beside the group, but refuse what is sharded.
        model = torch.nn.Linear(3, 2)
        complete = rueda.checkpoint.save(sys.argv[1] + "/own", 1, model=model).result(60)
        assert rueda.checkpoint.load(sys.argv[1] + "/own", model=model).path == complete.path
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
        try:
            rueda.checkpoint.save(sys.argv[1] + "/own", 2, model=model)
            sys.exit("the save has succeeded")
        except rueda.UnsupportedError as error:
            assert "rank 0: 'model.weight' is sharded, a DTensor" in str(error), error
        dist.destroy_process_group()
        """,
        3,
        [str(tmp_path)],
    )


def test_it_is_imported_without_the_rest() -> None:
    """rueda.checkpoint imports torch; rueda does not."""
    line = "import sys, rueda, rueda.elastic; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", line], check=True, timeout=60)
