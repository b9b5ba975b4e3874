"""The adapter for torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from rueda import _native, dtypes
from rueda.adapter import Refusal, View, Views, unusable
from rueda.operations import ReduceOp
from rueda.process_sets import ProcessSet, arrival, require_process_set
from rueda.torch.device_choice import look_at_choice

__all__ = [
    "TorchAdapter",
    "code_of",
    "current_stream",
    "increment_versions",
    "is_without_memory",
    "reduce_now",
    "usual_code_of",
    "usual_memory_of",
    "usual_view_of",
    "usual_views_of",
    "version_of",
]

_codes: dict[torch.dtype, int] = {
    getattr(torch, name): code
    for code, name in enumerate(dtypes.names())
    if hasattr(torch, name)  # torch before 2.3 has no uint16, uint32 and uint64
}


def _release_memory(device: int) -> None:
    """Returns the GPU memory that torch's allocator caches without using it to the driver."""
    with torch.cuda.device(device):
        torch.cuda.empty_cache()


# Called when Rueda needs GPU memory and there is none.
if torch.version.cuda is not None:
    _native.set_memory_release(_release_memory)


def code_of(dtype: torch.dtype) -> int | None:
    """Number of the element type, or ``None`` if Rueda does not support it."""
    return _codes.get(dtype)


def is_without_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor's address has no elements: it wraps another tensor (DTensor), or its storage was freed.

    To the core, address 0 means a rank that contributes nothing.
    """
    return tensor.data_ptr() == 0 and tensor.numel() > 0


# Types whose tensors cannot be lazy conjugates.
_real_codes = {dtype: code for dtype, code in _codes.items() if not dtype.is_complex}
_plain_types = (torch.Tensor, torch.nn.Parameter)


def usual_code_of(tensor: torch.Tensor) -> int | None:
    """Number of the element type of a tensor that can be used in place; ``None`` if it must be examined."""
    if type(tensor) not in _plain_types or tensor.layout is not torch.strided:
        return None
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return None
    return _real_codes.get(tensor.dtype)


def usual_memory_of(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """Address, number of elements and element type of a tensor that can be used in place; ``None`` otherwise."""
    code = usual_code_of(tensor)
    if code is None:
        return None
    try:
        pointer, count = tensor.data_ptr(), tensor.shape.numel()
    except RuntimeError:  # from a nested tensor, or one in vmap(); every rank is told later
        return None
    return (pointer, count, code) if pointer != 0 or count == 0 else None


def usual_view_of(tensor: torch.Tensor) -> tuple[torch.Tensor, View] | None:
    """A tensor that can be used in place, without its graph, and its view; ``None`` if it must be examined."""
    code = usual_code_of(tensor)
    if code is None:
        return None
    try:
        detached = tensor.detach()
        pointer, shape = detached.data_ptr(), detached.shape
    except RuntimeError:  # as above
        return None
    if pointer == 0 and is_without_memory(detached):
        return None
    return detached, View(pointer, shape, code, detached)


def usual_views_of(tensors: Sequence[torch.Tensor], gpus: bool = False) -> Views | None:
    """Views of tensors usable in place, all on the CPU or, with ``gpus``, on one GPU; ``None`` to examine each."""
    codes = []
    on_gpu = 0
    try:
        for tensor in tensors:
            if type(tensor) not in _plain_types or tensor.layout is not torch.strided:
                return None
            if not tensor.is_contiguous() or tensor.is_neg():
                return None
            if not tensor.is_cpu:
                if not gpus or not tensor.is_cuda or torch.version.hip is not None:
                    return None
                on_gpu += 1
            code = _real_codes.get(tensor.dtype)
            if code is None:
                return None
            codes.append(code)
        owners = [tensor.detach() for tensor in tensors]
        pointers = [owner.data_ptr() for owner in owners]
        shapes = [owner.shape for owner in owners]
    except RuntimeError:  # as above
        return None
    if 0 < on_gpu < len(codes):
        return None
    sizes = [owner.nbytes for owner in owners]
    if 0 in pointers and any(size > 0 for at, size in zip(pointers, sizes, strict=True) if at == 0):
        return None
    if on_gpu == 0:
        return Views(pointers, shapes, codes, sizes, owners)
    devices = {owner.get_device() for owner in owners}
    if len(devices) > 1:
        return None
    device = devices.pop()
    look_at_choice(device)
    stream = current_stream(device)
    follow = partial(_follow, device, stream)
    return Views(pointers, shapes, codes, sizes, owners, device, stream, follow)


def reduce_now(
    source: torch.Tensor,
    target: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> bool:
    """All-reduces ``source`` into ``target``, which has the same shape and type and may be the same tensor.

    Returns False, without having done anything, if this is not a common case.
    """
    code = usual_code_of(source)
    if code is None or arrival.place:
        return False
    try:
        shape, pointer = source.shape, source.data_ptr()
    except RuntimeError:  # from a nested tensor, or one in vmap(); every rank is told later
        return False
    if pointer == 0 and is_without_memory(source):
        return False
    try:  # a check costs more
        set_id = process_set.process_set_id
    except AttributeError:
        require_process_set(process_set)
        raise
    if source is target and not target.is_inference():
        torch.autograd.graph.increment_version(target)
    return _native.allreduce_memory(
        source,
        target,
        pointer,
        pointer if source is target else target.data_ptr(),
        shape,
        code,
        name,
        op,
        prescale,
        postscale,
        set_id,
        None,
        0.0,
    )


def _takes_several() -> bool:
    """Whether this torch version increments several tensors' versions in one call."""
    try:
        torch.autograd.graph.increment_version([torch.empty(0, device="cpu")])
    except (AttributeError, TypeError):
        return False
    return True


