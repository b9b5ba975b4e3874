"""Scripts with several elastic loops, one for each epoch or phase, whose ranks are lost and replaced."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from elastic_launcher import ElasticJob
from launching import Ended

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

# act(epoch, step): adds 10 ** epoch to the weight, with all ranks. Process DIES kills itself in epoch 1, and the others
# wait in epoch 2 for one that is to join. STEPS and RUN are the same training, with either kind of loop.
COMMON = """
import os, signal, sys, time
import numpy as np
import rueda, rueda.elastic, rueda.torch, torch

number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
rueda.init()
optimizer = rueda.torch.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
)

def meet(epoch, step):
    if str(number) == os.environ.get("DIES") and (epoch, step) == (1, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    while (epoch, step) == (2, 1) and not os.path.exists(os.environ.get("GATE", "/")):
        time.sleep(0.01)

def act(epoch, step):
    meet(epoch, step)
    assert len(set(rueda.allgather_object(epoch, "epochs"))) == 1
    optimizer.zero_grad()
    (model(torch.ones(1, 1)) * -(10.0 ** epoch)).sum().backward()
    optimizer.step()

def tell():
    print(f"ended as {rueda.rank()} of {rueda.size()} with {model.weight.item():.0f}", flush=True)
"""
STEPS = """
def train(epoch):
    for step in rueda.elastic.steps(4, model, optimizer):
        with step:
            act(epoch, step.number)
"""
RUN = """
state = rueda.elastic.State(model=model, optimizer=optimizer, batch=0)

@rueda.elastic.run
def body(state, epoch):
    while state.batch < 4:
        act(epoch, state.batch)
        state.batch += 1
        state.commit()
    state.batch = 0

def train(epoch):
    body(state, epoch)
"""
STEPS_IN_A_CALL = """
state = rueda.elastic.State(model=model, optimizer=optimizer)

@rueda.elastic.run
def body(state, epoch):
    for step in rueda.elastic.steps(4, model, optimizer):
        with step:
            act(epoch, step.number)

def train(epoch):
    body(state, epoch)
"""
EPOCHS = """
for epoch in range(5):
    train(epoch)
tell()
"""


def ends_of(
    program: str, tmp_path: Path, newcomer: str = "", *, dies: int = 1
) -> tuple[dict[int, Ended], str]:
    """How the processes have ended, of which number 3 joins in epoch 2; and all output."""
    gate = tmp_path / "gate"
    with ElasticJob(program, 3, GATE=str(gate), DIES=str(dies)) as job:
        job.await_world(*(number for number in range(3) if number != dies))
        joiner = job.start_joiner(newcomer or program)
        job.await_ready(joiner)
        gate.touch()
        ended = job.ended()
        assert ended.pop(dies).returncode == -signal.SIGKILL, job.outputs()
        return ended, job.outputs()


def assert_all_have(weight: int, ended: dict[int, Ended], outputs: str) -> None:
    for rank, number in enumerate(sorted(ended)):
        assert ended[number].returncode == 0, outputs
        assert f"ended as {rank} of {len(ended)} with {weight}\n" in ended[number].output, outputs


def assert_is_refused(why: str, weight: int, ended: dict[int, Ended], outputs: str) -> None:
    """The newcomer; the others go on as if it had never come."""
    refused = ended.pop(3)
    assert refused.returncode == 1, outputs
    assert why in refused.output, outputs
    assert_all_have(weight, ended, outputs)


@pytest.mark.parametrize("dies", [0, 2])
@pytest.mark.parametrize("loop", [STEPS, RUN], ids=["steps", "run"])
def test_a_newcomer_enters_the_loop_in_which_the_others_are(
    loop: str, dies: int, tmp_path: Path
) -> None:
    ended, outputs = ends_of(COMMON + loop + EPOCHS, tmp_path, dies=dies)
    assert_all_have(44444, ended, outputs)


def test_what_lies_between_the_loops_is_done_by_newcomers_as_well(tmp_path: Path) -> None:
    """Here, it chooses what is added; the first loop is another kind of loop."""
    program = (
        COMMON.replace("10.0 ** epoch", "amounts[epoch]")
        + STEPS
        + RUN.replace("def train", "def train_by_commits").replace("4", "1")
        + """
amounts = [1.0]
train_by_commits(0)
del state
for epoch in range(1, 4):
    amounts.append(amounts[-1] * 3)
    train(epoch)
tell()
"""
    )
    ended, outputs = ends_of(program, tmp_path)
    assert_all_have(1 + 4 * (3 + 9 + 27), ended, outputs)


def test_loops_inside_of_a_function_are_counted_anew_when_it_is_run(tmp_path: Path) -> None:
    """They leave a newcomer to the function's commits."""
    program = (
        COMMON
        + STEPS
        + """
state = rueda.elastic.State(model=model, optimizer=optimizer, epoch=0)

@rueda.elastic.run
def body(state):
    while state.epoch < 4:
        for step in rueda.elastic.steps(2):
            with step:
                assert len(set(rueda.allgather_object(state.epoch, "epochs"))) == 1
        meet(state.epoch, 1)
        state.epoch += 1
        state.commit()

body(state)
train(4)
tell()
"""
    )
    ended, outputs = ends_of(program.replace("(1, 2)", "(1, 1)"), tmp_path)
    assert_all_have(40000, ended, outputs)


def test_a_newcomer_is_refused_where_calls_have_returned_what_it_cannot_have(
    tmp_path: Path,
) -> None:
    program = COMMON + RUN.replace("    state.batch = 0\n", "    state.batch = 0\n    return 1\n")
    ended, outputs = ends_of(program + EPOCHS, tmp_path)
    why = "cannot pass over loop 1 (body), since a function with @rueda.elastic.run has returned"
    assert_is_refused(why, 44444, ended, outputs)
    assert "going on without ranks that do not fit" in outputs


def test_a_newcomer_is_refused_that_has_passed_over_what_it_does_not_get_later(
    tmp_path: Path,
) -> None:
    program = (
        COMMON
        + STEPS
        + """
encoder = torch.nn.Linear(2, 2)
for step in rueda.elastic.steps(2, encoder):
    pass_over = step.__enter__()
    step.__exit__(None, None, None)
for epoch in range(1, 4):
    train(epoch)
tell()
"""
    )
    ended, outputs = ends_of(program, tmp_path)
    why = "has passed over a loop that shares an object of type Linear, which this one does not"
    assert_is_refused(why, 4440, ended, outputs)


def test_the_whole_of_a_model_is_shared_by_what_contains_it(tmp_path: Path) -> None:
    """And an object that is gone by then is not needed any more."""
    program = (
        COMMON
        + """
class Sampler:
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass

for epoch in range(4):
    whole = torch.nn.Sequential(model) if epoch > 1 else model
    for step in rueda.elastic.steps(4, whole, optimizer, Sampler()):
        with step:
            act(epoch, step.number)
tell()
"""
    )
    ended, outputs = ends_of(program, tmp_path)
    assert_all_have(4444, ended, outputs)


@pytest.mark.parametrize(
    "collective",
    [
        'rueda.allreduce(np.ones(1), "evaluation")',
        'rueda.torch.allreduce(torch.ones(1), name="evaluation")',
        "rueda.torch.broadcast_parameters(model.state_dict())",
        'rueda.checkpoint.save(os.environ["GATE"] + "s", epoch, model=model).result()',
    ],
)
def test_a_newcomer_does_nothing_with_the_others_between_loops(
    collective: str, tmp_path: Path
) -> None:
    program = COMMON + STEPS + EPOCHS.replace("train(epoch)", f"train(epoch); {collective}")
    ended, outputs = ends_of("import rueda.checkpoint" + program, tmp_path)
    why = "in loop 3 of the script (a newcomer passes over the loops before it, but not over"
    assert_is_refused(why, 44444, ended, outputs)


def test_a_newcomer_that_comes_to_another_loop_is_refused(tmp_path: Path) -> None:
    """Of the same number, as where it reads from a file how many there are."""
    other = EPOCHS.replace("train(epoch)", "next(rueda.elastic.steps(4, model, optimizer), 0)")
    program = COMMON + STEPS
    ended, outputs = ends_of(program + EPOCHS, tmp_path, program + other)
    why = "of <module>), and rank 0 in loop 3 (line "
    assert_is_refused(why, 44444, ended, outputs)
    other = EPOCHS.replace("train(epoch)", "body(state, epoch)")
    (tmp_path / "again").mkdir()
    ended, outputs = ends_of(program + EPOCHS, tmp_path / "again", COMMON + RUN + other)
    why = "in loop 3 of the script, rueda.elastic.steps(), and has come to loop 3 (body)"
    assert_is_refused(why, 44444, ended, outputs)


def test_ranks_that_begin_with_other_loops_are_told() -> None:
    program = (
        COMMON + STEPS + "if number == 1:\n    rueda.elastic.loops.begin_loop('', '')\ntrain(0)"
    )
    with ElasticJob(program, 2) as job:
        for how in job.ended().values():
            assert how.returncode == 1, job.outputs()
            assert "rank 1 is in loop 2 (line" in how.output, job.outputs()
            assert ", and rank 0 in loop 1 (line" in how.output, job.outputs()


def test_ranks_that_begin_with_another_kind_of_loop_are_told() -> None:
    program = COMMON + STEPS + SECOND + RUN + "(train if number else first)(0)"
    with ElasticJob(program, 2) as job:
        for how in job.ended().values():
            assert how.returncode == 1, job.outputs()
            assert "every rank must run the same elastic loops" in how.output, job.outputs()
            assert "ranks are in loop 1 (" in how.output, job.outputs()


def test_a_rank_that_leaves_out_steps_of_a_call_is_told() -> None:
    program = (
        COMMON
        + STEPS_IN_A_CALL.replace("    for step in", "    for step in () if number else")
        + "train(0)\ntrain(3)"
    )
    with ElasticJob(program, 2) as job:
        for how in job.ended().values():
            assert how.returncode == 1, job.outputs()
            assert "ranks are in loop 1.1 (line" in how.output, job.outputs()
            assert ", and in loop 2 (body), a function with" in how.output, job.outputs()


@pytest.mark.parametrize(("total", "every"), [(5, 1), (4, 3)])
def test_ranks_with_another_number_of_steps_are_told(
    total: int, every: int, tmp_path: Path
) -> None:
    """All at the start; later the newcomer alone, without which the others go on."""
    program = COMMON + STEPS.replace("optimizer)", "optimizer, every=1)") + EPOCHS
    other = program.replace("steps(4", f"steps({total}").replace("every=1", f"every={every}")
    why = f"steps({total}, ..., every={every}) on rank {{}}, and steps(4, ..., every=1) on rank 0"
    ended, outputs = ends_of(program, tmp_path, other)
    assert_is_refused(why.format(2), 44444, ended, outputs)
    program = program.replace("steps(4", f"steps({total} if number else 4")
    with ElasticJob(program.replace("every=1", f"every={every} if number else 1"), 2) as job:
        for how in job.ended().values():
            assert how.returncode == 1, job.outputs()
            assert why.format(1) in how.output, job.outputs()


# Process 1 is lost when it has left the first loop's end, of which process BEHIND has not heard.
END_OF_STEPS = """
from rueda.elastic import stepping

def wait(barrier=stepping.barrier, **options):
    barrier(**options)
    if number == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if str(number) == os.environ["BEHIND"] and rueda.size() == 3:
        while not rueda._native.is_world_over(1.0):
            pass
        raise rueda.PeerLostError("rank 1 is gone", 1)

stepping.barrier = wait
"""
# Epoch 0 is trained with one kind of loop, and epoch 3 with another: one, SECOND, other, IN_TURN.
SECOND = "first = train\n"
IN_TURN = """
second = train
def train(epoch):
    (second if epoch else first)(epoch)
"""


def ends_of_two_loops(loops: str, behind: int) -> tuple[dict[int, Ended], str]:
    program = COMMON + END_OF_STEPS + loops + "train(0)\ntrain(3)\ntell()"
    with ElasticJob(program, 3, BEHIND=str(behind)) as job:
        ended = job.ended()
        assert ended.pop(1).returncode == -signal.SIGKILL, job.outputs()
        return ended, job.outputs()


@pytest.mark.parametrize("behind", [0, 2])
def test_a_rank_that_has_not_heard_that_a_loop_is_over_follows_the_others(behind: int) -> None:
    """One is lost after the last step, when some know already that all have finished it."""
    ended, outputs = ends_of_two_loops(STEPS, behind)
    assert_all_have(4004, ended, outputs)


@pytest.mark.parametrize("behind", [0, 2])
def test_a_call_follows_steps_of_whose_end_a_rank_has_not_heard(behind: int) -> None:
    ended, outputs = ends_of_two_loops(STEPS + SECOND + RUN + IN_TURN, behind)
    assert_all_have(4004, ended, outputs)


@pytest.mark.parametrize("follows", ["", SECOND + STEPS + IN_TURN], ids=["a call", "steps"])
@pytest.mark.parametrize("behind", [0, 2])
def test_a_call_has_ended_with_steps_of_whose_end_a_rank_has_not_heard(
    behind: int, follows: str
) -> None:
    ended, outputs = ends_of_two_loops(STEPS_IN_A_CALL + follows, behind)
    assert_all_have(4004, ended, outputs)
    assert "has ended on the other ranks" in ended[behind].output, outputs


@pytest.mark.parametrize("behind", [0, 2])
def test_a_call_begins_anew_for_a_rank_that_was_in_steps_of_it(behind: int) -> None:
    """Those that have left the steps go back to the last commit, and so does the rank that has not."""
    begins = """    print("begins", epoch, model.weight.item(), flush=True)\n"""
    loop = STEPS_IN_A_CALL.replace("    for step in", begins + "    for step in")
    loop = loop.replace("\ndef train", "    rueda.barrier()\n\ndef train")
    ended, outputs = ends_of_two_loops(loop, behind)
    assert_all_have(4004, ended, outputs)
    for each in ended.values():
        assert each.output.count("begins 0 0.0\n") == 2, outputs


@pytest.mark.parametrize("loop", [STEPS, RUN], ids=["steps", "run"])
def test_a_rank_that_is_lost_between_two_loops_costs_nothing_of_either(loop: str) -> None:
    """What a function has changed after its last commit is not lost either, once it has returned."""
    dies = "if number == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    with ElasticJob(COMMON + loop + "train(0)\n" + dies + "train(3)\ntell()", 3) as job:
        ended = job.ended()
        assert ended.pop(1).returncode == -signal.SIGKILL, job.outputs()
        assert_all_have(4004, ended, job.outputs())


# with_a_loss(state): the last commit of the first call fails on process BEHIND, as it were; that of the others has
# succeeded, and they are in the next call when process 1 is lost.
LAST_COMMIT = """
behind = os.environ["GATE"]
done = []
def with_a_loss(state):
    commit = state.commit
    def commit_with_a_loss():
        commit()
        if str(number) == os.environ["BEHIND"] and state.batch == 4 and rueda.size() == 3 and not done:
            done.append(True)
            open(behind, "w").close()
            rueda.allreduce(np.ones(1), "nobody else comes")
    state.commit = commit_with_a_loss
    return state
"""
TWO_CALLS = """
train(0)
if number == 1:
    while not (os.path.exists(behind) and os.path.exists(behind + ".others")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
open(behind + ".others", "w").close()
train(3)
tell()
"""


def ends_of_two_calls(loop: str, behind: int, tmp_path: Path) -> tuple[dict[int, Ended], str]:
    program = COMMON + LAST_COMMIT + loop + TWO_CALLS
    with ElasticJob(program, 3, GATE=str(tmp_path / "behind"), BEHIND=str(behind)) as job:
        ended = job.ended()
        assert ended.pop(1).returncode == -signal.SIGKILL, job.outputs()
        return ended, job.outputs()


def with_a_state(anew: bool, loop: str) -> str:
    """One State for all calls, or a State for each."""
    if not anew:
        return loop + "with_a_loss(state)\n"
    state = "rueda.elastic.State(model=model, optimizer=optimizer, batch=0)"
    return loop.replace("body(state, epoch)\n", f"body(with_a_loss({state}), epoch)\n")


@pytest.mark.parametrize("anew", [False, True], ids=["one State", "a State for each call"])
@pytest.mark.parametrize("behind", [0, 2])
def test_a_rank_for_which_a_call_has_not_ended_at_a_loss_meets_the_others(
    behind: int, anew: bool, tmp_path: Path
) -> None:
    """What the others have done after their last commit is not lost."""
    doubled = "    state.batch = 0\n    with torch.no_grad():\n        model.weight.mul_(2)\n"
    loop = RUN.replace("    state.batch = 0\n", doubled)
    ended, outputs = ends_of_two_calls(with_a_state(anew, loop), behind, tmp_path)
    assert_all_have(2 * (2 * 4 + 4000), ended, outputs)
    assert "has ended on the other ranks" in ended[behind].output, outputs


@pytest.mark.parametrize("behind", [0, 2])
def test_steps_follow_a_call_that_has_not_ended_at_a_loss(behind: int, tmp_path: Path) -> None:
    """Even where the lowest rank lacks what the others have done after the last commit."""
    doubled = "    state.batch = 0\n    with torch.no_grad():\n        model.weight.mul_(2)\n"
    loop = with_a_state(False, RUN.replace("    state.batch = 0\n", doubled))
    ended, outputs = ends_of_two_calls(loop + SECOND + STEPS + IN_TURN, behind, tmp_path)
    assert_all_have(2 * 4 + 4000, ended, outputs)
    assert "has ended on the other ranks" in ended[behind].output, outputs


def returning(value: str, call: str = "body(state, epoch)") -> str:
    loop = RUN.replace("    state.batch = 0\n", f"    state.batch = 0\n    return {value}\n")
    shown = f'    print("call", epoch, "gave", {call}, flush=True)\n'
    return loop.replace("    body(state, epoch)\n", shown) + "with_a_loss(state)\n"


@pytest.mark.parametrize("behind", [0, 2])
def test_a_call_returns_the_same_where_it_had_not_ended_at_a_loss(
    behind: int, tmp_path: Path
) -> None:
    ended, outputs = ends_of_two_calls(returning('["value", epoch]'), behind, tmp_path)
    assert_all_have(4004, ended, outputs)
    for each in ended.values():
        assert "call 0 gave ['value', 0]\n" in each.output, outputs
        assert "call 3 gave ['value', 3]\n" in each.output, outputs


def test_what_callers_do_to_a_result_is_not_returned_elsewhere(tmp_path: Path) -> None:
    loop = returning('["value"]', "result := body(state, epoch), result.extend(result)")
    ended, outputs = ends_of_two_calls(loop, 0, tmp_path)
    assert_all_have(4004, ended, outputs)
    for each in ended.values():
        assert "call 0 gave ['value', 'value'] None\n" in each.output, outputs


def test_a_function_that_is_called_in_another_ends_with_it(tmp_path: Path) -> None:
    """What is returned belongs to the outer call."""
    outer = """
@rueda.elastic.run
def outer(state, epoch):
    return "outer", epoch, body(state, epoch)
"""
    loop = outer + returning('("inner", epoch)', "outer(state, epoch)")
    ended, outputs = ends_of_two_calls(loop, 2, tmp_path)
    assert_all_have(4004, ended, outputs)
    for each in ended.values():
        assert "call 0 gave ('outer', 0, ('inner', 0))\n" in each.output, outputs


NOT_TO_BE_READ = """
class Odd:
    def __reduce__(self):
        return int, ("no number",)
"""


@pytest.mark.parametrize(
    ("preparation", "value"),
    [("import threading\n", "threading.Lock()"), (NOT_TO_BE_READ, "Odd()")],
    ids=["pickled", "unpickled"],
)
def test_a_rank_is_refused_where_a_call_has_returned_what_cannot_be_sent(
    preparation: str, value: str, tmp_path: Path
) -> None:
    """The one for which it has not ended; the other has what it needs."""
    loop = preparation + returning(value)
    ended, outputs = ends_of_two_calls(loop, 0, tmp_path)
    refused = ended.pop(0)
    assert refused.returncode == 1, outputs
    assert "what it has returned there cannot be sent" in refused.output, outputs
    assert "return nothing, see 'More than one loop'" in refused.output, outputs
    assert_all_have(4004, ended, outputs)


# A loss between the scaler's step() and its update(), and in a second loop between unscale_() and step().
SCALER = """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

def act(step):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(1, 1)).sum()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    if number == 0 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    rueda.barrier()
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    if number == 1 and step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    rueda.barrier()
    scaler.update()
"""


@pytest.mark.parametrize("door", ["steps", "run"])
def test_a_scaler_forgets_a_step_that_is_given_up(door: str) -> None:
    loops = {
        "steps": """
for step in rueda.elastic.steps(6, model, optimizer, scaler):
    with step:
        act(step.number)
""",
        "run": """
@rueda.elastic.run
def train(state):
    while state.step < 6:
        act(state.step)
        state.step += 1
        state.commit()

train(rueda.elastic.State(model=model, optimizer=optimizer, scaler=scaler, step=0))
""",
    }
    with ElasticJob(COMMON + SCALER + loops[door] + "tell()", 4) as job:
        ended = job.ended()
        for lost in (0, 1):
            assert ended.pop(lost).returncode == -signal.SIGKILL, job.outputs()
        assert_all_have(-6, ended, job.outputs())
