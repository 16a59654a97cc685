"""The methods of numpy's arrays on variables: each appends its op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from foreshape.core.dims import Dim, Size, product
from foreshape.core.spec import FP32, UNK, dtype
from foreshape.errors import NoValueError, ShapeError
from foreshape.language.operator.attributes import several
from foreshape.language.program.arithmetic import Arithmetic
from foreshape.language.program.call_site import here, located, tells_line

Axes = int | Sequence[int] | None


class ArrayMethods(Arithmetic):
    """The methods of numpy's arrays besides operators. Of ragged data the axes are the axes of the packed rows."""

    __slots__ = ()

    # --- facts

    @property
    def ndim(self) -> int:
        """Return the number of dims in `shape`."""
        return len(self.shape)

    @property
    def size(self) -> Size:
        """Return the number of elements: an int, or an expression in the symbols; of ragged data the elements of all rows."""
        return product(self.spec.known_dims)

    @property
    def T(self) -> Self:
        """Return the axes in reverse order."""
        return self.transpose()

    def __len__(self) -> int:
        return self._first_dim("it has no len: see its shape")

    def __iter__(self) -> Iterator[Self]:
        count = self._first_dim("it cannot be iterated over")
        return (self[k] for k in range(count))

    def _first_dim(self, so: str) -> int:
        dims = self.spec.dims
        if dims and isinstance(dims[0], int) and self.spec.lod is None:
            return dims[0]
        why = "it has no dims" if not dims else f"how long it is only the run tells ({self.spec.text()})"
        how = "" if not dims else "; layer.rnn and layer.while_loop go along an axis of open size"
        raise located(NoValueError(f"{self.name}: {why}, so that {so}{how}"), here())

    # --- along axes

    def _reduced(self, type: str, axis: Axes, keepdims: bool) -> Self:
        axes = [] if axis is None else several(axis)
        if axis is not None and not axes:  # over no axis
            return self
        attrs = {"dim": axes, "keep_dim": keepdims, "reduce_all": axis is None or len(axes) == self.spec.rank}
        return self._apply(type, {"X": self}, attrs)

    @tells_line
    def sum(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the sums over ``axis`` (one, several, or by default all); of bools the count of true ones."""
        return self._reduced("reduce_sum", axis, keepdims)

    @tells_line
    def mean(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the means over ``axis`` (one, several, or all); of integers and bools in fp32."""
        element = self.dtype
        me = self if element is None or element.is_floating else self.astype(FP32)
        return me._reduced("reduce_mean", axis, keepdims)

    @tells_line
    def var(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the means of the squared distances from the mean over ``axis`` (one, several, or all), as numpy's: divided by the number of elements."""
        element = self.dtype
        me = self if element is None or element.is_floating else self.astype(FP32)
        apart = me - me.mean(axis, keepdims=True)
        return (apart * apart).mean(axis, keepdims)

    @tells_line
    def std(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the roots of `var`."""
        return self._apply("sqrt", {"X": self.var(axis, keepdims)}, {})

    @tells_line
    def cumsum(self, axis: int | None = None) -> Self:
        """Return the running sums along ``axis``, or of all elements in row-major order; of bools the counts of true ones so far, in int64."""
        me = self.astype("int64") if self.dtype is not None and self.dtype.family == "bool" else self
        return self._apply("cumsum", {"X": me}, {"axis": -1 if axis is None else axis, "flatten": axis is None})

    @tells_line
    def cumprod(self, axis: int | None = None) -> Self:
        """Return the running products along ``axis``, or of all elements in row-major order."""
        return self._apply("cumprod", {"X": self.reshape(-1) if axis is None else self}, {"dim": 0 if axis is None else axis})

    @tells_line
    def max(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the largest elements over ``axis`` (one, several, or all)."""
        return self._reduced("reduce_max", axis, keepdims)

    @tells_line
    def min(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the smallest elements over ``axis`` (one, several, or all)."""
        return self._reduced("reduce_min", axis, keepdims)

    @tells_line
    def prod(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the products over ``axis`` (one, several, or all)."""
        return self._reduced("reduce_prod", axis, keepdims)

    @tells_line
    def all(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Tell for ``axis`` (one, several, or all) whether all elements are true; a number is true unless 0."""
        return self._truths()._reduced("reduce_all", axis, keepdims)

    @tells_line
    def any(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Tell for ``axis`` (one, several, or all) whether any element is true; a number is true unless 0."""
        return self._truths()._reduced("reduce_any", axis, keepdims)

    def _truths(self) -> Self:
        element = self.dtype
        return self if element is None or element.family == "bool" else self != 0

    @tells_line
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the largest element along ``axis``, in int64; by default of all elements in row-major order."""
        return self._place("arg_max", axis, keepdims)

    @tells_line
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the smallest element along ``axis``, in int64; by default of all elements in row-major order."""
        return self._place("arg_min", axis, keepdims)

    def _place(self, type: str, axis: int | None, keepdims: bool) -> Self:
        attrs = {"axis": 0 if axis is None else axis, "flatten": axis is None, "keepdims": keepdims, "dtype": dtype("int64").code}
        return self._apply(type, {"X": self}, attrs)

    # --- the same elements in other dims, or another type

    @tells_line
    def reshape(self, *shape: Any) -> Self:
        """Return the elements in row-major order in other dims: ``x.reshape(2, -1)`` or ``x.reshape((2, -1))``, with at most one -1 for the rest.

        A size with symbols, as from `shape`, is accepted if it is the same axis's, or the only one without a number.

        Raises:
            ShapeError: another number of elements; or a 0, with another meaning in this operator than in numpy.
        """
        requested: list[Any] = list(shape[0]) if len(shape) == 1 and hasattr(shape[0], "__len__") else list(shape)
        dims = self.spec.known_dims
        sizes: list[int] = []
        for axis, size in enumerate(requested):
            if size is UNK or isinstance(size, Dim):
                is_kept = axis < len(dims) and not isinstance(dims[axis], int) and (size is UNK or dims[axis] == size)
                sizes.append(0 if is_kept else -1)
            elif not hasattr(size, "__index__"):
                raise ShapeError(f"reshape({self.name}): a size is an integer or one of its shape's; seen {size!r}: layer.reshape takes variables")
            elif size == 0:
                raise ShapeError(f"reshape({self.name}): a size of 0 is no elements in numpy, and the size of the same axis in layer.reshape: use that one")
            else:
                sizes.append(int(size))
        if sizes.count(-1) > 1:
            raise ShapeError(f"reshape({self.name}): at most one size can be what is left; seen {requested}, of {self.spec.text()}")
        return self._apply("reshape2", {"X": self}, {"shape": sizes})[0]

    @tells_line
    def flatten(self) -> Self:
        """Return all elements in row-major order, in one dim."""
        return self.reshape(-1)

    ravel = flatten

    @tells_line
    def transpose(self, *axes: Any) -> Self:
        """Return the axes in another order, ``x.transpose(0, 2, 1)`` or ``x.transpose((0, 2, 1))``; by default in reverse order."""
        permutation: Any = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        rank = self.spec.rank
        order = list(range(rank))[::-1] if permutation is None else [a + rank if a < 0 else a for a in permutation]
        return self._apply("transpose2", {"X": self}, {"axis": order})[0]

    @tells_line
    def swapaxes(self, one: int, other: int) -> Self:
        """Exchange two axes."""
        order = list(range(self.spec.rank))
        try:
            order[one], order[other] = order[other], order[one]
        except IndexError:
            raise ShapeError.must(f"swapaxes({self.name}): the axes", f"in [-{len(order)}, {len(order)})", f"{one} and {other}") from None
        return self.transpose(*order)

    @tells_line
    def squeeze(self, axis: Axes = None) -> Self:
        """Remove the dims of 1 at ``axis`` (one or several), or all dims of 1."""
        axes = [] if axis is None else several(axis)
        for place in axes:
            if -self.spec.rank <= place < self.spec.rank and isinstance(size := self.spec.known_dims[place], int) and size != 1:
                raise ShapeError(f"squeeze({self.name}): dim {place} must be 1, of {self.spec.text()}")
        return self._apply("squeeze2", {"X": self}, {"axes": axes})[0]

    @tells_line
    def clip(self, min: float | None = None, max: float | None = None) -> Self:
        """Clip the elements to ``min`` and ``max``."""
        low = -3.4028234663852886e38 if min is None else min
        return self._apply("clip", {"X": self}, {"min": float(low), "max": float(3.4028234663852886e38 if max is None else max)})
