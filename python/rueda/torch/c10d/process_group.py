"""The torch.distributed process group of the backend "rueda"."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import Work

from rueda import _native
from rueda.torch.c10d.all_to_all import AllToAll
from rueda.torch.c10d.barrier import BarrierWork
from rueda.torch.c10d.exchanges import Exchanges
from rueda.torch.c10d.messages import Messages
from rueda.torch.c10d.monitored_barrier import limit_of, monitored_barrier
from rueda.torch.c10d.reductions import Reductions
from rueda.torch.c10d.work import RuedaWork
from rueda.torch.compiling import never_compiled

__all__ = ["RuedaProcessGroup"]


@never_compiled
class RuedaProcessGroup(Reductions, Exchanges, AllToAll, Messages):
    """The backend ``"rueda"``: collectives and messages for tensors on the CPU and on NVIDIA GPUs.

    Created by ``dist.init_process_group("rueda")`` and ``dist.new_group()``; used through the functions of
    ``torch.distributed``, whose documentation describes each. All functions accept any of Rueda's 15 dtypes, any
    strides and zero sizes. If ranks disagree about dtype, shape, operation or reduction, or a rank cannot take part,
    all raise the same :class:`rueda.RuedaError`, and the group stays usable. The collectives on one tensor for all
    ranks (``all_gather_into_tensor``, ``reduce_scatter_tensor``), ``all_to_all`` and messages compare numbers of
    elements instead of shapes. After a timeout
    (:class:`rueda.TimeoutError`) or the loss of a rank (:class:`rueda.PeerLostError`) it does not.

    Example::

        >>> dist.init_process_group("rueda", store=dist.HashStore(), rank=0, world_size=1)
        >>> tensor = torch.ones(2)
        >>> dist.all_reduce(tensor)
        >>> tensor
        tensor([1., 1.])
        >>> dist.destroy_process_group()
    """

    _barriers = 0  # number of monitored barriers so far

    def barrier(  # type: ignore[override]  # both overloads in one
        self, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Completes when every rank of the group has called it, and this rank's earlier collectives have completed.

        Their errors are raised where these are waited for. On a GPU only streams wait for their results.
        Messages are not waited for.
        """
        earlier = self._in_flight()
        set_id = self._membership.set_id
        return self._collective(
            "barrier",
            ("barrier",),
            lambda name: [_native.barrier(name, set_id)],
            lambda _: [],
            None,
            timeout if timeout is not None else opts,
            make=partial(BarrierWork, earlier) if earlier else RuedaWork,
        )

    def get_group_store(self) -> Store:
        """The store through which the group's members have met."""
        return self._store

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier over the store whose error names the missing ranks. Blocks.

        As with gloo, it does not wait for earlier collectives. ``timeout``: the group's by default; zero fails at once
        unless all ranks have come. ``wait_all_ranks``: rank 0 names all missing ranks in its error, not only
        the first. Raises :class:`rueda.TimeoutError` on every rank that has arrived.
        """
        self._require_open()
        number = self._barriers
        self._barriers += 1
        monitored_barrier(
            PrefixStore(f"barrier/{number}/", self._store),
            self.rank(),
            self._membership.ranks,
            limit_of(timeout, self._timeout),
            wait_all_ranks,
        )
