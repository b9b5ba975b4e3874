from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.lines import LineAssembler

texts = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bc", b"", b"\xc3\xa9"])).map(
    b"".join
)


def assemble(chunks: list[bytes]) -> list[bytes]:
    assembler = LineAssembler()
    lines = [line for chunk in chunks for line in assembler.feed(chunk)]
    return lines + assembler.finish()


@given(texts, st.data())
def test_chunks_do_not_matter(text: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert assemble(chunks) == assemble([text])


@given(texts)
def test_nothing_is_lost_and_every_line_has_one_end(text: bytes) -> None:
    lines = assemble([text])
    whole = b"".join(lines)
    assert whole == text or whole == text + b"\n"
    for line in lines:
        assert line.endswith((b"\n", b"\r"))
        assert b"\n" not in line[:-1]


def test_an_endless_line_comes_in_pieces() -> None:
    assembler = LineAssembler(longest=10)
    assert assembler.feed(b"x" * 25) == [b"x" * 25]
    assert assembler.feed(b"y\n") == [b"y\n"]
