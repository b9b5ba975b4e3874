"""Rueda as a backend of ``torch.distributed``: importing this module registers it.

Example::

    import torch.distributed as dist
    import rueda.torch.c10d

    dist.init_process_group("rueda")
    model = torch.nn.parallel.DistributedDataParallel(model)

Works under ``torchrun``, ``mpirun`` and ``rueda run``; ``docs/torch-distributed.md`` lists what is supported
and what is not.
"""

from rueda.torch.c10d.bootstrap import register
from rueda.torch.c10d.hooks import compression_hook
from rueda.torch.c10d.process_group import RuedaProcessGroup
from rueda.torch.c10d.reconfiguring import Options, ReconfigurableGroup, ReconfigureOptions
from rueda.torch.c10d.renewing import renew_process_group, typed_errors

__all__ = [
    "Options",
    "ReconfigurableGroup",
    "ReconfigureOptions",
    "RuedaProcessGroup",
    "compression_hook",
    "renew_process_group",
    "typed_errors",
]

register()
