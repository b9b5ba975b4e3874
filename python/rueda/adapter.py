"""What Rueda needs from an array library: where an array's elements are, and how to make an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from rueda import _native
from rueda.error_texts import describe, in_one_line

__all__ = ["Adapter", "Refusal", "View", "Views", "change_among", "unusable"]

A = TypeVar("A")


class Refusal(Exception):
    """This rank cannot use a tensor. Submitted in the tensor's place, so that every rank raises.

    The error is :class:`rueda.UnsupportedError` for a kind of tensor that Rueda does not know, otherwise
    :class:`rueda.InvalidArgumentError`. ``reason`` becomes the error's reason.
    """

    def __init__(self, why: str, unsupported: bool = False, reason: str = "") -> None:
        super().__init__(in_one_line(why))
        self.unsupported = unsupported
        self.reason = reason


def unusable(array: object, error: Exception) -> Refusal:
    """The refusal to submit if an array or its library raises an error, of which others would not know."""
    if isinstance(error, Refusal):
        return error
    return Refusal(f"a {type(array).__name__} cannot be used: {describe(type(error), error)}")


class View(NamedTuple):
    """Contiguous (row-major) elements of an array that the caller keeps alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: int  # number of the element type, see rueda.dtypes
    owner: object = None  # keeps the memory alive if the array is given other memory meanwhile
    device: int = -1  # number of the CUDA device that owns the memory; -1 for the host
    stream: int = 0  # the device's stream on which the array was made: a cudaStream_t as an integer
    # On a device: called once operations are enqueued; makes users of the results wait for them.
    follow: Callable[[Sequence[_native.Handle]], None] | None = None


class Views(NamedTuple):
    """The same for several arrays on one device, as columns: an object per array is slower for many small ones."""

    pointers: list[int]
    shapes: Sequence[tuple[int, ...]]
    dtypes: list[int]
    sizes: list[int]  # bytes
    owners: object = None
    device: int = -1
    stream: int = 0
    follow: Callable[[Sequence[_native.Handle]], None] | None = None


class Adapter(Protocol[A]):
    """An array library. All collectives are written once, against this interface.

    An exception from an array's own methods becomes a Refusal, see :func:`unusable`.
    """

    def read(self, array: object) -> tuple[A, View]:
        """An array with the same elements, contiguous: ``array`` itself where possible. Raises Refusal."""

    def write(self, array: object) -> tuple[A, View]:
        """``array`` itself, to be overwritten. Raises Refusal, also if it is not contiguous or is read-only."""

    def usual_views(self, arrays: Sequence[A], to_write: bool) -> Views | None:
        """Views of arrays that read() or write() would all return unchanged; ``None`` if each must be examined.

        ``arrays`` may hold anything. ``to_write``: the arrays will be overwritten.
        """

    def are_unchanged(self, arrays: Sequence[A], views: Views) -> bool:
        """Whether :meth:`change_of` would return ``None`` for every array."""

    def change_of(self, array: A, view: View) -> str | None:
        """What has been done to an array from read() or write() that invalidates its view; ``None`` if nothing."""

    def empty_like(self, array: A) -> A:
        """A new contiguous array with the shape and dtype of ``array``, on its device. Raises Refusal."""

    def copy(self, array: object) -> A:
        """A new contiguous array with the elements of ``array``. Raises Refusal."""

    def from_memory(self, memory: _native.Memory, shape: list[int], like: A) -> A:
        """An array with the dtype of ``like`` over ``memory``, which the array keeps alive."""

    def from_integers(self, values: list[int]) -> A:
        """A one-dimensional array of 64-bit integers."""


def change_among(adapter: Adapter[A], arrays: Sequence[A], views: Views) -> tuple[int, str] | None:
    """The index of the first array whose view is invalid now, and what was done to it; ``None`` if all are valid."""
    if adapter.are_unchanged(arrays, views):
        return None
    columns = zip(arrays, views.pointers, views.shapes, views.dtypes, strict=True)
    for number, (array, pointer, shape, code) in enumerate(columns):
        if (change := adapter.change_of(array, View(pointer, shape, code))) is not None:
            return number, change
    return None
