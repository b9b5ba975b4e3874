from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rueda_command import LAUNCHER, launcher_environment

from .conftest import Rueda

Script = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("no_survivors")


@pytest.mark.parametrize("ranks", [1, 4])
def test_every_line_is_prefixed_with_its_rank(
    rueda: Rueda, any_launch: list[str], script: Script, ranks: int
) -> None:
    program = script("""
        print("first of", size, flush=True)
        sys.stdout.write("in ")
        sys.stdout.flush()
        time.sleep(0.05)
        sys.stdout.write("pieces\\n  indented\\n")
        print("to stderr", sys.argv[1:], file=sys.stderr)
        print("unended", end="")
    """)
    ran = rueda(*any_launch, "-np", str(ranks), "python3", program, "a b", "--np=1")
    assert ran.code == 0, ran.err
    expected = [
        f"[{rank}]<stdout>: {text}"
        for rank in range(ranks)
        for text in (f"first of {ranks}", "in pieces", "  indented", "unended")
    ]
    assert Counter(ran.out.splitlines()) == Counter(expected)
    errors = [line for line in ran.err.splitlines() if line.startswith("[")]
    assert Counter(errors) == Counter(
        f"[{rank}]<stderr>: to stderr ['a b', '--np=1']" for rank in range(ranks)
    )


def test_a_line_of_any_length_has_one_prefix(
    rueda: Rueda, any_launch: list[str], script: Script
) -> None:
    program = script("""
        print("x" * (1 << 17), flush=True)  # kept whole while other ranks print
        mark("printed")
        wait_for("printed", size)
        if rank == 0:
            print("y" * (5 << 20), end="")
    """)
    ran = rueda(*any_launch, "-np", "2", "python3", program)
    assert ran.code == 0, ran.err
    assert sorted(ran.out.splitlines()) == sorted(
        [
            *(f"[{rank}]<stdout>: {'x' * (1 << 17)}" for rank in (0, 1)),
            f"[0]<stdout>: {'y' * (5 << 20)}",
        ]
    )


