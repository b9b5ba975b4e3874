"""The records of real ranks that fail, and what `rueda analyze` finds in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import Job, alone, check, run, run_under_mpirun


def analyze(folder: Path) -> tuple[int, dict[str, Any]]:
    """The exit code of `rueda analyze --json`, and its report of the only world."""
    ran = subprocess.run(
        [sys.executable, "-m", "rueda.launcher", "analyze", str(folder), "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran
    (world,) = json.loads(ran.stdout)["worlds"]
    return ran.returncode, world


ONE_FORGETS = """
    import numpy as np, rueda
    rueda.init()
    for step in range(5):
        for name in ("a", "b", "c"):
            if (rueda.rank(), step, name) == (1, 3, "b"):
                continue
            try:
                rueda.allreduce(np.ones(5), name=name)
            except rueda.StalledError:
                raise SystemExit(3)
"""


@pytest.mark.parametrize("extra", [{}, {"RUEDA_TRANSPORT": "tcp"}, {"RUEDA_TRANSPORT": "mpi"}])
def test_an_operation_that_a_rank_forgot(tmp_path: Path, extra: dict[str, str]) -> None:
    variables = {
        "RUEDA_FLIGHT_RECORDER": str(tmp_path / "dump"),
        "RUEDA_STALL_WARNING": "0.5",
        "RUEDA_STALL_ERROR": "1.5",
        **extra,
    }
    if extra.get("RUEDA_TRANSPORT") == "mpi":
        ended = run_under_mpirun(ONE_FORGETS, 3, extra=variables, limit=120)
        assert ended.returncode != 0, ended
    else:
        run(ONE_FORGETS, 3, extra=variables, limit=120)
    code, world = analyze(tmp_path / "dump")
    assert code == 1
    assert world["size"] == 3
    assert world["without_record"] == []
    first = world["divergences"][0]
    assert first["kind"] == "missing"
    assert (first["operation"]["name"], first["operation"]["of_name"]) == ("b", 4)
    assert (first["ranks"], first["missing"]) == ([0, 2], [1])
    # Rank 1 was one operation ahead.
    assert any(o["name"] == "c" and o["of_name"] == 4 for o in world["ranks"]["1"]["open"])


def test_a_rank_that_does_not_come_until_the_others_give_up(tmp_path: Path) -> None:
    """The first to give up ends the world before the late rank has done anything."""
    program = """
        import os, pathlib, time, numpy as np, rueda
        rueda.init()
        rueda.allreduce(np.ones(5), name="a")
        record = pathlib.Path(rueda.options()["flight_recorder"], "rank1.json")
        while rueda.rank() == 1:
            if record.exists() and '"failure"' in record.read_text():
                os._exit(1)
            time.sleep(0.01)
        rueda.allreduce(np.ones(5), name="b")
    """
    variables = {
        "RUEDA_FLIGHT_RECORDER": str(tmp_path),
        "RUEDA_STALL_WARNING": "0.3",
        "RUEDA_STALL_ERROR": "0.6",
    }
    ended = run(program, 3, extra=variables, limit=60)
    assert [e.returncode for e in ended] == [1, 1, 1], ended
    code, world = analyze(tmp_path)
    assert code == 1
    first = world["divergences"][0]
    assert (first["operation"]["name"], first["operation"]["code"]) == ("b", "stalled")
    assert (first["ranks"], first["missing"]) == ([0, 2], [1])


def test_a_rank_that_dies_leaves_those_of_the_others(tmp_path: Path) -> None:
    program = """
        import os, signal, time, numpy as np, torch, rueda.torch
        rueda.init()
        persistent = rueda.torch.PersistentAllreduce(torch.ones(1000), name="persistent")
        for _ in range(3):
            persistent.start()
            persistent.wait()
        rueda.allgather(np.ones((rueda.rank(), 2)), name="rows")
        if rueda.rank() == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            rueda.allreduce(np.ones(3), name="never")
        except rueda.PeerLostError:
            raise SystemExit(7)
    """
    ended = run(program, 3, extra={"RUEDA_FLIGHT_RECORDER": str(tmp_path)}, limit=60)
    assert [e.returncode for e in ended] == [7, -9, 7], ended
    code, world = analyze(tmp_path)
    assert code == 0  # the ranks with a record agree
    assert world["without_record"] == [1]
    for rank in ("0", "2"):
        assert "rank 1" in world["ranks"][rank]["why"]
    record = json.loads((tmp_path / "rank0.json").read_text())
    by_name = [(o["name"], o["of_name"], o["stage"]) for o in record["operations"]]
    assert ("never", 1, "failed") in by_name or ("never", 1, "submitted") in by_name
    assert [entry for entry in by_name if entry[:1] == ("rows",)] == [("rows", 1, "done")]
    runs = [entry for entry in by_name if entry[0] == "persistent" and entry[2] == "done"]
    assert len(runs) >= 3


def test_a_rank_that_leaves_while_others_wait_for_it(tmp_path: Path) -> None:
    program = """
        import numpy as np, rueda
        rueda.init()
        for step in range(4):
            rueda.allreduce(np.ones(3), name="gradient")
        if rueda.rank() == 0:
            for source in (1, 2):  # has submitted what this rank never will
                rueda.recv(np.empty(1), source)
            raise SystemExit
        before = rueda.metrics()["tensors_submitted"]
        handle = rueda.allreduce_async(np.ones(3), name="gradient")
        while rueda.metrics()["tensors_submitted"] == before:
            pass  # a message may overtake it
        rueda.send(np.ones(1), 0)
        try:
            handle.result()
        except rueda.ShutdownError:
            raise SystemExit(7)
    """
    ended = run(program, 3, extra={"RUEDA_FLIGHT_RECORDER": str(tmp_path)}, limit=60)
    assert [e.returncode for e in ended] == [0, 7, 7], ended
    _, world = analyze(tmp_path)
    assert world["without_record"] == [0]
    for rank in ("1", "2"):
        assert "rank 0 has shut down" in world["ranks"][rank]["why"]
    record = json.loads((tmp_path / "rank1.json").read_text())
    last = record["operations"][-1]
    assert (last["name"], last["of_name"]) == ("gradient", 5)
    assert last["stage"] in ("submitted", "failed")  # depends on whether it was replayed


def test_a_rank_that_needs_one_that_has_left_before(tmp_path: Path) -> None:
    program = """
        import os, numpy as np, rueda
        rueda.init()
        for step in range(4 + rueda.rank()):
            if step == 4:
                try:
                    rueda.recv(np.empty(1), 0)  # until this rank knows that the other has left
                except rueda.ShutdownError:
                    pass
            try:
                rueda.allreduce(np.ones(3), name="gradient")
            except rueda.ShutdownError:
                code = 7 if os.path.exists(rueda.options()["flight_recorder"] + "/rank1.json") else 8
                raise SystemExit(code)
    """
    ended = run(program, 2, extra={"RUEDA_FLIGHT_RECORDER": str(tmp_path)}, limit=60)
    assert [e.returncode for e in ended] == [0, 7], ended
    _, world = analyze(tmp_path)
    assert world["without_record"] == [0]
    assert "rank 0 has shut down" in world["ranks"]["1"]["why"]
    last = json.loads((tmp_path / "rank1.json").read_text())["operations"][-1]
    assert (last["name"], last["of_name"], last["stage"]) == ("gradient", 5, "submitted")


def test_a_rank_that_ends_with_the_others_leaves_no_record(tmp_path: Path) -> None:
    program = """
        import numpy as np, time, rueda
        rueda.init()
        pair = rueda.add_process_set([0, 1])
        rueda.allreduce(np.ones(3), name="gradient")
        rueda.remove_process_set(pair)
        time.sleep(rueda.rank() / 5)
    """
    check(program, 3, extra={"RUEDA_FLIGHT_RECORDER": str(tmp_path)})
    assert not list(tmp_path.glob("*.json"))


def test_a_rank_that_is_killed_after_a_stall_is_not_taken_for_one_that_stayed_away(
    tmp_path: Path,
) -> None:
    program = """
        import os, signal, time, pathlib, numpy as np, rueda
        rueda.init()
        folder = pathlib.Path(rueda.options()["flight_recorder"])
        def wait_for(*names):
            while not all((folder / name).exists() for name in names):
                time.sleep(0.01)
        if rueda.rank() == 1:
            wait_for("rank1.json")
        rueda.allreduce(np.ones(3), name="load")
        try:
            for step in range(5):
                rueda.allreduce(np.ones(3), name="w")
            if rueda.rank() == 1:
                wait_for("0 has submitted", "2 has submitted")  # or their records may lack it
                os.kill(os.getpid(), signal.SIGKILL)
            last = rueda.allreduce_async(np.ones(3), name="w")
            (folder / f"{rueda.rank()} has submitted").touch()
            last.result()
        except rueda.PeerLostError:
            raise SystemExit(7)
    """
    variables = {"RUEDA_FLIGHT_RECORDER": str(tmp_path), "RUEDA_STALL_WARNING": "0.3"}
    ended = run(program, 3, extra=variables, limit=60)
    assert [e.returncode for e in ended] == [7, -9, 7], ended
    code, world = analyze(tmp_path)
    assert code == 0
    assert world["divergences"] == []
    assert world["outdated"] == [1]
    occasions = [world["ranks"][rank]["occasion"] for rank in ("0", "1", "2")]
    assert occasions == ["failure", "stall", "failure"]


def test_what_ranks_do_not_agree_on(tmp_path: Path) -> None:
    check(
        """
        import numpy as np, rueda
        rueda.init()
        rueda.allreduce(np.ones(4), name="good")
        try:
            rueda.allreduce(np.ones(4 + rueda.rank()), name="bad")
        except rueda.MismatchError:
            pass
        rueda.allreduce(np.ones(4), name="good")
        rueda.write_flight_record()
        """,
        3,
        extra={"RUEDA_FLIGHT_RECORDER": str(tmp_path)},
    )
    code, world = analyze(tmp_path)
    assert code == 1
    (found,) = world["divergences"]
    assert found["kind"] == "mismatch"
    assert found["fields"] == {"shape": {"4": [0], "5": [1], "6": [2]}}
    assert world["ranks"]["0"]["why"] == "requested by the application"


def test_a_rank_that_raises_is_told_of(tmp_path: Path) -> None:
    program = """
        import numpy as np, rueda
        rueda.init()
        rueda.allreduce(np.ones(4), name="good")
        if rueda.rank() == 0:
            raise KeyError("the cause")
        rueda.allreduce(np.ones(4), name="next")
    """
    run(program, 2, extra={"RUEDA_FLIGHT_RECORDER": str(tmp_path)}, limit=60)
    _, world = analyze(tmp_path)
    assert world["without_record"] == []
    for rank in ("0", "1"):
        assert "the cause" in world["ranks"][rank]["why"]


def test_after_recovery_there_is_a_record_of_each_world(tmp_path: Path) -> None:
    program = """
        import os, signal, numpy as np, rueda
        rueda.init()
        try:
            rueda.allreduce(np.ones(4), name="good")
            if rueda.rank() == 1:  # another may not have its sum yet
                os.kill(os.getpid(), signal.SIGKILL)
            rueda.allreduce(np.ones(4), name="broken")
        except rueda.PeerLostError:
            rueda.recover()
        rueda.allreduce(np.ones(4), name="after")
        rueda.write_flight_record()
    """
    variables = {"RUEDA_FLIGHT_RECORDER": str(tmp_path), "RUEDA_RECOVERY": "on"}
    ended = run(program, 3, extra=variables, limit=60)
    assert [e.returncode for e in ended] == [0, -9, 0], ended
    assert (tmp_path / "rank0.json").exists()
    (later,) = tmp_path.glob("epoch*")
    names = {
        path.name: [o["name"] for o in json.loads(path.read_text())["operations"]]
        for path in later.iterdir()
    }
    assert names == {"rank0.json": ["after"], "rank1.json": ["after"]}


@pytest.mark.parametrize("recovery", ["off", "on"])
def test_records_do_not_follow_the_working_directory(tmp_path: Path, recovery: str) -> None:
    program = """
        import os, numpy as np, rueda
        os.chdir(os.environ["BEGUN"])
        rueda.init(flight_recorder="dump")
        os.chdir(os.environ["LATER"])
        rueda.barrier()
        if rueda.rank() == 2:
            os._exit(3)
        try:
            rueda.allreduce(np.ones(4), name="broken")
        except rueda.PeerLostError:
            if rueda.options()["recovery"] == "on":
                rueda.recover()
                rueda.write_flight_record()
    """
    begun, later = tmp_path / "begun", tmp_path / "later"
    begun.mkdir()
    later.mkdir()
    variables = {"BEGUN": str(begun), "LATER": str(later), "RUEDA_RECOVERY": recovery}
    ended = run(program, 3, extra=variables, limit=60)
    assert [e.returncode for e in ended] == [0, 0, 3], ended
    assert not list(later.iterdir())
    names = sorted(path.name for path in begun.rglob("rank*.json"))
    times = 2 if recovery == "on" else 1
    assert names == sorted(["rank0.json", "rank1.json"] * times)


def test_writing_without_a_folder_is_an_error() -> None:
    ended = alone(
        """
        import rueda
        rueda.init()
        try:
            rueda.write_flight_record()
        except rueda.InvalidArgumentError as error:
            print(error)
        """
    )
    assert ended.returncode == 0, ended
    assert "set RUEDA_FLIGHT_RECORDER to the folder for its records" in ended.output


def test_a_disk_that_is_full_ends_nothing(tmp_path: Path) -> None:
    """A limit on the file size stands in for the full disk."""
    program = """
        import resource, signal, numpy as np, rueda
        rueda.init()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        rueda.allreduce(np.ones(4), name="good")
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        try:
            rueda.write_flight_record()
        except rueda.InitializationError as error:
            told = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert rueda.allreduce(np.ones(4), name="good", op=rueda.Sum).tolist() == [2.0] * 4
        print(told)
    """
    with Job(program, 2, extra={"RUEDA_FLIGHT_RECORDER": str(tmp_path)}) as job:
        ended = job.wait(60)
    assert [e.returncode for e in ended] == [0, 0], ended
    for rank, process in enumerate(ended):
        assert f"rank{rank}.json': File too large" in process.output
    assert list(tmp_path.iterdir()) == []  # no partial file
