"""Training functions that restart from a rueda.elastic.State."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from elastic_launcher import ElasticJob
from launching import check

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

# KILL: "process:step" at which a process kills itself, between the optimizer's step and the commit.
PROGRAM = """
import hashlib, os, signal, time
import rueda, rueda.elastic, rueda.torch, torch

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
torch.manual_seed(number)
body, head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
gate = os.environ.get("GATE")
rueda.init()
optimizers = [
    rueda.torch.DistributedOptimizer(kind(part.parameters(), lr=0.01), part.named_parameters(prefix=name))
    for kind, part, name in ((torch.optim.Adam, body, "body"), (torch.optim.SGD, head, "head"))
]
while gate and not os.path.exists(gate):
    time.sleep(0.01)
kills = os.environ.get("KILL", "").split()
resets, begun = [], 0

@rueda.elastic.run
def train(state, steps):
    global begun
    begun += 1
    while state.step < steps:
        generator = torch.Generator().manual_seed(1000 * state.step + rueda.rank())
        for optimizer in optimizers:
            optimizer.zero_grad()
        state.head(torch.relu(state.body(torch.rand(4, 6, generator=generator)))).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        state.history.append(state.step)
        if f"{number}:{state.step}" in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        state.step += 1
        state.commit()
    return state.history

state = rueda.elastic.State(
    body=body, head=head, first=optimizers[0], second=optimizers[1], step=0, history=[]
)
state.register_reset_callbacks([lambda: resets.append(rueda.size())])
history = train(state, steps=12)
assert history == list(range(12)), history
parts = [body.state_dict(), head.state_dict()]
parts += [each for optimizer in optimizers for each in optimizer.state_dict()["state"].values()]
tensors = [value for part in parts for value in part.values() if isinstance(value, torch.Tensor)]
bits = b"".join(value.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for value in tensors)
print("ended", begun, resets, hashlib.sha256(bits).hexdigest()[:16], flush=True)
"""


def ends_of(job: ElasticJob, *lost: int, refused: int = -1) -> dict[int, tuple[str, str, str]]:
    """For each survivor: number of starts, sizes after resets, and hash."""
    ends = {}
    for number, how in job.ended().items():
        if number == refused:
            assert how.returncode == 1, job.outputs()
            assert "InvalidArgumentError: state 1: 'weight' is (4, 8)" in how.output, job.outputs()
            continue
        assert how.returncode == (-signal.SIGKILL if number in lost else 0), job.outputs()
        if number not in lost:
            (ends[number],) = re.findall(r"^ended (\d+) (.*) (\w{16})$", how.output, re.M)
    assert len({bits for *_, bits in ends.values()}) == 1, job.outputs()
    return ends


def test_newcomers_get_what_is_committed_and_a_loss_goes_back_to_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ElasticJob(PROGRAM, 2, GATE=str(gate), KILL="0:9") as job:
        joiner = job.start_joiner()
        strange = job.start_joiner(PROGRAM.replace("Linear(8, 3)", "Linear(8, 4)"))
        job.await_ready(joiner, strange)
        gate.touch()
        ends = ends_of(job, 0, refused=strange)
        assert ends[1][:2] == ("3", "[4, 3, 2]"), job.outputs()
        assert ends[joiner][:2] == ("2", "[3, 2]"), job.outputs()


def test_a_timeline_is_started_whenever_the_function_is_run(tmp_path: Path) -> None:
    """Process 2 becomes rank 1 and continues its file, which the newcomer, rank 2, leaves alone."""
    program = """
import os, signal, time
import numpy as np
import rueda, rueda.elastic

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
rueda.init()

@rueda.elastic.run
def train(state):
    rueda.start_timeline(os.environ["TRACES"] + "/%r")
    try:
        rueda.start_timeline(os.environ["TRACES"] + "/other%r")
        raise SystemExit("two timelines at once")
    except rueda.InvalidArgumentError as error:
        assert "/%r" in str(error), error
    is_first = True  # in this world; who joins takes part in one step at least
    while is_first or state.step < 6 or rueda.size() < 3:
        is_first = False
        rueda.allreduce(np.ones(2), "early" if state.step < 3 else "late")
        if (number, state.step) == (1, 4):
            os.kill(os.getpid(), signal.SIGKILL)
        state.step += 1
        state.commit()
        time.sleep(0.002)

