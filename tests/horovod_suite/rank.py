"""A rank of run.py: python rank.py FOLDER SITE_PACKAGES FILE."""

from __future__ import annotations

import os
import sys
import threading
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def provide(name: str, **content: Any) -> None:
    """Installs a module that the tests import and that Rueda does not need."""
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


def rank_and_size() -> tuple[int, int]:
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])


def in_thread(target: Callable[..., Any], args: Any = (), daemon: bool = True) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=daemon)
    thread.start()
    return thread


def expand(cases: Any) -> Callable[[Callable[..., Any]], Any]:
    """Like parameterized.expand: adds a test to the class for each case."""

    def decorate(test: Callable[..., Any]) -> None:
        around = sys._getframe(1).f_locals
        for number, case in enumerate(cases):
            given = case if isinstance(case, tuple | list) else (case,)

            def one(self: Any, given: Any = given) -> Any:
                return test(self, *given)

            around[f"{test.__name__}_{number}"] = one

    return decorate


def main(folder: Path, site: str, file: str) -> None:
    """Runs the tests of a file, in the same order on all ranks."""
    sys.path += [site]
    sys.path[:0] = [str(folder / "test" / "parallel"), str(folder / "test" / "utils")]
    import horovod.tensorflow as hvd
    import pytest
    import tensorflow as tf
    from packaging import version
    from tensorflow.python.framework import test_util

    def is_version_greater_equal_than(found: str, wanted: str) -> bool:
        return version.parse(found) >= version.parse(wanted)

    provide(
        "horovod.common.util",
        is_version_greater_equal_than=is_version_greater_equal_than,
        gloo_built=hvd.gloo_built,
        mpi_built=hvd.mpi_built,
    )
    provide("horovod.tensorflow.util", _executing_eagerly=tf.executing_eagerly)
    provide("horovod.runner.util.threads", in_thread=in_thread)
    provide("horovod.runner.common.util.env", get_env_rank_and_size=rank_and_size)
    provide("mock", **vars(unittest.mock))
    provide("parameterized", parameterized=SimpleNamespace(expand=expand))
    hvd._executing_eagerly = tf.executing_eagerly
    # The original would add sessions of TensorFlow 1.
    test_util.run_all_in_graph_and_eager_modes = lambda cls: cls
    os.environ["PMI_RANK"], os.environ["PMI_SIZE"] = map(str, rank_and_size())
    options = ["-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-p", "no:rerunfailures", "--rootdir", str(folder), "-o", "addopts="]
    sys.exit(pytest.main([*options, str(folder / "test" / "parallel" / file)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
