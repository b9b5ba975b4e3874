from __future__ import annotations

from rueda.launcher.interleaving import Interleaving
from rueda.launcher.lines import LineAssembler


def test_a_long_lines_prefix_is_only_at_its_beginning() -> None:
    stream = Interleaving()
    assert stream.add(0, b"[0] ", [b"aaa"]) == b"[0] aaa"
    assert stream.add(0, b"[0] ", [b"bbb"]) == b"bbb"
    assert stream.add(0, b"[0] ", [b"c\n", b"next\r", b"last\n"]) == b"c\n[0] next\r[0] last\n"
    assert stream.end_line() == b""


def test_what_comes_between_the_pieces_has_its_own_line() -> None:
    stream = Interleaving()
    assert stream.add(0, b"[0] ", [b"aaa"]) == b"[0] aaa"
    assert stream.add(1, b"[1] ", [b"other\n"]) == b"\n[1] other\n"
    assert stream.add(0, b"[0] ", [b"bbb"]) == b"[0] bbb"
    assert stream.end_line() == b"\n"
    assert stream.add(0, b"[0] ", [b"c\n"]) == b"[0] c\n"


def test_a_line_end_that_comes_in_halves_ends_one_line() -> None:
    assembler, stream = LineAssembler(longest=4), Interleaving()
    pieces = [assembler.feed(chunk) for chunk in (b"abcd\r", b"\nnext\n")]
    assert b"".join(stream.add(0, b"> ", piece) for piece in pieces) == b"> abcd\r\n> next\n"
