"""Examples with models of which each rank holds a part."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from launching import check

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def test_a_matrix_is_factorised_by_blocks_that_go_around() -> None:
    """The same bits on any number of ranks, with equal shares; about as accurate as one block."""
    size = ["--rows", "400", "--columns", "400", "--epochs", "60"]
    outputs = {
        ranks: check(EXAMPLES / "matrix_factorisation.py", ranks, [*size, "--blocks", "4"])[
            0
        ].output
        for ranks in (1, 2, 4)
    }
    outputs[0] = check(EXAMPLES / "matrix_factorisation.py", 1, size)[0].output  # a single block
    found = {
        ranks: re.search(r"known ([\d.]+),.*\n.* rank (\d+) of (\d+) bytes, bits (\w+)", output)
        for ranks, output in outputs.items()
    }
    assert all(found.values()), outputs
    bits = {ranks: match[4] for ranks, match in found.items() if match}
    assert bits[1] == bits[2] == bits[4]
    for ranks, match in found.items():
        assert match
        assert int(match[2]) * max(1, ranks) == int(match[3])
    errors = {ranks: float(match[1]) for ranks, match in found.items() if match}
    assert errors[4] == errors[1]
    assert errors[4] < 1.1 * errors[0], errors


@pytest.mark.parametrize(
    "flag", ["--blocks=-2", "--blocks=0", "--rows=0", "--columns=-1", "--epochs=-1"]
)
def test_sizes_of_a_matrix_that_make_no_sense(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["matrix_factorisation.py", flag])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "matrix_factorisation.py"), run_name="__main__")
    assert ended.value.code == 2
    name, value = flag.split("=")
    assert f"argument {name}: {value} is less than " in capsys.readouterr().err


def test_an_embedding_that_no_rank_could_hold() -> None:
    pytest.importorskip("torch")
    output = check(EXAMPLES / "large_embedding.py", 2, ["--steps", "120"])[0].output
    told = re.search(
        r"loss ([\d.]+) at first, ([\d.]+) at the end\n(\d+) rows.*\[(\d+), (\d+)\]", output
    )
    assert told, output
    assert float(told[2]) < float(told[1]) - 0.5
    rows, first, second = int(told[3]), int(told[4]), int(told[5])
    assert first + second == rows
    assert 0.8 < first / second < 1.25
