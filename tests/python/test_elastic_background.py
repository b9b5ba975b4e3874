"""Newcomers that receive the state while the others train, and receive all of it correctly."""

from __future__ import annotations

import re
import signal

import pytest
from elastic_launcher import ElasticJob
from launching import check

pytest.importorskip("rueda._native")
pytest.importorskip("torch")

# Runs until process LAST has joined, and five steps more; ends with the hash of the parameters.
PROGRAM = """
import hashlib, logging, os, signal, time
import rueda, rueda.elastic, rueda.torch, torch
import rueda.torch.state_feed, rueda.torch.state_exchange

logging.basicConfig(level=logging.INFO, format="%(message)s")
number = int(os.environ.get("RUEDA_JOINER") or os.environ["RUEDA_RANK"])
torch.manual_seed(number)
model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 3))
kind = getattr(torch.optim, os.environ.get("OPTIMIZER", "Adam"))
BEFORE
rueda.init()
reproducible = "REPRODUCIBLE" in os.environ
optimizer = rueda.torch.DistributedOptimizer(
    kind(model.parameters(), lr=0.01),
    model.named_parameters(),
    **dict(reproducible=True, leaves=8, named_buffers=model.named_buffers()) if reproducible else dict(bucket_bytes=256)
)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

def loss(step, leaf):
    generator = torch.Generator().manual_seed(1000 * step + leaf)
    inputs, targets = torch.rand(4, 6, generator=generator), torch.rand(4, 3, generator=generator)
    return torch.nn.functional.mse_loss(model(inputs), targets)

until = int(os.environ.get("STEPS", "100000"))
for step in rueda.elastic.steps(100000, model, optimizer, scheduler, background_bytes=1):
    with step:
        if int(os.environ.get("LAST", "-1")) in rueda.attendance.attendance().members:
            until = min(until, step.number + 5)
        time.sleep(float(os.environ.get("PAUSE", "0.01")))
        if reproducible:
            for leaf in optimizer.leaves():
                loss(step.number, leaf.number).backward()
        else:
            optimizer.zero_grad()
            loss(step.number, rueda.rank()).backward()
        STEP
        scheduler.step()
        AFTER
    if step.number + 1 >= until:
        break
values = model.state_dict() if reproducible else dict(model.named_parameters())
state = [v for each in optimizer.state_dict()["state"].values() for v in each.values()]
bits = b"".join(v.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for v in [*values.values(), *state])
print("ended", step.number + 1, hashlib.sha256(bits).hexdigest()[:16], flush=True)
"""


# Bytes of BatchNorm's, which no optimizer changes and which differ between ranks.
STATISTICS = 2 * 20 * 4 + 8


def program(before: str = "", after: str = "", step: str = "optimizer.step()") -> str:
    return PROGRAM.replace("BEFORE", before).replace("AFTER", after).replace("STEP\n", f"{step}\n")


def ends_of(job: ElasticJob, *lost: int) -> tuple[int, str]:
    """The survivors' common step count and hash."""
    ended = job.ended()
    found = set()
    for number, how in ended.items():
        assert how.returncode == (-signal.SIGKILL if number in lost else 0), job.outputs()
        if number not in lost:
            (end,) = re.findall(r"^ended (\d+) (\w{16})$", how.output, re.M)
            found.add((int(end[0]), end[1]))
    assert len(found) == 1, job.outputs()
    return found.pop()


def late_bytes(job: ElasticJob, number: int) -> int:
    """Bytes that a newcomer received while the others waited; ignores later newcomers."""
    found = re.findall(r"^(\d+) bytes of state have come", job.ended()[number].output, re.M)
    return int(found[0])


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_a_newcomer_follows_the_others_to_the_bit(optimizer: str) -> None:
    settings = {"REPRODUCIBLE": "1", "OPTIMIZER": optimizer}
    with ElasticJob(program(), 2, LAST="3", **settings) as job:
        newcomers = [job.start_joiner()]
        # Of two at once, the world that the first one enters ends what the other one receives.
        job.await_world(0, 1, 2)
        newcomers.append(job.start_joiner())
        steps, bits = ends_of(job)
        assert [late_bytes(job, each) for each in newcomers] == [STATISTICS] * 2, job.outputs()
    alone = check(program(), 1, extra={**settings, "STEPS": str(steps)})
    assert f"ended {steps} {bits}" in alone[0].output