_counts_together = _takes_several()


def increment_versions(tensors: Sequence[torch.Tensor]) -> None:
    """Tells autograd that all of them have been written."""
    if _counts_together:
        torch.autograd.graph.increment_version(tensors)
        return
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd has been told that the tensor was written; always 0 in inference mode."""
    try:
        return tensor._version
    except RuntimeError:
        return 0


class TorchAdapter:
    """Dense tensors on the CPU and, with ``gpus``, on CUDA devices; without a copy if they are contiguous."""

    def __init__(self, gpus: bool = False) -> None:
        self._gpus = gpus

    def read(self, array: object) -> tuple[torch.Tensor, View]:
        """See Adapter."""
        usual = usual_view_of(array)  # type: ignore[arg-type]  # looks at the type itself
        if usual is not None:
            return usual
        try:
            tensor = self.dense(array).resolve_conj().resolve_neg().contiguous()
            return tensor, _view(tensor)
        except Exception as error:
            raise unusable(array, error) from None

    def write(self, array: object) -> tuple[torch.Tensor, View]:
        """See Adapter."""
        tensor = self.dense(array)
        try:
            if not tensor.is_contiguous():
                raise Refusal(
                    f"the tensor of shape {list(tensor.shape)} is not contiguous (strides "
                    f"{list(tensor.stride())}): use the operation that is not in place, or .contiguous()"
                )
            if tensor.is_conj() or tensor.is_neg():
                raise Refusal(
                    "the tensor is a lazy conjugate: use resolve_conj() and resolve_neg() first"
                )
            view = _view(tensor)
        except Exception as error:
            raise unusable(array, error) from None
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
        assert isinstance(array, torch.Tensor)
        return array, view

    def usual_views(self, arrays: Sequence[torch.Tensor], to_write: bool) -> Views | None:
        """See Adapter."""
        views = usual_views_of(arrays, self._gpus)
        if views is not None and to_write:
            increment_versions([each for each in arrays if not each.is_inference()])
        return views

    def are_unchanged(self, arrays: Sequence[torch.Tensor], views: Views) -> bool:
        """See Adapter."""
        return [array.data_ptr() for array in arrays] == views.pointers and [
            array.shape for array in arrays
        ] == views.shapes

    def change_of(self, array: torch.Tensor, view: View) -> str | None:
        """See Adapter."""
        if array.shape != view.shape:
            return f"was resized from {list(view.shape)} to {list(array.shape)}"
        return None if array.data_ptr() == view.pointer else "was given other memory, or none"

    def empty_like(self, array: torch.Tensor) -> torch.Tensor:
        """See Adapter."""
        try:
            return torch.empty(array.shape, dtype=array.dtype, device=array.device)
        except Exception as error:  # such as a GPU without room
            raise unusable(array, error) from None

    def copy(self, array: object) -> torch.Tensor:
        """See Adapter."""
        tensor = self.dense(array)
        try:
            _view(tensor)
            return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        except Exception as error:
            raise unusable(array, error) from None

    def from_memory(
        self, memory: _native.Memory, shape: list[int], like: torch.Tensor
    ) -> torch.Tensor:
        """See Adapter."""
        with self.lent(memory, shape, like) as tensor:
            # record_stream() and CUDA graphs ignore memory that is not torch's: the result is copied, on the GPU, into
            # an ordinary tensor.
            return tensor.clone() if like.is_cuda else tensor

    @contextmanager
    def lent(
        self, memory: _native.Memory, shape: list[int], like: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """A result as a tensor, to be copied within the block. On a GPU it is freed afterwards."""
        if len(memory) == 0:
            yield torch.empty(shape, dtype=like.dtype, device=like.device)
        elif like.is_cuda:
            raw = torch.as_tensor(_OnGpu(memory), device=like.device)
            try:
                yield raw.view(like.dtype).view(shape)
            finally:
                memory.release(current_stream(like.get_device()))
        else:
            yield torch.frombuffer(memory, dtype=like.dtype).view(shape)

    def from_integers(self, values: list[int]) -> torch.Tensor:
        """See Adapter."""
        return torch.tensor(values, dtype=torch.int64, device="cpu")

    def dense(self, array: object) -> torch.Tensor:
        """The tensor without its graph. Raises Refusal if it is not a dense tensor on a supported device."""
        if not isinstance(array, torch.Tensor):
            raise Refusal(f"rueda.torch takes tensors, not a {type(array).__name__}")
        try:
            tensor = array.detach()
        except Exception as error:  # such as a lazy module's parameter
            raise unusable(array, error) from None
        if tensor.is_nested:
            raise Refusal(
                "the tensor is nested, and this operation takes dense ones: give its parts, as unbind() has them",
                unsupported=True,
            )
        if tensor.layout != torch.strided:
            raise Refusal(
                f"the tensor is sparse ({tensor.layout}), and this operation takes dense ones: use to_dense(), "
                f"or sparse_allreduce_async()",
                unsupported=True,
            )
        if tensor.is_cpu or (self._gpus and tensor.is_cuda and torch.version.hip is None):
            return tensor
        where = "of the CPU and of NVIDIA's GPUs" if self._gpus else "of the CPU"
        raise Refusal(
            f"the tensor is on the device '{tensor.device}', and this takes tensors {where} only: use cpu()",
            unsupported=True,
        )


def _slow_current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# torch's documented function creates objects, which takes as long as the rest of a submission. Code generated by the
# torch compiler calls this one.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _slow_current_stream
)
"""The driver's handle of the current stream of a GPU, by the GPU's number."""


def _view(tensor: torch.Tensor) -> View:
    code = _codes.get(tensor.dtype)
    if code is None:
        raise Refusal(
            f"the dtype {tensor.dtype} is not supported; there are {', '.join(dtypes.names())}",
            unsupported=True,
        )
    if is_without_memory(tensor):
        raise Refusal(
            f"the {type(tensor).__name__} of shape {list(tensor.shape)} has no memory of its own: give the tensor that "
            f"it wraps, as to_local() of a DTensor",
            unsupported=True,
        )
    if tensor.is_cpu:
        return View(tensor.data_ptr(), tensor.shape, code, tensor)
    device = tensor.get_device()
    look_at_choice(device)
    stream = current_stream(device)
    return View(
        tensor.data_ptr(),
        tensor.shape,
        code,
        tensor,
        device,
        stream,
        partial(_follow, device, stream),
    )


def _follow(device: int, submitted_on: int, natives: Sequence[_native.Handle]) -> None:
    """Makes streams wait for results: the current one, which will use them, and that of the submission.

    Once the tensors are freed, their memory is reused by the work that the latter enqueues next.
    """
    current = current_stream(device)
    _native.wait_on_all(natives, current)
    if current != submitted_on:
        _native.wait_on_all(natives, submitted_on)


class _OnGpu:
    """GPU memory with https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html."""

    def __init__(self, memory: _native.Memory) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (len(memory),),
            "typestr": "|u1",
            "data": (memory.pointer, False),
            "version": 3,
        }
