from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.failure import Failure, FailureWatch
from rueda.launcher.mpirun_output import Demultiplexer, MpirunOutput, first_failure, parse_notice
from rueda.launcher.output import RankOutput

from .conftest import Rueda

RANKS = 3
pieces = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1),
        st.sampled_from(["stdout", "stderr"]),
        st.sampled_from(
            [b"word", b" indented", b"two words\n", b"\n", b"[1,9]<stdout>: odd\n", b"10%\r"]
        ),
    )
)


def sort(chunks: list[bytes], separator: bytes) -> dict[object, bytes]:
    demultiplexer = Demultiplexer(RANKS, separator)
    found: dict[object, bytes] = {}
    parts = [part for chunk in chunks for part in demultiplexer.feed(chunk)]
    for source, text in [*parts, *demultiplexer.finish()]:
        found[source] = found.get(source, b"") + text
    return found


@given(pieces, st.sampled_from([b"", b" "]), st.data())
def test_each_rank_gets_its_own_words(
    written: list[tuple[int, str, bytes]], separator: bytes, data: st.DataObject
) -> None:
    stream = b""
    expected: dict[object, bytes] = {}
    for rank, name, text in written:
        stream += b"[1,%d]<%s>:" % (rank, name.encode()) + separator + text
        expected[rank, name] = expected.get((rank, name), b"") + text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    found = sort(chunks, separator)
    # sort() ends the last line if its writer did not.
    if written and not stream.endswith((b"\n", b"\r")):
        expected[written[-1][:2]] += b"\n"
    assert found == expected


OPEN_MPI_5_EXIT = """
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-6578@1,1]
   Exit code:    3
"""
OPEN_MPI_4_EXIT = """
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[19062,1],2]
  Exit code:    7
"""
OPEN_MPI_5_SIGNAL = """
prterun noticed that process rank 1 with PID 6784 on node vm exited on
signal 9 (Killed).
"""
OPEN_MPI_4_SIGNAL = """
mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 11 (Segmentation fault).
"""
OPEN_MPI_5_ABORT = """
prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
"""


OPEN_MPI_5_IMPROPER = """
prterun has exited due to process rank 0 with PID 0 on node vm exiting
improperly. There are three reasons this could occur:
"""


@pytest.mark.parametrize(
    ("notice", "failure"),
    [
        (OPEN_MPI_5_EXIT, Failure(1, 3)),
        (OPEN_MPI_4_EXIT, Failure(2, 7)),
        (OPEN_MPI_5_SIGNAL, Failure(1, -9, "vm")),
        (OPEN_MPI_4_SIGNAL, Failure(1, -11, "vm")),
        (OPEN_MPI_5_ABORT, Failure(1, 1, "vm", "called MPI_Abort")),
        (OPEN_MPI_5_IMPROPER, Failure(0, 1, "vm", "exited without finalising MPI")),
        ("There are not enough slots available in the system", None),
    ],
)
def test_notices(notice: str, failure: Failure | None) -> None:
    assert parse_notice(notice) == failure


def test_understood_notices_are_not_repeated_and_others_are_shown(tmp_path: Path) -> None:
    rule = "-" * 74 + "\n"
    sorter = MpirunOutput(RankOutput(2, None, prefix=True), 2, b" ")
    other = rule + "There are not enough slots\n" + rule
    shown = sorter.write("stderr", (rule + OPEN_MPI_5_EXIT + rule + other + "a warning\n").encode())
    assert "".join(text for _, text in shown + sorter.finish()) == other + "a warning\n"
    assert sorter.failures == [Failure(1, 3)]


def test_what_mpirun_says_to_a_second_signal_is_not_shown() -> None:
    sorter = MpirunOutput(RankOutput(2, None, prefix=True), 2, b" ")
    said = "before\n\nAbort is in progress...hit ctrl-c again to forcibly terminate\n\n\nafter\n"
    shown = sorter.write("stderr", said.encode())
    assert "".join(text for _, text in shown + sorter.finish()) == "before\n\n\nafter\n"


IMPROPER = Failure(0, 1, "vm", "exited without finalising MPI")
RAISED = ["Traceback (most recent call last):", "ValueError: no more data"]


def test_who_handles_the_loss_of_a_rank_is_not_blamed_for_it() -> None:
    """It exits without finalising MPI, perhaps before the rank that raised has ended."""
    watch = FailureWatch()
    for line in RAISED:
        watch.see(1, line)
    assert first_failure([IMPROPER], watch, 1) == Failure(1, 1, "vm")
    assert first_failure([IMPROPER, Failure(1, 3)], watch, 3) == Failure(1, 3)
    assert "ValueError: no more data (exit code 1)" in watch.explain(
        first_failure([IMPROPER], watch, 1)
    )


