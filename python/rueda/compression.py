"""Codecs with which an allreduce sends fewer bytes, with a known error.

Every rank encodes its values of segments that other ranks own. A segment's owner decodes and adds them in float32, in
rank order, and encodes the sum once. All ranks decode that one encoding, so they hold the same bits. Each value is
rounded at most twice, regardless of the number of ranks. docs/compression.md has figures.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rueda.adapter import Refusal

__all__ = ["BFloat16", "Codec", "Float16", "Int8", "RandomK", "TopK"]


@dataclass(frozen=True)
class Codec:
    """Base class of all codecs; use a subclass, or its name as a string.

    Sums and averages of floating-point arrays on the CPU can be compressed; arrays of integers, booleans and complex
    numbers are sent uncompressed. If a codec finds a NaN, an infinity or a number that it cannot represent, on one rank
    or in the sum, every rank raises :class:`rueda.InvalidArgumentError` with the ``reason`` ``"not_finite"``. The
    result is then undefined, and the world continues.

    Example::

        >>> from rueda.compression import Codec, TopK
        >>> isinstance(TopK(0.001), Codec)
        True
    """

    code: ClassVar[int] = 0  # the value in rueda::CodecKind
    name: ClassVar[str] = "none"

    @property
    def fraction_sent(self) -> float:
        """The fraction of the elements that a sparse codec sends; 0 for other codecs."""
        return 0.0


@dataclass(frozen=True)
class Float16(Codec):
    """Each element as IEEE half precision: ``"fp16"``, 16 bits.

    y = round(x) to 11 significant bits; magnitudes above 65504 are an error. |y - x| <= max(2^-11 |x|, 2^-25) for each
    of the two roundings. No memory beyond chunks in flight. Micikevicius et al., "Mixed precision training", ICLR 2018,
    section 3.

    Example::

        >>> rueda.allreduce(np.array([1.0, 0.1], np.float32), compression="fp16").tolist()
        [1.0, 0.0999755859375]
    """

    code: ClassVar[int] = 1
    name: ClassVar[str] = "fp16"


@dataclass(frozen=True)
class BFloat16(Codec):
    """Each element as the upper half of a float32: ``"bf16"``, 16 bits.

    y = round(x) to 8 significant bits, with the range of float32. |y - x| <= 2^-8 |x| for each of the two roundings. No
    memory beyond chunks in flight. Kalamkar et al., "A study of bfloat16 for deep learning training", 2019, section 3.

    Example::

        >>> rueda.allreduce(np.array([1.0, 0.1], np.float32), compression="bf16").tolist()
        [1.0, 0.10009765625]
    """

    code: ClassVar[int] = 2
    name: ClassVar[str] = "bf16"


@dataclass(frozen=True)
class Int8(Codec):
    """Blocks of 128 elements as 8-bit integers with a common scale: ``"int8"``, 8.125 bits.

    With M the largest magnitude in the block, s = M / 127 rounded up to a bfloat16 and q = round(x / s): y = s q.
    |y - x| <= s / 2 <= M / 254 (1 + 2^-7) for each of the two roundings. On Student-t noise with 3 degrees of freedom
    the mean squared error of a sum over 4 ranks is 2.9e-4 of its mean square, on normal noise 7.4e-5. With a scale per
    block, an outlier costs only its own block precision: Dettmers et al., "8-bit optimizers via block-wise
    quantization", ICLR 2022, section 2. Each value is quantised once per direction, not once per hop: Wang et al.,
    "ZeRO++", 2023, section 3.3. No memory beyond chunks in flight.

    Example::

        >>> rueda.allreduce(np.array([127.0, 50.2], np.float32), compression="int8")
        array([127.,  50.], dtype=float32)
    """

    code: ClassVar[int] = 3
    name: ClassVar[str] = "int8"


@dataclass(frozen=True)
class _Sparse(Codec):
    fraction: float = 0.01

    @property
    def fraction_sent(self) -> float:
        return self.fraction


@dataclass(frozen=True)
class TopK(_Sparse):
    """Only the elements with the largest magnitudes: ``"topk"``, or ``"topk:0.001"`` for that fraction of them.

    From each run of up to 65,536 elements, sends the k = ceil(fraction · elements) with the largest magnitude and their
    positions: 48 bits each. The rest is lost, at most (1 - fraction) of the sum of squares, unless error feedback
    carries it over to the next call, as DistributedOptimizer() does: e' = x + e - y. The owner's sum has at most k
    elements from each rank and is sent without further loss. Aji and Heafield, "Sparse communication for distributed
    gradient descent", EMNLP 2017; Stich et al., "Sparsified SGD with memory", NeurIPS 2018, section 2; Lin et al.,
    "Deep gradient compression", ICLR 2018, section 3.1. Memory: 4 bytes per element with error feedback. From a
    fraction of 2/3 on, all elements are sent.

    Example::

        >>> rueda.allreduce(np.array([3.0, 0.1, -4.0, 0.2, 0.1], np.float32), compression="topk:0.4")
        array([ 3.,  0., -4.,  0.,  0.], dtype=float32)
    """

    code: ClassVar[int] = 4
    name: ClassVar[str] = "topk"


@dataclass(frozen=True)
class RandomK(_Sparse):
    """Randomly chosen elements: ``"randomk"``, or ``"randomk:0.001"`` for that fraction of them.

    Splits a run into k = ceil(fraction · elements) equal parts and sends one element of each, chosen by ``seed``: 48
    bits each. Ranks with the same seed choose the same elements, so the sum is as small as each rank's part. Use a new
    seed for each call, as DiLoCo and DistributedOptimizer() do; the latter also keeps what is lost as for
    :class:`TopK`. Expected loss: (1 - fraction) of the sum of squares. Stich et al., "Sparsified SGD with memory",
    NeurIPS 2018, definition 2.2. Memory: 4 bytes per element with error feedback.

    Example::

        >>> from rueda.compression import RandomK
        >>> some = rueda.allreduce(np.ones(1000, np.float32), compression=RandomK(0.01, seed=7))
        >>> int(np.count_nonzero(some))
        10
    """

    seed: int = 0
    code: ClassVar[int] = 5
    name: ClassVar[str] = "randomk"


class Feedback(NamedTuple):
    """Error feedback for one operation: the address of its residual (float32) and the seed that selects elements.

    With momentum correction, also the address of the accumulated momentum.
    """

    residual: int = 0  # address; 0 for none
    seed: int = 0
    owner: object = None  # keeps the memory alive
    velocity: int = 0  # address; 0 for none
    momentum: float = 0.0


_makers: dict[str, Callable[..., Codec]] = {
    "fp16": Float16,
    "bf16": BFloat16,
    "int8": Int8,
    "topk": TopK,
    "randomk": RandomK,
    # The names that the core's error messages use.
    "top_k": TopK,
    "random_k": RandomK,
}


def named_codec(spec: object) -> Codec | None:
    """The codec that a string such as ``"topk:0.01"`` names, or ``spec`` itself if it is a codec; ``None`` for none.

    Raises ValueError for anything else.
    """
    if spec is None or isinstance(spec, Codec):
        return _checked(spec)
    if not isinstance(spec, str):
        hint = "; give 'fp16' or 'bf16', for example" if hasattr(spec, "decompress") else ""
        raise ValueError(f"compression={spec!r} is neither a codec nor the name of one{hint}")
    if spec == "none":
        return None
    name, colon, fraction = spec.partition(":")
    maker = _makers.get(name)
    if maker is None or (colon and maker not in (TopK, RandomK)):
        raise ValueError(
            f"compression={spec!r} is not one of fp16, bf16, int8, topk, topk:FRACTION, "
            "randomk, randomk:FRACTION"
        )
    if not colon:
        return maker()
    try:
        return _checked(maker(float(fraction)))
    except ValueError:
        raise ValueError(
            f"compression={spec!r}: {fraction!r} is not a fraction above 0 and at most 1"
        ) from None


def _checked(codec: Codec | None) -> Codec | None:
    if isinstance(codec, _Sparse):
        try:
            is_right = bool(0 < codec.fraction <= 1)
        except (TypeError, ValueError):
            is_right = False
        if not is_right:
            raise ValueError(f"compression={codec!r}: the fraction is not above 0 and at most 1")
    if isinstance(codec, RandomK):
        try:
            operator.index(codec.seed)
        except TypeError:
            raise ValueError(f"compression={codec!r}: the seed is not a whole number") from None
    return codec


def codec_of(spec: object) -> tuple[int, float, int]:
    """Number, fraction and seed of a codec, as the core takes them. Raises Refusal."""
    if spec is None:
        return 0, 0.0, 0
    try:
        codec = named_codec(spec)
    except ValueError as error:
        raise Refusal(str(error)) from None
    if codec is None:
        return 0, 0.0, 0
    # Converted to a Python int: NumPy's integers have 64 bits and a sign.
    seed = operator.index(codec.seed) if isinstance(codec, RandomK) else 0
    return codec.code, float(codec.fraction_sent), seed & (1 << 64) - 1
