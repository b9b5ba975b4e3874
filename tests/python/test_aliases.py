"""Arrays of one operation that share memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rueda import dtypes
from rueda.adapter import Refusal, View
from rueda.aliases import are_apart, repeated

BYTES = dtypes.code_of("uint8")
memories = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6)), max_size=6)


@given(memories)
def test_memories_are_apart_where_none_is_repeated(those: list[tuple[int, int]]) -> None:
    assert BYTES is not None
    views = [View(pointer, (size,), BYTES) for pointer, size in those]
    try:
        found = bool(repeated(views))
    except Refusal:
        found = True
    assert are_apart([at for at, _ in those], [size for _, size in those]) is not found
