"""Groups whose members the program chooses: torch's fault-tolerance contract, and losses."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from launching import run
from worlds import Run, Worlds, each_check

pytest.importorskip("rueda._native")
pytest.importorskip("torch.distributed")


@each_check([Run("check_c10d_reconfigure.py", 3)])
def test_reconfigure(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@pytest.mark.parametrize("lost", [0, 2])
def test_the_others_go_on_without_one_that_is_killed(lost: int, tmp_path: Path) -> None:
    """Whichever is lost: the members no longer need the first rank or torch's store."""
    ended = run(
        f"""
        import os, signal, sys
        from datetime import timedelta
        import rueda, torch, torch.distributed as dist
        from rueda.torch.c10d import Options, ReconfigureOptions, typed_errors
        from torch.nn.parallel import DistributedDataParallel
        torch.set_num_threads(1)
        rank = int(os.environ["RUEDA_RANK"])
        store = dist.FileStore({str(tmp_path / "store")!r}, 3)
        dist.init_process_group(
            "rueda", store=store, rank=rank, world_size=3, pg_options=Options(enable_reconfigure=True)
        )
        group = dist.group.WORLD
        def tell_everybody(when):
            store.set(f"{{when}}.{{rank}}", group.get_reconfigure_handle())
            return [store.get(f"{{when}}.{{peer}}").decode() for peer in range(3)]
        group.reconfigure(ReconfigureOptions(1, tell_everybody("begin")))
        handles = tell_everybody("then")
        torch.manual_seed(1)
        layers = torch.nn.Linear(4, 2, bias=False).double()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        alone = torch.nn.Linear(4, 2, bias=False).double()
        alone.load_state_dict(layers.state_dict())
        beside = torch.optim.SGD(alone.parameters(), lr=0.1)
        def data(step, number):
            return torch.rand(3, 4, generator=torch.Generator().manual_seed(100 * step + number), dtype=torch.double)
        members, model, step = [0, 1, 2], DistributedDataParallel(layers), 0
        while step < 6:
            if rank == {lost} and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            try:
                loss = model(data(step, rank)).square().mean()
                with typed_errors():
                    loss.backward()
            except rueda.PeerLostError:
                assert (step, len(members)) == (3, 3)
                members.remove({lost})
                group.reconfigure(ReconfigureOptions(2, [handles[each] for each in members]))
                assert dist.get_rank() == members.index(rank)
                model = DistributedDataParallel(layers)
                continue
            optimizer.step()
            beside.zero_grad()
            sum(alone(data(step, each)).square().mean() / len(members) for each in members).backward()
            beside.step()
            torch.testing.assert_close(layers.weight, alone.weight, rtol=1e-12, atol=1e-14)
            step += 1
        assert len(members) == 2
        dist.destroy_process_group()
        """,
        3,
    )
    for rank, how in enumerate(ended):
        assert how.returncode == (-signal.SIGKILL if rank == lost else 0), how.output
