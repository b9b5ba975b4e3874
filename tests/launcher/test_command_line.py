from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.cli import build
from rueda.launcher.environment import without_identity
from rueda.launcher.hosts import parse_hosts
from rueda.launcher.job import Job
from rueda.launcher.mpirun import Mpirun, MpirunOptions, command_line
from rueda.launcher.mpirun_ends import STATUS, reporting
from rueda.launcher.native import Native
from rueda.launcher.nodes.flags import _COUNTS, _RANKS
from rueda_command import launcher_environment

TABLE = [
    {
        "name": "fusion_threshold", "environment": "RUEDA_FUSION_THRESHOLD",
        "horovod": "HOROVOD_FUSION_THRESHOLD", "type": "bytes", "choices": "", "must_agree": True,
        "description": "Tensors are batched into fusion buffers of up to this size.",
        "default": "67108864",
    },
    {
        "name": "log_level", "environment": "RUEDA_LOG_LEVEL", "horovod": "", "type": "choice",
        "choices": "debug|info|off", "must_agree": False, "description": "What is written.",
        "default": "info",
    },
    {
        "name": "stall_warning", "environment": "RUEDA_STALL_WARNING", "horovod": "",
        "type": "seconds",
        "choices": "", "must_agree": True, "description": "When.", "default": "60",
    },
    {
        "name": "bootstrap", "environment": "RUEDA_BOOTSTRAP", "horovod": "", "type": "choice",
        "choices": "auto|mpi|rendezvous|none", "must_agree": False, "description": "How.",
        "default": "auto",
    },
]  # fmt: skip

with_extension = Native(ModuleType("rueda._native"), option_table=TABLE)
without_extension = Native(why_not="No module named 'rueda._native'")


