"""Puts the modules that tests share on the path."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "parallel" / "python")]

from net.lab.fixture import make_lab  # noqa: E402, F401 - a fixture
from worlds import worlds  # noqa: E402, F401 - a fixture
