"""The operators of functional collectives that torch implements without a process group's Python functions.

torch's C++ calls a Python process group only through those functions that its class ``PyProcessGroup`` forwards. The
operators here use others. All other backends' groups get torch's own implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d

from rueda.errors import InvalidArgumentError
from rueda.torch.c10d.process_group import RuedaProcessGroup
from rueda.torch.c10d.registry import register

__all__ = ["implement_operators"]

_NAMESPACE = "_c10d_functional"
_library = torch.library.Library(_NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]


def all_gather_into_tensor_out(
    input: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor
) -> torch.Tensor:
    """Used by Inductor where it joins several all-gathers (``bucket_all_gathers_fx``)."""
    group = _rueda_group(group_name)
    if group is None:
        gathered: torch.Tensor = _torchs("all_gather_into_tensor_out")(
            input, group_size, group_name, out=out
        )
        return gathered
    register(out, group.all_gather_single(out, input))
    return out


def batch_p2p_ops(
    op_list: Sequence[str],
    peer_list: Sequence[int],
    tag_list: Sequence[int],
    tensors: Sequence[torch.Tensor],
    group_name: Any,
) -> list[torch.Tensor]:
    """Compiled code's ``batch_isend_irecv`` (``torch._dynamo.config.enable_p2p_compilation``)."""
    group = _rueda_group(group_name)
    if group is None:
        results: list[torch.Tensor] = _torchs("batch_p2p_ops")(
            op_list, peer_list, tag_list, tensors, group_name
        )
        return results
    results = []
    for what, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        if what == "isend":
            work = group.send([tensor], peer, tag)
            results.append(tensor.new_empty(0))  # only to be waited for
            register(results[-1], work)
        elif what == "irecv":
            work = group.recv([tensor], peer, tag)
            results.append(tensor)
        else:
            raise InvalidArgumentError(f"batch_p2p_ops has no operation {what!r}")
        register(tensor, work)
    return results


def implement_operators() -> None:
    """Makes torch call the functions here."""
    for function in (all_gather_into_tensor_out, batch_p2p_ops):
        if hasattr(getattr(torch.ops, _NAMESPACE), function.__name__):  # not in every version
            for device in ("CPU", "CUDA"):
                _library.impl(function.__name__, function, device)  # type: ignore[no-untyped-call]


def _rueda_group(group: Any) -> RuedaProcessGroup | None:
    """The group of that name, if it is Rueda's. ``group``: may also be the group, in newer torch."""
    resolve: Callable[[Any], Any] = _distributed_c10d._resolve_process_group
    if isinstance(group, str):
        group = resolve(group)
    return group if isinstance(group, RuedaProcessGroup) else None


def _torchs(name: str) -> Callable[..., Any]:
    """The operator's implementation in torch."""
    operator = getattr(getattr(torch.ops, _NAMESPACE), name).default

    def call(*arguments: Any, **keywords: Any) -> Any:
        return operator._op_dk(
            torch._C.DispatchKey.CompositeExplicitAutograd, *arguments, **keywords
        )

    return call
