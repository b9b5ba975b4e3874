"""Elastic jobs whose processes another engine starts: their ranks meet at a reception."""

from __future__ import annotations

import re
import select
import signal
import socket
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
from forked import Rank, start
from launching import Ended, alone, command, environment

pytest.importorskip("rueda._native")
elastic = pytest.importorskip("rueda.elastic")
from rueda.attendance import Attendance  # noqa: E402
from rueda.elastic.reception import check_in  # noqa: E402
from rueda.elastic.still_waiting import still_waiting  # noqa: E402
from rueda.errors import InitializationError  # noqa: E402
from rueda.rendezvous import meeting_of  # noqa: E402

_TIMEOUT = 120.0


class Engine:
    """Starts processes, as an engine would, and runs their reception. A context manager."""

    def __init__(self, program: str, size: int, folder: Path) -> None:
        self.reception = elastic.Reception(size, interface="127.0.0.1")
        self._program = program
        self._size = size
        self._folder = folder
        self._started: list[tuple[Rank, IO[bytes]]] = []
        for rank in range(size):
            self.start(rank)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        for process, file in self._started:
            process.kill()
            process.wait()
            file.close()
        self.reception.close()

    def start(self, rank: int, address: str = "") -> int:
        """Starts one more process; returns its number."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        variables = {
            "ADDRESS": address or str(self.reception.address),
            "MY_RANK": str(rank),
            "MY_SIZE": str(self._size),
            "FOLDER": str(self._folder),
            "COUNT": str(len(self._started)),
        }
        line = command(self._program)
        self._started.append((start(line, rank, file, environment(variables)), file))
        return len(self._started) - 1

    def kill(self, number: int) -> None:
        """Kills a process."""
        self._started[number][0].kill()

    def wait_for(self, name: str) -> None:
        """Waits until a process has created this file."""
        deadline = time.monotonic() + _TIMEOUT
        while not (self._folder / name).exists():
            assert time.monotonic() < deadline, self.outputs()
            time.sleep(0.01)

    def wait_for_end(self, number: int) -> None:
        """Waits until a process has ended."""
        self._started[number][0].wait(_TIMEOUT)

    def ended(self) -> list[Ended]:
        """Waits for all processes to end."""
        deadline = time.monotonic() + _TIMEOUT
        for process, _ in self._started:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except Exception:
                raise AssertionError(f"a process hangs\n{self.outputs()}") from None
        return [
            Ended(process.returncode, self._output(n))
            for n, (process, _) in enumerate(self._started)
        ]

    def outputs(self) -> str:
        """The output of all processes."""
        return "\n".join(f"--- {n}\n{self._output(n)}" for n in range(len(self._started)))

    def _output(self, number: int) -> str:
        file = self._started[number][1]
        file.seek(0)
        return file.read().decode(errors="replace")


BEGIN = """
import os, pathlib, signal, sys, time
import numpy as np
import rueda, rueda.elastic
rank, size = int(os.environ["MY_RANK"]), int(os.environ["MY_SIZE"])
address, count = os.environ["ADDRESS"], int(os.environ["COUNT"])
folder = pathlib.Path(os.environ["FOLDER"])
"""

# Each step adds the number of ranks; newcomers take the sum from the others.
TRAINS = (
    BEGIN
    + """
class Total:
    def __init__(self):
        self.value = np.zeros(1)
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = np.array(state["value"])

with rueda.world(rank, size, address):
    print("began as", rueda.rank(), "of", rueda.size(), flush=True)
    total, whole = Total(), 0
    for step in rueda.elastic.steps(100000, total):
        with step:
            if step.number == 5 and count == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if step.number == 8:
                (folder / "went on").touch()
            time.sleep(0.01)
            gathered = rueda.allgather(total.value)
            assert len(set(gathered.tolist())) == 1, gathered  # the newcomer has what the others have
            total.value = total.value + rueda.allreduce(np.ones(1), "one", rueda.Sum)
            whole += step.number > 5 and rueda.size() == size
        if whole == 20:
            break
    print("ended with", total.value[0], "at", step.number, flush=True)
