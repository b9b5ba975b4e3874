"""Out of GPU memory, owners of caches are asked to release them; on a double of the CUDA driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import alone

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = ROOT / "build" / "release" / "tests" / "doubles" / "cuda" / "libcuda.so.1"

# The double has 1 GiB at most. The tensor is not touched: there is no room for the result.
PROGRAM = """
import rueda
from rueda import _native, dtypes

asked = []

def release(device):
    asked.append(device)
    {then}

rueda.init()
_native.set_memory_release(release)
handle = _native.allgather(4096, (1 << 40,), dtypes.code_of("uint8"), "large", 0, device=0)
try:
    handle.check()
except rueda.RuedaError as error:
    print("refused:", error)
print("asked for", asked)
_native.allgather(4096, (0,), dtypes.code_of("uint8"), "large", 0, device=0).check()
print("still works")
"""


@pytest.mark.skipif(not DOUBLE.exists(), reason=f"there is no {DOUBLE}")
@pytest.mark.parametrize("then", ["pass", "raise ValueError('not now')"])
def test_memory_is_asked_for_once_before_an_operation_fails(then: str) -> None:
    ended = alone(PROGRAM.format(then=then), {"RUEDA_CUDA_LIBRARY": str(DOUBLE)})
    output = ended.output
    assert ended.returncode == 0, output
    assert "refused: 'large': rank 0 has no memory left for it" in output, output
    assert f"allocating {1 << 40} bytes" in output, output
    assert "still works" in output, output
    assert "asked for [0]" in output, output
    assert ("not now" in output) == ("not now" in then), output


def test_the_application_is_not_asked_once_it_has_ended() -> None:
    ended = alone(
        """
        import rueda
        from rueda import _native

        rueda.init()
        _native.set_memory_release(lambda device: None)
        print("ends")
        """
    )
    assert ended.returncode == 0, ended.output
    assert ended.output.strip() == "ends", ended.output
