"""How gradients are encoded for transfer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch

from rueda.arguments import shown, whole_number
from rueda.compression import Codec, RandomK, TopK, named_codec
from rueda.errors import InvalidArgumentError
from rueda.submission import NO_WIRE
from rueda.torch.differences import difference
from rueda.torch.tensors import code_of

__all__ = [
    "Compression",
    "CompressionPolicy",
    "Compressor",
    "may_lie_in_buckets",
    "options_of",
    "policy_of",
    "require_compressor",
    "require_no_momentum",
    "require_same_options",
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
        """The tensor to reduce, ``tensor`` itself or a new one, and the context that decompress() needs."""

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
    """Sends floating-point numbers with 16 bits each, other tensors unchanged."""

    def __init__(self, wire: torch.dtype) -> None:
        self.wire = wire

    def __repr__(self) -> str:
        return "Compression.fp16" if self.wire == torch.float16 else "Compression.bf16"

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.to(self.wire) if tensor.is_floating_point() else tensor), tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


def wire_of(compressor: Compressor) -> int:
    """The element type in which float32 and float64 are sent, if that conversion is all that the compressor does."""
    if not isinstance(compressor, _Narrow):
        return NO_WIRE
    code = code_of(compressor.wire)
    assert code is not None
    return code


def may_lie_in_buckets(compressor: Compressor) -> bool:
    """Whether several gradients packed into one tensor can be sent with this compressor."""
    return isinstance(compressor, _Plain | _Narrow)


class Compression:
    """The compressors to choose from.

    ``none`` sends gradients unchanged; ``fp16`` and ``bf16`` halve the bytes of float32. fp16 keeps 11 significant
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

# Smaller gradients are not worth the conversion, and small tensors such as biases and norms often suffer most.
MIN_ELEMENTS = 1024

# Where warm-up begins, and the number of stages in which the fraction decreases: ranks agree again for each.
WARM_UP_FRACTION = 0.25
WARM_UP_STAGES = 4


@dataclass(frozen=True, init=False)
class CompressionPolicy:
    """Which codec compresses which parameter's gradient.

    - ``rules``: shell-style patterns of parameter names, each with a codec of :mod:`rueda.compression`, its name, or
      ``None`` for no compression. The first pattern that matches applies; parameters that match none are not
      compressed. A codec or its name instead of rules applies to all parameters. Codecs are for dense gradients: sparse
      ones are sent as rows, uncompressed.
    - ``min_elements``: gradients with fewer elements are not compressed.
    - ``error_feedback``: adds what a codec loses of a gradient to the parameter's next gradient, e' = x + e - y
      (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019, algorithm 2); sparse codecs need this. It costs 4
      bytes per element of the compressed parameters, stored in the optimizer's state_dict(). By default for sparse
      codecs only: the others lose too little.
    - ``momentum``: m of momentum correction, in place of the optimizer's own momentum, or Adam's first beta, which must
      be 0. Compresses u' = m u + x, and sets u to 0 for elements that have been sent. Where no sparse codec with error
      feedback compresses, u is formed after the reduction, as the optimizer would. Costs 4 bytes per element of all
      parameters.
    - ``warm_up_steps``: over this many steps, the fraction of sparse codecs decreases from 0.25 to its final value in
      four stages.
    - ``clip_norm`` c: scales each gradient that is compressed down to a norm of at most c / sqrt(ranks), before
      anything is added to it.

    The policy must be the same on every rank, which the first step checks.

    ``momentum``, ``warm_up_steps`` and ``clip_norm`` are from Lin et al., "Deep gradient compression", ICLR 2018,
    sections 3.1 to 3.3, equations 4 and 5.

    Example::

        >>> policy = rueda.torch.CompressionPolicy({"*.bias": None, "decoder.*": "topk:0.01", "*": "int8"})
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
        least_size = whole_number("min_elements", min_elements, 0)
        steps = whole_number("warm_up_steps", warm_up_steps, 0)
        factor = _number("momentum", momentum)
        norm = None if clip_norm is None else _number("clip_norm", clip_norm)
        for option, is_right, bounds in (
            (f"momentum={factor}", 0 <= factor < 1, "at least 0 and below 1"),
            (f"clip_norm={norm}", norm is None or norm > 0, "above 0"),
        ):
            if not is_right:
                raise InvalidArgumentError(f"{option} of a CompressionPolicy is not {bounds}")
        # As the class is frozen, so that it can be compared, copied and sent.
        object.__setattr__(self, "rules", named)
        object.__setattr__(self, "min_elements", least_size)
        object.__setattr__(self, "error_feedback", error_feedback)
        object.__setattr__(self, "momentum", factor)
        object.__setattr__(self, "warm_up_steps", steps)
        object.__setattr__(self, "clip_norm", norm)

    def codec_for(self, name: str, elements: int) -> Codec | None:
        """The codec for a parameter; ``None`` if its gradient is not compressed."""
        if elements < self.min_elements:
            return None
        return next((codec for pattern, codec in self.rules if fnmatchcase(name, pattern)), None)

    def keeps_residual(self, codec: Codec) -> bool:
        """Whether the loss of this codec is kept for the next step."""
        return codec.fraction_sent > 0 if self.error_feedback is None else self.error_feedback

    def corrects_momentum(self, codec: Codec | None) -> bool:
        """Whether momentum is accumulated before this codec compresses, not after the reduction."""
        return (
            self.momentum > 0
            and codec is not None
            and codec.fraction_sent > 0
            and self.keeps_residual(codec)
        )

    def codec_at(self, codec: Codec | None, step: int) -> Codec | None:
        """A parameter's codec in a given step: during warm-up, a sparse codec sends more."""
        if not isinstance(codec, TopK | RandomK) or step >= self.warm_up_steps:
            return codec
        stage = WARM_UP_STAGES * step // self.warm_up_steps
        first = max(WARM_UP_FRACTION, codec.fraction)
        return replace(codec, fraction=first * (codec.fraction / first) ** (stage / WARM_UP_STAGES))


