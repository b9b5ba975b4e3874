"""The test worlds report a failed check, and continue with the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from one_run import OneRun
from worlds import END, Run, Worlds

SCRIPT = """
import os, sys
import parallel, rueda

def check_good():
    print("was here", os.environ.get("RUEDA_CACHE_CAPACITY"), sys.argv[1:])

def check_bad():
    assert rueda.rank() == 0, "rank 1 is wrong"

def check_dying():
    if rueda.rank() == 1:
        os._exit(9)
    rueda.barrier()

if __name__ == "__main__":
    parallel.run(globals())
    assert "wrong end" not in sys.argv, "the end is wrong"
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "check_these.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def mine() -> Iterator[Worlds]:
    made = Worlds()
    yield made
    made.finish()


def test_each_check_is_named(script: str) -> None:
    assert Run(script, 2).checks() == ("check_good", "check_bad", "check_dying")


def test_a_check_that_fails(mine: Worlds, script: str) -> None:
    run = Run(script, 2, arguments=("given",))
    assert mine.check(run, "check_good").count("was here None ['given']") == 2
    with pytest.raises(AssertionError, match=r"check_bad failed(.|\n)*rank 1 is wrong"):
        mine.check(run, "check_bad")
    assert mine.check(run, "check_good").count("was here") == 2
    with pytest.raises(AssertionError, match=r"rank 1 ---\nthe rank has ended"):
        mine.check(run, "check_dying")
    mine.check(run, "check_good")
    mine.check(run, END)


def test_options_are_those_of_the_run(mine: Worlds, script: str) -> None:
    with_option = Run(script, 2, extra={"RUEDA_CACHE_CAPACITY": "7"})
    assert "was here 7" in mine.check(with_option, "check_good")
    assert "was here None" in mine.check(Run(script, 2), "check_good")
    assert "was here 7" in mine.check(with_option, "check_good")


def test_a_script_that_ends_badly(mine: Worlds, script: str) -> None:
    run = Run(script, 1, arguments=("wrong end",))
    mine.check(run, "check_good")
    with pytest.raises(AssertionError, match="the end is wrong"):
        mine.check(run, END)
    mine.check(run, "check_good")
    with pytest.raises(AssertionError, match="the end is wrong"):
        mine.check(Run(script, 1), "check_good")  # the end of the previous script


def test_of_a_script_that_runs_once_each_check_fails_by_itself() -> None:
    ran = OneRun(False, ["ok check_good\nok check_other\n", "ok check_good\nError: it was bad\n"])
    ran.require("check_good")
    for check in ("check_other", "check_bad", END):
        with pytest.raises(AssertionError, match="it was bad"):
            ran.require(check)
    OneRun(True, ["ok check_good\n"]).require(END)
