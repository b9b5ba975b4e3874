"""The backend "rueda" of torch.distributed, in real processes under each launcher."""

from __future__ import annotations

import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forked import launched
from launching import (
    PARALLEL,
    alone,
    check,
    command,
    end_of,
    find_mpirun,
    run,
)
from worlds import Run, Worlds, each_check

pytest.importorskip("torch.distributed")

COLLECTIVES = PARALLEL / "check_c10d_collectives.py"
TRAINING = PARALLEL / "check_c10d_training.py"
SHARDED = PARALLEL / "check_sharded_models.py"
BARRIERS = PARALLEL / "check_c10d_barriers.py"
BAD_INPUT = PARALLEL / "check_c10d_bad_input.py"
COMPILE = PARALLEL / "check_c10d_compile.py"
BACKEND = PARALLEL / "check_c10d_backend.py"
FUNCTIONAL = PARALLEL / "check_c10d_functional.py"
needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
# Launchers by name, with their options up to the number of ranks.
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node"]
RUEDA_RUN = ["rueda run", "--no-mpi", "-np"]


def launch(
    launcher: list[str], size: int, program: str | Path, folder: Path, as_users_do: bool = False
) -> str:
    """Runs a program, which must succeed; returns its output.

    ``as_users_do``: torchrun and its ranks each import torch themselves.
    """
    script = program if isinstance(program, Path) else folder / "program.py"
    if isinstance(program, str):
        script.write_text(command(program)[-1])
    options = [*launcher[1:], str(size)]
    if as_users_do:
        line = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
    elif launcher is TORCHRUN:
        main = "from torch.distributed.run import main; main()"
        line = command(main, [*options, "--no-python", *launched(script)])
    else:
        line = [sys.executable, "-m", "rueda", "run", *options, *launched(script)]
    ended = end_of(line, limit=240)
    assert ended.returncode == 0, ended.output
    return ended.output