train(rueda.elastic.State(step=0))
rueda.stop_timeline()
"""
    with ElasticJob(program, 3, TRACES=str(tmp_path)) as job:
        job.await_world(0, 2)
        joiner = job.start_joiner()
        for number, how in job.ended().items():
            assert how.returncode == (-signal.SIGKILL if number == 1 else 0), job.outputs()
        assert joiner == 3
    (new,) = (path.name for path in tmp_path.iterdir() if path.name not in ("0", "1", "2"))
    assert re.fullmatch(r"2\.epoch\d+", new), new
    for name, rank, rows in (
        ("0", 0, {"early", "late"}),
        ("2", 2, {"early", "late"}),
        (new, 2, {"late"}),
    ):
        events = json.loads((tmp_path / name).read_text())
        assert {event["pid"] for event in events} == {rank}
        written = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
        assert written & {"early", "late"} == rows, (name, written)
        marks = [event["args"] for event in events if event["name"] == "WORLD"]
        assert [mark["size"] for mark in marks] == ([] if name == new else [2, 3])
        assert {mark["rank"] for mark in marks} == (
            {1} if name == "2" else {0} if name == "0" else set()
        )


def test_a_state_is_what_rank_0_has_and_what_cannot_be_is_told_on_every_rank() -> None:
    check(
        """
        import numpy as np
        import rueda, rueda.elastic

        class Counter:
            value = 0
            def state_dict(self):
                return {"value": self.value}
            def load_state_dict(self, state):
                self.value = state["value"]

        def error_of(call):
            try:
                call()
            except rueda.RuedaError as error:
                return f"{type(error).__name__}: {error}"

        rueda.init()
        own, counter = rueda.rank(), Counter()
        counter.value = 10 + own
        state = rueda.elastic.State(counter=counter, lists=[[own]], array=np.full(3, own))
        state.sync()
        assert (counter.value, state.lists, list(state.array)) == (10, [[0]], [0, 0, 0])
        counter.value, state.array[:] = 5, 7
        state.lists[0].append(1)
        state.restore()
        assert (counter.value, state.lists, list(state.array)) == (10, [[0]], [0, 0, 0])
        counter.value = 6
        state.commit()
        counter.value = 7
        state.restore()
        assert counter.value == 6
        assert "the name 'commit'" in error_of(lambda: rueda.elastic.State(commit=1))
        other = rueda.elastic.State(**{f"own{own}": 1})
        assert "rank 1 has the values ['own1'], and that of rank 0 ['own0']" in error_of(other.sync)

        calls = []

        @rueda.elastic.run
        def fails(state):
            calls.append(1)
            rueda.allreduce(np.ones(2 + own), "different")

        assert "MismatchError" in error_of(lambda: fails(state)) and calls == [1]
        """,
        2,
    )


def test_ranks_that_have_come_differently_far_are_made_alike() -> None:
    """Including a model whose extra state is not a tensor."""
    check(
        """
        import sys
        import rueda, rueda.elastic, torch
        from rueda.elastic import state as states

        class Model(torch.nn.Linear):
            of = None
            def get_extra_state(self):
                return {"of": self.of}
            def set_extra_state(self, state):
                self.of = state["of"]

        def set_to(value):
            model.of = state.step = value
            with torch.no_grad():
                model.weight.fill_(value)

        def are_all_at(value):
            told = rueda.allgather_object((model.of, state.step, model.weight.tolist()))
            assert told == [(value, value, [[value] * 2])] * 2, told

        def loses_a_rank():
            raise rueda.PeerLostError("rank 2 is gone")

        rueda.init(recovery="on")
        own = rueda.rank()
        model = Model(2, 1)
        state = rueda.elastic.State(model=model, step=None)
        set_to(own)
        state.sync()
        are_all_at(0)

        # Callbacks have changed what was committed; one rank has it and the other has not got it any more.
        set_to(1)
        save = state.save
        if own == 1:
            state.save = loses_a_rank
        try:
            state.sync()
        except rueda.PeerLostError:
            state.save = save
            state.restore()
        state.sync()
        are_all_at(1)

        # The world was to change some steps after a commit; one rank has to go back meanwhile.
        states.wanted = lambda: (True, False)
        set_to(2)
        try:
            state.check()
            raise AssertionError("nothing is wanted")
        except rueda.elastic.ChangeWanted:
            pass
        if own == 1:
            state.restore()
        state.sync()
        are_all_at(2)

        # Nobody is left who has the state: that does not come back with another world.
        states.came_late = lambda: True
        lost = rueda.elastic.State(step=0)
        lost.register_reset_callbacks([lambda: sys.exit("begun anew")])
        try:
            rueda.elastic.run(lambda state: None)(lost)
            raise AssertionError("nothing raised")
        except rueda.InitializationError as error:
            assert "before the remaining ranks received it" in str(error), error
        """,
        2,
    )


def test_what_is_given_up_and_what_is_kept() -> None:
    """BatchNorm statistics roll back; a rank that receives only those keeps its residuals."""
    check(
        """
        import rueda, rueda.elastic, rueda.torch, torch
        from rueda.torch.state_exchange import exchange_state

        def take_step(net, optimizer):
            optimizer.zero_grad()
            net(torch.rand(4, 3)).square().sum().backward()
            optimizer.step()

        rueda.init()
        torch.manual_seed(rueda.rank())
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = rueda.torch.DistributedOptimizer(
            inner, net.named_parameters(), reproducible=True, leaves=2, named_buffers=net.named_buffers()
        )
        state = rueda.elastic.State(net=net, optimizer=optimizer)
        state.sync()
        committed = net[1].running_mean.clone()
        for leaf in optimizer.leaves():
            net(torch.rand(4, 3)).square().sum().backward()
        optimizer.step()
        for leaf in optimizer.leaves():
            net(torch.rand(4, 3)).square().sum().backward()
            break  # as where a rank is lost meanwhile
        assert not torch.equal(net[1].running_mean, committed)
        state.restore()
        state.on_reset()
        assert torch.equal(net[1].running_mean, committed)

        policy = rueda.torch.CompressionPolicy({"*": "topk:0.1"}, min_elements=0, error_feedback=True)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        rueda.torch.broadcast_parameters(net.state_dict())
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = rueda.torch.DistributedOptimizer(inner, net.named_parameters(), compression=policy)
        take_step(net, optimizer)
        residuals = optimizer.state_dict()["rueda_compression"]["residuals"]
        before = {name: each.clone() for name, each in residuals.items()}
        assert any(each.any() for each in before.values())
        exchange_state([net], optimizer, [0, 1])
        residuals = optimizer.state_dict()["rueda_compression"]["residuals"]
        assert all(torch.equal(each, before[name]) for name, each in residuals.items())
        statistics = rueda.allgather_object(net[1].running_mean.tolist())
        assert statistics[0] == statistics[1]
        """,
        2,
    )


@pytest.mark.parametrize(
    "error",
    ['ShutdownError("rank 1 has shut down", 1)', 'StalledError("late")', 'TimeoutError("late")'],
)
def test_a_change_of_the_world_that_fails_is_a_failure_like_any_other(error: str) -> None:
    """Such as a rank that leaves in good order meanwhile."""
    check(
        f"""
        import rueda, rueda.elastic.changes, rueda.elastic.running
        from rueda.horovod.exceptions import HostsUpdatedInterrupt
        from rueda.horovod.forming import Forming

        def fails(*_):
            raise rueda.{error}

        rueda.init(recovery="on")
        interrupt = HostsUpdatedInterrupt()
        interrupt.is_agreed = True
        rueda.elastic.running.change = rueda.elastic.changes.update = fails
        assert rueda.elastic.running._update(rueda.elastic.ChangeWanted()) is None  # so that the loop recovers
        assert Forming().update(interrupt) is None
        """,
        2,
    )


def test_what_would_only_recur_when_the_world_changes_is_raised() -> None:
    check(
        """
        import rueda, rueda.elastic.changes
        from rueda.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
        from rueda.horovod.forming import Forming

        def fails():
            raise rueda.MismatchError("different")

        rueda.init()
        interrupt = HostsUpdatedInterrupt()
        interrupt.is_agreed = True
        rueda.elastic.changes.update = fails
        try:
            Forming().update(interrupt)
            raise SystemExit("nothing raised")
        except HorovodInternalError as error:
            assert isinstance(error.__cause__, rueda.MismatchError), error
        """,
        1,
    )
