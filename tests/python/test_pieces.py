"""The parts of the package that need no world."""

from __future__ import annotations

import builtins
import gc
import inspect
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import rueda
from hypothesis import given
from hypothesis import strategies as st
from launching import environment
from rueda import _native, dtypes, errors, handles
from rueda.adapter import Refusal
from rueda.error_texts import describe, in_one_line
from rueda.numpy_arrays import NumpyAdapter
from rueda.operations import ReduceOp

ERRORS = [getattr(errors, name) for name in errors.__all__]


@pytest.fixture(scope="module", autouse=True)
def _what_was_there_before_is_not_collected() -> Iterator[None]:
    """Collections visit only objects of these tests, not all of torch and Hypothesis each time."""
    gc.freeze()
    yield
    gc.unfreeze()


class Tensor:
    """An object that supports weak references."""


class Fake:
    """Replaces the extension's handle and the call that creates it."""

    def __init__(self) -> None:
        self.completed = False

    def begin(self) -> list[Fake]:
        return [self]

    def done(self) -> bool:
        return self.completed

    def finished(self) -> bool:
        return self.completed

    def wait(self, timeout: float | None = None) -> bool:
        return self.completed

    def check(self) -> None:
        assert self.completed


def test_numbers_are_those_of_the_extension() -> None:
    assert [op.name.lower() for op in ReduceOp] == _native.reduce_ops
    assert [op.value for op in ReduceOp] == list(range(len(ReduceOp)))
    for code, name in enumerate(dtypes.names()):
        assert dtypes.code_of(name) == code
        assert dtypes.name_of(code) == name
        if name != "bfloat16":
            assert np.dtype(name).itemsize == dtypes.item_size(code)
    assert dtypes.code_of("complex256") is None


@pytest.mark.parametrize("kind", ERRORS)
def test_errors(kind: type[rueda.RuedaError]) -> None:
    error = kind("what happened", 3)
    assert isinstance(error, rueda.RuedaError)
    assert isinstance(error, RuntimeError)
    assert str(error) == "what happened"
    assert error.peer == 3
    assert (error.reason, error.tensor, error.field, error.values) == (None, None, None, ())
    told = {"reason": "deadline", "tensor": "w", "field": "op", "values": ("sum", "max")}
    error = kind("what happened", 3, **told)
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (kind, "what happened")
    public = {name: value for name, value in vars(copied).items() if not name.startswith("_")}
    assert public == {"peer": 3, **told}
    assert kind("alone").peer is None


def test_errors_are_builtin_errors_as_well() -> None:
    assert issubclass(rueda.InvalidArgumentError, ValueError)
    assert issubclass(rueda.UnsupportedError, TypeError)
    assert issubclass(rueda.TimeoutError, builtins.TimeoutError)


def test_option_table() -> None:
    rows = {row["name"]: row for row in _native.option_table()}
    assert rows["fusion_threshold"]["environment"] == "RUEDA_FUSION_THRESHOLD"
    assert rows["fusion_threshold"]["horovod"] == "HOROVOD_FUSION_THRESHOLD"
    assert rows["fusion_threshold"]["type"] == "bytes"
    assert rows["transport"]["choices"].split("|")[0] == rows["transport"]["default"] == "auto"
    assert all(row["description"] for row in rows.values())


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_tensors_live_until_completion_and_no_longer(drops: list[bool], random) -> None:
    handles._pending.clear()  # Hypothesis may have aborted an example half-way
    fakes, alive, kept = [], [], []
    for drop in drops:
        fake, tensor = Fake(), Tensor()
        handle = handles.Handle(fake.begin, lambda _: 1, tensor)
        fakes.append(fake)
        alive.append(weakref.ref(tensor))
        if not drop:
            kept.append((handle, len(fakes) - 1))
        del handle, tensor
    order = list(range(len(fakes)))
    random.shuffle(order)
    for number in order:
        gc.collect(0)
        assert all(
            ref() is not None for ref, fake in zip(alive, fakes, strict=True) if not fake.done()
        )
        fakes[number].completed = True
    for handle, number in kept:
        assert handle.result() == 1
        assert alive[number]() is None
    kept.clear()
    assert handles.release_completed() == 0
    gc.collect()
    assert all(ref() is None for ref in alive)


def test_pending_operations_do_not_keep_completed_ones() -> None:
    handles._pending.clear()
    oldest = Fake()
    handles.Handle(oldest.begin, lambda _: None, None)
    for _ in range(1000):
        fake = Fake()
        fake.completed = True
        handles.Handle(fake.begin, lambda _: None, None)
    assert len(handles._pending) < 10
    oldest.completed = True
    assert handles.release_completed() == 0


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError])
def test_submissions_that_do_not_return(interruption: type[BaseException]) -> None:
    def submit() -> list[Fake]:
        raise interruption

    tensor = Tensor()
    alive = weakref.ref(tensor)
    with pytest.raises(interruption):
        handles.Handle(submit, lambda _: None, tensor)
    del tensor
    handles.release_completed()
    gc.collect()
    # Ctrl-C may arrive after the operation has begun; an error means that it has not.
    assert (alive() is not None) == (interruption is KeyboardInterrupt)
    handles._pending.clear()


