"""Allreduces that run many times on the same tensor: agreed on once, then only run."""

from __future__ import annotations

import torch

from rueda import _native
from rueda.adapter import Refusal, View
from rueda.arguments import factor_of, reduction_of, text_of
from rueda.errors import InvalidArgumentError
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

    Making one is collective over ``process_set``: every rank does so with a tensor of the same shape and dtype and the
    same arguments. The ranks agree then; a run asks nobody. On one host it goes through shared memory in the calling
    thread, the quickest way to reduce a small tensor, unless ``RUEDA_ALGORITHM`` asks for the ring; on GPUs of
    NCCL it is enqueued on the current stream, also where that is being captured into a CUDA graph (``docs/gpu.md``
    tells what has to be kept in mind);
    elsewhere it is like :func:`rueda.torch.allreduce_async_`.

    ``tensor``: dense and contiguous, of any shape; reduced in place, unless ``output``, a tensor that is like it, takes
    the result. Both must keep their memory. ``op``: by default the average. ``name`` matches the operation across
    ranks; unnamed ones match by their number. ``prescale_factor`` multiplies each rank's input, ``postscale_factor``
    the result. ``compression``: of :class:`rueda.torch.Compression`; on GPUs elements of float32 and float64 are
    converted on the way.

    Between :meth:`start` and :meth:`wait` the tensors must not be touched; but what the stream of a GPU enqueues after
    the start finds the result. A run is waited for before the next one. All ranks start the operations of a process
    set in the same order.

    Dropping one waits until no rank touches its tensors any more; graphs that hold it must be gone by then, and a run
    that has not been waited for has no result.

    Raises :class:`rueda.MismatchError` where ranks differ in dtype, shape, op or factors,
    :class:`rueda.UnsupportedError` for a dtype that is not supported, an op that means nothing on it, and on the CPU
    for ``compression``; :class:`rueda.InvalidArgumentError` on every rank where one rank's tensor is not contiguous;
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
        # First, so that it goes first: that waits for whoever touches the tensors.
        self._operation = _native.PersistentAllreduce(*arguments)
        self._tensors = (tensor, output)
        self._views = (source, target)  # what keeps the memory
        self._device = tensor.device if tensor.is_cuda else None

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
        """Begins a run: the tensor is ready, on a GPU by what the current stream has enqueued so far.

        Does not wait for the result, but on a GPU until NCCL has enqueued the run, and before the first one it connects
        all ranks. A signal handler that raises meanwhile ends the call; what is left of it is done by :meth:`wait`.

        Raises :class:`rueda.InvalidArgumentError` where the last run has not been waited for, or the tensor was given
        other memory; :class:`rueda.UnsupportedError` where the current stream is being captured into a CUDA graph and
        runs go through the host's memory (``RUEDA_GPU_BACKEND`` is ``staged``, ranks that share a GPU, no
        NCCL); :class:`rueda.PeerLostError` and :class:`rueda.ShutdownError` once the world is broken or over.

        Example::

            >>> gradient = torch.tensor([1.0, 2.0])
            >>> operation = rueda.torch.PersistentAllreduce(gradient)
            >>> operation.start()
            >>> operation.wait()
            >>> gradient
            tensor([1., 2.])
        """
        for tensor, view in zip(self._tensors, self._views, strict=True):
            change = None if tensor is None else _adapter.change_of(tensor, view)
            if change is not None:
                raise InvalidArgumentError(
                    f"a tensor of a persistent allreduce {change}: it must keep its memory"
                )
        target = self.output
        if not target.is_inference():
            torch.autograd.graph.increment_version(target)
        device = self._device
        stream = 0 if device is None else torch.cuda.current_stream(device).cuda_stream
        self._operation.start(stream)

    def done(self) -> bool:
        """Goes on with the run without blocking, and tells whether its result is there; once it is, as :meth:`wait`.

        On a GPU of NCCL it always is: the stream does the rest.

        Example::

            >>> operation = rueda.torch.PersistentAllreduce(torch.ones(1))
            >>> operation.start()
            >>> while not operation.done():
            ...     pass
        """
        return self._operation.done()

    def wait(self) -> None:
        """Blocks until the result is there; on a GPU until all has been enqueued, and the stream of the start finds it.

        Raises :class:`rueda.PeerLostError`, :class:`rueda.TimeoutError` with the ranks that have not started the run,
        and :class:`rueda.ShutdownError`.

        Example::

            >>> operation = rueda.torch.PersistentAllreduce(torch.ones(1))
            >>> operation.start()
            >>> operation.wait()
        """
        self._operation.wait()


def _views(tensor: torch.Tensor, output: torch.Tensor | None) -> tuple[View, View]:
    """Of the tensor that is read and the one that is written. Raises Refusal."""
    _, source = _adapter.write(tensor)
    if output is None:
        return source, source
    _, target = _adapter.write(output)
    if (source.shape, source.dtype, source.device) != (target.shape, target.dtype, target.device):
        raise Refusal(
            f"the output of shape {list(target.shape)}, {output.dtype} on '{output.device}' is not like the tensor of "
            f"shape {list(source.shape)}, {tensor.dtype} on '{tensor.device}'"
        )
    return source, target
