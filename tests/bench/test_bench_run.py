"""`rueda bench` itself: what it refuses, what it measures, and that no process survives it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rueda.bench.contenders import PATHS, worker
from rueda.bench.mpi_libraries import find_open_mpis
from rueda.launcher.errors import LaunchError
from rueda.launcher.native import load_native
from rueda.launcher.processes import descendants, is_alive
from rueda_command import LAUNCHER, Ran, launcher_environment, run_rueda


def _is_built() -> bool:
    try:
        worker()
    except LaunchError:
        return False
    return load_native().module is not None


built = pytest.mark.skipif(not _is_built(), reason="Rueda was built without its benchmarks")
PEERS = [
    *(["mpi"] if find_open_mpis() else []),
    *(["gloo"] if importlib.util.find_spec("torch") else []),
]
OWN_PATHS = [path for path in PATHS if path != "python-direct" or "gloo" in PEERS]


def bench(folder: Path, *arguments: str, **variables: str) -> Ran:
    return run_rueda(folder, ["bench", *arguments], variables, timeout=280)


def test_without_arguments_it_says_what_it_can_measure(tmp_path: Path) -> None:
    ran = bench(tmp_path)
    assert ran.code == 0
    assert "Usage: rueda bench [OPTIONS]" in ran.out
    assert "rueda bench latency" in ran.out
    assert "rueda bench train" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["allscatter"], "'allscatter' is no collective: choose from allreduce"),
        (["latncy"], "did you mean 'latency'?"),
        (["--explain", "-H", "a:1,b:1"], "`rueda check -H a:1,b:1` tells what the links"),
        (["--dtype", "float8"], "'float8' is no dtype"),
        (["--op", "mean"], "'mean' is no reduction"),
        (["-b", "1M", "-e", "4K"], "comes first"),
        (["-b", "6"], "not a multiple of 4"),
        (["-e", "lots"], "'lots' is not a size"),
        (["-np", "1"], "at least 2 ranks"),
        (["broadcast", "--root", "2"], "the ranks are 0 to 1"),
        (["allgather", "--tune-mpi"], "allreduce only"),
        (["--memory", "shared"], "'shared' is no kind of memory"),
        (["--paths", "fast"], "'fast' is no way to call"),
        (["--peers", "mpi,nccl"], "'nccl' is no peer: choose from mpi"),
        (["--json", "nowhere/report.json"], "there is no folder"),
        (["--json", "."], "--json .: that is a folder"),
        (["-np", "128", "-d", "int8", "-o", "average"], "it holds no sum of so many ranks"),
        (["--seconds", "nan"], "nan is not a number of seconds up to 1e+09"),
        (["--seconds", "inf"], "inf is not a number of seconds up to 1e+09"),
        (["--late", "nan"], "nan is not a finite number"),
        (["--late", "1e300"], "1e+300 is not in the range"),
        (["--impi", ".", "--peers", "impi"], "mpiexec.hydra"),
        (["--baseline", "."], "pip install --no-deps --target . SOURCES"),
    ],
)
@built
def test_bad_input_is_refused_in_a_sentence(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    ran = bench(tmp_path, *arguments)
    assert ran.code == 2
    assert words in ran.last_line
    assert ran.out == ""


@built
def test_a_picture_that_cannot_be_drawn_is_refused_first(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--plot", "picture.txt")
    assert ran.code == 2
    assert "matplotlib" in ran.last_line or ".svg" in ran.last_line


@built
@pytest.mark.skipif(not PEERS, reason="neither Open MPI nor torch is installed")
def test_a_small_run_has_right_results_of_everybody(tmp_path: Path) -> None:
    ran = bench(
        tmp_path, "-np", "2", "-b", "4", "-e", "4K", "-f", "32", "--rounds", "1", "--calls", "3",
        "--peers", ",".join(PEERS), "--paths", ",".join(OWN_PATHS), "--json", "report.json",
        "--markdown", "report.md",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads((tmp_path / "report.json").read_text())
    check_report(report, [4, 128, 4096])
    assert report["limits"]["flag_exchange"].keys() & {"time_us", "unsupported"}
    paths = ["rueda", *(f"rueda-{path}" for path in OWN_PATHS[1:])]
    ours = {f"{path} {memory}" for path in paths for memory in ("private", "registered")}
    labels = set(report["contenders"])
    assert ours <= labels
    assert "gloo" not in PEERS or "gloo" in labels
    assert "mpi" not in PEERS or any(label.startswith("openmpi-") for label in labels)
    for row in report["sizes"]:
        assert row["results"]["shared_sum"]["wrong"] == 0
    assert "rueda registered and its peers" in (tmp_path / "report.md").read_text()
    assert "# CPU: " in ran.out


@built
def test_another_build_takes_turns_with_this_one(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "rueda").symlink_to(worker().parents[1])
    ran = bench(
        tmp_path, "-np", "2", "-b", "64", "-e", "64", "--rounds", "1", "--calls", "3", "--peers", "none",
        "--baseline", "site", "--paths", ",".join(OWN_PATHS), "--json", "report.json", "--no-limits",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads((tmp_path / "report.json").read_text())
    check_report(report, [64])
    baseline = {label for label in report["contenders"] if label.startswith("baseline")}
    kinds = ("private", "registered")
    ways = ["", *(f"-{path}" for path in OWN_PATHS if path != "direct")]
    assert baseline == {f"baseline{way} {kind}" for way in ways for kind in kinds}


def check_report(report: dict[str, Any], sizes: list[int]) -> None:
    assert report["schema"] == 1
    assert [row["size"] for row in report["sizes"]] == sizes
    for row in report["sizes"]:
        for label in report["contenders"]:
            result = row["results"][label]
            assert "unsupported" not in result, (label, result)
            assert result["wrong"] == 0, (label, row["size"])
            assert result["calls"] >= 3
            assert 0 < result["min_us"] <= result["p10_us"] <= result["time_us"], label
            assert result["time_us"] <= result["p90_us"], label


@built
@pytest.mark.parametrize("collective", ["allgather", "broadcast", "reduce_scatter", "alltoall"])
def test_every_collective_is_measured(tmp_path: Path, collective: str) -> None:
    peers = "mpi" if "mpi" in PEERS else "none"
    ran = bench(
        tmp_path, collective, "-np", "3", "-b", "4", "-e", "1K", "-f", "16", "--rounds", "1",
        "--calls", "3", "--no-limits", "--peers", peers, "--json", "report.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    sizes = [4, 64, 1024] if collective == "broadcast" else [12, 72, 1032]
    check_report(json.loads((tmp_path / "report.json").read_text()), sizes)


@built
@pytest.mark.parametrize("path", ["direct", "python"])
def test_the_time_begins_when_a_late_rank_enters(tmp_path: Path, path: str) -> None:
    ran = bench(
        tmp_path, "-b", "4K", "-e", "4K", "--rounds", "1", "--calls", "4", "--no-limits", "--peers", "none",
        "--paths", path, "--memory", "private", "--late", "300", "--json", "report.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads((tmp_path / "report.json").read_text())
    check_report(report, [4096])
    assert report["sizes"][0]["results"][report["contenders"].popitem()[0]]["min_us"] < 300_000


@built
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "complex128", "bool"])
def test_every_dtype_is_measured(tmp_path: Path, dtype: str) -> None:
    ran = bench(
        tmp_path, "-b", "4K", "-e", "4K", "--rounds", "1", "--calls", "3", "--no-limits",
        "--peers", "none", "--dtype", dtype, "--json", "report.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    check_report(json.loads((tmp_path / "report.json").read_text()), [4096])


@built
def test_what_cannot_be_done_is_said_in_the_table(tmp_path: Path) -> None:
    ran = bench(
        tmp_path, "-b", "8", "-e", "8", "--rounds", "1", "--calls", "1", "--no-limits",
        "--peers", "none", "--dtype", "complex64", "--op", "max",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "no max of complex64" in ran.out


@built
def test_the_algorithms_are_explained(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--explain")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("# algorithms by size")


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Starts a run; yields it while it measures, and its ranks."""
    process = subprocess.Popen(
        [*LAUNCHER, "bench", "-b", "4K", "-e", "4K", "--rounds", "1000", "--peers", "none",
         "--seconds", "0.2", "--no-limits", "--memory", "private"],
        env=launcher_environment(), cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:  # the header is printed once all ranks have joined
        if line.startswith("# measured"):
            break
    ranks = sorted(descendants(process.pid))
    assert len(ranks) >= 2
    time.sleep(0.5)
    yield process, ranks
    if process.poll() is None:
        process.kill()
    process.communicate()
    assert not [rank for rank in ranks if is_alive(rank)]


@built
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks(
    long_run: tuple[subprocess.Popen[str], list[int]], number: signal.Signals
) -> None:
    process, _ = long_run
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.rstrip().endswith(f"ended by {number.name}; all ranks are gone")


@built
def test_a_pipe_that_nobody_reads_ends_the_run(
    long_run: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, _ = long_run
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=280) == 141
    assert err == ""


@pytest.mark.parametrize("what", ["latency", "train"])
def test_ctrl_c_ends_what_it_has_started(tmp_path: Path, what: str) -> None:
    pytest.importorskip("rueda._native")
    flags = {"latency": ["--contenders", "rueda"], "train": ["--no-mpi"]}[what]
    if what == "train":
        pytest.importorskip("torch")
    process = subprocess.Popen(
        [*LAUNCHER, "bench", what, *flags], env=launcher_environment(), cwd=tmp_path, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while len(started := descendants(process.pid)) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "it does not start"
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "rueda: ended by SIGINT\n" in err
    deadline = time.monotonic() + 60
    while any(map(is_alive, started)):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.02)


@built
def test_a_rank_that_dies_ends_the_run(
    long_run: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, ranks = long_run
    os.kill(ranks[-1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "rueda: at 4096 bytes, rueda: " in err
