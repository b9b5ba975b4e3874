"""Teams of ranks, as used by the trials of a study, but without a study."""

from __future__ import annotations

from collections.abc import Sequence

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


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize(
    ("members", "absent"),
    [
        (range(7), 0),
        (range(7), 1),
        (range(7), 6),
        # Whose tree has edges that the world's has not, so that these ranks never were connected.
        ([0, 5, 6], 0),
        ([0, 5, 6], 6),
    ],
    ids=["its first", "one that passes on", "a leaf", "an unknown first", "an unknown leaf"],
)
def test_a_set_that_one_rank_never_forms_ends_when_that_rank_leaves(
    members: Sequence[int], absent: int, transport: str
) -> None:
    check(
        f"""
        import sys
        import numpy as np, rueda
        from rueda import _native, groups
        from rueda.process_sets import ProcessSet
        rueda.init()
        members = {list(members)}
        number = rueda.broadcast_object(groups.number_in(0) if rueda.rank() == 0 else None)
        if rueda.rank() == {absent} or rueda.rank() not in members:
            sys.exit()
        if len(members) < rueda.size():
            try:  # a rank that cannot be reached is taken for lost until it is known that ranks leave
                rueda.barrier()
                sys.exit("without rank {absent}")
            except rueda.ShutdownError:
                pass
        group = ProcessSet(members)
        _native.create_group(number, members)
        group.process_set_id = number
        try:
            rueda.allreduce(np.ones(1), name="x", process_set=group)
            sys.exit("without rank {absent}")
        except rueda.ShutdownError as error:
            assert "rank {absent} has " in str(error), error  # shut down, or left the set
        """,
        7,  # more than the negotiation's root has children
        extra=NO_END_BY_TIME | {"RUEDA_TRANSPORT": transport},
    )


def test_a_set_that_a_rank_has_no_room_for_ends_for_all_and_its_memory_is_used_again() -> None:
    check(
        """
        import sys
        import numpy as np, rueda
        from rueda import _native
        from rueda.process_sets import ProcessSet
        rueda.init()

        def form(generation):
            number = _native.group_number(generation % 500, generation // 500)
            _native.create_group(number, [0, 1])
            return number

        def is_refused(generation):
            # Some room may have come back since.
            try:
                _native.destroy_group(form(generation))
            except rueda.UnsupportedError:
                return True
            return False

        if rueda.rank() == 1:  # uses its room up, in sets that rank 0 never forms
            try:
                for generation in range(100_000):
                    _native.destroy_group(form(generation))
                sys.exit("there was room for all")
            except rueda.UnsupportedError as error:
                assert "rank 1 has no room" in str(error), error
        first = rueda.allreduce(np.array([generation if rueda.rank() == 1 else 0]), op=rueda.Sum)[0]

        # Rank 0 has formed the set, and waits, when rank 1 fails to.
        group = ProcessSet([0, 1])
        if rueda.rank() == 0:
            group.process_set_id = form(first + 1)
            waiting = [
                rueda.allreduce_async(np.ones(4), name="x", process_set=group),
                rueda.send_async(np.ones(100_000), 1, process_set=group),
            ]
        rueda.barrier()
        if rueda.rank() == 1:
            is_refused(first + 1)
        else:
            for handle in waiting:
                try:
                    sys.exit(f"completed: {handle.result()}")
                except rueda.ShutdownError as error:
                    assert "process set" in str(error), error
            _native.destroy_group(group.process_set_id)

        # More sets than there is room for at one time: none is left behind.
        refused = 0
        for generation in range(first + 2, first + 4000):
            if generation % 100 == 0:
                rueda.barrier()  # or rank 0 would be further ahead than it has room for
            if rueda.rank() == 0:
                _native.destroy_group(form(generation))
            else:
                refused += is_refused(generation)
        if rueda.rank() == 1:
            assert refused > 2000, refused  # rank 0 has room for fewer
        rueda.shutdown()
        """,
        2,
        extra=NO_END_BY_TIME,
    )
