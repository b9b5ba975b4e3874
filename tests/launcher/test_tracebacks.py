from __future__ import annotations

import builtins
import re
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.tracebacks import TracebackReader


def read(text: str) -> TracebackReader:
    reader = TracebackReader()
    for line in text.splitlines():
        reader.see(line)
    return reader


HEAD = """\
Traceback (most recent call last):
  File "train.py", line 6, in <module>
    step(batch)
"""


@pytest.mark.parametrize("marker", ["    ^^^^^^^^^^^", "^^^^^", "    ~~~~^^^^^", "~^~"])
def test_marker_lines_are_no_exceptions(marker: str) -> None:
    assert read(f"{HEAD}{marker}\nValueError: bad batch\n").text == "ValueError: bad batch"


def test_words_of_others_within_a_traceback_are_no_exceptions() -> None:
    within = "done\nloading 3 files\n\n"
    assert read(f"{HEAD}{within}KeyError: 'x'\n").text == "KeyError: 'x'"


@pytest.mark.parametrize(
    "name",
    ["KeyboardInterrupt", "torch.cuda.OutOfMemoryError: 3 GB", "f.<locals>.Odd", "zlib.error: bad"],
)
def test_names_of_exceptions(name: str) -> None:
    assert read(HEAD + name).text == name


def test_text_that_begins_on_the_next_line() -> None:
    written = (
        HEAD
        + "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key: 'w'.\n\tMore\n"
    )
    assert read(written).text == (
        "RuntimeError: Error(s) in loading state_dict for Net: Missing key: 'w'."
    )


def test_indented_lines_of_a_long_text_do_not_age_it() -> None:
    written = HEAD + "ValueError: many:\n" + "    one more\n" * 50
    assert read(written).text == "ValueError: many: one more"


def test_colors() -> None:
    written = HEAD + "\x1b[1;35mValueError\x1b[0m: \x1b[35mbad batch\x1b[0m\n"
    assert read(written).text == "ValueError: bad batch"


@pytest.mark.parametrize(
    "ignored",
    [
        "Exception ignored in: <function A.__del__ at 0x7f>\n" + HEAD + "KeyError: 'gone'\n",
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32]\n",
        "--- Logging error ---\n" + HEAD + "TypeError: not all arguments converted\n",
    ],
)
def test_what_python_ignores_is_no_cause(ignored: str) -> None:
    assert read(ignored).text == ""
    assert read(HEAD + "ValueError: bad batch\n" + ignored).text == "ValueError: bad batch"
    assert read(ignored + HEAD + "ValueError: bad batch\n").text == "ValueError: bad batch"


