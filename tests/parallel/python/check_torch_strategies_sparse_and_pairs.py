"""Every rank: strategies other than averaging, against one process that simulates all workers."""

from __future__ import annotations

import copy
import hashlib
import math

import parallel
import rueda
import rueda.torch as rt
import torch
from rueda.torch.strategies import Strategy
from rueda.torch.strategies.pairs import partner_in
from rueda.torch.strategies.sparse_message import CHUNK, decode_all, encode_all, message_bytes
from simulated import Workers, fresh, train
from training import DEVICE, Make, Optimizer, adam, close, same_bits, sgd

SHAPES = [48, 8, 24, 3]  # of the model's parameters


def agrees(
    strategy: Strategy | str, workers: Workers, steps: int, make: Make = sgd, **tolerance: float
) -> Optimizer:
    """Trains with the strategy, compares with the workers; all ranks end with the same bits."""
    trained, optimizer = fresh(make)
    wrapped = rt.wrap(trained, optimizer, strategy=strategy)
    train(trained, wrapped, 0, steps)
    close(trained, workers.mine(), **tolerance)
    wrapped.consolidate()
    same_bits(*trained.parameters())
    return wrapped


def check_des_loc() -> None:
    def after(step: int, them: Workers) -> None:
        if step % 2 == 0:
            them.average()
        if step % 3 == 0:
            them.average_state("exp_avg")
        if step % 4 == 0:
            them.average_state("exp_avg_sq")

    workers = Workers(adam)
    workers.train(9, after=after)
    agrees("desloc:2,3,4", workers, 9, adam)


def check_des_loc_needs_moments() -> None:
    for make, kept in (
        (sgd, "momentum_buffer"),
        (lambda p: torch.optim.SGD(p, lr=0.1), "nothing"),
    ):
        trained, optimizer = fresh(make)
        with parallel.raises(
            rt.InvalidArgumentError, "needs an optimizer that keeps exp_avg", f"SGD keeps {kept}"
        ):
            rt.wrap(trained, optimizer, strategy="desloc:2,4,8")
        wrapped = rt.wrap(trained, optimizer, strategy="local:2")
        with parallel.raises(rt.InvalidArgumentError, "DESLOC", f"keeps {kept}"):
            wrapped.switch("desloc:2,4,8")
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam):
        trained, optimizer = fresh(kind)
        rt.wrap(trained, optimizer, strategy="desloc:2,4,8")
    parallel.still_works()


def check_easgd() -> None:
    workers = Workers(sgd)
    centre = workers.vectors[0]
    moved: list[torch.Tensor] = []

    def before(step: int, them: Workers) -> None:
        if step % 2:
            return
        old = torch.stack(them.vectors)
        them.vectors = [each - 0.6 / them.count * (each - centre) for each in old]
        centre.copy_(0.4 * centre + 0.6 * old.mean(0))
        moved.append(centre.clone())

    workers.train(7, before=before)
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="easgd:2,beta=0.6")
    train(trained, wrapped, 0, 7)
    close(trained, workers.mine())
    wrapped.consolidate()
    workers.set_all(moved[-1])
    close(trained, workers.mine())
    same_bits(*trained.parameters())


def partners(number: int, count: int, seed: int = 0) -> list[int | None]:
    return [partner_in(number, list(range(count)), rank, seed) for rank in range(count)]


def check_pairs() -> None:
    """Each rank is in one pair, except one of an odd number; eventually all pairs occur."""
    for count in (1, 2, 3, 4, 7):
        met = set()
        for number in range(60):
            drawn = partners(number, count)
            assert drawn.count(None) == count % 2
            for rank, partner in enumerate(drawn):
                assert partner is None or (drawn[partner] == rank and partner != rank)
                met.add((rank, partner))
        assert len(met - {(rank, None) for rank in range(count)}) == count * (count - 1)


