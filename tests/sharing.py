"""Which tests one of pytest's processes runs one after another, where several share the tests.

Python's tests wait for other processes more than they compute, so two of them at a time take little longer than
one. Tests of one file share worlds that live as long as pytest, and those of tests/package share what they build;
neither may be in two processes at once.
"""

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


class ByFile(LoadScopeScheduling):
    """Hands out files of tests, those with the most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
