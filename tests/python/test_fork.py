"""What a forked child may do with inherited state, and what its parent must not notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import check

FORKED = """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)

        def forked(work):
            '''The exit status of a child that does `work` and then ends as an interpreter does.'''
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                work()
                sys.exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize("shape", ["4", "(1 << 20)"])
def test_a_child_ends_well_beside_persistent_operations(shape: str) -> None:
    """Its interpreter destroys them at exit, which would crash without the parent's memory."""
    pytest.importorskip("torch")
    check(
        FORKED
        + f"""
        import torch, rueda, rueda.torch as rt
        rt.init()
        tensor = torch.ones({shape})
        operation = rt.PersistentAllreduce(tensor, op=rt.Sum, name="again")
        operation.start(); operation.wait()

        def use_it():
            for call in (operation.start, operation.done, operation.wait):
                try:
                    call()
                except rueda.NotInitializedError as error:
                    assert "forked" in str(error), error
                else:
                    os._exit(5)

        assert forked(lambda: None) == 0
        assert forked(use_it) == 0
        operation.start()
        assert forked(lambda: None) == 0
        operation.wait()
        assert tensor[0] == 4, tensor
        rt.shutdown()
        assert forked(lambda: None) == 0  # also where it has outlived its world
        """,
        2,
    )


def test_a_child_has_neither_the_registered_memory_nor_the_operations_of_its_parent() -> None:
    check(
        FORKED
        + """
        import numpy as np, rueda
        rueda.init()
        small, large = rueda.empty(1000), rueda.empty(1 << 20)
        for array in (small, large):
            array[:] = 7

        def overwrite(then=lambda: None):
            assert (small == 7).all() and (large == 7).all()  # it sees what its parent has written
            small[:] = 1
            large[::1000] = 2
            then()
            assert (small == 1).all() and (large[::1000] == 2).all() and (large[1::1000] == 7).all()

        def in_a_child_of_its_own():
            # There, too, what the child has written is to be seen, and only its own.
            def overwrite_again():
                assert (small == 1).all()
                small[:] = 3
            assert forked(overwrite_again) == 0

        assert forked(overwrite) == 0
        assert forked(lambda: overwrite(in_a_child_of_its_own)) == 0
        assert (small == 7).all() and (large == 7).all()
        for array in (small, large):
            rueda.allreduce_(array, op=rueda.Sum, name="still reachable")
            assert (array == 14).all()

        # Only the parent is told what becomes of an operation that waits for other ranks.
        def wait_for(handle):
            try:
                handle.wait()
            except rueda.NotInitializedError as error:
                assert "forked" in str(error), error
            else:
                os._exit(5)

        begun = lambda: rueda.allreduce_async(np.ones(4), op=rueda.Sum, name="pending")
        if rueda.rank() == 0:
            handle = begun()
            assert forked(lambda: wait_for(handle)) == 0
        rueda.barrier()
        if rueda.rank() == 1:
            handle = begun()
        assert (handle.result() == 2).all()
        """,
        2,
    )


def test_a_child_that_runs_backward_leaves_its_parents_gradients_alone() -> None:
    pytest.importorskip("torch")
    check(
        FORKED
        + """
        import torch, rueda, rueda.torch as rt
        rt.init()
        model = torch.nn.Linear(64, 64)
        rt.broadcast_parameters(model.state_dict(), 0)
        optimizer = rt.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters()
        )
        def backward(scale):
            (scale * model(torch.ones(2, 64)).sum()).backward()
        for _ in range(3):
            optimizer.zero_grad()
            backward(1.0)
            optimizer.step()
        assert optimizer.gradient_buckets().names
        before = [p.grad.clone() for p in model.parameters()]

        def train():
            try:
                backward(100.0)
            except rueda.NotInitializedError as error:
                assert "forked" in str(error), error
            for p in model.parameters():
                p.grad.fill_(-1)

        assert forked(train) == 0
        assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters()))
        optimizer.zero_grad()
        backward(1.0)
        optimizer.step()
        assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters()))
        """,
        2,
    )


@pytest.mark.parametrize("call", ["pending.done", "pending.wait", "pending.result", "load", "save"])
def test_a_child_does_not_wait_for_a_checkpoint_that_its_parent_is_saving(
    tmp_path: Path, call: str
) -> None:
    """It has not the thread that writes."""
    pytest.importorskip("torch")
    check(
        FORKED
        + f"""
        import threading, torch, rueda, rueda.checkpoint
        from rueda.checkpoint import saving
        rueda.init()
        folder = {str(tmp_path)!r}
        model = torch.nn.Linear(4, 4)
        write, may_write = saving.write_share, threading.Event()
        saving.write_share = lambda *arguments: may_write.wait() and write(*arguments)
        pending = rueda.checkpoint.save(folder, 1, model=model)

        def load():
            rueda.checkpoint.load(folder, model=model)

        def save():
            rueda.checkpoint.save(folder, 2, model=model)

        def use_it():
            try:
                {call}()
            except rueda.NotInitializedError as error:
                assert "forked" in str(error), error
            else:
                os._exit(5)

        try:
            assert forked(use_it) == 0
        finally:
            may_write.set()
        assert pending.result().step == 1
        assert forked(lambda: pending.result().step == 1 or os._exit(5)) == 0
        """,
        2,
    )


def test_a_child_ends_that_was_forked_while_its_parent_enters_a_world() -> None:
    """In the child, nobody releases what the parent's entering thread holds."""
    check(
        FORKED
        + """
        import ctypes, threading, time, rueda

        address = rueda.rendezvous.open(2)

        def enter():
            try:
                rueda.init(rank=0, size=2, rendezvous=address, init_timeout=5)
            except rueda.InitializationError:
                pass  # the other one does not come

        entering = threading.Thread(target=enter)
        entering.start()
        time.sleep(1)
        assert entering.is_alive()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).exit(0)  # as a program in C++ does
        deadline = time.monotonic() + 20
        ended = 0
        while not ended and time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not ended:
            os.kill(child, 9)
        assert ended and os.waitstatus_to_exitcode(status) == 0
        entering.join()
        """,
        1,
    )