"""
)


def test_who_comes_in_the_place_of_a_lost_rank_takes_the_others_state(tmp_path: Path) -> None:
    with Engine(TRAINS, 3, tmp_path) as engine:
        engine.wait_for("went on")
        engine.start(1)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, -signal.SIGKILL, 0, 0], engine.outputs()
        assert [ended[n].output.split("\n")[0] for n in (0, 2)] == [
            "began as 0 of 3",
            "began as 2 of 3",
        ]
        assert ended[3].output.startswith("began as 2 of 3\n")
        results = {re.findall(r"ended with .*", ended[n].output)[0] for n in (0, 2, 3)}
        assert len(results) == 1, engine.outputs()


# Each process is on a host of its own, as far as it says. Process 2 reaches nobody, the others print whom they reach.
PROVES = """
import os, socket
import rueda.elastic.joining as joining
socket.gethostname = lambda: "host" + os.environ["COUNT"]
real = joining.unreached
def unreached(places):
    hosts = [place.host for place in places]
    if os.environ["COUNT"] == "2":
        return {place.number: f"no way to {place.host}" for place in places}
    print("reaches all of", hosts, "but", real(places), flush=True)
    return real(places)
joining.unreached = unreached
"""


def test_who_comes_from_another_host_proves_that_it_reaches_the_ranks(tmp_path: Path) -> None:
    with Engine(PROVES + TRAINS, 2, tmp_path) as engine:
        engine.wait_for("went on")
        engine.start(1)
        engine.wait_for_end(2)
        engine.start(1)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, -signal.SIGKILL, 1, 0], engine.outputs()
        why = "InitializationError: this process cannot join: no way to host0\n"
        assert ended[2].output.endswith(why), engine.outputs()
        assert ended[3].output.startswith("reaches all of ['host0'] but {}\nbegan as 1 of 2\n")
        assert "no world was formed" not in engine.outputs()


@pytest.mark.parametrize("returns", [True, False], ids=["returns", "does not return"])
def test_a_rank_whose_connection_breaks_keeps_nobody_out(tmp_path: Path, returns: bool) -> None:
    """Even the first rank, which normally tells newcomers where to go and cannot any more."""
    breaks = f"""
            if step.number == 4 and count == 0:
                here = rueda.attendance.attendance()
                if not {returns}:
                    here.reconnection = None
                here.session._socket.shutdown(socket.SHUT_RDWR)
            if step.number == 5 and count == 1:"""
    program = TRAINS.replace("\n            if step.number == 5 and count == 1:", breaks)
    program = "import socket, rueda.attendance\n" + program
    with Engine(program, 3, tmp_path) as engine:
        engine.wait_for("went on")
        engine.start(1)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, -signal.SIGKILL, 0, 0], engine.outputs()
        assert ended[3].output.startswith("began as 2 of 3\n")
        assert "no world was formed" not in engine.outputs()


def test_who_has_come_back_is_no_other_process(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
import socket, rueda.attendance
with rueda.world(rank, size, address):
    here = rueda.attendance.attendance()
    for turn in range(3):
        broken = here.session
        broken._socket.shutdown(socket.SHUT_RDWR)
        while here.session is broken or not here.is_heard:
            here.listen()
            time.sleep(0.01)
        assert not rueda.elastic.update()
    while here.gone:  # has been told before the world was
        here.listen()
        time.sleep(0.01)
    print(rueda.rank(), here.number, here.joiners, flush=True)
(folder / f"done{rank}").touch()
"""
    )
    with Engine(program, 2, tmp_path) as engine:
        for rank in range(2):
            engine.wait_for(f"done{rank}")
        engine.start(0)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, 0, 1], engine.outputs()
        told = sorted(ended[n].output for n in range(2))
        assert [re.sub(" [01] ", " N ", each) for each in told] == ["0 N []\n", "1 N []\n"]
        # Both have reported at the end that their work is done.
        assert "JobHasEnded: the other ranks have finished the job" in ended[2].output


