"""A job on several hosts, without any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from rueda.launcher.failure import Failure
from rueda.launcher.hosts import Host
from rueda.launcher.job import Job
from rueda.launcher.output import RankOutput
from rueda.launcher.remote.run import Reach, RemoteRun


@pytest.mark.parametrize(("least", "is_borne"), [(2, True), (3, False)])
def test_a_rank_that_was_lost_is_not_lost_again_with_its_host(
    least: int, is_borne: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    output = RankOutput(4, None, False)
    monkeypatch.setattr(output, "say", lines.append)
    settings = {"RUEDA_RECOVERY": "on", "RUEDA_MIN_NP": str(least)}
    job = Job(4, ("true",), (Host("a", 2), Host("b", 2)), settings)
    run = RemoteRun(job, Reach("ssh", 1.0, 1.0), output, 1.0, -1)
    lost = SimpleNamespace(name="b", share=run._shares[1], lost="silent", is_over=True)
    supervisor = SimpleNamespace(ending=False, end_after=lambda _: None)
    run._started = True
    run._connections = [cast(Any, lost)]
    run._note_gone(3)
    assert run._losses.bears(Failure(3, -9, "b"))
    run._lose(cast(Any, supervisor), cast(Any, lost))
    assert (not run._lost) is is_borne
    assert lines == (
        ["rank 2 on b is lost, its host is gone: silent; the other ranks go on"] * is_borne
    )
