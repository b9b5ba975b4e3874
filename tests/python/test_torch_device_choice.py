"""A warning for ranks that share a GPU because none was chosen; needs no GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rueda.torch.device_choice import why_shared


@pytest.mark.parametrize(
    ("index", "local_rank", "gpus"),
    [
        (0, 0, 8),  # the first rank's own
        (3, 3, 8),
        (0, 3, 1),  # CUDA_VISIBLE_DEVICES leaves one per rank
        (0, 5, 4),  # too few GPUs
        (2, 1, 8),  # an unusual choice, but a choice
    ],
)
def test_nothing_is_said_where_a_gpu_was_chosen(index: int, local_rank: int, gpus: int) -> None:
    assert why_shared(index, local_rank, gpus) == ""


def test_the_default_gpu_of_a_later_rank_is_named_with_the_remedy() -> None:
    text = why_shared(0, 3, 8)
    assert "local rank 3 uses cuda:0" in text
    assert "sees 8 GPUs" in text
    assert "torch.cuda.set_device(rueda.local_rank())" in text