def test_where_all_have_failed_as_many_again_form_a_world_anew(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
with rueda.world(rank, size, address):
    if count == 1:
        (folder / "dies").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    print("sum", rueda.allreduce(np.ones(1), "one", rueda.Sum)[0], "as", rueda.rank(), flush=True)
"""
    )
    with Engine(program, 3, tmp_path) as engine:
        engine.wait_for("dies")
        engine.start(1)  # waits to be let in, even by the ranks that fail
        for rank in (0, 2):
            engine.start(rank)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [1, -signal.SIGKILL, 1, 0, 0, 0]
        assert "PeerLostError" in ended[0].output
        assert [ended[n].output for n in (4, 3, 5)] == [f"sum 3.0 as {n}\n" for n in range(3)]


def test_who_is_on_the_way_to_one_that_is_lost_turns_back(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
import rueda.elastic.joining
rueda.elastic.joining._ENTERING = 1000
enter = rueda.elastic.joining.enter
def die_or_enter(*told):
    if count == 0:
        (folder / "dies").touch()
        while not (folder / "comes").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "comes").touch()
    return enter(*told)
rueda.elastic.joining.enter = die_or_enter
with rueda.world(rank, size, address):
    print("sum", rueda.allreduce(np.ones(1), "one", rueda.Sum)[0], "as", rueda.rank(), flush=True)
"""
    )
    with Engine(program, 2, tmp_path) as engine:
        engine.wait_for("comes")
        engine.start(0)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [-signal.SIGKILL, 0, 0], engine.outputs()
        assert [ended[n].output.splitlines()[-1] for n in (2, 1)] == [
            "sum 2.0 as 0",
            "sum 2.0 as 1",
        ]


def test_a_reception_for_one(tmp_path: Path) -> None:
    """The first rank starts alone and admits others, even after a break while one waited."""
    program = (
        BEGIN
        + """
import socket
from rueda.launcher_session import Session
wait = Session.wait
def break_off(session, seconds):
    if count == 1 and seconds == 1.0 and not (folder / "broken").exists():  # of a newcomer
        session._socket.shutdown(socket.SHUT_RDWR)
        (folder / "broken").touch()
    wait(session, seconds)
Session.wait = break_off
with rueda.world(rank, size, address):
    print("began as", rueda.rank(), "of", rueda.size(), flush=True)
    (folder / "began").touch()
    while rueda.size() == 1:
        if (folder / "broken").exists():
            rueda.elastic.update()
        time.sleep(0.01)
    print("sum", rueda.allreduce(np.ones(1), "one", rueda.Sum)[0], flush=True)
"""
    )
    with Engine(program, 1, tmp_path) as engine:
        engine.wait_for("began")
        engine.start(0)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, 0], engine.outputs()
        assert ended[0].output == "began as 0 of 1\nsum 2.0\n"
        assert ended[1].output == "began as 1 of 2\nsum 2.0\n"


