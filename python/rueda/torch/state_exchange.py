"""Sends ranks the state of other ranks: from all of these at the same time, compared and verified by digests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch

from rueda.errors import TransportError
from rueda.exchanges import allgather
from rueda.handles import Handle
from rueda.lifecycle import rank
from rueda.messages import Messages
from rueda.objects import allgather_object, broadcast_object
from rueda.process_sets import global_process_set
from rueda.submission import Collectives
from rueda.torch.exchanges import broadcast_async
from rueda.torch.fingerprints import bits_of, numbers_of
from rueda.torch.layouts import fitted, strides_of_parameters
from rueda.torch.model_tensors import caches_in_common, caches_of
from rueda.torch.optimizer_state import load_as_given
from rueda.torch.state import allocated, filled, laid_out_as
from rueda.torch.state_pieces import Piece, TensorState, cut, deal, digest
from rueda.torch.tensors import TorchAdapter

__all__ = ["exchange_state", "give_caches", "received_caches"]

_log = logging.getLogger("rueda")
_collectives = Collectives(TorchAdapter(gpus=True))
_messages = Messages(TorchAdapter())

# Tag of messages with pieces, which no application is likely to use.
_TAG = 0x7275656461737461
# Pieces in flight at the same time.
_WINDOW = 16

# A rank's status for a piece: it keeps its own, it knows its digest, or it has none.
_CONTENT, _KNOWN, _MISSING = range(3)


def received_caches(
    modules: Sequence[torch.nn.Module], sources: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The modules' buffers that are not persistent, each with the value that it is to have here; collective.

    A rank that is not in ``sources`` is to have those of the first source, where it has another value of the same shape
    and dtype. Nothing has been changed yet.
    """
    own = {
        f"{number}.{name}": each
        for number, module in enumerate(modules)
        for name, each in caches_of(module).items()
    }
    caches = caches_in_common(own, "elastic.caches", global_process_set)
    if not caches:
        return []
    numbers = np.array([numbers_of(list(caches.values()))], np.int64)
    table = allgather(numbers, "elastic.caches.numbers")
    handles = [
        (each, broadcast_async(each.detach(), sources[0], f"elastic.cache/{name}"))
        for (name, each), told in zip(caches.items(), table.T, strict=True)
        if (told != told[0]).any()
    ]
    received = [(each, handle.result()) for each, handle in handles]
    return received if rank() not in sources else []


