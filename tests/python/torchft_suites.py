"""Runs one of torchft's test modules, from its wheel, with Rueda's group instead of gloo's.

    python torchft_suites.py manager_integ_test [rueda|gloo [0/1]]

The last argument, R/N, selects every N-th test from test number R on.
"""

from __future__ import annotations

import functools
import importlib
import sys
import unittest
from unittest.mock import patch

from rueda.torch.torchft import ProcessGroupRueda
from torchft._test import diloco_trainer
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

configured = 0


class Counted(ProcessGroupRueda):
    def configure(self, *arguments: object, **named: object) -> None:
        global configured
        configured += 1
        super().configure(*arguments, **named)


@functools.wraps(Manager)
def manager(*arguments: object, **named: object) -> Manager:
    """Drops the port: the suites ask for fixed ports, which another run may hold."""
    named.pop("port", None)
    return Manager(*arguments, **named)


def tests_of(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    found: list[unittest.TestCase] = []
    for each in suite:
        found += tests_of(each) if isinstance(each, unittest.TestSuite) else [each]
    return found


def main(suite: str, contender: str = "rueda", part: str = "0/1") -> int:
    group = Counted if contender == "rueda" else ProcessGroupGloo
    module = importlib.import_module(f"torchft.{suite}")
    modules = {module, diloco_trainer, importlib.import_module("torchft.manager_integ_test")}
    for each in modules:
        patch.object(each, "ProcessGroupGloo", group).start()
        patch.object(each, "Manager", manager).start()
    first, step = map(int, part.split("/"))
    tests = tests_of(unittest.defaultTestLoader.loadTestsFromModule(module))[first::step]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(tests))
    passed = result.testsRun - len(result.failures) - len(result.errors) - len(result.skipped)
    if contender == "rueda" and configured == 0:
        print("Rueda's process group was not used")
        return 1
    print(f"passed {passed}, skipped {len(result.skipped)}, groups configured {configured} times")
    return not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
