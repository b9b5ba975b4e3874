"""Summarizes a tensor: a hash shows whether bits are equal, and a sketch gives the distance of two tensors.

The sketch of a tensor of n elements consists of k sums: element i is added to sum i mod k, with a random sign for i,
the same in all runs. The sum of the squared differences of two sketches equals the squared distance of the tensors in
expectation over signs, with a relative standard deviation of about sqrt(2/k) if differences are spread (Charikar, Chen,
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

# k: the estimate of a distance has a relative standard deviation of about 13%.
SKETCH = MAX_SKETCH


def hash_of(tensor: torch.Tensor) -> int:
    """64 bits that differ if any bit of the tensor does, except with a probability of about 2^-63."""
    return number_of(tensor)


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as a row of float64 on the CPU."""
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    return flat.to("cpu", torch.float64)


def norm_of(values: torch.Tensor) -> float:
    """The norm of a tensor's :func:`values_of`, without elements that are not finite, such as those of a mask."""
    norm = float(torch.linalg.vector_norm(values))
    if math.isfinite(norm):
        return norm
    return float(torch.linalg.vector_norm(values[values.isfinite()]))


def _generator(*words: object) -> torch.Generator:
    generator = torch.Generator("cpu")
    generator.manual_seed(zlib.crc32("/".join(map(str, words)).encode()))
    return generator


class Signs:
    """The random signs of one tensor, derived from its name."""

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
        """The sketch of a tensor's :func:`values_of`."""
        if self._signs is None:
            return values
        rest = -self._numel % SKETCH
        signed = torch.nn.functional.pad(values * self._signs, (0, rest))
        return signed.view(-1, SKETCH).sum(0)


def perturb(tensor: torch.Tensor, *words: object) -> None:
    """Changes each element by -1, 0 or 1 times eps of itself, as ``words`` determine, alike on all ranks.

    That is at most 2 units in the last place. Both parts of a complex number change. Elements that are not finite, as
    in a mask, do not.
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
