"""Which tests one of pytest's processes runs one after another, where several share the tests.

Python's tests also wait for other processes, so there may be more than there are processors. Tests of one file share
worlds that live as long as pytest, and those of tests/package share what they build; neither may be in two processes at
once.
"""

from collections import defaultdict
from collections.abc import Sequence

from xdist.scheduler import LoadScopeScheduling

# Folders whose files share something that is built once.
_TOGETHER = ("tests/package",)


def share_of(test: str) -> str:
    """The name of what the test runs in one process with: its file, or its folder.

    >>> share_of("tests/python/test_fork.py::test_a[x::y]")
    'tests/python/test_fork.py'
    >>> share_of("tests/package/test_wheel.py::test_b")
    'tests/package'
    """
    file = test.split("::", 1)[0]
    for folder in _TOGETHER:
        if file.startswith(f"{folder}/"):
            return folder
    return file


# Seconds that a test takes in the middle, by how its name begins, where that is not about one. What takes longest is
# handed out first, so that all processes are busy to the end.
_SECONDS = {
    "tests/net/": 4.0,
    "tests/package/": 0.2,
    "tests/bench/test_bench.py": 0.05,
    "tests/bench/test_bench_run.py": 2.0,
    "tests/chaos/": 3.0,
    "tests/launcher/test_elastic.py": 2.0,
    "tests/launcher/test_equiv.py": 3.0,
    "tests/python/test_elastic_background.py": 3.0,
    "tests/python/test_horovod_scripts.py": 3.0,
    "tests/python/test_parallel.py": 0.3,
    "tests/python/test_reproducible.py": 2.0,
    "tests/python/test_strategies.py": 5.0,
    "tests/python/test_torchft.py": 2.0,
}


def seconds_of(test: str) -> float:
    """What a test takes, about.

    >>> seconds_of("tests/net/test_lab.py::test_a"), seconds_of("tests/python/test_fork.py::test_b")
    (4.0, 1.0)
    """
    return next((time for name, time in _SECONDS.items() if test.startswith(name)), 1.0)


def longest_share_first(tests: Sequence[str]) -> list[int]:
    """An order of the tests in which none of a share is moved among its own.

    >>> longest_share_first(["tests/a.py::1", "tests/net/b.py::1", "tests/a.py::2", "tests/a.py::3"])
    [1, 0, 2, 3]
    """
    total: dict[str, float] = defaultdict(float)
    for test in tests:
        total[share_of(test)] += seconds_of(test)
    shares = sorted(total, key=lambda share: -total[share])
    place = {share: number for number, share in enumerate(shares)}
    return sorted(range(len(tests)), key=lambda number: place[share_of(tests[number])])


class ByFile(LoadScopeScheduling):
    """Hands out files of tests, in the order in which the tests are."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
