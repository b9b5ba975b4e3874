"""A tensor in a few numbers: equal bits are seen by one, and the distance of two tensors from the rest.

The sketch of a tensor of n elements are k sums: element i counts in sum i mod k, with a sign drawn at random for i,
the same in all runs. The sum of the squared differences of two sketches is the squared distance of the tensors in the
mean over signs, with a standard deviation of about sqrt(2/k) of it where differences are spread (Charikar, Chen,
Farach-Colton, "Finding frequent items in data streams", 2002; Thorup, Zhang, "Tabulation based 4-universal hashing",
2004). A tensor of at most k elements is its own sketch. All sums are in float64.
"""

from __future__ import annotations

import math
import zlib

import torch

from rueda.equivalence.record_files import MAX_SKETCH
from rueda.torch.fingerprints import number_of

__all__ = ["SKETCH", "Signs", "hash_of", "norm_of", "perturb", "values_of"]

# k: a distance is within 13% of the estimate, in one standard deviation.
SKETCH = MAX_SKETCH


def hash_of(tensor: torch.Tensor) -> int:
    """64 bits that differ where any bit of the tensor does, but for one case in about 2^63."""
    return number_of(tensor)


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as a row of float64 on the CPU."""
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    return flat.to("cpu", torch.float64)


def norm_of(values: torch.Tensor) -> float:
    """Of :func:`values_of` a tensor, of which what is not finite does not count: a mask has no size."""
    norm = float(torch.linalg.vector_norm(values))
    if math.isfinite(norm):
        return norm
    return float(torch.linalg.vector_norm(values[values.isfinite()]))


def _generator(*words: object) -> torch.Generator:
    generator = torch.Generator("cpu")
    generator.manual_seed(zlib.crc32("/".join(map(str, words)).encode()))
    return generator


class Signs:
    """Of one tensor, by its name."""

    def __init__(self, name: str, numel: int) -> None:
        self._numel = numel
        self._signs: torch.Tensor | None = None
        if numel > SKETCH:
            drawn = torch.randint(
                0,
                2,
                (numel,),
                generator=_generator("signs", name),
                dtype=torch.int8,
                device="cpu",
            )
            self._signs = drawn * 2 - 1

    def sketch(self, values: torch.Tensor) -> torch.Tensor:
        """Of :func:`values_of` a tensor."""
        if self._signs is None:
            return values
        rest = -self._numel % SKETCH
        signed = torch.nn.functional.pad(values * self._signs, (0, rest))
        return signed.view(-1, SKETCH).sum(0)


def perturb(tensor: torch.Tensor, *words: object) -> None:
    """Moves each element by one unit in the last place or none, as ``words`` decide: alike on all ranks.

    Of complex numbers both parts. What is not finite, as in a mask, stays as it is.
    """
    if tensor.is_complex():
        plain = tensor.detach()
        tensor = torch.view_as_real(plain.conj() if plain.is_conj() else plain)
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    moves = torch.randint(
        -1,
        2,
        tensor.shape,
        generator=_generator("perturbation", *words),
        dtype=torch.int8,
        device="cpu",
    )
    eps = torch.finfo(tensor.dtype).eps
    with torch.no_grad():
        steps = tensor * moves.to(tensor.device, tensor.dtype) * eps
        tensor.add_(steps.masked_fill_(~tensor.isfinite(), 0))
