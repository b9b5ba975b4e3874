"""malloc's settings for gradients, without any rank."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rueda.heap import HeapLimits, is_user_tuned, limits_for  # noqa: E402

sizes = st.lists(st.integers(1, 1 << 36), max_size=8)

FAULTS = """
import resource, sys, torch
from rueda.torch.gradient_memory import keep_gradients_in_heap
torch.set_num_threads(1)
parameter = torch.nn.Parameter(torch.ones(40 << 18))
print(keep_gradients_in_heap([parameter]), keep_gradients_in_heap([parameter]))
factor = torch.ones(40 << 18)
for _ in range(16):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parameter.grad = None
    (parameter * factor).sum().backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@given(sizes, sizes)
def test_limits_are_raised_to_what_gradients_need(first: list[int], second: list[int]) -> None:
    before = HeapLimits()
    limits = limits_for(first, before)
    most = (1 << 31) - 1  # mallopt()'s maximum
    for limit, old, needed in (
        (limits.mmap_threshold, before.mmap_threshold, max(first, default=0)),
        (limits.trim_threshold, before.trim_threshold, sum(first)),
    ):
        assert old <= limit <= most
        assert limit >= min(needed, most)
    assert limits_for(first, limits) == limits
    more = limits_for(second, limits)
    assert more.mmap_threshold >= limits.mmap_threshold
    assert more.trim_threshold >= limits.trim_threshold


def test_what_glibc_keeps_by_itself_is_left_to_it() -> None:
    assert limits_for([31 << 20], HeapLimits()) == HeapLimits()
    assert limits_for([], HeapLimits()) == HeapLimits()


@pytest.mark.parametrize(
    ("environment", "tuned"),
    [
        ({}, False),
        ({"MALLOC_ARENA_MAX": "2"}, False),
        ({"MALLOC_MMAP_THRESHOLD_": "1"}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, False),
        ({"GLIBC_TUNABLES": "glibc.rtld.nns=2:glibc.malloc.mmap_threshold=1"}, True),
    ],
    ids=str,
)
def test_settings_of_the_user_are_found(environment: dict[str, str], tuned: bool) -> None:
    assert is_user_tuned(environment) == tuned


def run(**extra: str) -> tuple[str, list[int]]:
    clean = {k: v for k, v in os.environ.items() if not is_user_tuned({k: v})}
    ended = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env={**clean, **extra},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    first, *faults = ended.stdout.splitlines()
    return first, [int(line) for line in faults]


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="malloc is not glibc's"
)
def test_most_gradients_made_anew_fault_no_pages() -> None:
    pages = (40 << 20) // os.sysconf("SC_PAGESIZE")
    said, faults = run()
    assert said == "True False"  # raised once
    later = faults[4:]  # occasionally a small allocation occupies the gradient's former place
    assert sum(later) < 3 * len(later) * pages // 4, faults
    said, faults = run(MALLOC_TRIM_THRESHOLD_=str(64 << 20))
    assert said == "False False"
    assert min(faults[3:]) > pages // 2, faults
