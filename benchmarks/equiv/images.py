"""scikit-learn's digits, from a file that is made once: importing scikit-learn takes longer than a run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

VARIABLE = "EQUIV_IMAGES"


def prepare(folder: Path) -> Path:
    """Writes the file, 1437 images to train on and 360 to test on, and returns its path."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    path = folder / "digits.npz"
    np.savez(path, x=(images[order] / 16).astype(np.float32), y=labels[order])
    return path


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (n, 64) in 0..1 and labels (n,), first those to train on."""
    path = os.environ.get(VARIABLE)
    if path is None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            return _split(prepare(Path(folder)))
    return _split(Path(path))


def _split(path: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    with np.load(path) as file:
        x, y = torch.tensor(file["x"]), torch.tensor(file["y"])
    return x[360:], y[360:], x[:360], y[:360]