@pytest.fixture
def fake_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Programs that only answer --version like Open MPI 4 and 5."""
    monkeypatch.setattr("rueda.launcher.run.cores_within_quota", lambda: (2, None))
    monkeypatch.setattr("rueda.launcher.mpirun.usable_cores", lambda: 2)
    monkeypatch.setattr("rueda.launcher.mpirun.has_no_input", lambda: False)
    monkeypatch.setattr("rueda.launcher.run.search_path", lambda: os.environ["PATH"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    for name in ("OMP_NUM_THREADS", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.startswith(("RUEDA_", "HOROVOD_")):
            monkeypatch.delenv(name)
    paths = {}
    for major, version in ((4, "4.1.4"), (5, "5.0.11")):
        path = tmp_path / f"mpirun{major}"
        path.write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'\n")
        path.chmod(0o755)
        paths[major] = str(path)
    return paths


def run(*arguments: str, native: Native = with_extension) -> click.testing.Result:
    return click.testing.CliRunner().invoke(build(native), ["run", *arguments])


def dry_run(mpirun: str, *arguments: str, native: Native = with_extension) -> list[str]:
    result = run("--mpirun", mpirun, "--dry-run", *arguments, native=native)
    assert result.exit_code == 0, result.output
    return shlex.split(result.stdout)


@pytest.mark.parametrize(
    ("major", "arguments", "expected"),
    [
        (5, ["-np", "2", "true"], "-np 2 --bind-to none --output tag -x OMP_NUM_THREADS=1 true"),
        (4, ["-np", "2", "true"], "-np 2 --bind-to none --tag-output -x OMP_NUM_THREADS=1 true"),
        (
            5,
            ["-np", "4", "--map-by", "ppr:2:node", "true"],
            "-np 4 --bind-to none --map-by ppr:2:node:OVERSUBSCRIBE --output tag "
            "-x OMP_NUM_THREADS=1 true",
        ),
        (
            4,
            ["-np", "4", "--map-by", "node", "true"],
            "-np 4 --bind-to none --oversubscribe --map-by node --tag-output "
            "-x OMP_NUM_THREADS=1 true",
        ),
        (
            5,
            ["-np", "3", "-H", "localhost:2", "--oversubscribe", "--bind-to", "core", "true"],
            "-np 3 -H localhost:2 --bind-to core --map-by :OVERSUBSCRIBE --output tag "
            "-x OMP_NUM_THREADS=1 true",
        ),
        (
            5,
            ["-np", "1", "-x", "A=b c", "-x", "OMP_NUM_THREADS=7", "--ulfm",
             "--mpi-args", "--mca x 'y z'", "--fusion-threshold", "16M", "true", "-np", "--help"],
            "-np 1 --bind-to none --output tag --with-ft ulfm -x 'A=b c' -x OMP_NUM_THREADS=7 "
            "-x RUEDA_FUSION_THRESHOLD=16M --mca x 'y z' "
            + shlex.join(reporting(["true", "-np", "--help"])),
        ),
    ],
)  # fmt: skip
def test_dry_run(
    fake_mpirun: dict[int, str], major: int, arguments: list[str], expected: str
) -> None:
    line = dry_run(fake_mpirun[major], *arguments)
    own = STATUS.decode()  # of this process's runs
    line = [re.sub(r"rueda-rank-status-\w+ ", own, word) for word in line]
    assert line == [fake_mpirun[major], *shlex.split(expected)]


def test_mpirun_is_told_of_an_empty_input(
    fake_mpirun: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rueda.launcher.mpirun.has_no_input", lambda: True)
    assert "--stdin none" in shlex.join(dry_run(fake_mpirun[5], "-np", "2", "true"))
    assert "--stdin" not in dry_run(fake_mpirun[4], "-np", "2", "true")
    asked = dry_run(fake_mpirun[5], "-np", "2", "--mpi-args", "--stdin all", "true")
    assert asked.count("--stdin") == 1


def test_other_hosts_get_the_variables(
    fake_mpirun: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUEDA_TIMELINE", "t.json")
    monkeypatch.setenv("RUEDA_RANK", "3")  # of an outer launch
    monkeypatch.setenv("UNRELATED", "x")
    line = dry_run(fake_mpirun[5], "-H", "far-away-1:2,far-away-2:2", "no-such-program-here")
    assert line[1:5] == ["-np", "4", "-H", "far-away-1:2,far-away-2:2"]
    forwarded = {line[n + 1] for n, word in enumerate(line) if word == "-x"}
    assert {"RUEDA_TIMELINE", "PATH", "OMP_NUM_THREADS=1"} <= forwarded
    assert not {"UNRELATED", "RUEDA_RANK"} & forwarded


def test_hostfile(fake_mpirun: dict[int, str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\nnode2 slots=2 # far\n")
    line = dry_run(fake_mpirun[4], "--hostfile", str(tmp_path / "hosts"), "-np", "3", "true")
    assert line[1:5] == ["-np", "3", "-H", "localhost:2,node2:2"]


def test_hosts_that_get_no_rank_take_no_part(fake_mpirun: dict[int, str]) -> None:
    hosts = ["-H", "localhost:4,far-away:4", "-np", "2"]
    assert dry_run(fake_mpirun[5], *hosts, "true")[1:5] == ["-np", "2", "-H", "localhost:4"]
    line = dry_run(fake_mpirun[5], *hosts, "--map-by", "node", "true")
    assert line[1:5] == ["-np", "2", "-H", "localhost:4,far-away:4"]  # mpirun distributes the ranks
    lines = run("--dry-run", "--no-mpi", *hosts, "true").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["env", "env"]


def test_what_a_rank_of_an_outer_job_was_told_is_not_passed_on() -> None:
    outer = {"RUEDA_RANK": "1", "RUEDA_BOOTSTRAP": "rendezvous", "RUEDA_TIMELINE": "t.json"}
    outer["HOROVOD_RANK"] = "1"
    assert without_identity(outer) == {"RUEDA_TIMELINE": "t.json"}
    joiner = {"RUEDA_JOINER": "3", "RUEDA_BOOTSTRAP": "rendezvous"}
    assert without_identity(joiner) == {}
    asked_for = {"RUEDA_BOOTSTRAP": "rendezvous"}
    assert without_identity(asked_for) == asked_for


def test_omp_num_threads_is_left_alone_where_set(
    fake_mpirun: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "-x" not in dry_run(fake_mpirun[5], "-np", "2", "true")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_the_printed_line_is_the_line(arguments: list[str]) -> None:
    job = Job(2, ("program", *arguments), parse_hosts("localhost:2"), {"NAME": "a b'c\"$d"})
    argv = command_line(Mpirun("/x/mpirun", 5, "5.0.0"), job, MpirunOptions())
    assert shlex.split(shlex.join(argv)) == argv
    assert argv[len(argv) - len(arguments) :] == arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "0", "true"], "at least 1 rank"),
        (["-np", "-1", "true"], "at least 1 rank"),
        (["true"], "how many ranks"),
        (["-np", "3", "-H", "localhost:2", "true"], "more than the 2 slots"),
        (["-H", "localhost", "true"], "no number of slots"),
        (["-H", "localhost:1", "--hostfile", "x", "true"], "either -H or --hostfile"),
        (["--hostfile", "/no/such/file", "true"], "cannot read '/no/such/file'"),
        (["-np", "1", "pyhton", "train.py"], "did you mean 'python"),
        (["-np", "1", "/tmp"], "'/tmp' is a folder, not a program"),
        (["-np", "1", "python3", "/no/such/train.py"], "no file '/no/such/train.py'"),
        (["-np", "1", __file__], "is a Python script"),
        (["-np", "1", "-x", "NOT_SET_ANYWHERE", "true"], "not set here"),
        (["-np", "1", "-x", "2=3", "true"], "write NAME or NAME=VALUE"),
        (["-np", "1", "--mpi-args", "'", "true"], "--mpi-args"),
        (["-np", "1", "--mpirun", "/bin/true", "true"], "not Open MPI's"),
        (["-np", "1", "--mpirun", "/no/such/mpirun", "true"], "/no/such/mpirun"),
        (["-np", "1", "--fusion-threshold", "16Q", "true"], "number of bytes, with K, M or G"),
        (["-np", "1", "--stall-warning", "-1", "true"], "number of seconds"),
        (["-np", "1", "--log-level", "loud", "true"], "debug"),
        *(
            (["-np", "1", flag, value, "true"], f"{value} is not a number of seconds")
            for flag in ("--grace", "--host-timeout", "--nodes-timeout", "--elastic-timeout")
            for value in ("nan", "inf")
        ),
        (["-np", "1", "--no-mpi", "--mpi", "true"], "--mpi contradicts --no-mpi"),
        (["-np", "1", "--mpi", "--gloo", "true"], "contradicts"),
        (["-np", "1"], "COMMAND"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("[host:17] Error: Unable to get the user home directory", "; set HOME"),
        ("mpirun: error while loading shared libraries: libprrte.so.3", ""),
    ],
)
def test_an_mpirun_that_cannot_start_is_quoted(tmp_path: Path, line: str, remedy: str) -> None:
    path = tmp_path / "mpirun"
    path.write_text(f"#!/bin/sh\necho -----\necho '{line}' >&2\necho more >&2\nexit 213\n")
    path.chmod(0o755)
    result = run("-np", "1", "--mpirun", str(path), "true")
    assert result.exit_code == 2
    assert f"'{path} --version' failed with exit code 213: {line}{remedy}\n" in result.stderr


@pytest.mark.parametrize(
    ("flags", "said", "remedy"),
    [
        ([], "Unable to get the user home directory", "set HOME or use --no-mpi"),
        ([], "no libprrte.so.3", "use --no-mpi"),
        (["--mpi"], "Unable to get the user home directory", "set HOME"),
        (["--map-by", "core"], "Unable to get the user home directory", "set HOME"),
    ],
)
def test_an_mpirun_that_is_not_asked_for_can_be_left_out(
    fake_mpirun: dict[int, str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    said: str,
    remedy: str,
) -> None:
    path = fake_mpirun[5]
    Path(path).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    monkeypatch.setattr("rueda.launcher.mpirun.find_mpirun", lambda _: path)
    result = run("-np", "1", *flags, "true")
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last == f"rueda: '{path} --version' failed with exit code 1: {said}; {remedy}"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["-x", "RUEDA_RECOVERY=on"], "RUEDA_RECOVERY=on"),
        (["-x", "RUEDA_RECOVERY=on", "--bootstrap", "mpi"], "RUEDA_RECOVERY=on"),
        (["--ulfm"], "--ulfm"),
        (["--ulfm", "-x", "RUEDA_RECOVERY=on"], "--ulfm"),
    ],
)
def test_recovery_under_mpirun_needs_one_with_ulfm(
    fake_mpirun: dict[int, str], arguments: list[str], what: str
) -> None:
    job = ["-np", "2", *arguments, "true"]
    for dry in ([], ["--dry-run"]):
        result = run("--mpirun", fake_mpirun[4], *dry, *job)
        assert result.exit_code == 2, result.output
        needed = f"{what} needs Open MPI 5; {fake_mpirun[4]} is 4.1.4"
        assert needed in result.stderr
        assert "Traceback" not in result.output
    line = dry_run(fake_mpirun[5], *job)
    assert line[line.index("--with-ft") + 1] == "ulfm"


def test_without_the_extension_its_flags_say_so() -> None:
    result = run("-np", "1", "--fusion-threshold", "1M", "true", native=without_extension)
    assert result.exit_code == 2
    assert "native extension is missing (No module named 'rueda._native')" in result.stderr


def test_without_the_extension_a_job_still_runs_with_a_warning(fake_mpirun: dict[int, str]) -> None:
    result = run("--dry-run", "--no-mpi", "-np", "1", "true", native=without_extension)
    assert result.exit_code == 0
    assert "native extension is missing" in result.stderr


def test_built_in_dry_run_has_a_line_per_rank(fake_mpirun: dict[int, str]) -> None:
    flags = ["--dry-run", "--no-mpi", "-np", "3", "--log-level", "off"]
    lines = [shlex.split(line) for line in run(*flags, "true").stdout.splitlines()]
    variables = [dict(word.split("=", 1) for word in line[1:-1]) for line in lines]
    assert [line[0] for line in lines] == ["env"] * 3
    assert [v["RUEDA_RANK"] for v in variables] == ["0", "1", "2"]
    assert {v["RUEDA_SIZE"] for v in variables} == {"3"}
    assert {v["RUEDA_LOG_LEVEL"] for v in variables} == {"off"}
    (rendezvous,) = {v["RUEDA_RENDEZVOUS"] for v in variables}
    # A name that no other user can compute in advance.
    assert re.fullmatch(r"unix:@rueda-[0-9a-f]{32}", rendezvous)
    assert rendezvous not in run(*flags, "true").stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--map-by", "node", "--ulfm"], "--map-by, --ulfm have no effect: the ranks are started"),
        (["--mpirun", "/x/mpirun"], "--mpirun has no effect: the ranks are started without mpirun"),
        (["--bind-to", "core"], "--bind-to has no effect"),
        (["--oversubscribe"], ""),
    ],
)
def test_flags_of_mpirun_without_it_are_said_to_have_no_effect(
    fake_mpirun: dict[int, str], flags: list[str], said: str
) -> None:
    result = run("--dry-run", "--no-mpi", "-np", "1", *flags, "true")
    assert result.exit_code == 0, result.output
    assert said in result.stderr
    assert ("no effect" in result.stderr) == bool(said)


def test_verbose_shows_what_a_node_runs(
    fake_mpirun: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUEDA_SECRET", "s" * 32)
    monkeypatch.setattr("rueda.launcher.run.run_node", lambda *_: 7)
    where = ["--nodes", "2", "--node-rank", "1", "--rendezvous", "tcp:first:29400"]
    result = run("--verbose", *where, "-np", "2", "true")
    assert result.exit_code == 7
    shown = [line for line in result.stderr.splitlines() if line.startswith("rueda: env ")]
    assert len(shown) == 2
    for rank, line in zip((2, 3), shown, strict=True):
        assert f" RUEDA_RANK={rank} RUEDA_SIZE=4 " in line
    assert "s" * 32 not in result.output


def test_an_environment_that_is_not_activated_is_put_on_the_path(
    fake_mpirun: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    folder = os.path.dirname(sys.executable)
    line = dry_run(fake_mpirun[5], "-np", "1", os.path.basename(sys.executable), "-c", "pass")
    assert f"PATH={folder}:/usr/bin:/bin" in line
    assert line[-3] == sys.executable


def test_help_lists_every_option_of_the_table() -> None:
    text = run("--help").stdout
    for row in TABLE:
        assert f"--{row['name']}".replace("_", "-") in text
        assert str(row["environment"]) in text
    assert text.count("--bootstrap") >= 1


def test_help_has_bytes_in_the_largest_unit() -> None:
    """As docs/options.md shows them."""
    assert "Default 64M." in run("--help").stdout
    assert "67108864" not in run("--help").stdout


def test_a_command_that_is_nearly_one_is_named() -> None:
    command = build(with_extension)
    shown = click.testing.CliRunner().invoke(command, ["rnu", "-np", "2", "true"])
    assert shown.exit_code == 2
    assert "No such command 'rnu'; did you mean 'run'?" in shown.output
    shown = click.testing.CliRunner().invoke(command, ["xyz"])
    assert shown.exit_code == 2
    assert "did you mean" not in shown.output


@pytest.mark.parametrize(
    ("value", "is_good"),
    [
        ("auto", True),
        ("", True),
        ("flat:0-8K;direct:8K-1M;ring:1M-", True),
        ("gathered;pairwise", True),
        ("hierarchical;doubling;halving;tree;staged", True),
        ("foo", False),
        ("flat:0-8K;rnig:8K-", False),
    ],
)
def test_an_unknown_algorithm_is_told_at_once(value: str, is_good: bool) -> None:
    row = {
        "name": "algorithm", "environment": "RUEDA_ALGORITHM", "horovod": "", "type": "text",
        "choices": "", "must_agree": True, "description": "Which.", "default": "auto",
    }  # fmt: skip
    native = Native(ModuleType("rueda._native"), option_table=[row])
    result = run("--no-mpi", "--dry-run", "-np", "1", "--algorithm", value, "true", native=native)
    assert result.exit_code == (0 if is_good else 2), result.output
    assert ("choose from auto, flat, staged" in result.output) is not is_good


def test_help_has_the_variables_that_count_nodes() -> None:
    text = " ".join(run("--help").output.split())
    assert f"Default: {', '.join(_COUNTS)}." in text
    assert f"Default: {', '.join(_RANKS)}." in text


PRINTS = r"""
import sys
from rueda.launcher import cli
def print_it(**_):
    sys.stdout.write("39 \u00b5s, \udce9.py" + chr(10))
