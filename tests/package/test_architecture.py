"""docs/architecture.md speaks of files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
# Written as code: a path below a folder of the top level, or one of its files.
MENTIONED = sorted(
    set(
        re.findall(
            r"`((?:csrc|include|python|launcher|tests|benchmarks|examples)/[\w./{},*]*)`", TEXT
        )
    )
)


def rows_of_the_path() -> list[tuple[str, str]]:
    """The marks and files of the table that follows an allreduce."""
    section = TEXT.split("## An allreduce, file by file")[1].split("\n## ")[0]
    return re.findall(r"^\| (r only|r|) *\| `([^`]+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("name", MENTIONED)
def test_every_file_that_is_mentioned_exists(name: str) -> None:
    assert list(ROOT.glob(name.rstrip("/"))), name


def test_the_way_of_an_allreduce_is_a_list_of_files_with_the_number_that_is_said() -> None:
    rows = rows_of_the_path()
    first = [name for mark, name in rows if mark != "r only"]
    repeated = [name for mark, name in rows if mark]
    below = [name for name in repeated if re.match(r"csrc/(onehost|reduce)/", name)]
    assert len(set(first)) == len(first)
    said = re.search(r"(\d+) files at first, (\d+) when it is repeated, of these (\d+) below", TEXT)
    assert said
    assert [int(number) for number in said.groups()] == [len(first), len(repeated), len(below)]