def test_who_leaves_without_finalising_is_blamed_where_nobody_tells_of_another_cause() -> None:
    watch = FailureWatch()
    for line in RAISED[0], "rueda.errors.PeerLostError: rank 0 is gone":
        watch.see(1, line)
    assert first_failure([IMPROPER], watch, 1) == IMPROPER
    assert first_failure([Failure(1, 1), IMPROPER], watch, 1) == Failure(1, 1)


THROWN_FOR_LOSS = [
    "terminate called after throwing an instance of 'rueda::ErrorOf<(rueda::ErrorCode)7>'",
    "  what():  'z' cannot complete: rank 1 (vm, pid 7) is gone: its process has ended",
]
THROWN = [
    "terminate called after throwing an instance of 'std::runtime_error'",
    "  what():  cannot open data.bin",
]
CRASHED = ["[vm:7] *** Process received signal ***", "[vm:7] Signal: Segmentation fault (11)"]
OTHER = "Traceback (most recent call last):\nKeyError: 'x'".splitlines()


@pytest.mark.parametrize(
    ("rank_1", "rank_2", "found"),
    [
        (CRASHED, [], Failure(1, -11, "vm")),
        (THROWN, [], Failure(1, -6, "vm")),
        (CRASHED, OTHER, Failure(1, -11, "vm")),  # the lost rank, also if another has raised
        ([], OTHER, Failure(2, -6, "vm")),
        ([], CRASHED, Failure(0, -6, "vm")),  # perhaps because of the loss
        (THROWN_FOR_LOSS, [], Failure(0, -6, "vm")),
    ],
)
def test_whose_exception_of_cpp_came_of_a_lost_rank_is_not_blamed(
    rank_1: list[str], rank_2: list[str], found: Failure
) -> None:
    watch = FailureWatch()
    for rank, lines in enumerate((THROWN_FOR_LOSS, rank_1, rank_2)):
        for line in lines:
            watch.see(rank, line)
    assert first_failure([Failure(0, -6, "vm")], watch, 134) == found


def test_who_handles_the_loss_of_a_crashed_rank_is_not_blamed_for_it() -> None:
    watch = FailureWatch()
    for line in CRASHED:
        watch.see(1, line)
    assert first_failure([IMPROPER], watch, 1) == Failure(1, -11, "vm")


@pytest.mark.parametrize("size", [1, 7, 64])
def test_exceptions_of_cpp_are_found_wherever_the_output_is_cut(size: int) -> None:
    output = RankOutput(3, None, prefix=True)
    sorter = MpirunOutput(output, 3, b" ")
    lines = zip(THROWN_FOR_LOSS, THROWN, THROWN_FOR_LOSS, strict=True)
    written = "".join(
        f"[1,{rank}]<stderr>: {line}\n" for both in lines for rank, line in enumerate(both)
    ).encode()
    for start in range(0, len(written), size):
        sorter.write("stderr", written[start : start + size])
    sorter.finish()
    output.finish()
    assert [output.watch.is_consequence(rank) for rank in range(3)] == [True, False, True]
    assert "std::runtime_error: cannot open data.bin" in output.watch.explain(Failure(1, -6))


ARRIVAL = """
python3 -c "
import os, socket
launcher = socket.socket(socket.AF_UNIX)
launcher.connect(os.environ['RUEDA_LAUNCHER'].replace('@', chr(0), 1))
launcher.sendall(b'waiting 0 2')"
"""
NOT_STARTED = "; if it cannot start ranks here, --no-mpi starts them without it"
STARTED = ", after ranks had started: see what they and mpirun have printed above"


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("", NOT_STARTED),
        ("echo no slots here >&2", NOT_STARTED),
        ("echo '[1,1]<stdout>: I am here'", STARTED),
        (ARRIVAL, STARTED),
    ],
    ids=["nothing", "own words", "output of a rank", "a rank that came to init()"],
)
def test_mpirun_is_not_said_to_start_no_ranks_if_it_did(
    rueda: Rueda, tmp_path: Path, does: str, words: str
) -> None:
    """Open MPI now and then loses its notice about the rank that failed."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.11" && exit\n{does}\nexit 3\n'
    )
    mpirun.chmod(0o755)
    ran = rueda("run", "--mpirun", str(mpirun), "-np", "2", "true")
    assert ran.code == 3
    assert ran.last_line == f"rueda: mpirun ended with exit code 3 without naming a rank{words}"
