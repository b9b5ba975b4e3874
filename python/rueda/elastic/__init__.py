"""Jobs whose ranks come and go while they train.

Started with ``rueda run --min-np 2 --max-np 8``, a job goes on without ranks that are lost, and takes in processes that
the launcher starts in their place or on new hosts. :func:`steps` is a training loop that does all of it, and
:class:`StepSampler` deals out its data. :func:`run` calls a function that begins anew from the last commit of a
:class:`State`. :func:`update`, with :func:`rueda.recover`, is what other loops are made of. Horovod's ``hvd.elastic``
is built on the same. Where something else starts the processes, a :class:`Reception` has the launcher's part.
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