@each_check([Run(SHARDED.name, 4)])
def test_models_that_are_cut(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


# Two and three ranks run under the launchers below.
@each_check([Run(COLLECTIVES.name, size) for size in (1, 4)])
def test_collectives(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@each_check([Run(TRAINING.name, size) for size in (2, 4)])
def test_training(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@each_check([Run(BAD_INPUT.name, 3)])
def test_bad_input(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@each_check([Run(BARRIERS.name, size) for size in (1, 3)])
def test_barriers(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@each_check([Run(BACKEND.name, size) for size in (1, 2)])
def test_what_torch_asks_of_a_backend(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@each_check([Run(FUNCTIONAL.name, size) for size in (2, 3)])
def test_functional_operators(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("size", [2, 3])
def test_compile(size: int) -> None:
    check(COMPILE, size)


def test_rueda_as_one_of_several_backends() -> None:
    """Mixed backends are refused on every rank and leave no state; one for all devices works."""
    check(
        """
        import sys, torch, torch.distributed as dist, rueda, rueda.torch.c10d
        def refused(make, backend):
            try:
                make(backend=backend)
            except rueda.UnsupportedError as error:
                assert repr(backend) in str(error), error
                assert "init_process_group('rueda') is enough" in str(error), error
            else:
                sys.exit("was accepted")
        mixed = ("cpu:gloo,cuda:rueda", "cpu:rueda,cuda:nccl", "CPU:Gloo,CUDA:Rueda")
        for backend in mixed:
            refused(dist.init_process_group, backend)
        assert not dist.is_initialized()
        assert not rueda.is_initialized()
        dist.init_process_group("cpu:rueda,cuda:rueda")
        for backend in mixed:
            refused(dist.new_group, backend)
        for group in (None, dist.new_group(), dist.new_group(backend="gloo")):
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2.0] * 3
        dist.destroy_process_group()
        """,
        2,
    )


@pytest.mark.parametrize("launcher", [TORCHRUN, RUEDA_RUN], ids=["torchrun", "rueda run"])
def test_collectives_under_launchers(launcher: list[str], tmp_path: Path) -> None:
    assert "ok check_messages" in launch(launcher, 2, COLLECTIVES, tmp_path)


@needs_mpirun
@each_check(
    [
        Run(COLLECTIVES.name, 3, mpirun=True, extra={"RUEDA_TRANSPORT": transport})
        for transport in ("auto", "mpi")
    ]
)
def test_collectives_under_mpirun(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


def test_life_under_torchrun(tmp_path: Path) -> None:
    """The backend's names, a second world after the first, and process sets beside groups."""
    launch(
        TORCHRUN,
        2,
        """
        import os, torch, torch.distributed as dist, rueda, rueda.torch.c10d
        for backend in ("rueda", "cpu:rueda"):
            dist.init_process_group(backend)
            assert dist.get_world_size() == rueda.size() == 2
            assert dist.get_rank() == rueda.rank()
            assert "RUEDA_RENDEZVOUS" not in os.environ
            own = rueda.add_process_set([0, 1])
            group = dist.new_group([0, 1])
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2.0] * 3
            assert rueda.allreduce([1.0], op=rueda.Sum, process_set=own).tolist() == [2.0]
            dist.destroy_process_group()
            assert not rueda.is_initialized()
        """,
        tmp_path,
        as_users_do=True,
    )


@pytest.mark.parametrize("first", ["all have met", "one ends before"])
def test_torchrun_restarts_all_over_the_same_store(first: str, tmp_path: Path) -> None:
    """What the ranks of the attempt before have left in the agent's store misleads nobody."""
    output = launch(
        ["torchrun", "--standalone", "--max-restarts", "1", "--nproc-per-node"],
        2,
        f"""
        import os, sys, time, torch, torch.distributed as dist, rueda.torch.c10d
        rank, attempt = (int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
        if attempt == 0 and {first == "one ends before"} and rank == 1:
            sys.exit(1)
        if attempt == 1 and rank == 0:
            time.sleep(1)  # the other one shall find what there was before
        dist.init_process_group("rueda")
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0] * 3
        if attempt == 0:
            sys.exit(1)
        print("went on", flush=True)
        dist.destroy_process_group()
        """,
        tmp_path,
        as_users_do=True,
    )
    assert output.count("went on") == 2


@pytest.mark.parametrize("lost", [0, 1])
def test_agents_restart_all_whoever_had_not_begun(lost: int, tmp_path: Path) -> None:
    """Two agents of torchrun count restarts differently, and the store has what the attempts before have left."""
    program = f"""
        import datetime, os, sys, time, torch, torch.distributed as dist, rueda.torch.c10d
        rank, folder = int(os.environ["RANK"]), {str(tmp_path)!r}
        attempt = 0
        while True:
            try:
                os.close(os.open(f"{{folder}}/rank{{rank}}.{{attempt}}", os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                attempt += 1
        if attempt == 0 and rank == {lost}:
            time.sleep(2)  # the other one has begun by now
            sys.exit(1)
        if attempt == 1 and rank == 0:
            time.sleep(1)
        for _ in range(2):
            dist.init_process_group("rueda", timeout=datetime.timedelta(seconds=60))
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [2.0] * 3
            dist.destroy_process_group()
        if attempt == 1:
            sys.exit(1)
        print("went on", flush=True)
        """
    script = tmp_path / "program.py"
    script.write_text(command(program)[-1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    line = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
    with ThreadPoolExecutor() as agents:
        ends = list(agents.map(lambda _: end_of(line, limit=200), range(2)))
    outputs = "\n---\n".join(each.output for each in ends)
    assert [each.returncode for each in ends] == [0, 0], outputs
    assert outputs.count("went on") == 2, outputs
    assert "wait timeout" not in outputs


def test_ranks_with_different_pasts_meet_over_a_new_store(tmp_path: Path) -> None:
    launch(
        TORCHRUN,
        3,
        f"""
        import os, torch, torch.distributed as dist, rueda.torch.c10d
        rank = int(os.environ["RANK"])
        for size in (2, 3):
            if rank < size:
                store = dist.FileStore(f"{tmp_path}/store{{size}}", size)
                dist.init_process_group("rueda", store=store, rank=rank, world_size=size)
                tensor = torch.ones(3)
                dist.all_reduce(tensor)
                assert tensor.tolist() == [float(size)] * 3
                dist.barrier()
                dist.destroy_process_group()
        """,
        tmp_path,
    )


@pytest.mark.parametrize("size", [3, 4])
def test_groups_of_some_ranks_leave_the_numbers_of_sets_alone(size: int) -> None:
    """Only members know a group, but a set has one number on all ranks, and room counts alike."""
    check(
        """
        import torch, torch.distributed as dist, rueda, rueda.torch.c10d
        dist.init_process_group("rueda")
        rank, size = dist.get_rank(), dist.get_world_size()
        numbers, groups = [], []
        for turn in range(6):
            wanted = [[0, 1], [1, 2], [size - 1], [0, 1, 2]][turn % 4]
            for _ in range(1 + turn):
                groups.append((wanted, dist.new_group(wanted)))
            made = rueda.add_process_set(range(turn % 3, size))
            numbers.append(made.process_set_id)
            if made.included():
                total = rueda.allreduce([1.0], op=rueda.Sum, process_set=made)
                assert total.tolist() == [made.size()]
            if turn % 2:
                rueda.remove_process_set(made)
            for wanted, group in groups:
                if rank in wanted:
                    tensor = torch.ones(2)
                    dist.all_reduce(tensor, group=group)
                    assert tensor.tolist() == [len(wanted)] * 2
            if turn == 3:
                for wanted, group in groups:
                    if rank in wanted:
                        dist.destroy_process_group(group)
                groups = []
        told = rueda.allgather_object(numbers)
        assert told == [numbers] * size, told
        dist.destroy_process_group()
        """,
        size,
        extra={"RUEDA_STALL_ERROR": "20"},
    )


def test_in_a_world_that_exists() -> None:
    check(
        """
        import torch, torch.distributed as dist, rueda, rueda.torch.c10d
        rueda.init()
        dist.init_process_group("rueda")
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [rueda.size()] * 3
        dist.destroy_process_group()
        assert rueda.allreduce([1.0], op=rueda.Sum).tolist() == [3.0]  # the world goes on
        """,
        3,
    )


DEATH = """
    import os, signal, sys, torch, torch.distributed as dist, rueda, rueda.torch.c10d
    dist.init_process_group("rueda")
    dist.barrier()
    if "model" in {wait!r}:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        model(torch.ones(2, 3)).sum().backward()
    if dist.get_rank() == 1:
        print("here", flush=True)
        {act}
    try:
        {wait}
    except rueda.PeerLostError as error:
        print("PeerLostError", error.peer, error)
        sys.exit(7)
    except RuntimeError as error:  # DistributedDataParallel has the error from a future
        print(str(error).replace("PeerLostError: rank 1", "PeerLostError 1 : rank 1"))
        sys.exit(7)
"""


@pytest.mark.parametrize(
    ("act", "wait"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "dist.all_reduce(torch.ones(100))"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "dist.recv(torch.ones(100), 1)"),
        ("raise ValueError('broken data')", "dist.all_reduce(torch.ones(100))"),
        ("os._exit(3)", "model(torch.ones(2, 3)).sum().backward()"),
    ],
    ids=["all_reduce", "recv", "exception", "backward"],
)
def test_a_rank_that_dies(act: str, wait: str) -> None:
    ended = run(DEATH.format(act=act, wait=wait), 3, limit=90)
    for rank in (0, 2):
        assert ended[rank].returncode == 7, ended
        assert "PeerLostError 1 " in ended[rank].output, ended
        assert ("broken data" in ended[rank].output) == ("broken" in act), ended


@pytest.mark.parametrize("lost", [0, 1], ids=["with the store", "another"])
@pytest.mark.parametrize("ranks", ["None", "[0, 1]"], ids=["all", "some"])
def test_a_rank_that_dies_where_others_make_a_group(lost: int, ranks: str) -> None:
    """The others notice as in a collective, long before the group's timeout."""
    ended = run(
        f"""
        import os, signal, sys, torch.distributed as dist, rueda, rueda.torch.c10d
        dist.init_process_group("rueda")
        dist.barrier()
        if dist.get_rank() == {lost}:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.new_group({ranks})
            dist.barrier()  # who is no member is told here
        except rueda.PeerLostError as error:
            print("PeerLostError", error.peer)
            sys.exit(7)
        """,
        3,
        limit=90,
    )
    for rank in {0, 1, 2} - {lost}:
        assert ended[rank].returncode == 7, ended
        assert f"PeerLostError {lost}\n" in ended[rank].output, ended


@pytest.mark.parametrize(
    ("leaves", "ranks"),
    [(0, "None"), (0, "[1, 2]"), (1, "[0, 1]"), (2, "[0, 1]")],
    ids=["first", "store", "one", "other"],
)
def test_a_rank_that_leaves_where_others_make_a_group(leaves: int, ranks: str) -> None:
    """A member's exit raises like a loss; a rank that is no member may leave early."""
    ended = run(
        f"""
        import sys, torch, torch.distributed as dist, rueda, rueda.torch.c10d
        dist.init_process_group("rueda")
        dist.barrier()
        if dist.get_rank() == {leaves}:
            dist.destroy_process_group()
            sys.exit()
        try:
            while {leaves} == 2:
                rueda._native.throw_if_rank_has_left([2])
        except rueda.ShutdownError:
            pass
        try:
            group = dist.new_group({ranks})
            if {leaves} == 2:
                total = torch.ones(1)
                dist.all_reduce(total, group=group)
                print("sum", total.item())
            dist.barrier()  # who is no member is told here
        except rueda.ShutdownError as error:
            print("ShutdownError", error.peer)
        """,
        3,
        limit=90,
    )
    for rank in {0, 1, 2} - {leaves}:
        assert f"ShutdownError {leaves}\n" in ended[rank].output, ended
        assert ("sum 2.0\n" in ended[rank].output) == (leaves == 2), ended


def test_ranks_that_are_others_after_a_group_that_met_nobody(tmp_path: Path) -> None:
    """The changed numbering is detected: the meeting over one store says nothing about the next."""
    check(
        """
        import os, sys, torch.distributed as dist, rueda, rueda.torch.c10d
        options = rueda.torch.c10d.Options(enable_reconfigure=True)
        dist.init_process_group("rueda", init_method="rueda://", pg_options=options)
        dist.destroy_process_group()
        store = dist.FileStore(os.environ["STORE"])
        try:
            dist.init_process_group("rueda", store=store, rank=1 - rueda.rank(), world_size=2)
        except rueda.InitializationError as error:
            assert "rank 0 of torch.distributed is rank 1 of 2" in str(error), error
        else:
            sys.exit("was accepted")
        """,
        2,
        extra={"STORE": str(tmp_path / "store")},
    )


def test_groups_over_one_store_before_and_after_another(tmp_path: Path) -> None:
    """Earlier groups have left keys in the store."""
    check(
        """
        import os, torch, torch.distributed as dist, rueda, rueda.torch.c10d
        rueda.init()
        store = dist.FileStore(os.environ["STORE"])
        given = {"store": store, "rank": rueda.rank(), "world_size": rueda.size()}
        for more in (given, given, {"init_method": "rueda://"}, given):
            dist.init_process_group("rueda", **more)
            for group in (dist.new_group([0, 1]), dist.new_group([0, 1])):
                tensor = torch.ones(3)
                dist.all_reduce(tensor, group=group)
                assert tensor.tolist() == [2.0] * 3
            dist.destroy_process_group()
        """,
        2,
        extra={"STORE": str(tmp_path / "store")},
    )


def test_ranks_that_are_others_in_ruedas_world(tmp_path: Path) -> None:
    check(
        """
        import os, sys, torch.distributed as dist, rueda, rueda.torch.c10d
        rueda.init()
        store = dist.FileStore(os.environ["STORE"])
        try:
            dist.init_process_group("rueda", store=store, rank=1 - rueda.rank(), world_size=2)
        except rueda.InitializationError as error:
            assert "rank 0 of torch.distributed is rank 1 of 2" in str(error), error
        else:
            sys.exit("was accepted")
        """,
        2,
        extra={"STORE": str(tmp_path / "store")},
    )


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_comes_too_late_to_the_first_group(late: int, tmp_path: Path) -> None:
    """Also the late one is told at once."""
    launch(
        TORCHRUN,
        3,
        f"""
        import os, sys, time, torch.distributed as dist, rueda, rueda.torch.c10d
        from datetime import timedelta
        from pathlib import Path

        def wait_for(ranks):
            while not all((Path({str(tmp_path)!r}) / str(peer)).exists() for peer in ranks):
                time.sleep(0.1)

        rank = int(os.environ["RANK"])
        others = {{0, 1, 2}} - {{{late}}}
        if rank == {late}:
            wait_for(others)
        begun = time.monotonic()
        try:
            dist.init_process_group("rueda", timeout=timedelta(seconds=5))
        except rueda.TimeoutError as error:
            told = "rank {late} has not come to form the process group within 5 s. Timed out waiting 5000ms"
            assert (str(error), error.peer) == (told, {late}), error
            assert rank != {late} or time.monotonic() - begun < 4
        else:
            sys.exit("was accepted")
        (Path({str(tmp_path)!r}) / str(rank)).touch()
        wait_for([{late}])  # torchrun would end it
        """,
        tmp_path,
    )


def test_without_a_launcher() -> None:
    """The error is torch's own and names the missing variables."""
    ended = alone("import torch.distributed as d, rueda.torch.c10d; d.init_process_group('rueda')")
    assert ended.returncode != 0
    assert "RANK" in ended.output


def test_example(tmp_path: Path) -> None:
    """Five ways of training, each equal to training in one process."""
    example = Path(__file__).resolve().parents[2] / "examples/python/torch_distributed.py"
    output = launch(TORCHRUN, 3, example, tmp_path)
    assert output.count("parameters differ from one process's by") == 5


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    launch(
        TORCHRUN,
        2,
        """
        import torch, torch.distributed as dist, rueda, rueda.torch.c10d
        from accelerate import Accelerator

        dist.init_process_group("rueda")
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(4, 2)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
        rank = accelerator.process_index
        accelerator.backward(model(torch.full((3, 4), float(rank))).pow(2).mean())
        optimizer.step()
        weights = accelerator.gather(model.module.weight.detach().sum().reshape(1))
        assert weights[0] == weights[1]
        assert rueda.metrics()["allreduce_tensors"] > 0
        dist.destroy_process_group()
        """,
        tmp_path,
    )


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    launch(
        TORCHRUN,
        2,
        """
        import pytorch_lightning as lightning, torch, torch.distributed as dist, rueda, rueda.torch.c10d
        from pytorch_lightning.strategies import DDPStrategy

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 2)
            def training_step(self, batch, _):
                return self.layer(batch[0]).pow(2).mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.001)

        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="rueda"), max_epochs=1,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
        )
        model = Model()
        data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(8, 4))
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
        assert dist.get_backend() == "rueda"
        weights = [torch.empty(2, 4) for _ in range(2)]
        dist.all_gather(weights, model.layer.weight.detach())
        assert torch.equal(weights[0], weights[1])
        assert rueda.metrics()["allreduce_tensors"] > 0
        """,
        tmp_path,
    )


LONGER = """
import sys, time, torch, torch.distributed as dist, rueda, rueda.torch.c10d
from datetime import timedelta
short, long = timedelta(seconds=2), timedelta(seconds=120)
dist.init_process_group("rueda", timeout=short)
rank = dist.get_rank()
late = 1 - rank if "FIRST" in sys.argv else rank
def reduce(**options):
    if late == 1:
        time.sleep(3.5)
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True, **options)
    return tensor, work
"""


@pytest.mark.parametrize("who", ["", "FIRST"], ids=["the second is late", "the first is late"])
def test_groups_with_longer_limits_than_the_default_one(who: str) -> None:
    """Timeouts from new_group() and set_timeout(), whichever rank is late."""
    check(
        f"import sys; sys.argv.append({who!r})"
        + LONGER
        + """
group = dist.new_group(timeout=long)
for is_synchronous in (False, True):
    if is_synchronous:
        if late == 1:
            time.sleep(3.5)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
    else:
        tensor, work = reduce(group=group)
        work.wait()
    assert tensor.tolist() == [2.0] * 3
dist.group.WORLD.set_timeout(long)
tensor, work = reduce()
work.wait()
assert tensor.tolist() == [2.0] * 3
dist.destroy_process_group()
""",
        2,
    )


@pytest.mark.parametrize("missing", [0, 1])
def test_a_timeout_names_the_rank_that_is_missing(missing: int) -> None:
    """Of the default group and of one with a shorter timeout, waited for at once, later, and in a future."""
    check(
        f"""
        import torch, torch.distributed as dist, rueda, rueda.torch.c10d
        from datetime import timedelta
        missing = {missing}
        short, long = timedelta(seconds=1), timedelta(seconds=300)

        def at_once(group):
            dist.all_reduce(torch.ones(3), group=group)

        def gathered(group):
            dist.all_gather_into_tensor(torch.ones(9), torch.ones(3), group=group)

        def later(group):
            dist.broadcast(torch.ones(3), 0, group=group, async_op=True).wait()

        def in_time(group):
            dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(short)

        def in_future(group):
            dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future().wait()

        def require_named(call, group):
            store = dist.distributed_c10d._get_default_store()
            if dist.get_rank() == missing:
                return store.wait([f"told {{other}}" for other in range(3) if other != missing], long)
            try:
                call(group)
            except RuntimeError as error:
                text = str(error)
                assert " has waited for 1" in text and f"missing on rank {{missing}}" in text, text
                assert "Timed out waiting 1000ms" in text and "stall_error" not in text, text
            else:
                raise AssertionError("did not fail")
            store.set(f"told {{dist.get_rank()}}", "")

        dist.init_process_group("rueda", timeout=long)
        for call in (at_once, gathered, later, in_time, in_future):
            group = dist.new_group(timeout=short)
            for _ in range(4):  # then it is repeated without negotiation
                dist.all_reduce(torch.ones(3), group=group)
            require_named(call, group)
            for rank in range(3):
                dist.distributed_c10d._get_default_store().delete_key(f"told {{rank}}")
            dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group("rueda", timeout=short)
        require_named(at_once, None)
        dist.destroy_process_group()
        """,
        3,
    )


def test_waiting_for_longer_than_the_default_group() -> None:
    """Timeouts from wait(timeout) and barrier(timeout) on the first rank."""
    check(
        LONGER
        + """
tensor, work = reduce()
work.wait(long)
assert tensor.tolist() == [2.0] * 3
if rank == 1:
    time.sleep(3.5)
dist.group.WORLD.barrier(timeout=long).wait()
dist.destroy_process_group()
""",
        2,
    )


def test_a_limit_that_somebody_has_given_the_world() -> None:
    """The world's explicit limit applies, and the error says so."""
    check(
        r"""
        import re, sys, time, torch, torch.distributed as dist, rueda, rueda.torch.c10d
        from datetime import timedelta
        rueda.init(stall_error=1)
        dist.init_process_group("rueda", timeout=timedelta(seconds=60))
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.wait(["seen"])
        else:
            try:
                dist.all_reduce(torch.ones(1))
            except rueda.StalledError as error:
                # At least: whoever asks late says for how long it has waited.
                assert re.search(r"Timed out waiting 1\d00ms: the world's stall_error", str(error)), error
                assert "the 60 s of this operation" in str(error), error
            else:
                sys.exit("did not fail")
            store.set("seen", "")
        dist.destroy_process_group()
        """,
        2,
    )
