"""Stall reports for tensors that some ranks do not submit: where those ranks are."""

from __future__ import annotations

import queue
import re
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from launching import Job
from rueda.whereabouts import describe_place

# Rank 0 waits again and again; something different holds up each of the others.
TRAIN = """\
import ctypes, os, queue, threading, time
import numpy as np, rueda

def wait_for_the_others():
    while True:
        try:
            rueda.allreduce(np.ones(3), name="gradient")
        except rueda.StalledError as error:
            print("told:", error, flush=True)

def load_batch():
    time.sleep(600)  # sleeps

def wait_for_data():
    queue.Queue().get()  # waits

def hold_the_gil():
    ctypes.PyDLL(None).sleep(600)

def compute():
    while True: pass  # computes

def wait_for_another():
    while True:
        try:
            rueda.allreduce(np.ones(3), name="other")  # is elsewhere
        except rueda.StalledError:
            pass

def load_batch_in_a_thread():
    load_batch()  # in a thread

def train():
    rueda.init()
    acts[rueda.rank()]()  # step

acts = [wait_for_the_others, load_batch, wait_for_data, hold_the_gil, compute, wait_for_another,
        load_batch_in_a_thread]
if os.environ["RUEDA_RANK"] == "6":
    threading.Thread(target=train, name="trainer").start()
    threading.Event().wait()
train()
"""


def line_with(mark: str) -> int:
    """The number of the only line with this comment."""
    (number,) = (n for n, line in enumerate(TRAIN.splitlines(), 1) if line.endswith(f"# {mark}"))
    return number


def test_a_stall_names_the_line_of_each_missing_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    called = f"called from train.py:{line_with('step')} in train"
    expected = [
        "missing on ranks 1-6; rank 1 is ",
        f"; rank 1 is at train.py:{line_with('sleeps')} in load_batch, {called};",
        f"; rank 2 is at train.py:{line_with('waits')} in wait_for_data (in queue.py:",
        " in get, then threading.py:",
        "; rank 3 is in code that has not let go of Python's GIL for ",
        f"; rank 4 is at train.py:{line_with('computes')} in compute, {called};",
        f"; rank 5 is at train.py:{line_with('is elsewhere')} in wait_for_another (in rueda/",
        f"; rank 6 is at train.py:{line_with('sleeps')} in load_batch, called from train.py:"
        f"{line_with('in a thread')} in load_batch_in_a_thread in thread 'trainer'",
    ]
    with Job(script, 7, extra={"RUEDA_STALL_WARNING": "1", "RUEDA_STALL_ERROR": "2"}) as job:
        # On a busy machine a rank may answer too late for one report, and in time for the next.
        deadline = time.monotonic() + 120
        missing = {(kind, text) for kind in ("warning: 'gradient'", "told: ") for text in expected}
        while missing and time.monotonic() < deadline:
            time.sleep(0.1)
            reports = job.output(0).splitlines()
            missing = {(k, t) for k, t in missing if not any(k in r and t in r for r in reports)}
        assert not missing, f"{missing}\n{job.report()}"


# Each rank receives what the other has not sent; rank 0 sends it once its own wait has been reported twice. Rank 1 may
# wait long.
EXCHANGE = """\
import numpy as np, rueda
from rueda.messages import Messages
from rueda.numpy_arrays import NumpyAdapter

def wait_for_rank_0():
    messages = Messages(NumpyAdapter())
    messages.recv(np.zeros(3), 0, 1, rueda.global_process_set, may_wait_long=True).result()

rueda.init()
if rueda.rank() == 0:
    awaited = rueda.recv_async(np.zeros(3), source_rank=1, tag=2)
    while rueda.metrics()["stall_warnings"] < 2:  # on a busy machine the first may come without an answer
        awaited.wait(0.05)
    rueda.send(np.ones(3), target_rank=1, tag=1)
    awaited.result()
else:
    wait_for_rank_0()
    rueda.send(np.ones(3), target_rank=0, tag=2)
"""


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_message_that_waits_names_the_line_of_the_other_rank(
    tmp_path: Path, transport: str
) -> None:
    script = tmp_path / "exchange.py"
    script.write_text(EXCHANGE)
    extra = {"RUEDA_STALL_WARNING": "0.5", "RUEDA_TRANSPORT": transport}
    with Job(script, 2, extra=extra) as job:
        assert all(ended.returncode == 0 for ended in job.wait()), job.report()
        assert re.search(
            r"warning: a message of 3 x float64 from rank 1 to rank 0 with tag 2 has waited for [\d.]+ s: "
            r"rank 0 receives it, rank 1 has not sent it; rank 1 is at exchange\.py:\d+ in ",
            job.output(0),
        ), job.report()
        assert "has waited" not in job.output(1), job.report()


