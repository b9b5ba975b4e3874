"""Horovod's API on 1 to 4 ranks, and the parts of it that need none."""

from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
from pathlib import Path

import pytest
from launching import (
    PARALLEL,
    alone,
    check,
    check_under_mpirun,
    environment,
    find_mpirun,
    run,
)
from worlds import Run, Worlds, each_check

torch = pytest.importorskip("torch")

import rueda  # noqa: E402
from rueda.horovod import settings  # noqa: E402
from rueda.horovod.elastic_state import ObjectState, run_fn  # noqa: E402
from rueda.horovod.exceptions import (  # noqa: E402
    HorovodInitializationError,
    HorovodInternalError,
    HorovodInvalidArgumentError,
    HorovodUsageError,
    translation_of,
)
from rueda.horovod.membership import world_of  # noqa: E402
from rueda.horovod.torch.adasum import combined  # noqa: E402

needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
needs_mpi4py = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="there is no mpi4py"
)


@each_check(
    [
        Run(f"check_horovod_{script}.py", size)
        for script in ("operations", "optimizer")
        for size in (1, 2, 4)
    ]
)
def test_operations(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@pytest.mark.parametrize("size", [1, 3])
def test_init(size: int) -> None:
    check(PARALLEL / "check_horovod_init.py", size)


def test_averages_after_a_join_of_those_who_take_part() -> None:
    extra = {"RUEDA_JOIN_AVERAGE": "present"}
    check(PARALLEL / "check_horovod_operations.py", 3, ["check_join"], extra=extra)


def test_init_that_fails() -> None:
    ended = alone(
        """
        import rueda.horovod.torch as hvd
        for kind in (ValueError, hvd.HorovodInternalError):
            try:
                hvd.init()
            except kind as error:
                print("told", error.__cause__)
        """,
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
    )
    assert ended.output.count("told") == 2, ended.output


@needs_mpirun
@each_check([Run("check_horovod_operations.py", 3, mpirun=True)])
def test_operations_under_mpirun(worlds: Worlds, run: Run, check: str) -> None:
    worlds.check(run, check)


@needs_mpirun
def test_init_under_mpirun() -> None:
    check_under_mpirun(PARALLEL / "check_horovod_init.py", 3)


def test_timeline() -> None:
    check(PARALLEL / "check_horovod_timeline.py", 3)


@needs_mpirun
def test_timeline_over_mpi() -> None:
    check_under_mpirun(PARALLEL / "check_horovod_timeline.py", 3, extra={"RUEDA_TRANSPORT": "mpi"})


@needs_mpirun
@needs_mpi4py
def test_communicators() -> None:
    check_under_mpirun(PARALLEL / "check_horovod_init.py", 3, ["mpi4py"])


VARIABLES = """
import json, rueda, warnings
import rueda.horovod.torch as hvd
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    hvd.init()
print(json.dumps([rueda.options(), [str(w.message) for w in caught]]))
"""


def test_variables() -> None:
    given = {
        "HOROVOD_FUSION_THRESHOLD": "1048576",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_LOG_LEVEL": "FATAL",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "33",
        "HOROVOD_TIMELINE": "DYNAMIC",
        "HOROVOD_CYCLE_TIME": "5",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "HOROVOD_AUTOTUNE": "1",
    }
    (ended,) = check(VARIABLES, 1, extra=given)
    options, warned = json.loads(ended.output)
    expected = {
        "fusion_threshold": "1048576",
        "cache_capacity": "7",
        "log_level": "error",
        "stall_warning": "0",
        "stall_error": "0",
        "transfer_timeout": "33",
        "timeline": "",
    }
    assert {name: options[name] for name in expected} == expected
    assert len(warned) == 1
    assert "HOROVOD_AUTOTUNE has no effect" in warned[0]


def test_timeline_variables(tmp_path: Path) -> None:
    """HOROVOD_TIMELINE names Horovod's file, RUEDA_TIMELINE names Rueda's."""
    program = (
        "import rueda.horovod.torch as h, torch; h.init(); h.allreduce(torch.ones(2), name='x')"
    )
    horovods, ruedas = tmp_path / "horovod.json", tmp_path / "rueda.json"
    check(
        program, 1, extra={"HOROVOD_TIMELINE": str(horovods), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    )
    names = {event.get("name") for event in json.loads(horovods.read_text())}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "MPI_ALLREDUCE", "CYCLE_START"} <= names, names
    check(program, 1, extra={"RUEDA_TIMELINE": str(ruedas), "HOROVOD_TIMELINE": str(horovods)})
    names = {event["name"] for event in json.loads(ruedas.read_text())}
    assert {"QUEUE", "NEGOTIATE", "ALLREDUCE"} <= names, names
    assert "NEGOTIATE_ALLREDUCE" not in names, names


def test_variables_of_rueda_win() -> None:
    given = {"HOROVOD_STALL_CHECK_DISABLE": "true", "RUEDA_STALL_WARNING": "5"}
    assert settings.overrides(given) == {"stall_error": "0"}
    assert settings.overrides({"HOROVOD_STALL_CHECK_DISABLE": "0"}) == {}


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (rueda.NotInitializedError("x"), ValueError, "Horovod has not been initialized"),
        (rueda.InvalidArgumentError("x"), HorovodInvalidArgumentError, "x"),
        (rueda.ShutdownError("x"), HorovodInternalError, "Horovod has been shut down: x"),
        (rueda.PeerLostError("x", 1), HorovodInternalError, "Horovod has been shut down: x"),
        (rueda.StalledError("x"), HorovodInternalError, "Stalled"),
        (rueda.DuplicateNameError("x"), HorovodInvalidArgumentError, "same name as another tensor"),
        (rueda.InitializationError("x"), HorovodInitializationError, "x"),
        (
            rueda.MismatchError("x", field="root rank"),
            HorovodInternalError,
            "Mismatched root ranks",
        ),
        (rueda.MismatchError("'dtype differs': x", field="op"), HorovodInternalError, "reduction"),
        (rueda.MismatchError("shape differs"), HorovodInternalError, "Mismatched requests"),
        (rueda.TransportError("x"), HorovodInternalError, "x"),
    ],
)
def test_errors(error: rueda.RuedaError, kind: type[Exception], text: str) -> None:
    translated = translation_of(error)
    assert type(translated) is kind
    assert text in str(translated)


