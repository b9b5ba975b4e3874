"""What `make engines` installs does not change by itself."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = sorted(Path(__file__).parent.glob("*/requirements.txt"))
PINNED = re.compile(r"[\w.-]+(\[[\w,-]+\])?==[\w.+]+( *;.*)?")


@pytest.mark.parametrize("requirements", REQUIREMENTS, ids=lambda path: path.parent.name)
def test_versions_are_pinned(requirements: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in requirements.read_text().splitlines()]
    named = [line for line in lines if line]
    assert named
    assert not [line for line in named if not PINNED.fullmatch(line)]


def test_each_folder_of_tests_has_an_environment() -> None:
    tested = {path.parent for path in Path(__file__).parent.glob("*/test_*.py")}
    assert tested <= {path.parent for path in REQUIREMENTS}
