"""Allreduces that run many times on the same tensor: negotiated once, then only executed."""

from __future__ import annotations

import torch

from rueda import _native
from rueda.adapter import Refusal, View
from rueda.arguments import factor_of, reduction_of, text_of
from rueda.errors import InvalidArgumentError, RuedaError
from rueda.lifecycle import world_number
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set, identify
from rueda.submission import refuse
from rueda.torch.compiling import never_compiled
from rueda.torch.compression import Compression, Compressor, may_lie_in_buckets, wire_of
from rueda.torch.tensors import TorchAdapter

__all__ = ["PersistentAllreduce"]

_adapter = TorchAdapter(gpus=True)


@never_compiled
class PersistentAllreduce:
    """Reduces ``tensor`` over the ranks whenever it is started; every rank gets the same bits.

    The constructor is collective over ``process_set``: every rank calls it with a tensor of the same shape and dtype
    and the same arguments. The ranks negotiate only then, not for a run. On one host a run goes through shared memory
    in the calling thread, the fastest way to reduce a small tensor, unless ``RUEDA_ALGORITHM`` asks for the ring. On
    GPUs with NCCL it is enqueued on the current stream, even if that is being captured into a CUDA graph
    (``docs/gpu.md`` says what to keep in mind). Elsewhere it is like :func:`rueda.torch.allreduce_async_`.

    ``tensor``: dense and contiguous, of any shape; reduced in place, unless ``output``, a tensor of the same kind,
    takes the result. Both must keep their memory. ``op``: by default the average. ``name`` matches the operation across
    ranks; unnamed ones match by their number. ``prescale_factor`` multiplies each rank's input, ``postscale_factor``
    the result. ``compression``: of :class:`rueda.torch.Compression`; on GPUs, float32 and float64 elements are
    converted for the transfer.

    Between :meth:`start` and :meth:`wait` the tensors must not be accessed, except by work that is enqueued on the
    GPU's stream after the start, which sees the result. A run must be waited for before the next one. All ranks must
    start the operations of a process set in the same order.

    When a rank is lost, or the world changes in another way, it belongs to an earlier world: create it again.

    Dropping one during a run finishes that, for which it waits up to 5 s: the other ranks count on this one's part. It
    then waits until no rank uses its tensors any more. Graphs that contain it must be gone by then, and a run that has
    not been waited for has no result.

    Raises :class:`rueda.MismatchError` if ranks differ in dtype, shape, op or factors;
    :class:`rueda.UnsupportedError` for an unsupported dtype, an op that is undefined for it, and, on the CPU, for
    ``compression``; :class:`rueda.InvalidArgumentError` on every rank if one rank's tensor is not contiguous;
    :class:`rueda.StalledError`, :class:`rueda.PeerLostError` and :class:`rueda.ShutdownError`.

    Example::

        >>> loss = torch.zeros(1)
        >>> operation = rueda.torch.PersistentAllreduce(loss, op=rueda.Sum, name="loss")
        >>> for step in range(3):
        ...     _ = loss.fill_(step)
        ...     operation.start()
        ...     operation.wait()
        >>> loss  # of one rank
        tensor([2.])
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        output: torch.Tensor | None = None,
        *,
        op: ReduceOp = Average,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: Compressor = Compression.none,
    ) -> None:
        try:
            source, target = _views(tensor, output)
            if not may_lie_in_buckets(compression):
                raise Refusal(f"compression={compression!r} is not one of rueda.torch.Compression")
            arguments = (
                source.pointer,
                target.pointer,
                source.shape,
                source.dtype,
                text_of(name),
                reduction_of(op),
                factor_of(prescale_factor),
                factor_of(postscale_factor),
                identify(process_set),
                wire_of(compression),
                source.device,
                source.stream,
            )
        except Refusal as refusal:
            refuse(name, process_set, refusal).result()
            raise AssertionError("a refusal is an error") from refusal
        self._called = (
            "a persistent allreduce" if name is None else f"the persistent allreduce {name!r}"
        )
        self._world = world_number()
        # Before its tensors, so that it is destroyed first: that waits for all users of the tensors.
        self._operation = _native.PersistentAllreduce(*arguments)
        self._tensors = (tensor, output)
        self._views = (source, target)  # keep the memory alive
        self._device = tensor.device if tensor.is_cuda else None
        # What each start looks at, without the calls that would take as long as a small run.
        self._used = [
            (each, view.shape, view.pointer)
            for each, view in zip(self._tensors, self._views, strict=True)
            if each is not None
        ]
        # Autograd keeps no version of a tensor that was made in inference mode.
        self._written = None if self.output.is_inference() else self.output

    @property
    def output(self) -> torch.Tensor:
        """The tensor that takes the result.

        Example::

            >>> loss = torch.ones(1)
            >>> rueda.torch.PersistentAllreduce(loss).output is loss
            True
        """
        tensor, output = self._tensors
        return tensor if output is None else output

    def start(self) -> None:
        """Begins a run. The tensor must be ready; on a GPU, after the work enqueued so far on the current stream.

        Does not wait for the result, but on a GPU until NCCL has enqueued the run; before the first run it connects all
        ranks. A signal handler that raises meanwhile ends the call; :meth:`wait` then does the rest.

        Raises :class:`rueda.InvalidArgumentError` if the last run has not been waited for, the tensor was given other
        memory, or the operation belongs to an earlier world; :class:`rueda.UnsupportedError` if the current stream is
        being captured into a CUDA graph and runs go through host memory (``RUEDA_GPU_BACKEND`` is ``staged``, ranks
        share a GPU, or there is no NCCL); :class:`rueda.PeerLostError` and :class:`rueda.ShutdownError` once the world
        has broken or ended.

        Example::

            >>> gradient = torch.tensor([1.0, 2.0])
            >>> operation = rueda.torch.PersistentAllreduce(gradient)
            >>> operation.start()
            >>> operation.wait()
            >>> gradient
            tensor([1., 2.])
        """
        for tensor, shape, pointer in self._used:
            if tensor.data_ptr() != pointer or tensor.shape != shape:
                self._raise_change()
        if self._written is not None:
            torch.autograd.graph.increment_version(self._written)
        device = self._device
        stream = 0 if device is None else torch.cuda.current_stream(device).cuda_stream
        try:
            self._operation.start(stream)
        except RuedaError:
            self._require_its_world()
            raise

    def _require_its_world(self) -> None:
        if self._world != world_number():
            raise InvalidArgumentError(
                f"{self._called} belongs to an earlier world: create it again"
            )

    def _raise_change(self) -> None:
        for tensor, view in zip(self._tensors, self._views, strict=True):
            change = None if tensor is None else _adapter.change_of(tensor, view)
            if change is not None:
                raise InvalidArgumentError(
                    f"a tensor of a persistent allreduce {change}: it must keep its memory"
                )

    def done(self) -> bool:
        """Advances the run without blocking; returns whether its result is ready, and then raises as :meth:`wait`.

        On a GPU with NCCL it always is: the stream does the rest.

        Example::

            >>> operation = rueda.torch.PersistentAllreduce(torch.ones(1))
            >>> operation.start()
            >>> while not operation.done():
            ...     pass
        """
        try:
            return self._operation.done()
        except RuedaError:
            self._require_its_world()
            raise

    def wait(self) -> None:
        """Blocks until the result is ready; on a GPU, until all is enqueued, and the start's stream sees the result.

        Raises :class:`rueda.PeerLostError`, :class:`rueda.TimeoutError` with the ranks that have not started the run,
        :class:`rueda.ShutdownError`, and :class:`rueda.InvalidArgumentError` for a run of an earlier world.

        Example::

            >>> operation = rueda.torch.PersistentAllreduce(torch.ones(1))
            >>> operation.start()
            >>> operation.wait()
        """
        try:
            self._operation.wait()
        except RuedaError:
            self._require_its_world()
            raise


def _views(tensor: torch.Tensor, output: torch.Tensor | None) -> tuple[View, View]:
    """Views of the tensor that is read and the one that is written. Raises Refusal."""
    _, source = _adapter.write(tensor)
    if output is None:
        return source, source
    _, target = _adapter.write(output)
    if (source.shape, source.dtype, source.device) != (target.shape, target.dtype, target.device):
        raise Refusal(
            f"the output of shape {list(target.shape)}, {output.dtype} on '{output.device}' does not match the tensor "
            f"of shape {list(source.shape)}, {tensor.dtype} on '{tensor.device}'"
        )
    return source, target
