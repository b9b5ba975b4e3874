"""Prints the requirements of a file that this Python does not meet, one a line.

    python .ci/missing_packages.py .ci/requirements/gpu.txt

Each line there is NAME>=VERSION. Only the standard library is used: nothing else is known to be there.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def numbers(text: str) -> list[int]:
    """Of a version; what follows the first part that is no number does not count."""
    parts = []
    for part in text.split("."):
        found = re.match(r"\d+", part)
        if not found:
            break
        parts.append(int(found[0]))
    return parts


def is_met(name: str, oldest: str) -> bool:
    """Whether a package is there and new enough."""
    try:
        return numbers(version(name)) >= numbers(oldest)
    except PackageNotFoundError:
        return False


def main() -> None:
    """See the module."""
    for line in Path(sys.argv[1]).read_text().splitlines():
        requirement = line.split("#")[0].strip()
        if not requirement:
            continue
        name, oldest = requirement.split(">=")
        if not is_met(name, oldest):
            print(requirement)


if __name__ == "__main__":
    main()
