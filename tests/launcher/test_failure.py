from __future__ import annotations

import pytest
from rueda.launcher.failure import Failure, FailureWatch

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 6, in <module>',
    "    step(batch)",
]


def watch(**lines: list[str]) -> FailureWatch:
    watch = FailureWatch()
    for name, written in lines.items():
        for line in written:
            watch.see(int(name.removeprefix("rank")), line)
    return watch


def test_last_line_of_the_traceback_is_the_cause() -> None:
    seen = watch(rank1=["a warning", *TRACEBACK, "ValueError: bad batch", "bye"])
    assert seen.explain(Failure(1, 1, "vm")) == (
        "rank 1 on vm failed first: ValueError: bad batch (exit code 1)"
    )


def test_the_outer_of_chained_exceptions_is_the_cause() -> None:
    during = ["During handling of the above exception, another exception occurred:", ""]
    seen = watch(rank0=[*TRACEBACK, "KeyError: 'x'", "", *during, *TRACEBACK, "RuntimeError: no x"])
    assert "RuntimeError: no x" in seen.explain(Failure(0, 1))


def test_a_syntax_error_has_no_traceback_header() -> None:
    seen = watch(
        rank0=[
            '  File "train.py", line 3',
            "    foo(",
            "       ^",
            "SyntaxError: '(' was never closed",
        ]
    )
    assert "SyntaxError" in seen.explain(Failure(0, 1))


def test_a_traceback_that_was_handled_long_ago_is_no_cause() -> None:
    seen = watch(rank0=[*TRACEBACK, "OSError: retry", *(f"step {n}" for n in range(50))])
    assert seen.explain(Failure(0, 3)) == (
        "rank 0 failed first: exit code 3; last line of stderr: step 49"
    )


def test_a_signal_is_named() -> None:
    text = FailureWatch().explain(Failure(2, -11, "vm"))
    assert text == "rank 2 on vm failed first: killed by SIGSEGV (Segmentation fault)"
    assert Failure(2, -11).exit_code == 139


def test_who_was_lost_is_blamed_where_only_an_echo_was_heard() -> None:
    echoes = {
        "rueda.errors.PeerLostError: 'x' cannot complete: rank 1 (vm, pid 7) failed: sys.exit(3)": (
            "rank 1 on vm failed first: sys.exit(3) (noticed by rank 0 on vm: exit code 1)"
        ),
        "rueda.errors.ShutdownError: 'x' cannot complete: rank 2 has shut down": (
            "rank 2 left first: it has shut down (noticed by rank 0 on vm: exit code 1)"
        ),
    }
    for echo, line in echoes.items():
        assert watch(rank0=[*TRACEBACK, echo]).explain(Failure(0, 1, "vm")) == line


def test_a_reason_given_only_to_the_others_is_told() -> None:
    lost = "rueda.errors.PeerLostError: 'x' cannot complete: rank 1 (vm, pid 7) failed: "
    heard = watch(rank1=["a warning"], rank0=[*TRACEBACK, f"{lost}the disk is full"])
    assert heard.explain(Failure(1, 3, "vm")) == (
        "rank 1 on vm failed first: the disk is full (exit code 3)"
    )
    # It does not replace what the rank itself printed, nor what killed it.
    assert "killed by SIGKILL" in heard.explain(Failure(1, -9, "vm"))
    heard = watch(rank1=[*TRACEBACK, "ValueError: bad"], rank0=[*TRACEBACK, f"{lost}it is full"])
    assert "ValueError: bad" in heard.explain(Failure(1, 1))
    heard = watch(rank0=[*TRACEBACK, f"{lost}sys.exit(3)"])
    assert heard.explain(Failure(1, 3)) == "rank 1 failed first: exit code 3"


def test_who_lost_its_peer_is_not_blamed() -> None:
    seen = watch(
        rank0=[*TRACEBACK, "rueda.PeerLostError: rank 2 is gone"],
        rank2=[*TRACEBACK, "ValueError: bad batch"],
    )
    assert seen.first_cause([Failure(0, 1), Failure(2, 1)]).rank == 2
    assert seen.raised_on_its_own() == 2


# What torch's DataLoader raises for an error in a worker process.
CAUGHT = [
    "ValueError: Caught ValueError in DataLoader worker process 0.",
    "Original Traceback (most recent call last):",
    '  File "fetch.py", line 52, in fetch',
    "    data = self.dataset[i]",
    "           ~~~~~~~~~~~~^^^",
    "ValueError: cannot parse row 3",
    "",
]
LOST_TO_CAUGHT = [
    "rueda.errors.PeerLostError: 'loss' cannot complete: rank 1 (vm, pid 7) failed: " + CAUGHT[0],
    *CAUGHT[1:],
    ", raised at train.py:11 in <module>",
]


