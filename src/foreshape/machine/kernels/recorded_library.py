"""oneDNN's library with a memory of its calls, for compiled series, the order of a packed weight, and its own identity."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint, c_void_p
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from foreshape.machine.kernels.onednn_library import Handle, Library

_STRIDES, _COUNT, _DIMS, _TYPE, _PADDED, _KIND, _INNER_COUNT, _INNER_BLOCKS, _INNER_AXES = 14, 256, 257, 258, 260, 262, 263, 264, 265
"""Properties of a description of memory."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Recipe(NamedTuple):
    """A call for the description of a computation: the method, its arguments by place and by name, and the number of threads meanwhile."""

    method: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    threads: int


class _FullVersion(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_char_p), ("threads", c_uint), ("gpu", c_uint)]


def _recorded(method: _Method) -> _Method:
    """Keep the calls of a method with their results; of several handles the last one."""

    @wraps(method)
    def call(library: RecordedLibrary, *given: Any, **named: Any) -> Any:
        out: Any = method(library, *given, **named)
        handle: Handle = cast("list[Handle]", out)[-1] if isinstance(out, list) else out
        library.made[id(handle)] = handle, Recipe(method.__name__, given, named, library.threads())
        return cast("Any", out)

    return cast("_Method", call)


class RecordedLibrary(Library):
    """The same library as another object. It remembers its descriptions of computations.

    Attributes:
        made: a description or attributes, and its call; as long as this object lives, they do.
    """

    def __init__(self, of: Library) -> None:
        self.__dict__.update(of.__dict__)
        self.made: dict[int, tuple[Handle, Recipe]] = {}

    attributes = _recorded(Library.attributes)
    convolution = _recorded(Library.convolution)
    product = _recorded(Library.product)
    binary = _recorded(Library.binary)
    elementwise = _recorded(Library.elementwise)
    pooling = _recorded(Library.pooling)
    softmax = _recorded(Library.softmax)
    normalized_rows = _recorded(Library.normalized_rows)
    nearest = _recorded(Library.nearest)
    joined = _recorded(Library.joined)
    reordered = _recorded(Library.reordered)

    def dims(self, order: Handle) -> list[int]:
        """Return the dims of a description of memory."""
        return self._numbers(order, _DIMS, self._number(order, _COUNT))

    def element_type(self, order: Handle) -> int:
        """Return the element type of a description of memory."""
        return self._number(order, _TYPE)

    def is_open(self, order: Handle) -> bool:
        """Return True for memory whose order the primitive chooses."""
        return self._number(order, _KIND) == 1

    def steps(self, order: Handle) -> list[int]:
        """Return the steps between elements, or between blocks of them."""
        return self._numbers(order, _STRIDES, self._number(order, _COUNT))

    def layout(self, order: Handle) -> list[int]:
        """Return the whole order of elements in memory."""
        count, blocks = self._number(order, _COUNT), self._number(order, _INNER_COUNT)
        inner = [*self._numbers(order, _INNER_BLOCKS, blocks), *self._numbers(order, _INNER_AXES, blocks)] if blocks else []
        return [self._number(order, _KIND), *self.dims(order), *self._numbers(order, _PADDED, count), *self.steps(order), *inner]

    def identity(self) -> str:
        """Return its version, and its instructions on this machine."""
        functions = self._functions
        functions.dnnl_version.restype = POINTER(_FullVersion)
        version = functions.dnnl_version().contents
        return f"{version.major}.{version.minor}.{version.patch} {(version.hash or b'').decode('ascii', 'replace')} {functions.dnnl_get_effective_cpu_isa()}"

    def _number(self, order: Handle, which: int) -> int:
        number = c_int32()
        self._functions.dnnl_memory_desc_query(c_void_p(order.value), c_int(which), byref(number))
        return number.value

    def _numbers(self, order: Handle, which: int, count: int) -> list[int]:
        numbers = POINTER(c_int64)()
        self._functions.dnnl_memory_desc_query(c_void_p(order.value), c_int(which), byref(numbers))
        return [numbers[index] for index in range(count)]
