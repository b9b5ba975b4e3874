"""The table of `make demo` reports what does not hold."""

import importlib.util
import sys

import numpy as np
import pytest

from .conftest import ROOT


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples/python/demo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo"]


WEIGHT = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
COUNTERS = {
    "allreduce_tensors": 80,
    "allreduce_batches": 10,
    "allreduce_ring_steps": 60,
    "allreduce_tensor_bytes": 4000,
    "allreduce_payload_bytes_sent": 6000,
}


def archive(**changes):
    values = {"accuracy": 0.98, "0.weight": WEIGHT} | COUNTERS | changes
    return {name: np.asarray(value) for name, value in values.items()}


def broken(lines):
    return [line.name for line in lines if not line.holds]


def test_a_right_training_holds(demo):
    assert not broken(demo.compare(archive(), [archive()] * 4))
    assert not broken(demo.count([archive()] * 4))


def test_another_accuracy_does_not(demo):
    ranks = [archive()] * 3 + [archive(accuracy=0.97)]
    assert broken(demo.compare(archive(), ranks)) == ["test accuracy, 4 ranks"]


def test_a_training_that_learns_nothing_does_not(demo):
    lines = demo.compare(archive(accuracy=0.1), [archive(accuracy=0.1)] * 4)
    assert broken(lines) == ["test accuracy, 1 rank"]


def test_other_parameters_do_not(demo):
    ranks = [archive(**{"0.weight": WEIGHT + np.float32(0.01)})] * 4
    assert broken(demo.compare(archive(), ranks)) == ["largest parameter difference, 1 to 4 ranks"]


def test_parameters_that_are_not_numbers_do_not(demo):
    """A NaN in one parameter, correct values in the next."""
    single = archive(**{"2.weight": WEIGHT})
    ranks = [archive(**{"0.weight": WEIGHT * np.float32("nan"), "2.weight": WEIGHT})] * 4
    assert broken(demo.compare(single, ranks)) == ["largest parameter difference, 1 to 4 ranks"]


def test_one_other_bit_on_one_rank_does_not(demo):
    other = np.nextafter(WEIGHT, np.float32(2))
    ranks = [archive()] * 3 + [archive(**{"0.weight": other})]
    assert broken(demo.compare(archive(), ranks)) == ["hash of the parameters' bits, 4 ranks"]


@pytest.mark.parametrize("counter", sorted(COUNTERS))
def test_a_counter_that_differs_does_not(demo, counter):
    assert broken(demo.count([archive()] * 3 + [archive(**{counter: COUNTERS[counter] + 4})]))


@pytest.mark.parametrize("counter", sorted(COUNTERS))
def test_counters_that_are_zero_do_not(demo, counter):
    assert broken(demo.count([archive(**{counter: 0})] * 4))