def test_handles_remember_their_result() -> None:
    fake = Fake()
    results = iter(["first"])
    handle = handles.Handle(fake.begin, lambda _: next(results), None)
    assert not rueda.poll(handle)
    with pytest.raises(rueda.TimeoutError, match=r"0\.5 seconds"):
        handle.result(timeout=0.5)
    fake.completed = True
    assert rueda.poll(handle)
    assert rueda.synchronize(handle) == handle.result() == "first"


@given(st.text(), st.sampled_from([ValueError, KeyError, OSError, KeyboardInterrupt]))
def test_exceptions_are_described(text: str, kind: type[BaseException]) -> None:
    described = describe(kind, kind(text))
    assert described.startswith(kind.__name__)
    assert len(described.splitlines()) == 1
    for line in str(kind(text)).splitlines():
        assert line.strip() in described


quoted_lines = st.lists(st.text(st.characters(codec="ascii", exclude_characters="^~")))


@given(st.text(), quoted_lines)
def test_an_exception_that_ends_with_a_traceback_begins_with_its_cause(
    before: str, lines: list[str]
) -> None:
    marks = "    ~~~~^^^^^^"
    frames = [f"  {line}" for text in lines for line in text.splitlines()]
    quoted = ["Original Traceback (most recent call last):", *frames, marks]
    text = "\n".join([before, *quoted, "ValueError: cannot parse row 3", "a note", ""])
    described = describe(RuntimeError, RuntimeError(text))
    assert described.startswith(
        "ValueError: cannot parse row 3 | a note (the end of: RuntimeError: "
    )
    assert len(described.splitlines()) == 1
    assert marks.strip() not in described or marks.strip() in before
    position = 0
    for line in "\n".join(lines).splitlines():
        position = described.index(line.strip(), position) + len(line.strip())


@given(st.text(st.characters(), max_size=30))
def test_what_others_are_told_is_one_line_of_utf_8(text: str) -> None:
    line = in_one_line(text)
    line.encode()
    assert len(line.splitlines()) <= 1
    assert in_one_line(line) == line


def test_broken_exceptions_are_described() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Broken, Broken()) == "Broken"


@given(st.sets(st.integers(0, 100)))
def test_process_sets_are_sorted(ranks: set[int]) -> None:
    process_set = rueda.ProcessSet(ranks)
    assert process_set.ranks == sorted(ranks)
    assert process_set.size() == len(ranks)
    with pytest.raises(rueda.InvalidArgumentError, match="has not been added"):
        process_set.rank()


@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([name for name in dtypes.names() if name != "bfloat16"]),
)
def test_numpy_views(shape: list[int], name: str) -> None:
    adapter = NumpyAdapter()
    array = np.zeros(shape, name)
    same, view = adapter.write(array)
    assert same is array
    assert view.pointer == array.ctypes.data
    assert view.shape == tuple(shape)
    assert dtypes.name_of(view.dtype) == name
    copied, _ = adapter.read(array[..., ::2] if shape else array)
    assert copied.flags.c_contiguous
    memory = _native.allocate(array.nbytes)
    made = adapter.from_memory(memory, shape, array)
    np.testing.assert_array_equal(made, array)
    assert made.dtype == array.dtype


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.ones((3, 4)).T, "not contiguous"),
        ([1.0], "not on a list"),
        (np.broadcast_to(np.ones(1), (1,)), "read-only"),
        (np.ones(2, ">i4"), "foreign byte order"),
        (np.array(["a"]), "str32 is not supported"),
    ],
)
def test_numpy_refusals(array: object, text: str) -> None:
    with pytest.raises(Refusal, match=text):
        NumpyAdapter().write(array)


@given(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["float32", "int8", "complex128"]))
def test_empty(shape: list[int], dtype: str) -> None:
    array = rueda.empty(shape, dtype)
    assert array.shape == tuple(shape)
    assert array.dtype == dtype
    assert not array.any()
    array[...] = 1
    if array.size:
        assert array.ctypes.data % 64 == 0


def test_empty_refuses_nonsense() -> None:
    assert rueda.empty(3).dtype == np.float64
    with pytest.raises(ValueError, match="negative"):
        rueda.empty((2, -1))
    with pytest.raises(MemoryError):
        rueda.empty(1 << 60)
    for dtype in (object, np.dtype([("number", "f4"), ("what", object)])):
        for extent in (0, 2):
            with pytest.raises(rueda.UnsupportedError, match="Python objects"):
                rueda.empty(extent, dtype)


def test_everything_public_is_annotated() -> None:
    for name in rueda.__all__:
        thing = getattr(rueda, name)
        if inspect.isfunction(thing):
            assert all(
                p.annotation is not p.empty for p in inspect.signature(thing).parameters.values()
            )
        elif inspect.isclass(thing):
            assert thing.__doc__, name


def test_command_line() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rueda", *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    version = run("--version")
    assert (version.returncode, version.stdout.strip()) == (0, rueda.__version__)
    for flag in ("--cmake-dir", "--include-dir", "--library-dir"):
        answer = run(flag)
        # A source tree that is not installed has no such folder, and the text says so.
        assert (answer.returncode == 0) != ("source tree" in answer.stderr), answer