def test_all_ranks_in_order_are_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """So they may span hosts, which a subset of the processes may not."""
    monkeypatch.setenv("RUEDA_RANK", "1")
    monkeypatch.setenv("RUEDA_SIZE", "2")
    with world_of(range(2)) as bootstrap:
        assert bootstrap == {}


def test_a_misuse_is_not_tried_again() -> None:
    def train(state: ObjectState) -> None:
        raise HorovodUsageError("skip_synchronize() does not work with op=hvd.Adasum")

    def reset() -> None:
        pytest.fail("it would only come back")

    with pytest.raises(HorovodUsageError):
        run_fn(train, reset)(ObjectState(lambda sent: sent, lambda: 0))


@pytest.mark.parametrize("count", range(1, 8))
def test_adasum_of_any_number(count: int) -> None:
    same = [torch.tensor([3.0, -4.0])] * count
    torch.testing.assert_close(combined(same), same[0])
    orthogonal = list(torch.eye(count))
    torch.testing.assert_close(combined(orthogonal), torch.ones(count))


def test_a_lost_rank() -> None:
    program = """
        import os, torch
        import rueda.horovod.torch as hvd
        hvd.init()
        if hvd.rank() == 1:
            os._exit(9)
        try:
            hvd.allreduce(torch.ones(3), name="lost")
        except hvd.HorovodInternalError as error:
            assert "Horovod has been shut down" in str(error), error
            assert error.__cause__.peer == 1
            print("told")
    """
    ended = run(program, 2)
    assert "told" in ended[0].output


def test_a_rank_that_never_comes() -> None:
    program = """
        import torch
        import rueda.horovod.torch as hvd
        hvd.init()
        layer = torch.nn.Linear(2, 1)
        groups = {"groups": 1} if hvd.rank() == 0 else {}
        hvd.barrier()  # so that both wait for about the same time
        try:
            hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters()), **groups)
            hvd.allreduce(torch.ones(1), name="only on rank 1")
        except hvd.HorovodInternalError as error:
            assert "Stalled" in str(error), error
            print("told")
        hvd.barrier()  # neither leaves before the other was told
    """
    ended = run(program, 2, extra={"RUEDA_STALL_WARNING": "1", "RUEDA_STALL_ERROR": "4"})
    assert all(rank.returncode == 0 and "told" in rank.output for rank in ended), ended


ALIAS = Path(rueda.__file__).parent / "horovod" / "alias" / "path"


def test_alias(tmp_path: Path) -> None:
    """`import horovod` gives Rueda's module, also in processes that the script starts."""
    import subprocess

    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import subprocess, sys
            import horovod, horovod.torch as hvd, rueda.horovod.torch
            from horovod.common.exceptions import HorovodInternalError
            from horovod.common.elastic import run_fn, ObjectState
            from horovod.torch.elastic.state import TorchState
            from horovod.torch.mpi_ops import allreduce_async_
            assert hvd is rueda.horovod.torch is horovod.torch, hvd
            assert hvd.HorovodInternalError is HorovodInternalError
            assert horovod.__version__ == "0.28.1"
            hvd.init()
            assert hvd.size() == 1
            try:
                import horovod.mxnet
            except ModuleNotFoundError as error:
                assert "docs/horovod.md" in str(error)
            from horovod.runner import run
            assert horovod.run is run
            child = [sys.executable, "-c", "import horovod.common.exceptions as e; print(e.__name__)"]
            print(sys.argv[1:], subprocess.check_output(child, text=True))
        """)
    )
    plain = environment()
    paths = [str(ALIAS), *filter(None, [plain.get("PYTHONPATH")])]
    ways = [
        ([sys.executable, str(script)], {**plain, "PYTHONPATH": ":".join(paths)}),
        ([sys.executable, "-m", "rueda.horovod", str(script)], plain),
        ([sys.executable, "-m", "rueda.horovod", "-m", "script"], plain),
    ]
    for command, variables in ways:
        ended = subprocess.run(
            [*command, "--flag"], env=variables, cwd=tmp_path, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.split() == ["['--flag']", "rueda.horovod.exceptions"]
    wrong = subprocess.run(
        [sys.executable, "-m", "rueda.horovod"],
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 1
    assert "usage" in wrong.stderr