# What C++ prints of exceptions that nobody catches: with libstdc++ and with libc++.
THROWN = "terminate called after throwing an instance of "
CAUGHT_BY_NOBODY = [
    (
        f"{THROWN}'std::runtime_error'\n  what():  cannot open data.bin\n",
        "std::runtime_error: cannot open data.bin",
    ),
    (
        f"{THROWN}'rueda::ErrorOf<(rueda::ErrorCode)3>'\n  what():  'w' has 2 shapes\n",
        "rueda::MismatchError: 'w' has 2 shapes",
    ),
    (
        f"{THROWN}'rueda::ErrorOf<(rueda::ErrorCode)99>'\n  what():  new\n",
        "rueda::ErrorOf<(rueda::ErrorCode)99>: new",
    ),
    (
        f"{THROWN}'std::_Nested_exception<std::runtime_error>'\n  what():  step 3 failed\n",
        "std::_Nested_exception<std::runtime_error>: step 3 failed",
    ),
    (
        f"{THROWN}'c10::Error'\n  what():  no kernel image\nException raised from f at a.cpp:3:\n"
        + "".join(f"frame #{n}: f() + 0x1 (0x2 in libc10.so)\n" for n in range(60)),
        "c10::Error: no kernel image",
    ),
    (
        f"{THROWN}'Bad'\n  what():  line 3:\nno such column\nsee the manual\n",
        "Bad: line 3: no such column",
    ),
    (f"{THROWN}'Bad'\n  what():  \nno such column\n", "Bad: no such column"),
    (f"{THROWN}'int'\nAborted\n", "uncaught exception of type 'int'"),
    (
        "libc++abi: terminating due to uncaught exception of type std::out_of_range: vector\n",
        "std::out_of_range: vector",
    ),
    (
        "libc++abi: terminating with uncaught exception of type "
        "rueda::ErrorOf<(rueda::ErrorCode)6>: no answer: gave up\n",
        "rueda::TimeoutError: no answer: gave up",
    ),
    ("libc++abi: terminating due to uncaught exception of type int\n", "uncaught exception of type 'int'"),
    ("terminate called without an active exception\n", ""),
    ("  what():  nothing was thrown\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("written", "text"), CAUGHT_BY_NOBODY)
def test_uncaught_exceptions_of_cpp(written: str, text: str) -> None:
    reader = read("loading\n" + written)
    assert reader.text == text
    assert reader.is_termination == bool(text)
    assert not reader.is_consequence


def test_the_numbers_of_errors_are_those_of_the_header() -> None:
    header = (Path(__file__).parents[2] / "include" / "rueda" / "error.h").read_text()
    listed = re.findall(r"^  (\w+),", header.partition("enum class ErrorCode")[2], re.M)
    codes = listed[: listed.index("internal") + 1]
    names = dict(re.findall(r"using (\w+) = ErrorOf<ErrorCode::(\w+)>", header))
    assert len(names) == len(codes) - 1
    for name, code in names.items():
        thrown = f"{THROWN}'rueda::ErrorOf<(rueda::ErrorCode){codes.index(code)}>'\n  what():  x\n"
        assert read(thrown).text == f"rueda::{name}: x"


@pytest.mark.parametrize(
    "written",
    [
        f"{THROWN}'rueda::ErrorOf<(rueda::ErrorCode)7>'\n"
        "  what():  the allreduce of 'z' cannot complete: rank 1 (vm, pid 7) is gone\n",
        f"{THROWN}'rueda::ErrorOf<(rueda::ErrorCode)8>'\n"
        "  what():  the allreduce of 'z' cannot complete: rank 1 has shut down\n",
        f"{THROWN}'rueda::ErrorOf<(rueda::ErrorCode)7>'\n",  # killed before the rest
        f"{THROWN}'TrainingError'\n  what():  in step 3:\n'z' cannot complete: rank 1 has shut down\n",
        "libc++abi: terminating due to uncaught exception of type "
        "rueda::ErrorOf<(rueda::ErrorCode)7>: 'z' cannot complete: rank 1 (vm, pid 7) is gone\n",
    ],
)
def test_uncaught_errors_of_cpp_for_a_lost_rank_are_consequences(written: str) -> None:
    assert read(written).is_consequence


def test_use_after_the_own_shutdown_in_cpp_is_no_consequence() -> None:
    what = "  what():  this rank has shut down\n"
    assert not read(f"{THROWN}'rueda::ErrorOf<(rueda::ErrorCode)8>'\n{what}").is_consequence


def test_of_tracebacks_and_uncaught_exceptions_of_cpp_the_later_one_counts() -> None:
    thrown = f"{THROWN}'Bad'\n  what():  disk\n"
    assert read(HEAD + "ValueError: bad\n" + thrown).text == "Bad: disk"
    assert read(HEAD + thrown).text == "Bad: disk"
    assert read(thrown + HEAD + "CalledProcessError: died\n").text == "CalledProcessError: died"
    fatal = 'Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n  File "a.py", line 3 in f\n'
    assert read(thrown + fatal).text == "Bad: disk"
    assert read(thrown + "step\n" * 300).text == ""


def test_a_later_traceback_replaces_an_earlier_one() -> None:
    assert read(HEAD + "OSError: retry\n" + HEAD + "ValueError: bad").exceptions == [
        "ValueError: bad"
    ]


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


texts = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), min_size=1).filter(
    lambda text: text == text.strip() and not text.endswith(":")
)


@given(st.lists(st.tuples(st.sampled_from([ValueError, OSError, RuntimeError]), texts), min_size=1))
def test_a_chain_is_read_as_python_prints_it(chain: list[tuple[type[Exception], str]]) -> None:
    error: BaseException | None = None
    for kind, text in chain:
        error = raised(kind(text), error)
    assert error is not None
    reader = read("".join(traceback.format_exception(error)) + "bye\n")
    assert reader.exceptions == [f"{kind.__name__}: {text}" for kind, text in chain]
    assert reader.text == reader.exceptions[-1]


ExceptionGroup = getattr(builtins, "ExceptionGroup", None)