def give_caches(received: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Gives each buffer its value."""
    with torch.no_grad():
        for own, value in received:
            own.copy_(value)


def exchange_state(
    modules: Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | None,
    sources: Sequence[int],
) -> None:
    """Gives every rank the state of ``sources``, ranks whose states are the same; collective over the world.

    Trained parameters and the optimizer's state come from all sources at the same time, a part from each. Other tensors
    of the modules, such as BatchNorm statistics, become those of the first source on every rank. Nothing is sent that a
    rank already has: pieces are first compared by their digests, which also verify what has been received. ``modules``
    and ``optimizer`` must match on all ranks.

    On failure, this rank's state is unchanged. Raises :class:`rueda.PeerLostError`, and
    :class:`rueda.TransportError` on every rank if received bytes differ from those sent.
    """
    plan = _Plan(modules, optimizer, sources)
    received = plan.transfer()
    plan.check(received)
    if plan.is_receiver or received or plan.takes_others:
        plan.apply(received)
    size = sum(content.numel() for content in received.values())
    _log.info("%d bytes of state have come from ranks %s", size, list(sources))


class _Plan:
    """The pieces, and which ranks send and receive them; the same on every rank."""

    def __init__(
        self,
        modules: Sequence[torch.nn.Module],
        optimizer: torch.optim.Optimizer | None,
        sources: Sequence[int],
    ) -> None:
        self._modules = modules
        self._optimizer = optimizer
        state = TensorState(modules, optimizer)
        first = sources[0]
        strides = None if optimizer is None else strides_of_parameters(optimizer)
        self._outline, self._strides, others = broadcast_object(
            (state.outline, strides, state.others), first, "elastic.optimizer"
        )
        self._others: list[dict[str, Any]] = others if rank() != first else [{} for _ in modules]
        known = self._take_outline(state)
        signatures = allgather(np.array([_signature(state)], np.int64), "elastic.signatures")
        # A source with different tensors cannot provide a part.
        sources = [each for each in sources if signatures[each] == signatures[first]]
        self.is_receiver = rank() not in sources
        self._state = state
        self._contents = state.contents()
        self._pieces = cut(state.sizes())
        agreed = state.agreed()
        shares = deal(self._pieces, len(sources))
        self._owners = [
            sources[share] if piece.tensor in agreed else first
            for piece, share in zip(self._pieces, shares, strict=True)
        ]
        own = np.zeros((1, 2, len(self._pieces)), np.int64)
        for number, piece in enumerate(self._pieces):
            is_own = self._owners[number] == rank()
            if is_own or self.is_receiver or piece.tensor not in agreed:
                has = known or piece.tensor < state.of_models()
                own[0, 0, number] = _KNOWN if has else _MISSING
                own[0, 1, number] = digest(piece.of(self._contents)) if has else 0
        table = allgather(own, "elastic.digests")
        columns = np.arange(len(self._pieces))
        self._digests = table[self._owners, 1, columns]
        self._needs = (table[:, 0] == _MISSING) | (
            (table[:, 0] == _KNOWN) & (table[:, 1] != self._digests)
        )

    @property
    def takes_others(self) -> bool:
        """Whether modules have state other than tensors, which this rank gets from the first source."""
        return any(self._others)

    def _take_outline(self, state: TensorState) -> bool:
        """Gives this rank tensors for the optimizer's state; returns whether it already had them."""
        if self._optimizer is None or state.outline is None:
            return True
        before = state.tensors[state.of_models() :]
        fitting = allocated(self._outline, self._optimizer)
        if [_kind(each) for each in before] == [_kind(each) for each in fitting]:
            return True
        state.tensors[state.of_models() :] = fitting
        return False

    def transfer(self) -> dict[int, torch.Tensor]:
        """Sends what is needed; returns the pieces that this rank has received, by number."""
        received: dict[int, torch.Tensor] = {}
        under_way: list[Handle[object]] = []
        scratch: list[torch.Tensor] = []  # for pieces that only others need
        all_on_cpu = all(content.is_cpu for content in self._contents)
        for number, piece in enumerate(self._pieces):
            needing = np.flatnonzero(self._needs[:, number]).tolist()
            owner = self._owners[number]
            if not needing:
                continue
            by_message = all_on_cpu and len(needing) == 1
            if by_message and rank() not in (owner, needing[0]):
                continue
            content = piece.of(self._contents)
            if rank() != owner:
                content = torch.empty_like(content)
                if rank() in needing:
                    received[number] = content
                else:
                    scratch.append(content)
            under_way.append(self._begin(number, piece, content, owner, needing, by_message))
            if len(under_way) == _WINDOW:
                under_way.pop(0).result()
        for handle in under_way:
            handle.result()
        return received

    def _begin(
        self,
        number: int,
        piece: Piece,
        content: torch.Tensor,
        owner: int,
        needing: Sequence[int],
        by_message: bool,
    ) -> Handle[object]:
        handle: Handle[object]
        if not by_message:
            name = f"elastic.piece/{number}"
            handle = _collectives.broadcast(  # type: ignore[assignment]
                content, owner, name, global_process_set, in_place=True
            )
        elif rank() == owner:
            handle = _messages.send(content, needing[0], _TAG, global_process_set)  # type: ignore[assignment]
        else:
            handle = _messages.recv(content, owner, _TAG, global_process_set)  # type: ignore[assignment]
        return handle

    def check(self, received: dict[int, torch.Tensor]) -> None:
        """Compares received pieces with their owners' digests; collective."""
        wrong = [n for n, content in received.items() if digest(content) != self._digests[n]]
        told = [
            f"bytes {self._pieces[n].begin} to {self._pieces[n].end} of {self._describe(self._pieces[n].tensor)}, "
            f"which rank {self._owners[n]} has sent to rank {rank()}"
            for n in wrong[:1]
        ]
        problems = [
            each for problems in allgather_object(told, "elastic.checked") for each in problems
        ]
        if problems:
            raise TransportError(
                f"state was corrupted on its way: {'; '.join(problems)}",
                reason="corrupted",
            )

    def _describe(self, number: int) -> str:
        if number >= self._state.of_models():
            return f"tensor {number - self._state.of_models()} of the optimizer's state"
        return f"'{self._state.names[number][1]}'"

    def apply(self, received: dict[int, torch.Tensor]) -> None:
        """Adopts the received pieces."""
        tensors = list(self._state.tensors)
        contents = dict[int, torch.Tensor]()
        for number, content in received.items():
            piece = self._pieces[number]
            if piece.tensor not in contents:
                # Pieces are cut from the elements in row-major order, which is not that of other layouts.
                copy = tensors[piece.tensor].clone(memory_format=torch.contiguous_format)
                tensors[piece.tensor] = copy
                contents[piece.tensor] = bits_of(copy)
            contents[piece.tensor][piece.begin : piece.end].copy_(content)
        for number, module in enumerate(self._modules):
            mine = [n for n, (owner, _) in enumerate(self._state.names) if owner == number]
            others = self._others[number]
            if others or not contents.keys().isdisjoint(mine):
                values = {self._state.names[n][1]: tensors[n] for n in mine}
                module.load_state_dict({**values, **others})
        first = self._state.of_models() - len(self._state.strays)
        for number, stray in enumerate(self._state.strays, first):
            if number in contents:
                with torch.no_grad():
                    stray.copy_(tensors[number])
        # A source has it all; the outline lacks what belongs to each rank, such as what its gradients have lost.
        if self.is_receiver and self._optimizer is not None and self._outline is not None:
            contents.clear()  # views of tensors that are replaced now
            of_optimizer = tensors[self._state.of_models() :]
            del tensors
            laid_out_as(self._outline, of_optimizer)
            state = filled(self._outline, of_optimizer)
            load_as_given(self._optimizer, fitted(state, self._optimizer, self._strides))


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device.type


def _signature(state: TensorState) -> int:
    """Equal if the tensors' shapes and dtypes are equal."""
    return crc32(repr([_kind(tensor)[:2] for tensor in state.tensors]).encode())