def check_ad_psgd() -> None:
    def before(step: int, them: Workers) -> None:
        if step % 2 == 0:
            old = them.vectors
            them.vectors = [
                each if other is None else (each + old[other]) / 2
                for each, other in zip(old, partners(step // 2, them.count), strict=True)
            ]

    workers = Workers(sgd)
    workers.train(9, before=before)
    agrees("adpsgd:2", workers, 9)


def check_both_of_a_pair_have_the_same_bits() -> None:
    trained, optimizer = fresh(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    wrapped = rt.wrap(trained, optimizer, strategy="adpsgd:2")
    train(trained, wrapped, 0, 1)
    wrapped.zero_grad()
    wrapped.step()  # without gradients: the pair's average
    data = b"".join(each.detach().cpu().numpy().tobytes() for each in trained.parameters())
    digests = rueda.allgather_object(hashlib.sha256(data).hexdigest())
    for rank, partner in enumerate(partners(1, rueda.size())):
        assert partner is None or digests[rank] == digests[partner]


def check_no_loco() -> None:
    workers = Workers(adam)
    outer = workers.vectors
    moves = [torch.zeros_like(each) for each in outer]

    def after(step: int, them: Workers) -> None:
        if step % 3:
            return
        gone = [x - y for x, y in zip(them.vectors, outer, strict=True)]
        drawn = partners(step // 3, them.count, seed=5)
        groups = [[i] if other is None else [i, other] for i, other in enumerate(drawn)]
        new = []
        for i, group in enumerate(groups):
            mean_gone = sum(gone[j] for j in group) / len(group)
            mean_outer = sum(outer[j] for j in group) / len(group)
            moves[i] = 0.5 * moves[i] + 0.7 * mean_gone - 0.9 * (outer[i] - mean_outer)
            new.append(outer[i] + moves[i])
        outer[:] = new
        them.vectors = new

    workers.train(13, after=after)
    agrees("noloco:3,pull=0.9,seed=5", workers, 13, adam)


def check_no_rank_waits_for_a_third() -> None:
    """One pair takes its step before the others begin theirs, which wait for its message."""
    for strategy in ("adpsgd:1", "noloco:1"):
        drawn = partners(1, rueda.size())
        others = [rank for rank in range(rueda.size()) if rank not in (0, drawn[0])]
        trained, optimizer = fresh(sgd)
        wrapped = rt.wrap(trained, optimizer, strategy=strategy)
        told = torch.zeros(1)
        if rueda.rank() in others:
            rt.recv(told, 0, timeout=100)
        train(trained, wrapped, 0, 1)
        for other in others if rueda.rank() == 0 else []:
            rt.send(told, other)


def check_a_rank_that_does_not_come_is_named() -> None:
    """Its partner gets an error after the time limit, and the world goes on."""
    if rueda.size() < 2:
        return
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    replica = wrapped._rueda_replica
    if rueda.rank() == 0:
        with parallel.raises(rt.TimeoutError, "rank 1 has not swapped", "exchange 3"):
            replica.exchange(replica.parameters, 1, 3, timeout=0.3)
    rueda.barrier(name="late")
    if rueda.rank() == 1:  # the sent data is still available
        theirs = replica.exchange(replica.parameters, 0, 3)
        assert set(theirs) == set(replica.parameters)
    parallel.still_works()


def check_what_was_sent_before_a_state_was_loaded_is_not_taken_for_what_follows() -> None:
    if rueda.size() < 2:
        return
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    replica = wrapped._rueda_replica
    if rueda.rank() == 0:
        with parallel.raises(rt.TimeoutError, "rank 1 has not swapped"):
            replica.exchange({"of before": torch.zeros(1)}, 1, 3, timeout=0.1)
    rueda.barrier(name="left alone")
    wrapped.load_state_dict(wrapped.state_dict())
    if rueda.rank() < 2:
        other = 1 - rueda.rank()
        theirs = replica.exchange({"of now": torch.ones(1)}, other, 3, timeout=100)
        assert theirs["of now"] == 1
    parallel.still_works()


def check_a_state_that_one_rank_cannot_load() -> None:
    """All get the error if they load together, even if some have loaded more often before."""
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="local:2")
    good = wrapped.state_dict()
    bad = copy.deepcopy(good)
    bad["rueda_strategy"]["strategy"] = "another"
    if rueda.rank() == 0:  # each on its own
        with parallel.raises(rt.InvalidArgumentError, "the state belongs to another"):
            wrapped.load_state_dict(bad)
    else:
        wrapped.load_state_dict(good)
    for strategy in ("adpsgd:1", "noloco:1", "noloco:1,timeout=100"):
        wrapped.switch(strategy)
        train(trained, wrapped, 0, 3)
        good = copy.deepcopy(wrapped.state_dict())
        bad = copy.deepcopy(good)
        del bad["rueda_strategy"]["steps"]
        with parallel.raises(rt.InvalidArgumentError, "rank 0: KeyError: 'steps'"):
            wrapped.load_state_dict(bad if rueda.rank() == 0 else good)
        wrapped.load_state_dict(good)
        train(trained, wrapped, 3, 3)
        wrapped.consolidate()
        same_bits(*trained.parameters())


def check_a_state_is_loaded_while_a_partner_is_late() -> None:
    """What was sent to it in the meantime belongs to the abandoned training."""
    if rueda.size() < 2:
        return
    plain, optimizer = fresh(sgd)
    expected = rt.wrap(plain, optimizer, strategy="noloco:1")
    train(plain, expected, 0, 6)
    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="noloco:1,timeout=0.02")
    saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
    if rueda.rank() != rueda.size() - 1:
        train(trained, wrapped, 20, 8)
    trained.load_state_dict(saved[0])
    wrapped.load_state_dict(saved[1])
    wrapped.strategy.timeout = 100  # from here on no partner is late
    train(trained, wrapped, 0, 6)
    close(trained, plain, rtol=0, atol=0)
    wrapped.consolidate()
    same_bits(*trained.parameters())


def check_a_partner_that_does_not_come_is_left_out() -> None:
    """The others take steps while one takes none; it joins their round, and ends like them."""
    if rueda.size() < 2:
        return
    late = rueda.size() - 1

    def take_turns() -> None:
        # Waits, on slow machines, until missed messages have arrived.
        meetings = wrapped.strategy._meetings
        begun = rueda.allgather_object(dict(meetings._begun))
        for partner, meeting in meetings._missed.items():
            if begun[partner].get(rueda.rank(), 0) >= meetings._begun[partner]:
                assert meeting.wait(100)

    trained, optimizer = fresh(sgd)
    wrapped = rt.wrap(trained, optimizer, strategy="noloco:1,timeout=0.02")
    if rueda.rank() != late:
        train(trained, wrapped, 0, 12)
    take_turns()
    if rueda.rank() == late:
        train(trained, wrapped, 0, 6)
    take_turns()
    if rueda.rank() != late:
        train(trained, wrapped, 12, 12)
    take_turns()
    if rueda.rank() == late:
        train(trained, wrapped, 6, 12)
        ahead = wrapped.state_dict()["rueda_strategy"]["kept"]["ahead"]
        # At most the distance from its first round since to the others' last round.
        assert 0 < ahead <= 24 - 6 - 1, (ahead, wrapped.strategy._meetings.__dict__)
    wrapped.consolidate()
    assert wrapped.state_dict()["rueda_strategy"]["kept"]["ahead"] == 0
    same_bits(*trained.parameters())
    wrapped.switch("noloco:1,timeout=100")  # unaffected by earlier messages
    train(trained, wrapped, 0, 4)
    wrapped.consolidate()
    same_bits(*trained.parameters())


def quantized(vector: torch.Tensor, density: float) -> torch.Tensor:
    """What SparseLoCo sends of a parameter of at most 4096 elements, computed one by one."""
    count = math.ceil(density * vector.numel())
    chosen = sorted(range(vector.numel()), key=lambda i: -abs(vector[i]))[:count]
    magnitudes = [abs(float(vector[i])) for i in chosen]
    mean = sum(magnitudes) / count
    large = [each for each in magnitudes if each > mean]
    small = [each for each in magnitudes if each <= mean]
    result = torch.zeros_like(vector)
    for i, magnitude in zip(chosen, magnitudes, strict=True):
        level = large if magnitude > mean else small
        result[i] = math.copysign(sum(level) / len(level), vector[i])
    return result


def check_sparse_loco() -> None:
    workers = Workers(adam)
    agreed = workers.vectors[0]
    left = [torch.zeros_like(agreed) for _ in range(workers.count)]

    def after(step: int, them: Workers) -> None:
        if step % 3:
            return
        total = torch.zeros_like(agreed)
        for i, vector in enumerate(them.vectors):
            left[i] = 0.8 * left[i] + agreed - vector
            sent = torch.cat([quantized(part, 0.25) for part in left[i].split(SHAPES)])
            left[i] -= sent
            total += sent
        agreed.sub_(0.9 * total / them.count)
        them.set_all(agreed)

    workers.train(10, after=after)
    # float32 is sent: 2^-24 of steps of 0.01 each.
    agrees("sparseloco:3,0.25,decay=0.8,outer_lr=0.9", workers, 10, adam, rtol=1e-6, atol=1e-6)


def check_messages_of_the_largest_elements() -> None:
    torch.manual_seed(1)
    for elements in (0, 1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77):
        for density in (1e-4, 0.03, 1.0):
            tensors = {"a": torch.randn(elements).to(DEVICE), "b": torch.randn(5).to(DEVICE)}
            message = encode_all(tensors, density)
            lengths = [message_bytes(each.numel(), density) for each in tensors.values()]
            assert message.numel() == sum(lengths)
            for name, back in decode_all(message, tensors, density).items():
                tensor = tensors[name]
                chunks = tensor.split(CHUNK)
                for part, found in zip(chunks, back.split(CHUNK), strict=True):
                    sent = found != 0
                    assert int(sent.sum()) == math.ceil(density * part.numel())
                    assert bool((found.sign() == part.sign())[sent].all())
                    if not bool(sent.all()):
                        assert part[sent].abs().min() >= part[~sent].abs().max()
                assert torch.linalg.norm(tensor - back) <= torch.linalg.norm(tensor)
    zeros = {"a": torch.zeros(10, device=DEVICE)}
    assert torch.equal(decode_all(encode_all(zeros, 0.5), zeros, 0.5)["a"], zeros["a"])


def check_switching_and_resuming() -> None:
    for strategy in (
        "sparseloco:3,0.25",
        "desloc:2,3,4",
        "easgd:2",
        "adpsgd:2",
        "noloco:3",
    ):
        trained, optimizer = fresh(adam)
        wrapped = rt.wrap(trained, optimizer, strategy=strategy)
        train(trained, wrapped, 0, 4)
        saved = copy.deepcopy((trained.state_dict(), wrapped.state_dict()))
        train(trained, wrapped, 4, 5)
        resumed, optimizer = fresh(adam, seed=2)
        again = rt.wrap(resumed, optimizer, strategy=strategy)
        resumed.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
        train(resumed, again, 4, 5)
        close(trained, resumed, rtol=0, atol=0)
        wrapped.switch("sync")
        train(trained, wrapped, 9, 2)
        same_bits(*trained.parameters())
        wrapped.switch(strategy)
        train(trained, wrapped, 11, 3)
        wrapped.consolidate()
        same_bits(*trained.parameters())


if __name__ == "__main__":
    parallel.run(globals())
