"""Ranks as tasks of Spark 4: Spark feeds them, and reruns all of them together if a worker is lost.

Needs pyspark 4 with pyarrow, which ``import rueda`` does not. docs/spark.md has an example and lists the guarantees.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.spark",
    "pyspark",
    "pyspark",
    (4,),
    "pip install 'pyspark[sql]>=4,<5' and run a Spark of the same version",
    below=5,
)
_needs.require()

from rueda.spark.arrays import arrays  # noqa: E402 - after the check, whose sentence is clearer than what else would fail
from rueda.spark.batches import Batches, InputStatistics  # noqa: E402
from rueda.spark.checkpoints import Checkpoint  # noqa: E402
from rueda.spark.fitting import fit  # noqa: E402
from rueda.spark.prediction import predictor  # noqa: E402
from rueda.spark.running import run  # noqa: E402
from rueda.spark.summaries import Summaries  # noqa: E402

__all__ = [
    "Batches",
    "Checkpoint",
    "InputStatistics",
    "Summaries",
    "arrays",
    "fit",
    "predictor",
    "run",
]
