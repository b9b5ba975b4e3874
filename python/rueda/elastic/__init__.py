"""Elastic training: jobs whose ranks come and go while they train.

Started with ``rueda run --min-np 2 --max-np 8``, a job continues without ranks that are lost, and admits processes that
the launcher starts as replacements or on new hosts. :func:`steps` is a training loop that does all of it, and
:class:`StepSampler` distributes its data. :func:`run` calls a function that restarts from the last commit of a
:class:`State`. :func:`update` and :func:`rueda.recover` are the building blocks for other loops. Horovod's
``hvd.elastic`` is built on the same. If something else starts the processes, use a :class:`Reception`.
"""

from rueda.elastic.changes import Change, update
from rueda.elastic.reception import Reception
from rueda.elastic.running import run
from rueda.elastic.state import ChangeWanted, State
from rueda.elastic.step_sampler import StepSampler
from rueda.elastic.stepping import Step, steps

__all__ = [
    "Change",
    "ChangeWanted",
    "Reception",
    "State",
    "Step",
    "StepSampler",
    "run",
    "steps",
    "update",
]
