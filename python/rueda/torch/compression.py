"""What gradients look like on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

import torch

from rueda.compression import Codec, RandomK, TopK, named_codec
from rueda.errors import InvalidArgumentError
from rueda.submission import NO_WIRE
from rueda.torch.tensors import code_of

__all__ = [
    "Compression",
    "CompressionPolicy",
    "Compressor",
    "may_lie_in_buckets",
    "policy_of",
    "wire_of",
]


class Compressor(Protocol):
    """Converts a tensor into the form that is reduced in its place, and back.

    Example::

        >>> class Halved:
        ...     def compress(self, tensor):
        ...         return tensor / 2, tensor.dtype
        ...     def decompress(self, tensor, dtype):
        ...         return (tensor * 2).to(dtype)
        >>> Halved().compress(torch.ones(2))
        (tensor([0.5000, 0.5000]), torch.float32)
    """

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor to reduce, ``tensor`` itself or a new one, and what decompress() has to know."""

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The reduced tensor as ``dtype``, ``tensor`` itself or a new one."""


class _Plain:
    """Sends the tensor as it is."""

    def __repr__(self) -> str:
        return "Compression.none"

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return tensor, tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor


class _Narrow:
    """Sends floating-point numbers with 16 bits each; other tensors as they are."""

    def __init__(self, wire: torch.dtype) -> None:
        self.wire = wire

    def __repr__(self) -> str:
        return "Compression.fp16" if self.wire == torch.float16 else "Compression.bf16"

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.to(self.wire) if tensor.is_floating_point() else tensor), tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


def wire_of(compressor: Compressor) -> int:
    """As which element type float32 and float64 travel, where no more than that has to be done to them."""
    if not isinstance(compressor, _Narrow):
        return NO_WIRE
    code = code_of(compressor.wire)
    assert code is not None
    return code


def may_lie_in_buckets(compressor: Compressor) -> bool:
    """Whether gradients side by side can be sent as one tensor."""
    return isinstance(compressor, _Plain | _Narrow)


class Compression:
    """The compressors to choose from.

    ``none`` sends gradients as they are; ``fp16`` and ``bf16`` halve the bytes of float32. fp16 keeps 11 significant
    bits and overflows above 65504; bf16 keeps 8 and the range of float32. Sums are formed in float32 and rounded once
    per hop.

    Example::

        >>> wire, dtype = rueda.torch.Compression.bf16.compress(torch.ones(2))
        >>> wire.dtype, dtype
        (torch.bfloat16, torch.float32)
    """

    none: Compressor = _Plain()
    fp16: Compressor = _Narrow(torch.float16)
    bf16: Compressor = _Narrow(torch.bfloat16)


Rules = Mapping[str, Codec | str | None] | Iterable[tuple[str, Codec | str | None]]

# Less is not worth the conversion, and small tensors are often the ones that suffer: biases, norms.
MIN_ELEMENTS = 1024

# Of which warming up begins, and in how many stages the fraction comes down: each is another one for the ranks to
# agree on.
WARM_UP_FRACTION = 0.25
WARM_UP_STAGES = 4


@dataclass(frozen=True, init=False)
class CompressionPolicy:
    """Which codec compresses which parameter's gradient.

    - ``rules``: patterns of parameters' names, as for the shell, each with a codec of :mod:`rueda.compression`, its
      name, or ``None`` for no compression. The first pattern that fits counts; parameters that none fits are
      not compressed. A codec or its name in their place is for all parameters.
    - ``min_elements``: gradients of fewer elements are not compressed.
    - ``error_feedback``: what a codec loses of a gradient is added to the parameter's next gradient, e' = x + e - y
      (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019, algorithm 2), which sparse codecs need. It costs
      4 bytes for each element of the compressed parameters, which the optimizer's state_dict() holds. By default for
      sparse codecs only: the others lose too little.
    - ``momentum``: m of momentum correction, in the place of the optimizer's own, which has to be 0. What is compressed
      is u' = m u + x, and u is set to 0 where an element has been sent; where no sparse codec with error feedback
      compresses, u is formed after the reduction, as the optimizer would. 4 bytes for each element of all parameters.
    - ``warm_up_steps``: so many steps begin with a fraction of 0.25 for sparse codecs and come down to theirs in four
      stages.
    - ``clip_norm`` c: each gradient that is compressed is scaled down, before anything is added to it, to a norm of
      c / sqrt(ranks).

    The last three are of Lin et al., "Deep gradient compression", ICLR 2018, sections 3.1 to 3.3 and equations 4 and 5.

    Example::

        >>> policy = rueda.torch.CompressionPolicy({"*.bias": None, "embedding.*": "topk:0.01", "*": "int8"})
        >>> policy.codec_for("fc.weight", 4096)
        Int8()
        >>> policy.codec_for("fc.bias", 4096) is None
        True
    """

    rules: tuple[tuple[str, Codec | None], ...]
    min_elements: int
    error_feedback: bool | None
    momentum: float
    warm_up_steps: int
    clip_norm: float | None

    def __init__(
        self,
        rules: Rules | Codec | str,
        min_elements: int = MIN_ELEMENTS,
        error_feedback: bool | None = None,
        momentum: float = 0.0,
        warm_up_steps: int = 0,
        clip_norm: float | None = None,
    ) -> None:
        named = _named(rules)
        for option, is_right, bounds in (
            (f"momentum={momentum!r}", 0 <= momentum < 1, "is at least 0 and below 1"),
            (f"warm_up_steps={warm_up_steps!r}", warm_up_steps >= 0, "is at least 0"),
            (f"clip_norm={clip_norm!r}", clip_norm is None or clip_norm > 0, "is above 0"),
        ):
            if not is_right:
                raise InvalidArgumentError(f"{option} of a CompressionPolicy {bounds}")
        # As the class is frozen: it may be compared, copied and sent.
        object.__setattr__(self, "rules", named)
        object.__setattr__(self, "min_elements", min_elements)
        object.__setattr__(self, "error_feedback", error_feedback)
        object.__setattr__(self, "momentum", float(momentum))
        object.__setattr__(self, "warm_up_steps", int(warm_up_steps))
        object.__setattr__(self, "clip_norm", clip_norm)

    def codec_for(self, name: str, elements: int) -> Codec | None:
        """The codec for a parameter; ``None`` where its gradient travels as it is."""
        if elements < self.min_elements:
            return None
        return next((codec for pattern, codec in self.rules if fnmatchcase(name, pattern)), None)

    def keeps_residual(self, codec: Codec) -> bool:
        """Whether what this codec loses is kept for the next step."""
        return codec.fraction_sent > 0 if self.error_feedback is None else self.error_feedback

    def corrects_momentum(self, codec: Codec | None) -> bool:
        """Whether momentum is gathered before this codec compresses, and not after the reduction."""
        return (
            self.momentum > 0
            and codec is not None
            and codec.fraction_sent > 0
            and self.keeps_residual(codec)
        )

    def codec_at(self, codec: Codec | None, step: int) -> Codec | None:
        """What a parameter's codec is in a step: while it warms up, a sparse one sends more."""
        if not isinstance(codec, TopK | RandomK) or step >= self.warm_up_steps:
            return codec
        stage = WARM_UP_STAGES * step // self.warm_up_steps
        first = max(WARM_UP_FRACTION, codec.fraction)
        return replace(codec, fraction=first * (codec.fraction / first) ** (stage / WARM_UP_STAGES))