# Weights in channels_last and transposed, and an optimizer that passes through memory without a look at strides.
LAYOUTS = """
model = torch.nn.Sequential(
    *model[:2], torch.nn.Linear(20, 48), torch.nn.Unflatten(1, (3, 4, 4)), torch.nn.Conv2d(3, 8, 3),
    torch.nn.Flatten(), torch.nn.Linear(32, 3),
).to(memory_format=torch.channels_last)
model[2].weight = torch.nn.Parameter(torch.randn(20, 48).t())
base, options = kind, dict(momentum=0.9) if kind is torch.optim.SGD else {}
kind = lambda parameters, lr: base(parameters, lr=lr, fused=True, **options)
"""


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
@pytest.mark.parametrize("background", [True, False])
def test_a_newcomer_lays_out_state_like_the_others(optimizer: str, background: bool) -> None:
    text = program(LAYOUTS)
    if not background:
        text = text.replace("background_bytes=1", "background_bytes=1 << 40")
    settings = {"REPRODUCIBLE": "1", "OPTIMIZER": optimizer}
    with ElasticJob(text, 2, LAST="2", **settings) as job:
        newcomer = job.start_joiner()
        steps, bits = ends_of(job)
        assert (late_bytes(job, newcomer) == STATISTICS) == background, job.outputs()
    alone = check(text, 1, extra={**settings, "STEPS": str(steps)})
    assert f"ended {steps} {bits}" in alone[0].output
    with ElasticJob(program(LAYOUTS), 2, LAST="2", OPTIMIZER=optimizer) as job:
        newcomer = job.start_joiner()
        ends_of(job)
        assert late_bytes(job, newcomer) == STATISTICS, job.outputs()


def test_what_the_optimizer_has_not_done_comes_in_the_end() -> None:
    clamped = "with torch.no_grad(): model[0].weight.clamp_(-0.05, 0.05)"
    with ElasticJob(program(after=clamped), 3, LAST="3", RUEDA_TRANSPORT="tcp") as job:
        newcomer = job.start_joiner()
        ends_of(job)
        assert 6 * 20 * 4 <= late_bytes(job, newcomer) < 1500, job.outputs()


# Sends the state in parts and gradients ahead however small they are. Prints how many messages were sent ahead in each
# step, and whether more will be.
AHEAD = """
rueda.torch.state_feed._PART_BYTES = 500
rueda.torch.state_feed._AHEAD_BYTES = 300
send_rest = rueda.torch.state_feed.Feed._send_rest
def tell(self, *given):
    sent = len(self._sent)
    send_rest(self, *given)
    print("ahead", sent, self._sends_ahead, flush=True)
rueda.torch.state_feed.Feed._send_rest = tell
"""


@pytest.mark.parametrize("changes", ["none", "all", "one", "row"])
def test_gradients_sent_ahead_are_those_of_the_step(changes: str) -> None:
    change = {
        "none": "",
        "all": "for p in model.parameters(): p.grad.mul_(0.5)",
        "one": "model[2].bias.grad = None",
        "row": "model[0].weight.grad[-1] = 0.5",  # in one member's share
    }
    step = f"optimizer.synchronize()\n        {change[changes]}\n        "
    step += "optimizer.step()"
    with ElasticJob(program(AHEAD, step=step), 3, LAST="3", PAUSE="0.05") as job:
        newcomer = job.start_joiner()
        ends_of(job)
        assert late_bytes(job, newcomer) == STATISTICS, job.outputs()
        told = re.findall(r"^ahead (\d+) (True|False)$", job.ended()[0].output, re.M)
    # After a step in which something has changed, nothing is sent ahead any more.
    assert int(told[0][0]) > 1, told
    if changes == "none":
        assert {(int(sent) > 1, sends) for sent, sends in told} == {(True, "True")}, told
    else:
        assert {sends for _, sends in told} == {"False"}, told
        assert {int(sent) for sent, _ in told[1:]} <= {0}, told


def test_a_learning_rate_that_is_a_tensor_is_sent_as_the_step_has_it() -> None:
    rate = "kind = lambda p, lr: torch.optim.Adam(p, lr=torch.tensor(lr))"
    with ElasticJob(program(AHEAD + rate), 2, LAST="2", PAUSE="0.05") as job:
        newcomer = job.start_joiner()
        ends_of(job)
        rate_of_the_next_step = 4  # the scheduler sets it after the optimizer's step
        assert late_bytes(job, newcomer) == STATISTICS + rate_of_the_next_step, job.outputs()


def test_steps_with_a_closure_are_not_sent_and_the_reason_is_told() -> None:
    step = "optimizer.step(lambda: torch.tensor(0.0))"
    with ElasticJob(program(AHEAD, step=step), 2, LAST="2") as job:
        newcomer = job.start_joiner()
        ends_of(job)
        assert late_bytes(job, newcomer) > 1000, job.outputs()
        why = "newcomers cannot get the state in the background: step() is called with a closure"
        assert why in job.ended()[0].output, job.outputs()


def test_a_newcomer_with_groups_is_refused_and_the_others_go_on() -> None:
    grouped = program().replace("bucket_bytes=256", "groups=2")
    with ElasticJob(grouped, 2, STEPS="200") as job:
        newcomer = job.start_joiner()
        ended = job.ended()
        assert [ended[rank].returncode for rank in (0, 1)] == [0, 0], job.outputs()
        assert ended[newcomer].returncode == 1, job.outputs()
        why = "groups= cannot be used by a process that joins a running job"
        assert why in ended[newcomer].output, job.outputs()