@pytest.mark.parametrize(
    "echo",
    [
        LOST_TO_CAUGHT,
        [LOST_TO_CAUGHT[0].replace("rueda.errors.PeerLost", "jax.errors.JaxRuntime"), *CAUGHT[1:]],
    ],
)
def test_who_quotes_the_traceback_of_the_lost_rank_is_not_blamed(echo: list[str]) -> None:
    during = ["", "During handling of the above exception, another exception occurred:", ""]
    for rank0 in (
        [*TRACEBACK, *echo],
        [*TRACEBACK, *echo, *during, *TRACEBACK, "RuntimeError: training failed"],
        [*TRACEBACK, "KeyError: 'x'", *during, *TRACEBACK, *echo],
    ):
        seen = watch(rank0=rank0, rank1=[*TRACEBACK, *CAUGHT])
        assert seen.first_cause([Failure(0, 1), Failure(1, 1)]).rank == 1
        assert seen.raised_on_its_own() == 1
        assert seen.explain(Failure(1, 1, "vm")) == (
            "rank 1 on vm failed first: ValueError: cannot parse row 3 (exit code 1)"
        )


def test_an_own_traceback_after_that_of_a_lost_rank_counts() -> None:
    seen = watch(rank0=[*TRACEBACK, *LOST_TO_CAUGHT, "recovered", *TRACEBACK, "KeyError: 3"])
    assert not seen.is_consequence(0)
    assert seen.explain(Failure(0, 1)) == "rank 0 failed first: KeyError: 3 (exit code 1)"


def test_where_all_are_consequences_the_first_is_named() -> None:
    seen = watch(rank1=[*TRACEBACK, "rueda.PeerLostError: rank 2 is gone"])
    assert seen.first_cause([Failure(1, 1)]).rank == 1


REFUSED = "cannot connect to unix:@rueda-fa3e: Connection refused"
THREADS = "cannot start a thread: Resource temporarily unavailable"


@pytest.mark.parametrize(
    "echo",
    [
        f"cannot reach rank 1: {REFUSED}",
        "cannot reach rank 1: connection broken: Connection reset by peer",
        f"rank 1: {THREADS}",
        "rank 1 ended before the world was formed: exit code 1",
        "rank 0 on vm: rank 1 ended before the world was formed: exit code 1",
    ],
)
def test_who_met_no_rank_because_it_failed_is_not_blamed(echo: str) -> None:
    echoed = [*TRACEBACK, f"rueda.errors.InitializationError: {echo}"]
    own = [*TRACEBACK, f"rueda.errors.InitializationError: {THREADS}"]
    seen = watch(rank0=echoed, rank1=own)
    assert seen.first_cause([Failure(0, 1), Failure(1, 1)]).rank == 1
    # As long as rank 1 has not failed, nothing else is known.
    assert seen.first_cause([Failure(0, 1)]).rank == 0
    assert not seen.is_consequence(0)
    # It need not print anything.
    assert watch(rank0=echoed).first_cause([Failure(0, 1), Failure(1, -9)]).rank == 1
    # What was printed before does not explain why rank 0 was killed.
    assert seen.first_cause([Failure(0, -9), Failure(1, 1)]).rank == 0


@pytest.mark.parametrize(
    "error",
    [
        "rueda.errors.InitializationError: cannot reach rank 1: No route to host",
        "rueda.errors.InitializationError: rank 0: cannot start a thread",
        "ValueError: rank 1: bad batch",
    ],
)
def test_other_errors_that_name_a_rank_are_causes(error: str) -> None:
    seen = watch(rank0=[*TRACEBACK, error])
    assert seen.first_cause([Failure(0, 1), Failure(1, 1)]).rank == 0


def test_where_two_ranks_name_each_other_the_first_to_fail_is_named() -> None:
    told = "rueda.errors.InitializationError: cannot reach rank {}: " + REFUSED
    seen = watch(rank0=[*TRACEBACK, told.format(1)], rank1=[*TRACEBACK, told.format(0)])
    assert seen.first_cause([Failure(1, 1), Failure(0, 1)]).rank == 1


LOST = "rueda.errors.PeerLostError: 'x' cannot complete: rank 1 (vm, pid 7) failed: sys.exit(3)"
CAUSED = ["", "The above exception was the direct cause of the following exception:", ""]


def test_what_follows_from_a_lost_peer_is_a_consequence_whatever_it_is_called() -> None:
    followers = [
        [*TRACEBACK, LOST, *CAUSED, *TRACEBACK, "RuntimeError: training failed"],
        [*TRACEBACK, "RuntimeError: 'x' cannot complete: rank 1 (vm, pid 7) failed: sys.exit(3)"],
        [*TRACEBACK, "rueda.horovod.exceptions.HorovodInternalError: Horovod has been shut down: "
         "'x' cannot complete: rank 1 (vm, pid 7) failed: sys.exit(3)"],
    ]  # fmt: skip
    for lines in followers:
        seen = watch(rank0=lines)
        assert seen.is_consequence(0), lines
        assert seen.explain(Failure(0, 1, "vm")) == (
            "rank 1 on vm failed first: sys.exit(3) (noticed by rank 0 on vm: exit code 1)"
        )


