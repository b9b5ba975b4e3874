"""Teams of ranks, as used by the trials of a study, but without a study."""

from __future__ import annotations

import pytest
from launching import check

pytest.importorskip("rueda._native")

NO_END_BY_TIME = {"RUEDA_SHUTDOWN_TIMEOUT": "3600"}


@pytest.mark.parametrize(
    "failing", [0, 1, 3], ids=["leads all", "is a member", "is of another team"]
)
def test_teams_that_one_rank_cannot_form_are_formed_by_none(failing: int) -> None:
    check(
        f"""
        import sys, types
        import numpy as np, rueda
        sys.modules["optuna"] = types.ModuleType("optuna")  # is not needed for teams
        package = types.ModuleType("rueda.optuna")
        package.__path__ = [rueda.__path__[0] + "/optuna"]
        sys.modules["rueda.optuna"] = package
        from rueda.groups import taken_slots
        from rueda.optuna import team
        rueda.init()
        form = team._native.create_group
        def fail(number, ranks):
            raise rueda.UnsupportedError("no memory is left")
        if rueda.rank() == {failing}:
            team._native.create_group = fail
        for turn in range(3):
            try:
                with team.open_teams(2):
                    sys.exit("were formed")
            except rueda.UnsupportedError as error:
                assert "no process sets could be formed for teams: no memory is left" in str(error)
            assert taken_slots() == []
        team._native.create_group = form
        with team.open_teams(2) as (own, leaders, everyone):
            for group, size in (own, 2), (leaders, 2), (everyone, 4):
                if group.process_set_id is not None:
                    total = rueda.allreduce(np.ones(1), op=rueda.Sum, process_set=group)[0]
                    assert total == size, total
        assert taken_slots() == []
        """,
        4,
        extra=NO_END_BY_TIME,
    )


@pytest.mark.parametrize("absent", [0, 1, 6], ids=["leads it", "passes on", "is a leaf"])
def test_a_set_that_one_rank_never_forms_ends_when_that_rank_leaves(absent: int) -> None:
    check(
        f"""
        import sys
        import numpy as np, rueda
        from rueda import _native, groups
        from rueda.process_sets import ProcessSet
        rueda.init()
        everyone = list(range(rueda.size()))
        number = rueda.broadcast_object(groups.number_in(0) if rueda.rank() == 0 else None)
        if rueda.rank() == {absent}:
            sys.exit()
        group = ProcessSet(everyone)
        _native.create_group(number, everyone)
        group.process_set_id = number
        try:
            rueda.allreduce(np.ones(1), name="x", process_set=group)
            sys.exit("without rank {absent}")
        except rueda.ShutdownError as error:
            assert "rank {absent} has " in str(error), error  # shut down, or left the set
        """,
        7,  # more than the negotiation's root has children
        extra=NO_END_BY_TIME,
    )
