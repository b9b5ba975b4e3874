"""Files that docs/architecture.md and the path of a tensor in docs/gpu.md name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
# In code marks: a path below a top-level folder, or a top-level file.
MENTIONED = sorted(
    set(
        re.findall(
            r"`((?:csrc|include|python|launcher|tests|benchmarks|examples)/[\w./{},*]*)`", TEXT
        )
    )
)


def path(call: str) -> list[str]:
    """Returns the files of an allreduce by mark: `f`irst, `r`epeated, `s`mall and repeated."""
    section = TEXT.split("## An allreduce, file by file")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([frs ]+) \| `([^`]+)` \|", section, re.MULTILINE)
    return [name for marks, name in rows if call in marks.split()]


def below_the_backend(files: list[str]) -> list[str]:
    return [name for name in files if re.match(r"csrc/(onehost|reduce)/", name)]


@pytest.mark.parametrize("name", MENTIONED)
def test_every_file_that_is_mentioned_exists(name: str) -> None:
    assert list(ROOT.glob(name.rstrip("/"))), name


def test_the_way_of_an_allreduce_is_a_list_of_files_with_the_number_that_is_said() -> None:
    first, repeated, small = map(path, "frs")
    assert len(set(first)) == len(first)
    said = re.search(
        r"(\d+) files at first, (\d+) when it is repeated, of these (\d+) below the backend, (\d+) when it is small,"
        r" of these (\d+)\.",
        TEXT,
    )
    assert said
    assert [int(number) for number in said.groups()] == [
        len(first),
        len(repeated),
        len(below_the_backend(repeated)),
        len(small),
        len(below_the_backend(small)),
    ]
    (both,) = re.findall(r"through all files of \*r\* and \*s\*, (\d+)", TEXT)
    assert int(both) == len({*repeated, *small})


def test_the_way_of_an_allreduce_on_a_gpu_is_a_list_of_files_with_the_number_that_is_said() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    section = text.split("**A repeated allreduce, file by file.**")[1].split("\n**")[0]
    files = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert len(set(files)) == len(files)
    said = re.search(r"too\. (\d+) files\.", section)
    assert said
    assert int(said[1]) == len(files)
    # docs/architecture.md compares all three with their targets.
    aims = re.search(r"they are (\d+), (\d+) and (\d+) \(", TEXT)
    assert aims
    assert [int(number) for number in aims.groups()] == [
        len(path("f")),
        len(path("r")),
        len(files),
    ]
