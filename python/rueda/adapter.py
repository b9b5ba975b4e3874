"""What Rueda needs to know of an array library: where its elements are, and how to make an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from rueda import _native

__all__ = ["Adapter", "Refusal", "View", "Views", "change_among", "unusable"]

A = TypeVar("A")


class Refusal(Exception):
    """This rank cannot use a tensor. Submitted in the tensor's place, so that every rank raises.

    They raise :class:`rueda.UnsupportedError` for a kind of tensor that Rueda does not know, otherwise
    :class:`rueda.InvalidArgumentError`. ``reason`` becomes that of the error.
    """

    def __init__(self, why: str, unsupported: bool = False, reason: str = "") -> None:
        super().__init__(why)
        self.unsupported = unsupported
        self.reason = reason


def unusable(array: object, error: Exception) -> Refusal:
    """What every rank is told where an array, or its library, has raised an error that only this rank would know."""
    if isinstance(error, Refusal):
        return error
    return Refusal(f"a {type(array).__name__} cannot be used: {type(error).__name__}: {error}")


class View(NamedTuple):
    """Contiguous (row-major) elements of an array that somebody keeps alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: int  # number of the element type, see rueda.dtypes
    owner: object = None  # keeps the memory, should the array be given other memory meanwhile
    device: int = -1  # number of the CUDA device that the memory belongs to; -1 for the host
    stream: int = 0  # of that device, on which the array was made: a cudaStream_t as an integer
    # On a device: makes whatever uses the results wait for them, once their operations have been enqueued.
    follow: Callable[[Sequence[_native.Handle]], None] | None = None


class Views(NamedTuple):
    """The same of several arrays on one device, by columns: for many small ones, an object each would take longer."""

    pointers: list[int]
    shapes: Sequence[tuple[int, ...]]
    dtypes: list[int]
    sizes: list[int]  # bytes
    owners: object = None
    device: int = -1
    stream: int = 0
    follow: Callable[[Sequence[_native.Handle]], None] | None = None


class Adapter(Protocol[A]):
    """An array library. All collectives are written once against this.

    What an array's own methods raise in these becomes a Refusal, see :func:`unusable`.
    """

    def read(self, array: object) -> tuple[A, View]:
        """An array with the same elements, contiguous: ``array`` itself where possible. Raises Refusal."""

    def write(self, array: object) -> tuple[A, View]:
        """``array`` itself, to be overwritten. Raises Refusal, also where it is not contiguous or read-only."""

    def usual_views(self, arrays: Sequence[A], to_write: bool) -> Views | None:
        """Of arrays of which read(), or write(), would return all as they are; ``None`` to look at each.

        They may be anything. ``to_write``: they are to be overwritten.
        """

    def are_unchanged(self, arrays: Sequence[A], views: Views) -> bool:
        """Whether :meth:`change_of` would find nothing in any of them."""

    def change_of(self, array: A, view: View) -> str | None:
        """What has been done to an array of read() or write() so that its view is untrue; ``None`` if nothing."""

    def empty_like(self, array: A) -> A:
        """A new contiguous array with the shape and dtype of ``array``, on its device. Raises Refusal."""

    def copy(self, array: object) -> A:
        """A new contiguous array with the elements of ``array``. Raises Refusal."""

    def from_memory(self, memory: _native.Memory, shape: list[int], like: A) -> A:
        """An array of the dtype of ``like`` over ``memory``, which it keeps alive."""

    def from_integers(self, values: list[int]) -> A:
        """A one-dimensional array of 64-bit integers."""


def change_among(adapter: Adapter[A], arrays: Sequence[A], views: Views) -> tuple[int, str] | None:
    """The number of the first array of which a view is untrue, and what has been done to it; ``None`` if nothing."""
    if adapter.are_unchanged(arrays, views):
        return None
    columns = zip(arrays, views.pointers, views.shapes, views.dtypes, strict=True)
    for number, (array, pointer, shape, code) in enumerate(columns):
        if (change := adapter.change_of(array, View(pointer, shape, code))) is not None:
            return number, change
    return None
