"""Rueda as a backend of ``torch.distributed``: importing this module registers it.

Example::

    import torch.distributed as dist
    import rueda.torch.c10d

    dist.init_process_group("rueda")
    model = torch.nn.parallel.DistributedDataParallel(model)

Works under ``torchrun``, ``mpirun`` and ``rueda run``; ``docs/torch-distributed.md`` says what is there
and what is not.
"""

from rueda.torch.c10d.bootstrap import register
from rueda.torch.c10d.hooks import compression_hook
from rueda.torch.c10d.process_group import RuedaProcessGroup

__all__ = ["RuedaProcessGroup", "compression_hook"]

register()
