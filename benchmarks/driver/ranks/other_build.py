"""Runs a rank of this folder with another build of Rueda, the first on PYTHONPATH: other_build.py MODULE ARGUMENTS...

The rank's own code is this build's, so that both are called in the same way. It is loaded under another name and
without what starts the measurement, which would ask the other build for what it may not have.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import types
from pathlib import Path

_DRIVER = Path(__file__).resolve().parents[1]
_NAME = "rueda_bench_of_this_build"
# What the ranks need of Rueda beside its public names, and an older build lacks.
_NEEDED = "peer_user"


def _main() -> None:
    module = sys.argv[1]
    del sys.argv[1]
    sys.path.pop(0)  # this folder
    package = types.ModuleType(_NAME)
    package.__path__ = [str(_DRIVER)]
    sys.modules[_NAME] = package
    name = f"rueda.{_NEEDED}"
    spec = importlib.util.spec_from_file_location(name, _DRIVER.parent / f"{_NEEDED}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    runpy.run_module(f"{_NAME}.ranks.{module}", run_name="__main__")


if __name__ == "__main__":
    _main()