def test_steps_that_cannot_be_sent_do_not_disturb_the_training() -> None:
    full = AHEAD + "rueda.torch.state_feed._MAX_WAITING = 0"
    with ElasticJob(program(full), 2, LAST="2") as job:
        newcomer = job.start_joiner()
        ends_of(job)
        assert late_bytes(job, newcomer) > 1000, job.outputs()
        why = "newcomers cannot get the state in the background: steps are taken more quickly than"
        assert why in job.ended()[0].output, job.outputs()


@pytest.mark.parametrize("lost", ["member", "newcomer"])
def test_who_is_lost_meanwhile_is_not_missed(lost: str) -> None:
    victim = {"member": 1, "newcomer": 3}[lost]
    dies = f"""
take, count = rueda.torch.state_feed.taken_by, 0
def taken_by(optimizer):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return take(optimizer)
if number == {victim} == 1:
    rueda.torch.state_feed.taken_by = taken_by
import rueda.torch.replay
def take_step(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if number == {victim} == 3:
    rueda.torch.replay.Shadow.take = take_step
"""
    last = {"member": 3, "newcomer": 4}[lost]
    with ElasticJob(program(dies), 3, LAST=str(last)) as job:
        job.start_joiner()
        if lost == "newcomer":
            job.processes[victim][0].wait(120)
            job.start_joiner()
        ends_of(job, victim)


def test_bytes_that_come_otherwise_are_found_on_every_rank() -> None:
    flips = """
plan = rueda.torch.state_exchange._Plan
transfer = plan.transfer
def flip(self):
    received = transfer(self)
    received[min(received)][0] ^= 4
    return received
if number == 2:
    plan.transfer = flip
"""
    with ElasticJob(program(flips), 2, LAST="2", PAUSE="0") as job:
        job.start_joiner()
        for how in job.ended().values():
            assert how.returncode == 1, job.outputs()
            assert "TransportError: state was corrupted on its way" in how.output
            assert re.search(r"which rank 0 has sent to rank 2", how.output), job.outputs()


def test_a_transfer_that_stands_still_names_who_is_waited_for() -> None:
    ended = check(
        """
        import os
        import numpy as np
        import rueda
        from rueda.elastic import private_link

        private_link._TIMEOUT = 0.5
        rueda.init()
        address = os.environ["RUEDA_RENDEZVOUS"] + "-beside"
        link = private_link.PrivateLink(rueda.rank(), 2, address, -1, 1)
        if rueda.rank() == 1:
            try:
                link.receive(0, 0.5)
            except rueda.TimeoutError as error:
                print(error, "|", error.peer)
        rueda.barrier()
        if rueda.rank() == 0:
            try:
                link.send("header", np.zeros(8 << 20, np.uint8), [1])
            except rueda.TimeoutError as error:
                print(error, "|", error.peer)
        rueda.barrier()
        link.close()
        """,
        2,
    )
    who = "of the 2 ranks that transfer the state"
    assert f"rank 1 (newcomer) {who} did not take a message of 8388608 bytes within 0.5 s | 1" in (
        ended[0].output
    )
    assert f"rank 0 (member) {who} did not begin a message within 0.5 s | 0" in ended[1].output


def test_shares_are_even_and_make_up_the_whole() -> None:
    torch = pytest.importorskip("torch")
    from rueda.torch.state_messages import part_bounds
    from rueda.torch.state_shares import join_shares, put_share, share_of, share_size

    generator = torch.Generator().manual_seed(5)
    for sizes in ([], [0], [1], [0, 3, 0, 9 << 20, 1], [11 << 20, 4 << 20, 17]):
        contents = [
            torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in sizes
        ]
        for members in (1, 2, 3, 7):
            shares = [share_of(contents, each, members) for each in range(members)]
            found = [share.numel() for share in shares]
            assert sum(found) == sum(sizes)
            assert found == [share_size(sizes, each, members) for each in range(members)]
            assert max(found, default=0) <= sum(sizes) / members + 64
            copies = [torch.zeros_like(content) for content in contents]
            join_shares(copies, shares)
            assert all(map(torch.equal, copies, contents))
            for copy in copies:
                copy.zero_()
            for member, share in enumerate(shares):
                for part in range(3):
                    begin, end = part_bounds(share.numel(), part, 3)
                    put_share(copies, share[begin:end], member, members, begin, end)
            assert all(map(torch.equal, copies, contents))
    with pytest.raises(ValueError, match="number of bytes"):
        join_shares([torch.zeros(3, dtype=torch.uint8)], [torch.zeros(4)])
    with pytest.raises(ValueError, match="number of bytes"):
        put_share([torch.zeros(9, dtype=torch.uint8)], torch.zeros(4), 0, 1, 2, 5)
