"""``python -m rueda.horovod.runner.call``: a rank of ``horovod.run()``."""

from __future__ import annotations

import os

import cloudpickle

from rueda.engines.exits import as_exception, without_exit
from rueda.engines.pickling import pickled
from rueda.failures import report
from rueda.horovod.runner.desk import deliver, fetch, take_address

# Set by Rueda's own launcher, Open MPI and MPICH.
_RANK_VARIABLES = ("RUEDA_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def main() -> None:
    """Fetches the function, calls it, and delivers its result or its exception, which it also re-raises."""
    told = take_address()
    rank = int(next(filter(None, map(os.environ.get, _RANK_VARIABLES))) or 0)
    content = fetch(told)
    try:
        func, args, kwargs = cloudpickle.loads(content)
        returned = without_exit(func, *args, **kwargs)
        outcome = pickled(cloudpickle.dumps, f"what rank {rank} returns", returned)
    except BaseException as error:
        deliver(told, rank, cloudpickle.dumps(report(rank, as_exception(error), cloudpickle)))
        raise
    deliver(told, rank, outcome)


if __name__ == "__main__":
    main()
