"""Strategies in training on digits or text, and the example of a custom strategy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from launching import check

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "strategies"
MEASURE = BENCHMARKS / "measure.py"
EXAMPLE = ROOT / "examples" / "python" / "strategies.py"


@pytest.fixture(autouse=True)
def _libraries() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")


def test_digits_are_learnt_with_fewer_bytes() -> None:
    """After 8 epochs, 93 to 97% if it works (seeds differ by a point), and 10% if not."""
    runs = ["alone", "sync@8", "local:16", "diloco:16,codec=int8", "adpsgd:4"]
    output = check(
        MEASURE, 2, ["--seeds", "1", "--epochs", "8", *runs], {"RUEDA_ALGORITHM": "ring"}
    )[0].output
    rows = re.findall(
        r"^\| `([^`]+)` \| ([\d.]+) ± nan \|.*\| ([\d,]+) \| [\d.,]* \|$", output, re.M
    )
    found = {name: (float(accuracy), int(sent.replace(",", ""))) for name, accuracy, sent in rows}
    assert list(found) == runs, output
    assert all(accuracy > 85 for accuracy, _ in found.values()), output
    assert abs(found["sync@8"][0] - found["alone"][0]) < 1, output  # identical global batches
    every_step = found["sync@8"][1] / 2  # half as many steps with batches of 16
    assert found["local:16"][1] < every_step / 15
    assert found["diloco:16,codec=int8"][1] < every_step / 55


def test_a_strategy_of_ones_own_decides_alike_on_all_ranks() -> None:
    output = check(EXAMPLE, 3, ["--epochs", "6"])[0].output
    told = re.search(r"test accuracy ([\d.]+) %\naveraged (\d+) times in (\d+) steps", output)
    assert told, output
    accuracy, averaged, steps = float(told[1]), int(told[2]), int(told[3])
    assert accuracy > 75, output
    assert 0 < averaged <= steps // 4, output


def test_rounds_in_one_process_are_of_strategies_that_it_can_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A strategy that exchanges before steps, or not by averages, would train without exchanges."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import text_rounds  # which needs torch

    small = ["--steps", "8", "--width", "8", "--context", "8", "--batch", "1", "--ranks", "2"]
    taken = ["local:2", "diloco:4,fragments=2", "desloc:2,2,4"]
    ended = CliRunner().invoke(text_rounds.main, [*small, *taken])
    assert ended.exit_code == 0, ended.output
    losses = re.findall(r"^\| `([^`]+)` \|(?: \d\.\d{4}[^|]*\|){8}$", ended.output, re.M)
    assert losses == ["sync", *taken], ended.output
    for refused in ("easgd:2", "noloco:2", "oneshot", "downpour:1"):
        ended = CliRunner().invoke(text_rounds.main, [*small, refused])
        assert ended.exit_code == 2, ended.output
        assert f"'{refused}' exchanges otherwise" in ended.output
    for refused, why in (
        ("diloco:4,codec=int8", "has a codec"),
        ("local:0", "period=0 of LocalSGD"),
        ("diloco:4,fragments=99", "more than the"),
        ("lokal:2", "did you mean 'local'?"),
    ):
        ended = CliRunner().invoke(text_rounds.main, [*small, refused])
        assert ended.exit_code == 2, ended.output
        assert why in ended.output
        assert "| run |" not in ended.output, "told after the baseline was trained"


def test_the_launcher_knows_the_names_of_all_strategies() -> None:
    from rueda.equivalence.strategy_names import NAMES
    from rueda.torch.strategies import Strategy, parse_strategy

    kinds = {type(parse_strategy(name)) for name in NAMES - {"local", "postlocal"}}
    shipped = set()
    ancestors = [Strategy]
    while ancestors:
        kind = ancestors.pop()
        ancestors += kind.__subclasses__()
        if kind.__module__.startswith("rueda.") and kind.name:
            shipped.add(kind)
    assert {kind.name for kind in shipped} <= NAMES
    assert kinds <= shipped