def test_ranks_of_a_first_world_whose_options_differ_are_told(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
import rueda.elastic.joining
rueda.elastic.joining._OPENING_AGAIN = -1.0  # two tries, or one where the other is late
rueda.elastic.joining._ENTERING = 3
try:
    rueda.init(rank=rank, size=size, rendezvous=address, fusion_threshold=4096 * (1 + rank))
except rueda.InitializationError as error:
    print("told", error, flush=True)
assert not rueda.is_initialized()
"""
    )
    with Engine(program, 2, tmp_path) as engine:
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, 0], engine.outputs()
        for each in ended:
            assert re.search("told .*RUEDA_FUSION_THRESHOLD", each.output), engine.outputs()


# The first two are members until another is let in; one with other options or sets is not.
TAKES_IN = (
    BEGIN
    + """
sets = [rueda.ProcessSet([0, 1]), rueda.ProcessSet([1])]
options = {}
if count == 2:
    STRANGE
try:
    rueda.init(sets, rank=rank, size=size, rendezvous=address, **options)
except (rueda.InitializationError, rueda.InvalidArgumentError) as error:
    print("told", error, flush=True)
    (folder / "told").touch()
    assert not rueda.is_initialized()
    sys.exit(5)
(folder / f"began{count}").touch()
while count < size and rueda.size() == size:
    try:
        rueda.elastic.update()
        if rueda.size() > size:
            rueda.barrier()  # the newcomer has adopted the sets, or has failed
    except rueda.PeerLostError:
        rueda.recover()
    time.sleep(0.01)
if count >= size:
    rueda.barrier()
assert [each.included() for each in sets] == [rueda.rank() < 2, rueda.rank() == 1]
assert [each.ranks for each in sets] == [[0, 1], [1]]
for each in sets:
    if each.included():
        total = rueda.allreduce(np.ones(1), op=rueda.Sum, process_set=each)[0]
        assert total == each.size(), total
print("size", rueda.size(), flush=True)
rueda.shutdown()
"""
)


@pytest.mark.parametrize(
    ("strange", "told"),
    [
        ("options = {'fusion_threshold': 4096}", "could not let this process join"),
        ("sets.reverse()", "began with another set"),
        ("sets.pop()", "began with 2 sets, and this process has 1"),
    ],
    ids=["options", "sets", "fewer sets"],
)
def test_newcomers_of_a_reception_have_the_options_and_sets_of_the_others(
    tmp_path: Path, strange: str, told: str
) -> None:
    with Engine(TAKES_IN.replace("STRANGE", strange), 2, tmp_path) as engine:
        for count in range(2):
            engine.wait_for(f"began{count}")
        engine.start(0)
        engine.wait_for("told")
        engine.start(0)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, 0, 5, 0], engine.outputs()
        assert told in ended[2].output, engine.outputs()
        assert {ended[n].output.splitlines()[-1] for n in (0, 1, 3)} == {"size 3"}


LATE = (
    BEGIN
    + """
if count < size:
    with rueda.world(rank, size, address):
        rueda.barrier()
    (folder / f"done{rank}").touch()
else:
    try:
        rueda.init(rank=rank, size=size, rendezvous=address)
    except rueda.InitializationError as error:
        print(type(error).__name__, error, flush=True)
        assert not rueda.is_initialized()
"""
)


def test_who_comes_when_the_work_is_done_is_told(tmp_path: Path) -> None:
    with Engine(LATE, 2, tmp_path) as engine:
        for rank in range(2):
            engine.wait_for(f"done{rank}")
        engine.start(0)
        ended = engine.ended()
        assert [each.returncode for each in ended] == [0, 0, 0], engine.outputs()
        assert ended[2].output == "JobHasEnded the other ranks have finished the job\n"


def test_who_does_not_know_the_secret_stays_outside(tmp_path: Path) -> None:
    with Engine(LATE, 2, tmp_path) as engine:
        own = str(engine.reception.address)
        engine.start(0, re.sub("//[0-9a-f]{64}@", f"//{64 * 'a'}@", own))
        with elastic.Reception(2, interface="127.0.0.1") as other:
            gone = str(other.address)
        engine.start(0, gone)
        ended = engine.ended()
        assert "is not the reception of this job" in ended[2].output, engine.outputs()
        assert "cannot be reached: Connection refused" in ended[3].output
        assert [each.returncode for each in ended] == [0, 0, 0, 0]


def test_a_process_serves_one_job_after_another(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
for turn in range(3):
    if rank == 0:
        reception = rueda.elastic.Reception(size, interface="127.0.0.1")
        (folder / "part").write_text(reception.address)
        (folder / "part").rename(folder / f"address{turn}")
    while not (folder / f"address{turn}").exists():
        time.sleep(0.01)
    with rueda.world(rank, size, (folder / f"address{turn}").read_text()):
        assert rueda.elastic.update() is None
        assert rueda.allreduce(np.ones(1), "one", rueda.Sum)[0] == size
        assert rueda.options()["recovery"] == "on"
print("done", flush=True)
"""
    )
    with Engine(program, 2, tmp_path) as engine:
        ended = engine.ended()
        assert [each.output for each in ended] == ["done\n"] * 2