cli.build = lambda _: print_it
cli.main()
"""


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, b"39 ?s, \xe9.py\n"),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, b"39 \xc2\xb5s, \xe9.py\n"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}, b"39 ?s, ?.py\n"),
    ],
)
def test_characters_that_the_users_encoding_lacks_end_nothing(
    variables: dict[str, str], shown: bytes
) -> None:
    environment = {**launcher_environment(), "PYTHONCOERCECLOCALE": "0", **variables}
    done = subprocess.run(
        [sys.executable, "-c", PRINTS], env=environment, capture_output=True, timeout=60, check=True
    )
    assert done.stdout == shown


def test_a_command_imports_no_other() -> None:
    """Importing other commands would slow down the start of every job."""
    program = (
        "import sys, click.testing, rueda.launcher.cli as cli\n"
        "command = cli.build(cli.load_native())\n"
        "modules = {name: f'rueda.launcher.{name}.command' for name in ('analyze', 'equiv', 'report')}\n"
        "modules |= {'bench': 'rueda.bench', 'check': 'rueda.launcher.check.command'}\n"
        "modules |= {'run': 'rueda.launcher.run'}\n"
        "for words in (['check', '--help'], ['run', '--help'], ['bench', '--help']):\n"
        "    assert click.testing.CliRunner().invoke(command, words).exit_code == 0\n"
        "    print(words[0], *(name for name, module in modules.items() if module in sys.modules))\n"
    )
    shown = subprocess.check_output(
        [sys.executable, "-c", program], env=launcher_environment(), text=True, timeout=60
    )
    assert shown.splitlines() == ["check check", "run check run", "bench bench check run"]


def test_launchers_do_without_numpy() -> None:
    """Importing it would take half of a launcher's startup time."""
    program = (
        "import sys, rueda.launcher.cli, rueda.launcher.remote.host\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], env=launcher_environment(), timeout=60, check=True
    )
