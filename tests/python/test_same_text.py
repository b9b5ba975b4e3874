"""The text by which ranks compare arguments is the same in every process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

pytest.importorskip("rueda._native")

from rueda.arguments import same_text

PROGRAM = """
from rueda.arguments import same_text

class Plain:
    def method(self): ...

class Odd:
    def __repr__(self): return f"<Odd at {{id(self):#x}}>"

words = "red", "green", "blue"
waste = [object() for _ in range({waste})]  # so that addresses differ
values = [Plain(), Plain().method, Odd(), lambda: 0, set(words), {{frozenset(words): [set(words)]}}]
print(same_text(values), same_text((frozenset(words), Plain())))
"""


def test_processes_agree() -> None:
    texts = set()
    for seed in (1, 2, 3):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(waste=seed * 10_000)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        texts.add(ended.stdout)
    assert len(texts) == 1, texts
    (text,) = texts
    assert "<__main__.Plain object>" in text
    assert "frozenset({'blue', 'green', 'red'})" in text


@pytest.mark.parametrize(
    "value",
    [1, -0.5, "at 0x10", b" at 0x10", None, (), (1,), (1, "a"), [], [1, [2]], {}, {"a": (1,)}],
    ids=repr,
)
def test_of_other_values_it_is_their_repr(value: object) -> None:
    assert same_text(value) == repr(value)


def test_what_differs_is_seen() -> None:
    assert same_text({1, 2}) != same_text({1, 3})
    assert same_text({1}) != same_text(frozenset({1}))
    assert same_text(["0x10"]) != same_text(["0x11"])
    assert same_text(functools.partial(int, 1)) != same_text(functools.partial(int, 2))


def test_a_list_may_contain_itself() -> None:
    value: list[object] = [1]
    value.append(value)
    assert same_text(value) == "[1, ...]"


def test_numbers_in_hexadecimal_count() -> None:
    class Shown:
        def __init__(self, value: int) -> None:
            self.value = value

        def __repr__(self) -> str:
            return f"Shown({self.value:#x})"

    assert same_text(Shown(254)) != same_text(Shown(255))
