"""Tests on a GPU of this machine; without one they are skipped, with the reason.

``RUEDA_TEST_DEVICE=cpu`` rehearses them: the same checks on CPU tensors, without the checks that
are about GPUs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]


def why_no_gpu() -> str:
    """Returns why nothing can be tested here; empty if tests can run."""
    if os.environ.get("RUEDA_TEST_DEVICE") == "cpu":
        return ""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    if not torch.cuda.is_available():
        return "torch.cuda.is_available() is False: there is no GPU, or its driver does not work"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    reason = why_no_gpu() if here else ""
    if reason:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records each test's outcome at once, for runs within a deadline (gpu_steps.py)."""
    record = os.environ.get("RUEDA_TEST_RECORD")
    if not record or (report.when != "call" and report.outcome == "passed"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    entry = {
        "test": report.nodeid.rpartition("/")[2],
        "outcome": report.outcome,
        "seconds": round(report.duration, 1),
        "reason": reason.removeprefix("Skipped: "),
    }
    with Path(record).open("a") as file:
        file.write(json.dumps(entry) + "\n")
