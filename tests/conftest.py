"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

with suppress(ImportError):  # Hypothesis may be absent, as on a machine with a GPU
    from hypothesis import settings

    # Nothing may depend on how busy a machine is (no deadline), and what fails is to be due to the change that is
    # tested: the same examples in each run. New ones are looked for by `make soak`.
    settings.register_profile("search", deadline=None)
    settings.register_profile("same", deadline=None, derandomize=True)
    settings.load_profile("same")

# Who opens a store of torch looks up the name of ::1. Where that is not in /etc/hosts, and the question to the name
# server is lost, it is repeated after 5 seconds otherwise. Also for the processes that tests start.
os.environ.setdefault("RES_OPTIONS", "timeout:1")

# A script's background job (`make test &`) ignores it, and would have all processes that tests start ignore it, too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from sharing import ByFile
    from xdist.remote import Producer


@pytest.hookimpl(optionalhook=True)  # pytest-xdist may be absent, as on a machine with a GPU
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Keeps together what cannot run in two processes at once."""
    from sharing import ByFile

    config.option.loadscopereorder = False  # longest_share_first() has done so
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, they begin with what takes longest."""
    if hasattr(config, "workerinput"):
        from sharing import longest_share_first

        items[:] = [items[number] for number in longest_share_first([i.nodeid for i in items])]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells why a test failed that was run once more, whether it then passed or not."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Ends what tests/python/forked.py has started for whoever needed it."""
    if forked := sys.modules.get("forked"):
        forked.end_servers()
