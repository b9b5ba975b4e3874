"""What the tests of Spark need besides its environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

_OLDEST = 17


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    """Finds Java the way Spark does."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    needs = f"Spark needs Java {_OLDEST} or newer, and"
    if java is None:
        pytest.skip(f"{needs} there is no {home}/bin/java" if home else f"{needs} no java on PATH")
    line = [java, "-version"]
    told = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < _OLDEST:
        pytest.skip(f"{needs} {java} is {found[1] if found else 'none'}")