@pytest.mark.skipif(ExceptionGroup is None, reason="Python 3.11 brought groups")
@given(st.lists(texts, min_size=1, max_size=5), st.lists(texts, max_size=3))
def test_a_group_is_read_as_python_prints_it(members: list[str], nested: list[str]) -> None:
    errors: list[Exception] = [ValueError(text) for text in members]
    errors[0] = raised(errors[0])  # type: ignore[assignment]
    if nested:
        errors.append(ExceptionGroup("inner", [KeyError(text) for text in nested]))
    error = raised(ExceptionGroup("outer", errors), raised(OSError("root")))
    reader = read("".join(traceback.format_exception(error)) + "bye: 1\n")
    number = len(errors)
    group = f"ExceptionGroup: outer ({number} sub-exception{'s' if number > 1 else ''})"
    assert reader.exceptions == ["OSError: root", group]
    expected = [f"ValueError: {text}" for text in members]
    if nested:
        plural = "s" if len(nested) > 1 else ""
        expected.append(f"ExceptionGroup: inner ({len(nested)} sub-exception{plural})")
        expected += [f"KeyError: {text!r}" for text in nested]
    assert reader.members == expected
    assert reader.text == f"{group}: ValueError: {members[0]}"


LOST = "rueda.errors.PeerLostError: 'x' cannot complete: rank 1 (vm, pid 7) failed: ValueError: bad"


def own_text_of(error: BaseException, margin: str = "") -> list[str]:
    """What Python prints for an exception, each line after ``margin``."""
    return [margin + line for line in "".join(traceback.format_exception(error)).splitlines()]


@given(
    st.lists(st.sampled_from([ValueError, OSError, KeyError]), min_size=1, max_size=9),
    st.booleans(),
)
def test_a_consequence_stays_one_whatever_traceback_its_text_quotes(
    quoted: list[type[Exception]], is_wrapped: bool
) -> None:
    """The frames of a quoted traceback do not begin another one; only a header in the first column does."""
    written = [*HEAD.splitlines(), LOST]
    for kind in quoted:
        written += own_text_of(raised(kind("no row")))[1:]  # its header ends another line
    if is_wrapped:
        during = "During handling of the above exception, another exception occurred:"
        written += ["", during, "", *HEAD.splitlines(), "RuntimeError: stopped"]
    reader = read("\n".join(written))
    assert reader.is_consequence
    assert reader.exceptions[0] == LOST
    assert reader.text == ("RuntimeError: stopped" if is_wrapped else LOST)
    assert not read("\n".join([*written, HEAD + "KeyError: 3"])).is_consequence


@given(st.lists(texts, min_size=1, max_size=4))
def test_an_exception_that_quotes_its_causes_is_read_to_the_end(chain: list[str]) -> None:
    """As torch's DataLoader does: "Original Traceback" and all that the worker process would have printed."""
    error: BaseException | None = None
    for text in chain:
        error = raised(ValueError(text), error)
    assert error is not None
    first = HEAD + "ValueError: Caught ValueError in DataLoader worker process 0."
    quoted = "\n".join(own_text_of(error)).replace("Traceback", "Original Traceback", 1)
    reader = read(f"{first}\n{quoted}\n\n")
    assert reader.text == f"ValueError: {chain[-1]}"
    assert not reader.is_consequence


QUOTING = [
    "Original Traceback (most recent call last):",
    '  File "fetch.py", line 52, in fetch',
    "    data = self.dataset[i]",
    "ValueError: cannot parse row 3",
]


@pytest.mark.skipif(ExceptionGroup is None, reason="Python 3.11 brought groups")
@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_members_of_a_group_that_quote_a_traceback(are_lost: list[bool]) -> None:
    kinds = {True: type("PeerLostError", (Exception,), {}), False: RuntimeError}
    members = [
        raised(kinds[is_lost]("\n".join(["rank 1 failed: ValueError", *QUOTING])))
        for is_lost in are_lost
    ]
    reader = read("\n".join(own_text_of(raised(ExceptionGroup("outer", members)))))
    assert len(reader.members) == len(members)
    for is_lost, member in zip(are_lost, reader.members, strict=True):
        assert ("PeerLostError" in member) == is_lost
        assert (member == QUOTING[-1]) == (not is_lost)
    assert reader.is_consequence == all(are_lost)
