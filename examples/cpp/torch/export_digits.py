"""Writes scikit-learn's handwritten digits to a file for digits.cpp.

    python export_digits.py digits.bin

Each of the 1797 digits takes 65 bytes: 8 x 8 pixels from 0 to 16, row by row, then the label. The order is that of
examples/python/digits.py: the first 360 are the test set.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path)
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    records = np.column_stack([images, labels])[order].astype(np.uint8)
    parser.parse_args().path.write_bytes(records.tobytes())


if __name__ == "__main__":
    main()