def _named(rules: Rules | Codec | str) -> tuple[tuple[str, Codec | None], ...]:
    """The rules with codecs in the place of their names. Raises InvalidArgumentError for what are no rules."""
    if isinstance(rules, str | Codec):
        rules = {"*": rules}
    try:
        pairs = [tuple(pair) for pair in (rules.items() if isinstance(rules, Mapping) else rules)]
    except TypeError:
        pairs = [()]
    if not all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise InvalidArgumentError(
            f"{rules!r} are no rules of a CompressionPolicy: give a codec, or patterns of parameters' names, each with "
            'its codec: {"*.bias": None, "*": "int8"}'
        )
    try:
        return tuple((pattern, named_codec(codec)) for pattern, codec in pairs)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def policy_of(compression: object) -> tuple[Compressor, CompressionPolicy | None]:
    """What DistributedOptimizer() was given, as what compresses in Python and what the core compresses.

    Raises InvalidArgumentError.
    """
    if isinstance(compression, CompressionPolicy):
        return Compression.none, compression
    if compression is None:
        return Compression.none, None
    if isinstance(compression, str | Codec | Mapping | list | tuple):
        return Compression.none, CompressionPolicy(compression)
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise InvalidArgumentError(
            f"compression={compression!r} is no codec, no rules for codecs and no compressor"
        )
    return compression, None