def _named(rules: Rules | Codec | str) -> tuple[tuple[str, Codec | None], ...]:
    """The rules with codecs instead of names. Raises InvalidArgumentError for invalid rules."""
    if isinstance(rules, str | Codec):
        rules = {"*": rules}
    try:
        pairs = [tuple(pair) for pair in (rules.items() if isinstance(rules, Mapping) else rules)]
    except TypeError:
        pairs = [()]
    if not all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise InvalidArgumentError(
            f"{rules!r} are not rules of a CompressionPolicy: give a codec, or patterns of parameters' names, each "
            'with its codec: {"*.bias": None, "*": "int8"}'
        )
    try:
        return tuple((pattern, named_codec(codec)) for pattern, codec in pairs)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def _number(option: str, value: object) -> float:
    """A finite number. Raises InvalidArgumentError."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgumentError(
            f"{option}={shown(value)} of a CompressionPolicy is not a finite number"
        )
    return number


def require_no_momentum(
    policy: CompressionPolicy | None, groups: Iterable[Mapping[str, Any]]
) -> None:
    """Raises InvalidArgumentError if both the policy and an optimizer with these ``param_groups`` have momentum."""
    if policy is None or policy.momentum == 0:
        return
    for group in groups:
        betas = group.get("betas")
        own = {"momentum": group.get("momentum"), "betas[0]": betas[0] if betas else None}
        for option, value in own.items():
            if value:
                raise InvalidArgumentError(
                    f"momentum={policy.momentum} of the compression replaces the optimizer's momentum, which must be "
                    f"0: it has {option}={value}"
                )


def options_of(policy: CompressionPolicy | None) -> dict[str, str]:
    """What ranks compare of their policies: a text for each option."""
    if policy is None:
        return {"rules": "none"}
    return {option.name: repr(getattr(policy, option.name)) for option in fields(policy)}


def require_same_options(name: str, told: Sequence[tuple[int, Mapping[str, str]]]) -> None:
    """Raises the same MismatchError on every rank if their policies for the gradients ``name`` differ.

    ``told``: each rank's number and options_of().
    """
    for option in told[0][1]:
        given = [(rank, options[option]) for rank, options in told]
        if len({value for _, value in given}) > 1:
            raise difference(name, f"'{name}': {option} of the compression", option, given)


def require_compressor(compression: object) -> None:
    """Raises InvalidArgumentError for a codec, its name and anything else that does not compress in Python."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise InvalidArgumentError(
            f"compression={shown(compression)} is not a compressor: give Compression.fp16, Compression.bf16 or your "
            "own; codecs such as 'int8' are for rueda.torch.allreduce() and DistributedOptimizer()"
        )


def policy_of(compression: object) -> tuple[Compressor, CompressionPolicy | None]:
    """Splits DistributedOptimizer()'s argument into what compresses in Python and what the core compresses.

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
            f"compression={compression!r} is neither a codec, nor rules for codecs, nor a compressor"
        )
    return compression, None
