"""Rueda's compression as a communication hook of DistributedDataParallel."""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from rueda.torch.compression import Compression, Compressor, require_compressor

__all__ = ["compression_hook"]

# No `from __future__ import annotations`: DistributedDataParallel checks the annotations of its hooks.


def compression_hook(
    compressor: Compressor = Compression.bf16,
) -> Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]:
    """Returns a hook that compresses gradients with ``compressor`` and averages them over the group.

    The hook's state is the process group, ``None`` for the default one. Works with any backend. Raises
    :class:`rueda.InvalidArgumentError` for what is not a compressor, such as the name of a codec.

    Example::

        >>> dist.init_process_group("rueda", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        >>> model.register_comm_hook(None, rueda.torch.c10d.compression_hook(rueda.torch.Compression.fp16))
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> dist.destroy_process_group()
    """
    require_compressor(compressor)

    def hook(
        group: dist.ProcessGroup | None, bucket: GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        used = group if group is not None else dist.group.WORLD
        assert used is not None, "there is no process group"
        flat = bucket.buffer()
        # Divide first: a sum of 16-bit floats could overflow even if the average does not.
        compressed, dtype = compressor.compress(flat.div_(used.size()))
        work = dist.all_reduce(compressed, group=used, async_op=True)
        assert work is not None

        def decompress(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced: torch.Tensor = future.value()[0]
            if reduced is flat:
                return flat
            return flat.copy_(compressor.decompress(reduced, dtype))

        return cast("torch.futures.Future[torch.Tensor]", work.get_future().then(decompress))

    return hook
