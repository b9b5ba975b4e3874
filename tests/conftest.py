"""What holds for all tests."""

import pytest

# What builds Rueda by these compiles with all cores, in folders that each of them has only once.
BUILDS = {"installation", "prefix", "wheel"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tells which tests stay in one process, in their order, where several processes share the tests."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))


def _group_of(item: pytest.Item) -> str:
    """Tests that share ranks, those that share what is built, and else a file's tests."""
    used = set(getattr(item, "fixturenames", ()))
    if used & BUILDS:
        return "builds"
    callspec = getattr(item, "callspec", None)
    if "worlds" in used and callspec is not None:
        run = callspec.params["run"]
        return "-".join(["ranks", *map(str, run.ranks)])
    return item.nodeid.partition("::")[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells why a test failed that was run once more, whether it then passed or not."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
