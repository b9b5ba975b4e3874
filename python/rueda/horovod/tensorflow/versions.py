"""Which TensorFlow :mod:`rueda.horovod.tensorflow` can work with."""

from __future__ import annotations

import re

__all__ = ["check_version"]


def check_version(version: str) -> None:
    """Raises ImportError, in one sentence, for a TensorFlow whose ``tf.keras`` is not Keras 3 (before 2.16)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not (2, 16) <= (int(found[1]), int(found[2])) < (3, 0):
        raise ImportError(
            f"rueda.horovod.tensorflow needs TensorFlow 2.16 or newer, below 3, and TensorFlow {version} is installed: "
            f"pip install 'tensorflow>=2.16,<3'",
            name="tensorflow",
        )