def test_the_example_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    chapter = page.partition("## Processes that something else starts")[2]
    program = re.findall(r"^```python\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)[0]
    ended = alone(program)
    assert ended.returncode == 0, ended.output
    told = [f"rank {rank} has done 100" for rank in range(2)]
    assert sorted(re.findall("rank . has done 100", ended.output)) == told


def test_nonsense_ends_a_session_and_nothing_else(tmp_path: Path) -> None:
    """Even from a peer that knows the secret, such as a rank of another version."""
    from rueda.elastic.reception import _PURPOSE
    from rueda.launcher.nodes.admission import Refused, be_admitted
    from rueda.launcher.nodes.greeting import key_of
    from rueda.launcher.version import installed_version
    from rueda.rendezvous import meeting_of

    with Engine(LATE, 2, tmp_path) as engine:
        meeting = meeting_of(0, 2, str(engine.reception.address))
        host, _, port = meeting.where.removeprefix("tcp:").rpartition(":")
        key = key_of(meeting.secret, _PURPOSE)
        facts = {"rank": 0, "version": installed_version()}
        for said in (b"[]\n", b'{"formed": 3}\n', b'{"door": {"joiners": 1}}\n', b"x" * 100000):
            with be_admitted(host, int(port), key, facts) as link, link.makefile("rb") as lines:
                assert lines.readline().startswith(b'{"number": ')
                link.sendall(said)
                link.shutdown(socket.SHUT_WR)
                assert b"enter" not in lines.read()
        # Nobody is a rank yet, or has that number.
        nobody = [{**facts, "number": number} for number in (77, "0", [0])]
        for wrong in ({**facts, "version": "0"}, {**facts, "rank": "a"}, *nobody):
            with pytest.raises(Refused):
                be_admitted(host, int(port), key, wrong)
        assert [each.returncode for each in engine.ended()] == [0, 0], engine.outputs()


def test_a_child_that_is_forked_at_any_time_can_import() -> None:
    """Which it could not if the reception's thread held an import's lock at that moment."""
    program = """
    import os, sys, threading, time
    import rueda, rueda.elastic

    class Watch:
        def find_spec(self, name, path=None, target=None):
            if threading.current_thread() is not threading.main_thread():
                print("imports", name, flush=True)

    sys.meta_path.insert(0, Watch())
    with rueda.elastic.Reception(1, interface="127.0.0.1") as reception:
        for moment in (0, 0.001, 0.1):
            time.sleep(moment)
            child = os.fork()
            if child == 0:
                with rueda.world(0, 1, reception.address):
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """
    ended = alone(program)
    assert ended.returncode == 0, ended.output
    assert "imports" not in ended.output


def test_a_forked_child_keeps_no_connection_of_the_reception() -> None:
    """Ranks would not notice that the reception's process has ended as long as that child lives."""
    program = """
    import os, socket, subprocess, sys, time
    import rueda, rueda.elastic

    def count(port):
        found = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    found += copy.getsockname()[1:2] == (port,)
            except OSError:
                continue  # not a socket, or the listing itself
        return found

    waits = "import sys, rueda; rueda.init(rank=0, size=2, rendezvous=sys.argv[1])"
    with rueda.elastic.Reception(2, interface="127.0.0.1") as reception:
        where = reception._listener.getsockname()
        worker = subprocess.Popen([sys.executable, "-c", waits, reception.address])
        with socket.create_connection(where):  # proves nothing yet
            while not (reception._desk and reception._desk._sessions and count(where[1]) == 3):
                time.sleep(0.01)
            child = os.fork()
            if child == 0:
                os._exit(count(where[1]))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert count(where[1]) >= 2
        worker.kill()
        worker.wait()
    """
    ended = alone(program)
    assert ended.returncode == 0, ended.output


def test_many_processes_may_come_at_once() -> None:
    from rueda.launcher.strangers import MAX_PENDING

    size = 50
    with elastic.Reception(size, interface="127.0.0.1") as reception, ExitStack() as links:
        where = reception._listener.getsockname()
        come = [
            links.enter_context(socket.create_connection(where)) for _ in range(MAX_PENDING + size)
        ]
        time.sleep(0.5)
        closed, _, _ = select.select(come, [], [], 0)
        assert not closed


def test_who_had_to_make_room_for_others_comes_again(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
from rueda.launcher.nodes import admission
be_admitted, times = admission.be_admitted, []
def make_room(*told):
    times.append(told)
    if len(times) < 3:
        raise ConnectionResetError("it has closed the connection")
    return be_admitted(*told)
admission.be_admitted = make_room
with rueda.world(rank, size, address):
    print(len(times), rueda.allreduce(np.ones(1), "one", rueda.Sum)[0], flush=True)
"""
    )
    with Engine(program, 2, tmp_path) as engine:
        assert [each.output for each in engine.ended()] == ["3 2.0\n"] * 2


def test_a_reception_that_has_ended_is_not_waited_for() -> None:
    with elastic.Reception(1, interface="127.0.0.1") as reception:
        pass
    begun = time.monotonic()
    with pytest.raises(InitializationError, match="cannot be reached: Connection refused"):
        check_in(meeting_of(0, 1, str(reception.address)), 0)
    assert time.monotonic() - begun < 30


def test_who_does_not_know_the_secret_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with elastic.Reception(1, interface="127.0.0.1") as reception:
        with socket.create_connection(reception._listener.getsockname()) as link:
            link.sendall(b"hello\n")
            assert link.recv(1) == b""
        deadline = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    assert caplog.messages == [
        "the reception rejected a connection from 127.0.0.1 that does not know the secret in its address"
    ]


def test_a_process_that_can_start_no_thread_cannot_wait_to_join(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with (
        pytest.raises(InitializationError, match=r"needs a thread.*can't start new thread"),
        still_waiting(Attendance()),
    ):
        pass
