"""Orderly start and end of worlds: launchers, options, init and shutdown, forked children."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launching import alone, check, find_mpirun, run, run_under_mpirun


def test_a_world_of_one_needs_no_launcher() -> None:
    ended = alone(
        """
        import numpy as np, rueda
        assert not rueda.is_initialized()
        rueda.init()
        assert (rueda.rank(), rueda.size(), rueda.local_rank(), rueda.local_size()) == (0, 1, 0, 1)
        assert (rueda.cross_rank(), rueda.cross_size(), rueda.is_homogeneous()) == (0, 1, True)
        assert rueda.allreduce([3.0], op=rueda.Sum).tolist() == [3.0]
        """
    )
    assert ended.returncode == 0, ended.output


def test_all_names_are_there_once_one_is_used() -> None:
    """NumPy is not imported before."""
    ended = alone(
        """
        import sys
        import rueda
        assert {"rueda.lifecycle", "rueda.public_names"}.isdisjoint(sys.modules)
        assert rueda.RuedaError.__name__ == "RuedaError"
        assert {"allreduce", "rendezvous", "RuedaError"} <= set(dir(rueda))
        assert "rueda.public_names" not in sys.modules
        assert rueda.rendezvous.open and rueda.compression.Int8
        from rueda import allreduce
        assert allreduce is rueda.allreduce
        assert {"__version__", *rueda.errors.__all__, *rueda.public_names.__all__} >= set(rueda.__all__)
        assert set(rueda.public_names.__all__) <= set(rueda.__all__)
        assert "rueda.lifecycle" in sys.modules
        for name in rueda.__all__:
            getattr(rueda, name)
        try:
            rueda.no_such_name
        except AttributeError as error:
            assert "module 'rueda' has no attribute 'no_such_name'" in str(error)
        """
    )
    assert ended.returncode == 0, ended.output


def test_ranks_know_where_they_are() -> None:
    ended = check(
        """
        import rueda
        rueda.init()
        n = rueda.size()
        assert n == 3 and rueda.local_size() == 3 and rueda.cross_size() == 1
        assert rueda.local_rank() == rueda.rank() and rueda.cross_rank() == 0
        assert rueda.global_process_set.ranks == [0, 1, 2]
        print("I am", rueda.rank())
        """,
        3,
    )
    assert [f"I am {rank}" in e.output for rank, e in enumerate(ended)] == [True] * 3


@pytest.mark.parametrize(
    ("algorithm", "is_left_out"),
    [
        ("flat", True),
        ("ring", False),
        ("ring:0-8K;tree:8K-", True),
        ("flat;pairwise;ring", False),  # the last value wins
        ("auto", False),
    ],
)
def test_an_algorithm_that_the_transport_leaves_out_is_warned_of(
    algorithm: str, is_left_out: bool
) -> None:
    """options() and choose_algorithm() report the algorithm in effect instead."""
    ended = check(
        """
        import rueda
        rueda.init()
        assert rueda.allreduce([1.0], op=rueda.Sum).tolist() == [2.0]
        assert rueda.options()["algorithm"] == "ring:0-"
        assert rueda.choose_algorithm(8) == rueda.AlgorithmChoice("ring", "ring", 0, 0)
        """,
        2,
        extra={"RUEDA_TRANSPORT": "tcp", "RUEDA_ALGORITHM": algorithm},
    )
    warning = f"RUEDA_ALGORITHM={algorithm} has no effect beyond ring: with RUEDA_TRANSPORT=tcp"
    assert [each.output.count(warning) for each in ended] == [int(is_left_out), 0]
    assert ("has no effect" in ended[0].output) == is_left_out


@pytest.mark.parametrize(
    ("algorithm", "measures"),
    [("auto", True), ("flat:0-64K", True), ("flat:0-64K;direct:64K-", False)],
)
def test_algorithms_for_all_sizes_leave_nothing_to_measure(algorithm: str, measures: bool) -> None:
    check(
        f"""
        import numpy as np, rueda
        rueda.init()
        choice = rueda.choose_algorithm(1000)
        assert choice.algorithm == "flat" and (choice.predicted_us > 0) == {measures}, choice
        for size in (1, 1000, 100000):
            assert np.all(rueda.allreduce(np.ones(size), op=rueda.Sum, name=f"of {{size}}") == 2)
        """,
        2,
        extra={"RUEDA_ALGORITHM": algorithm},
    )


def test_use_outside_a_world() -> None:
    ended = alone(
        """
        import numpy as np, rueda
        def refused(call):
            try:
                call()
            except rueda.NotInitializedError as error:
                assert "rueda.init()" in str(error)
            else:
                raise AssertionError("not refused")
        def try_all():
            refused(rueda.rank)
            refused(rueda.metrics)
            refused(rueda.barrier)
            refused(lambda: rueda.allreduce([1.0]))
            refused(lambda: rueda.allreduce_(np.ones((2, 2))[:, 0]))
            refused(lambda: rueda.add_process_set([0]))
        try_all()
        rueda.shutdown()
        rueda.init()
        rueda.shutdown()
        rueda.shutdown()
        try_all()
        """
    )
    assert ended.returncode == 0, ended.output


def test_abort_tells_the_others_why() -> None:
    check(
        """
        import numpy as np, rueda
        for refused in ("", "  ", None, 5):
            try:
                rueda.abort(refused)
            except rueda.InvalidArgumentError as error:
                assert repr(refused) in str(error), error
            else:
                raise AssertionError("not refused")
        try:
            rueda.abort("outside")
        except rueda.NotInitializedError as error:
            assert "rueda.init()" in str(error)
        else:
            raise AssertionError("not refused")
        rueda.init()
        rueda.allreduce(np.ones(1))
        if rueda.rank() == 1:
            rueda.abort("the input of day 3 is damaged")
            assert not rueda.is_initialized()
        else:
            try:
                rueda.allreduce(np.ones(1), name="next")
            except rueda.PeerLostError as error:
                assert error.peer == 1 and "the input of day 3 is damaged" in str(error), error
            else:
                raise AssertionError("not told")
            rueda.shutdown()
        rueda.init()
        assert rueda.allreduce([1.0], op=rueda.Sum).tolist() == [2.0]
        """,
        2,
    )


def test_what_the_others_are_told_is_one_line() -> None:
    """Lines of its own would look like the traceback of the rank that prints it."""
    check(
        """
        import numpy as np, rueda
        quoted = 'caught\\nTraceback (most recent call last):\\n  File "row.py", line 3\\nKeyError: 3\\n'
        def fail():
            raise ValueError(quoted)
        def abort():
            rueda.abort("no name\\n  no date \\udce9\\n")
        def told(of):
            rueda.init()
            try:
                if rueda.rank() == 1:
                    of()
                rueda.allreduce(np.ones(1), name="next")
            except rueda.PeerLostError as error:
                assert rueda.rank() != 1 and len(str(error).splitlines()) == 1, error
                return str(error)
            except ValueError as error:
                rueda.lifecycle.tell_failure(error)
            except rueda.NotInitializedError:
                pass
            finally:
                rueda.shutdown()
            return ""
        text = told(fail)
        assert not text or 'failed: KeyError: 3 (the end of: ValueError: caught |' in text, text
        text = told(abort)
        assert not text or text.endswith("failed: no name | no date \\\\udce9"), text
        """,
        2,
    )


def test_init_twice_and_again() -> None:
    check(
        """
        import rueda
        pair = rueda.ProcessSet([0, 1])
        rueda.init(process_sets=[pair])
        rueda.init()
        first = rueda.rank()
        for round in range(3):
            assert rueda.allreduce([1], op=rueda.Sum, name="x").tolist() == [rueda.size()]
            if pair.included():
                assert rueda.allreduce([1], op=rueda.Sum, process_set=pair).tolist() == [2]
            rueda.shutdown()
            assert not rueda.is_initialized()
            assert pair.process_set_id is None
            rueda.init(process_sets=[pair], fusion_threshold=round)
            assert rueda.rank() == first
            assert rueda.options()["fusion_threshold"] == str(round)
        """,
        3,
    )


def test_a_world_whose_first_process_sets_are_bad_is_left_again() -> None:
    check(
        """
        import rueda
        good, bad = rueda.ProcessSet([0]), rueda.ProcessSet([7])
        try:
            rueda.init(process_sets=[good, bad])
        except rueda.InvalidArgumentError as error:
            assert "7" in str(error), error
        else:
            raise AssertionError("7 is no rank")
        assert not rueda.is_initialized()
        assert (good.process_set_id, bad.process_set_id) == (None, None)
        try:
            rueda.init(process_sets=[good, ["first"]])
        except rueda.InvalidArgumentError as error:
            assert "'first'" in str(error), error
        else:
            raise AssertionError("'first' is no rank")
        assert not rueda.is_initialized()
        rueda.init(process_sets=[good])
        assert good.process_set_id == 1
        try:
            rueda.init(process_sets=[bad])
        except rueda.InvalidArgumentError:
            pass
        else:
            raise AssertionError("7 is no rank")
        assert rueda.is_initialized()  # since the program has had it before
        assert rueda.allreduce([1.0], op=rueda.Sum).tolist() == [2.0]
        """,
        2,
    )


@pytest.mark.parametrize(
    ("options", "accepted"),
    [("min_np=0", "a whole number from 1"), ("heartbeat=0", "a number of seconds above 0")],
)
def test_an_option_that_cannot_be_zero(options: str, accepted: str) -> None:
    ended = alone(
        f"""
        import rueda
        try:
            rueda.init({options})
        except rueda.InitializationError as error:
            assert {accepted!r} in str(error), error
            assert not rueda.is_initialized()
            print("refused")
        """
    )
    assert "refused" in ended.output, ended


@pytest.mark.parametrize(
    "limit",
    [
        'os.eventfd = lambda *_: fail(OSError(24, "Too many open files"))',
        'threading.Thread.start = lambda self: fail(RuntimeError("can\'t start new thread"))',
    ],
)
def test_a_rank_without_a_thread_for_questions_enters_the_world_with_a_warning(limit: str) -> None:
    program = f"""
        import os, threading, numpy as np, rueda
        def fail(error):
            raise error
        kept = os.eventfd, threading.Thread.start
        {limit}
        rueda.init()
        assert rueda.is_initialized()
        os.eventfd, threading.Thread.start = kept
        rueda.allreduce(np.ones(4))
        rueda.init()
        assert not [t for t in threading.enumerate() if t.name == "rueda-where"]
        rueda.shutdown()
        rueda.init()  # tries again
        assert [t for t in threading.enumerate() if t.name == "rueda-where"]
        if rueda.rank() == 1:
            raise ValueError("the cause")
        try:
            rueda.barrier()
        except rueda.PeerLostError as error:
            print(error)
    """
    ended = run(program, 2)
    assert [e.returncode for e in ended] == [0, 1], ended
    for each in ended:
        assert each.output.count("will not be told which line of Python it is at") == 1, each
        assert "ulimit -u" in each.output
    assert "the cause" in ended[0].output  # the hooks are in place


def test_exit_without_shutdown() -> None:
    check(
        """
        import numpy as np, rueda
        rueda.init()
        rueda.allreduce(np.ones(1000), name="x")
        """,
        3,
    )


def test_the_hook_that_was_there_still_runs() -> None:
    ended = alone(
        """
        import sys, rueda
        sys.excepthook = lambda kind, value, traceback: print("my hook:", value)
        rueda.init()
        raise ValueError("oh no")
        """
    )
    assert ended.returncode == 1
    assert "my hook: oh no" in ended.output


def test_waiting_lets_other_threads_run() -> None:
    check(
        """
        import threading, rueda
        rueda.init()
        if rueda.rank() == 0:
            first = rueda.allreduce_async([1.0], name="first")
            waiter = threading.Thread(target=first.result)
            waiter.start()
            rueda.allreduce([1.0], name="second")     # rank 1 submits the first after it
            waiter.join()
        else:
            rueda.allreduce([1.0], name="second")
            rueda.allreduce([1.0], name="first")
        """,
        2,
    )


def test_forked_children_are_not_ranks() -> None:
    check(
        """
        import multiprocessing, os, sys, warnings
        import numpy as np, rueda
        warnings.simplefilter("ignore", DeprecationWarning)
        rueda.init()

        def child():
            for call in (rueda.rank, rueda.init, lambda: rueda.allreduce([1.0], name="child")):
                try:
                    call()
                except rueda.NotInitializedError as error:
                    assert "forked" in str(error), error
                else:
                    os._exit(5)
            assert not rueda.is_initialized()
            rueda.shutdown()
            sys.exit(9)

        pending = rueda.allreduce_async(np.ones(10), name=f"across {rueda.rank() // 2}", op=rueda.Sum)
        pid = os.fork()
        if pid == 0:
            child()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        worker = multiprocessing.get_context("fork").Process(target=child)
        worker.start()
        worker.join()
        assert worker.exitcode == 9
        assert pending.result().tolist() == [2.0] * 10
        pid = os.fork()
        if pid == 0:
            raise ValueError("in the child")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert rueda.allreduce([1], op=rueda.Sum).tolist() == [2]
        """,
        2,
    )


def test_data_loader_workers() -> None:
    pytest.importorskip("torch")
    check(
        """
        import torch, rueda.torch as rt
        rt.init()
        data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(20, 2))
        loader = torch.utils.data.DataLoader(data, batch_size=5, num_workers=2)
        for epoch in range(2):
            for step, (batch,) in enumerate(loader):
                total = rt.allreduce(batch, name=f"batch {step}", op=rt.Sum)
                assert torch.equal(total, 2 * batch)
        """,
        2,
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"RUEDA_RANK": "0", "RUEDA_SIZE": "2", "RUEDA_RENDEZVOUS": "unix:@rueda-test-nobody"},
        {"RUEDA_RANK": "1", "RUEDA_SIZE": "2", "RUEDA_RENDEZVOUS": "127.0.0.1:1"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
        {"PMI_SIZE": "3", "PMI_RANK": "1"},
        {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
        {"RUEDA_SIZE": "2"},
    ],
    ids=lambda variables: next(iter(variables)) + variables.get("RUEDA_RANK", ""),
)
def test_no_silent_world_of_one(variables: dict[str, str]) -> None:
    program = """
        import rueda
        try:
            rueda.init()
        except rueda.InitializationError as error:
            print("refused:", error)
        else:
            print("a world of", rueda.size())
    """
    ended = alone(program, {**variables, "RUEDA_INIT_TIMEOUT": "1"})
    assert "refused:" in ended.output, ended.output


def test_options_are_checked() -> None:
    ended = alone(
        """
        import rueda
        wrong = {"ring_chunk": "many"}, {"ring_chunk": 0}, {"no_such_option": 1}, {"transport": "pigeon"}
        for options in wrong:
            try:
                rueda.init(**options)
            except rueda.InitializationError as error:
                assert next(iter(options)) in str(error), error
            else:
                raise AssertionError(options)
        rueda.init(ring_chunk="1M", stall_warning=2.5)
        assert rueda.options()["ring_chunk"] == str(1 << 20)
        assert float(rueda.options()["stall_warning"]) == 2.5
        """
    )
    assert ended.returncode == 0, ended.output


def test_options_that_differ_between_ranks() -> None:
    ended = run(
        """
        import os, sys, rueda
        try:
            rueda.init(fusion_threshold=1000 + int(os.environ["RUEDA_RANK"]))
        except rueda.InitializationError as error:
            print(error)
            sys.exit(7)
        """,
        2,
        limit=60,
    )
    assert [e.returncode for e in ended] == [7, 7], ended
    for e in ended:
        assert all(part in e.output for part in ("fusion_threshold", "1000", "1001")), e.output


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
def test_init_again_under_mpirun() -> None:
    ended = run_under_mpirun(
        """
        import rueda
        for _ in range(2):
            rueda.init()
            assert rueda.allreduce([1], op=rueda.Sum).tolist() == [2]
            rueda.shutdown()
        """,
        2,
    )
    assert ended.returncode == 0, ended.output


def test_the_options_of_a_world_are_accepted_for_the_next() -> None:
    ended = alone(
        """
        import rueda
        rueda.init(fusion_threshold=123456)
        options = rueda.options()
        assert options["fusion_threshold"] == "123456"
        rueda.shutdown()
        rueda.init(**options)
        assert rueda.options() == options
        """
    )
    assert ended.returncode == 0, ended.output


def test_gradients_keep_their_buckets_memory_in_the_next_world() -> None:
    pytest.importorskip("torch")
    check(
        """
        import rueda, rueda.torch, torch

        rueda.init()
        model = torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(4)))
        optimizer = rueda.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), bucket_bytes=1000
        )

        def local(value):
            copy = torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(4)))
            copy.load_state_dict(model.state_dict())
            copy(torch.full((2, 30), value + rueda.rank())).sum().backward()
            return copy[0].weight.grad

        def step(value):
            optimizer.zero_grad(set_to_none=False)
            model(torch.full((2, 30), value + rueda.rank())).sum().backward()
            optimizer.synchronize()
            expected = rueda.torch.allreduce(local(value))
            assert torch.allclose(model[0].weight.grad, expected), (model[0].weight.grad, expected)
            return [p.grad.data_ptr() for p in model.parameters()]

        step(1.0)
        places = step(2.0)
        names = optimizer.gradient_buckets().names
        assert len(names) > 3, names
        rueda.shutdown()
        rueda.init()
        assert step(3.0) == step(4.0) == places
        assert optimizer.gradient_buckets().names == names
        """,
        2,
    )


def test_names_of_files_need_not_be_utf_8(tmp_path: Path) -> None:
    """In variables, where Python shows them as os.fsdecode() does, and as arguments."""
    by_variable, by_argument = (os.fsencode(tmp_path / name) + b"\xff" for name in ("v", "a"))
    program = f"""
        import os, rueda
        rueda.init()
        assert rueda.options()["timeline"] == os.fsdecode({by_variable!r})
        assert rueda.allreduce([1.0], op=rueda.Sum, name="x").tolist() == [2.0]
        rueda.shutdown()
        path = os.fsdecode({by_argument!r} + str(os.getpid()).encode())
        rueda.init(timeline=path)
        rueda.stop_timeline()
        rueda.start_timeline(path + "2")
        rueda.stop_timeline()
        if rueda.rank() == 0:  # which writes it by default
            assert os.path.exists(path) and os.path.exists(path + "2")
        """
    ended = check(program, 2, extra={"RUEDA_TIMELINE": os.fsdecode(by_variable)})
    assert os.path.exists(by_variable), ended


def test_an_error_may_quote_what_is_no_text() -> None:
    program = "import rueda\nrueda.init()"
    ended = alone(program, {"RUEDA_LOG_LEVEL": os.fsdecode(b"e\xff")})
    assert r"InitializationError: RUEDA_LOG_LEVEL='e\xff' is not accepted" in ended.output
