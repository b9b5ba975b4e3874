"""How the ranks of a default group agree on keys that no group before them has used, in threads over one store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch.distributed")
pytest.importorskip("rueda._native")

import rueda
import torch.distributed as dist
from rueda.torch.c10d.generation import begin_generation

LONG, SHORT = timedelta(seconds=60), timedelta(seconds=0.5)


@pytest.fixture(params=["one agent", "several agents"])
def agents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How torchrun has started the ranks."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4" if request.param == "one agent" else "2")
    return str(request.param)


def begun(store: dist.Store, ranks: list[int], size: int, timeout: timedelta) -> list[object]:
    """What each of these ranks gets, or the error that it raises."""

    def begin(rank: int) -> object:
        try:
            return begin_generation(store, rank, size, timeout)
        except rueda.TimeoutError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(begin, ranks))


def test_all_ranks_get_the_same_keys_and_new_ones_each_time(agents: str) -> None:
    store = dist.HashStore()
    seen = set()
    for size in (4, 4) if agents == "one agent" else (4, 1, 4):
        (prefix,) = set(begun(store, list(range(size)), size, LONG))
        assert prefix not in seen, agents
        seen.add(prefix)


@pytest.mark.parametrize("agents", ["several agents"], indirect=True)
@pytest.mark.parametrize("missing", [[0], [2], [1, 3]])
def test_who_has_not_come_is_named_and_misleads_nobody_later(
    agents: str, missing: list[int]
) -> None:
    store = dist.HashStore()
    coming = [rank for rank in range(4) if rank not in missing]
    for error in begun(store, coming, 4, SHORT):
        assert isinstance(error, rueda.TimeoutError), agents
        assert str(error).startswith("rank" if len(missing) == 1 else "ranks")
        assert f"{', '.join(map(str, missing))} ha" in str(error)
    prefixes = begun(store, [0, 1, 2, 3], 4, LONG)
    assert len(set(prefixes)) == 1
    assert isinstance(prefixes[0], str)