def test_an_empty_input_ends_at_once(tmp_path: Path, launch: list[str], script: Script) -> None:
    program = script("print(repr(sys.stdin.read()))")
    ran = subprocess.run(
        [*LAUNCHER, *launch, "-np", "2", "python3", program],
        env=launcher_environment(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"[{rank}]<stdout>: ''" for rank in (0, 1)]


def test_output_files(rueda: Rueda, launch: list[str], script: Script, tmp_path: Path) -> None:
    program = script("""
        print("out", rank, flush=True)
        print("err", rank, file=sys.stderr, flush=True)
    """)
    ran = rueda(
        *launch, "-np", "3", "--no-prefix", "--output-filename", "logs/x", "python3", program
    )
    assert ran.code == 0, ran.err
    assert sorted(ran.out.splitlines()) == ["out 0", "out 1", "out 2"]
    for rank in range(3):
        lines = (tmp_path / "logs" / "x" / f"rank.{rank}").read_text().splitlines()
        assert sorted(lines) == [f"err {rank}", f"out {rank}"]


def test_variables_reach_the_ranks(rueda: Rueda, any_launch: list[str], script: Script) -> None:
    program = script("""
        print(os.environ["GIVEN"], os.environ["INHERITED"], os.environ["OMP_NUM_THREADS"])
    """)
    ran = rueda(
        *any_launch, "-np", "2", "-x", "GIVEN=a; b=\"c\"", "python3", program, INHERITED="d e"
    )  # fmt: skip
    assert ran.code == 0, ran.err
    said = re.search(r"rueda: OMP_NUM_THREADS=(\d+), because it is not set", ran.err)
    assert said is not None
    assert sorted(ran.out.splitlines()) == [
        f'[{rank}]<stdout>: a; b="c" d e {said[1]}' for rank in range(2)
    ]


def test_exception(rueda: Rueda, any_launch: list[str], script: Script) -> None:
    program = script("""
        if rank == 1:
            raise ValueError("bad batch 17")
        time.sleep(60)
    """)
    ran = rueda(*any_launch, "-np", "3", "python3", program)
    assert ran.code == 1
    assert re.fullmatch(
        r"rueda: rank 1 on \S+ failed first: ValueError: bad batch 17 \(exit code 1\)",
        ran.last_line,
    )


def test_exception_of_a_rank_that_is_alone(
    rueda: Rueda, any_launch: list[str], script: Script
) -> None:
    program = script("""
        raise ValueError("bad batch 17")
    """)
    ran = rueda(*any_launch, "-np", "1", "python3", program)
    assert ran.code == 1
    assert re.fullmatch(
        r"rueda: rank 0 on \S+ failed first: ValueError: bad batch 17 \(exit code 1\)",
        ran.last_line,
    )


def test_exception_of_the_rank_that_is_last(
    rueda: Rueda, any_launch: list[str], script: Script
) -> None:
    program = script("""
        if rank == 0:
            def gone(pid):
                os.kill(pid, 0)
                return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] in "ZX"
            deadline = time.monotonic() + 30
            try:
                while not gone(int(pathlib.Path("pid.1").read_text())):
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            except (FileNotFoundError, ProcessLookupError):
                pass
            raise ValueError("bad batch 17")
    """)
    ran = rueda(*any_launch, "-np", "2", "python3", program)
    assert ran.code == 1
    assert re.fullmatch(
        r"rueda: rank 0 on \S+ failed first: ValueError: bad batch 17 \(exit code 1\)",
        ran.last_line,
    )


def test_exit_code(rueda: Rueda, any_launch: list[str], script: Script) -> None:
    program = script("""
        if rank == size - 1:
            print("disk full", file=sys.stderr, flush=True)
            sys.exit(42)
        time.sleep(60)
    """)
    ran = rueda(*any_launch, "-np", "4", "python3", program)
    assert ran.code == 42
    assert re.fullmatch(
        r"rueda: rank 3 on \S+ failed first: exit code 42; last line of stderr: disk full",
        ran.last_line,
    )


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_signal(rueda: Rueda, any_launch: list[str], script: Script, name: str) -> None:
    program = script(f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if rank == 0:
            os.kill(os.getpid(), signal.{name})
        time.sleep(60)
    """)
    ran = rueda(*any_launch, "-np", "2", "python3", program)
    assert ran.code == {"SIGKILL": 137, "SIGSEGV": 139}[name]
    assert re.fullmatch(
        rf"rueda: rank 0 on \S+ failed first: killed by {name} \(.*\)", ran.last_line
    )


def test_ranks_that_ignore_sigterm_and_their_children_are_killed(
    rueda: Rueda, launch: list[str], script: Script
) -> None:
    program = script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "100"], start_new_session=True)
        pathlib.Path(f"pid.child{rank}").write_text(str(child.pid))
        if rank == 1:
            os._exit(5)
        time.sleep(100)
    """)
    ran = rueda(*launch, "-np", "2", "python3", program)
    assert ran.code == 5
    assert "rank 1" in ran.last_line


def test_the_rank_that_lost_its_peer_first_is_not_blamed(rueda: Rueda, script: Script) -> None:
    program = script("""
        class PeerLostError(Exception):
            pass
        if rank == 0:
            raise PeerLostError("rank 1 is gone")
        time.sleep(0.5)
        raise KeyError("the cause")
    """)
    ran = rueda("run", "--no-mpi", "-np", "2", "python3", program)
    assert ran.code == 1
    assert "rank 1 on" in ran.last_line
    assert "KeyError: 'the cause'" in ran.last_line


def test_whose_exception_came_of_a_lost_peer_is_not_blamed(
    rueda: Rueda, any_launch: list[str], script: Script
) -> None:
    program = script("""
        class PeerLostError(Exception):
            pass
        if rank == 1:
            try:
                raise PeerLostError("'x' cannot complete: rank 2 (vm, pid 7) failed: KeyError: 3")
            except PeerLostError as error:
                raise RuntimeError("training failed") from error
        if rank == 2:
            time.sleep(0.5)
            raise KeyError("the cause")
        time.sleep(60)
    """)
    ran = rueda(*any_launch, "-np", "3", "python3", program)
    assert ran.code == 1
    # mpirun may end rank 2 before it can write its own error.
    assert re.fullmatch(
        r"rueda: rank 2 on \S+ failed first: (KeyError: 'the cause' \(exit code 1\)|"
        r"KeyError: 3 \(noticed by rank 1 on \S+: exit code 1\))",
        ran.last_line,
    )


def test_who_quotes_the_traceback_of_another_rank_is_not_blamed(
    rueda: Rueda, script: Script
) -> None:
    pytest.importorskip("rueda._native")
    program = script("""
        import atexit, traceback
        import rueda
        def wait():  # the launcher ends the other rank once this one has ended
            while not pathlib.Path("told").exists():
                time.sleep(0.01)
        rueda.init()
        if rank == 1:
            atexit.register(wait)
            raise ValueError(
                "Caught ValueError in a worker process.\\nOriginal Traceback (most recent call last):\\n"
                '  File "fetch.py", line 52, in fetch\\n    data = rows[i]\\nValueError: cannot parse row 3\\n'
            )
        try:
            rueda.barrier()
        except rueda.PeerLostError:
            traceback.print_exc()
        pathlib.Path("told").touch()
        time.sleep(60)
    """)
    ran = rueda("run", "--no-mpi", "-np", "2", "python3", program)
    assert re.fullmatch(
        r"rueda: rank 1 on \S+ failed first: ValueError: cannot parse row 3 \(exit code 1\)",
        ran.last_line,
    )
    echo = "failed: ValueError: cannot parse row 3 (the end of: ValueError: Caught ValueError in a worker"
    assert echo in ran.err


# Rank 0 ends first, with what a program in C++ prints of an error that nobody catches.
LOST_IN_CPP = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def say(*lines):
    print(*lines, sep="\\n", file=sys.stderr, flush=True)
def report(name):
    at = f"[vm:{os.getpid():05}]"
    say(f"{at} *** Process received signal ***", f"{at} Signal: {name}", f"{at} Signal code:  (-6)",
        f"{at} [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f99b1a5a050]",
        f"{at} *** End of error message ***")
def await_end_of(rank):
    pid = int(pathlib.Path(f"pid.{rank}").read_text())
    deadline = time.monotonic() + 30
    try:
        while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < deadline
            time.sleep(0.01)
    except (FileNotFoundError, ProcessLookupError):
        pass
def lose(code, words):
    wait_for("told", 1)
    say(f"terminate called after throwing an instance of 'rueda::ErrorOf<(rueda::ErrorCode){code}>'",
        f"  what():  the allreduce of 'z' cannot complete: rank 1 {words}")
    report("Aborted (6)")
    os.abort()
"""
# Rank 0 ends with an error that says that rank 1 has left, before rank 1 does what follows.
LEFT_IN_CPP = f"""{LOST_IN_CPP}
if rank == 0:
    lose(8, "has shut down")
if rank == 1:
    mark("told")
"""
GONE = 'lose(7, "(vm, pid 7) is gone: connection closed without good-bye")'
THROWS = """
    say("terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  cannot open data.bin")
    report("Aborted (6)")
"""


@pytest.mark.parametrize(
    ("says", "number", "code", "words"),
    [
        (THROWS, "SIGABRT", 134, r"std::runtime_error: cannot open data.bin \(killed by SIGABRT.*"),
        ('report("Segmentation fault (11)")', "SIGSEGV", 139, r"killed by SIGSEGV \([^()]*\)"),
    ],
)
def test_a_killed_rank_is_blamed_although_an_error_of_cpp_for_its_loss_ended_another_first(
    rueda: Rueda,
    any_launch: list[str],
    script: Script,
    says: str,
    number: str,
    code: int,
    words: str,
) -> None:
    program = script(f"""{LOST_IN_CPP}
if rank == 0:
    {GONE}
if rank == 1:
    {says.strip()}
    mark("told")
    await_end_of(0)
    os.kill(os.getpid(), signal.{number})
time.sleep(60)
""")
    ran = rueda(*any_launch, "-np", "3", "python3", program)
    assert re.fullmatch(rf"rueda: rank 1 on \S+ failed first: {words}", ran.last_line), ran.err
    assert ran.code == code


def test_an_exit_code_counts_although_an_error_of_cpp_for_its_loss_came_first(
    rueda: Rueda, script: Script
) -> None:
    program = script(f"""{LEFT_IN_CPP}
if rank == 1:
    await_end_of(0)
    os._exit(3)
time.sleep(60)
""")
    ran = rueda("run", "--no-mpi", "-np", "3", "python3", program)
    assert re.fullmatch(r"rueda: rank 1 on \S+ failed first: exit code 3", ran.last_line), ran.err
    assert ran.code == 3


def test_a_rank_that_has_left_is_named_although_its_exit_code_is_not_known(
    rueda: Rueda, any_launch: list[str], script: Script
) -> None:
    program = script(LEFT_IN_CPP + "time.sleep(60)")
    ran = rueda(*any_launch, "-np", "3", "python3", program)
    assert re.fullmatch(
        r"rueda: rank 1 left first: it has shut down "
        r"\(noticed by rank 0 on \S+: killed by SIGABRT \(Aborted\)\)",
        ran.last_line,
    ), ran.err
    assert ran.code == 134


def test_built_in_ranks_know_who_they_are(rueda: Rueda, script: Script) -> None:
    program = script("""
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE BOOTSTRAP".split()
        values = [os.environ["RUEDA_" + name] for name in names]
        print(*values, "OMPI_COMM_WORLD_RANK" in os.environ)
    """)
    ran = rueda("run", "-v", "--no-mpi", "-np", "2", "python3", program, OMPI_COMM_WORLD_RANK="7")
    assert sorted(ran.out.splitlines()) == [
        f"[{rank}]<stdout>: {rank} 2 {rank} 2 0 1 rendezvous False" for rank in range(2)
    ]
    shown = [line for line in ran.err.splitlines() if line.startswith("rueda: env ")]
    assert len(shown) == 2
    for rank, line in enumerate(shown):
        assert f" RUEDA_RANK={rank} RUEDA_SIZE=2 " in line
        assert line.endswith(f"python3 {program}")


def test_a_script_beside_the_caller_is_found(
    rueda: Rueda, launch: list[str], script: Script, tmp_path: Path
) -> None:
    (tmp_path / "neighbour.py").write_text("name = 5")
    program = script("""
        import neighbour
        print(neighbour.name)
    """)
    ran = rueda(*launch, "-np", "1", "python3", program)
    assert ran.out == "[0]<stdout>: 5\n", ran.err