def test_signals_do_not_keep_a_rank_from_telling_where_it_is() -> None:
    """Those that the application handles, such as a profiler's timer, may arrive in any thread."""
    program = """
        import signal, threading, time
        import numpy as np, rueda
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        rueda.init()
        if rueda.rank() == 1:
            (telling,) = [each for each in threading.enumerate() if each.name == "rueda-where"]
            for number in range(200):
                if telling.is_alive():
                    kind = signal.SIGALRM if number % 2 else signal.SIGUSR1
                    signal.pthread_kill(telling.ident, kind)
                    time.sleep(0.001)
            assert telling.is_alive()
            threading.Event().wait()
        while True:
            try:
                rueda.allreduce(np.ones(3), name="gradient")
            except rueda.StalledError as error:
                print("told:", error, flush=True)
    """
    with Job(program, 2, extra={"RUEDA_STALL_WARNING": "1", "RUEDA_STALL_ERROR": "2"}) as job:
        # On a busy machine a rank may answer too late for one report, and in time for the next.
        job.wait_for_output(0, "rank 1 is at <string>:", 120)


def test_the_applications_line_is_told_before_those_of_libraries() -> None:
    waiting: queue.Queue[None] = queue.Queue()

    def wait() -> None:
        waiting.get()

    thread = threading.Thread(target=wait)
    thread.start()
    text = ""
    deadline = time.monotonic() + 60
    try:
        while ", then threading.py:" not in text and time.monotonic() < deadline:
            text = describe_place(sys._current_frames()[thread.ident or 0])
    finally:
        waiting.put(None)
        thread.join()
    assert re.fullmatch(
        r"at \S*test_stalls.py:\d+ in wait \(in queue.py:\d+ in get, then threading.py:\d+ in wait\)",
        text,
    )


def test_where_there_are_only_libraries_the_innermost_line_is_told() -> None:
    frames: list[FrameType] = []
    file = f"{sysconfig.get_path('stdlib')}/package/made_up.py"
    names: dict[str, Any] = {"sys": sys, "frames": frames}
    exec(compile("def act():\n frames.append(sys._getframe())", file, "exec"), names)
    thread = threading.Thread(target=names["act"])
    thread.start()
    thread.join()
    assert describe_place(frames[0]) == "at package/made_up.py:2 in act"


# A receive that stays open while the ranks are busy with something else.
BUSY = """\
import numpy as np, rueda

rueda.init()
awaited = rueda.recv_async(np.zeros(3), source_rank=1 - rueda.rank())
numbers = np.zeros(1)
for _ in range(5000):
    rueda.allreduce_(numbers, name="x")
print("woken in vain:", rueda.metrics()["idle_wakeups"], flush=True)
rueda.send(numbers.repeat(3), target_rank=1 - rueda.rank())
awaited.result()
"""


def test_an_open_receive_wakes_nobody_while_other_calls_go_on(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    with Job(script, 2) as job:
        assert all(ended.returncode == 0 for ended in job.wait()), job.report()
        for rank in range(2):
            (woken,) = re.findall(r"woken in vain: (\d+)", job.output(rank))
            assert int(woken) < 50, job.report()