# What a program in C++ prints with libstdc++ and, under Open MPI, afterwards.
THROWN = [
    "terminate called after throwing an instance of 'std::runtime_error'",
    "  what():  cannot open data.bin",
]
THROWN_FOR_LOSS = [
    "terminate called after throwing an instance of 'rueda::ErrorOf<(rueda::ErrorCode)7>'",
    "  what():  'z' cannot complete: rank 1 (vm, pid 7) is gone: its process has ended",
]


def report_of(signal: str) -> list[str]:
    return [
        "[vm:04076] *** Process received signal ***",
        f"[vm:04076] Signal: {signal}",
        "[vm:04076] Signal code:  (-6)",
        "[vm:04076] Failing at address: 0x5239",
        *(f"[vm:04076] [{n:2}] /lib/libc.so.6(+0x3c050)[0x7f0000]" for n in range(40)),
        "[vm:04076] *** End of error message ***",
    ]


ABORTED = report_of("Aborted (6)")
CRASHED = report_of("Segmentation fault (11)")


def test_an_uncaught_exception_of_cpp_is_the_cause() -> None:
    for lines in (THROWN, [*THROWN, *ABORTED]):
        seen = watch(rank1=["loading", *lines])
        assert seen.explain(Failure(1, -6, "vm")) == (
            "rank 1 on vm failed first: std::runtime_error: cannot open data.bin (killed by SIGABRT (Aborted))"
        )
        assert "cannot open data.bin (exit code 134)" in seen.explain(Failure(1, 134))
        # It was not the exception that ended the process.
        assert "killed by SIGKILL" in seen.explain(Failure(1, -9))


def test_who_met_no_rank_in_cpp_because_it_failed_is_not_blamed() -> None:
    echo = [
        "terminate called after throwing an instance of 'rueda::ErrorOf<(rueda::ErrorCode)10>'",
        "  what():  rank 1 ended before the world was formed",
    ]
    seen = watch(rank0=echo)
    assert seen.first_cause([Failure(0, -6), Failure(1, 3)]).rank == 1
    assert seen.first_cause([Failure(0, -6), Failure(2, 3)]).rank == 0


def test_the_last_line_is_not_one_of_open_mpi() -> None:
    words = ["[vm:12] disk is full", "[vm:12] [ 3] disk is full"]
    for line in words:
        assert watch(rank0=[line]).explain(Failure(0, 3)).endswith(f"last line of stderr: {line}")
    seen = watch(rank0=["my last words", *CRASHED], rank1=CRASHED)
    killed = "failed first: killed by SIGSEGV (Segmentation fault)"
    assert seen.explain(Failure(0, -11)) == f"rank 0 {killed}; last line of stderr: my last words"
    assert seen.explain(Failure(1, -11)) == f"rank 1 {killed}"


def test_an_error_of_cpp_for_a_lost_rank_is_not_the_cause() -> None:
    seen = FailureWatch()
    lost = [*THROWN_FOR_LOSS, *ABORTED]
    for lines in zip(lost, [*THROWN, *ABORTED], lost, strict=True):  # all at the same time
        for rank, line in enumerate(lines):
            seen.see(rank, line)
    assert [seen.is_consequence(rank) for rank in range(3)] == [True, False, True]
    assert seen.first_cause([Failure(0, -6), Failure(2, -6), Failure(1, -6)]).rank == 1
    assert seen.raised_on_its_own() == 1


def test_who_was_lost_is_blamed_where_only_errors_of_cpp_tell() -> None:
    assert watch(rank0=[*THROWN_FOR_LOSS, *ABORTED]).explain(Failure(0, -6, "vm")) == (
        "rank 1 on vm failed first: is gone: its process has ended "
        "(noticed by rank 0 on vm: killed by SIGABRT (Aborted))"
    )


def test_use_after_the_ranks_own_shutdown_is_its_own_fault() -> None:
    seen = watch(rank0=[*TRACEBACK, "rueda.errors.ShutdownError: this rank has shut down"])
    assert not seen.is_consequence(0)


def test_of_several_that_raised_the_first_is_named() -> None:
    seen = FailureWatch()
    for rank, error in ((2, "KeyError: 'cause'"), (0, "OSError: later"), (1, LOST)):
        for line in [*TRACEBACK, error]:
            seen.see(rank, line)
    assert seen.raised_on_its_own() == 2
    assert seen.raised() == 2
    assert watch(rank1=[*TRACEBACK, LOST]).raised() == 1
    assert FailureWatch().raised() is None
