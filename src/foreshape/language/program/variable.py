"""`Variable`: the description of one value, in the user's hands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from foreshape.core.dims import Dim, Size, product, symbol
from foreshape.core.pictures.markup import cut, escape
from foreshape.core.spec import FP32, LOD_TENSOR, LOD_TENSOR_ARRAY, TENSOR_KINDS, UNK, Kind, Lod, Spec, dtype, kind
from foreshape.errors import NoValueError, SchemaError, ShapeError, TypeMismatchError
from foreshape.language.operator.attributes import several
from foreshape.language.operator.registry import layer_name
from foreshape.language.program.arithmetic import Arithmetic
from foreshape.language.program.call_site import Site, call_site, here, located, tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.declared import DeclaredForm
from foreshape.language.program.elsewhere import elsewhere
from foreshape.language.program.messages import CallSite

if TYPE_CHECKING:
    from foreshape.language.program.block import Block
    from foreshape.language.program.op import Op

# --- The methods of numpy's arrays on variables: each appends its op.


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


_MOST_SHOWN = 1000
"""Characters of a variable at a prompt: names of files may be of any length."""


class Variable(ArrayMethods):
    """A value of the network: name, kind, element type, dims, raggedness, and purpose.

    Args:
        name: unique in its block; made up by default.
        data_type: an element type (``FP32``, "int64", numpy's), or a scalar kind (``STRING``, ``INT``, ...). Also ``type=``.
        shape: sizes; -1, None or UNK if unknown, a string for a symbol. A leading unknown is the program's ``batch``.
            Also ``dims=``.
        value: a constant: a number that fills the shape, an array, or the value of a scalar kind.
        trainable: False if optimizers may not change it.
        lod_level: the number of levels of sequences in its rows; 0 if dense.
        persistable: its value stays from run to run, and is saved.
        stop_gradient: no gradient goes through it.

    Raises:
        ShapeError, TypeMismatchError, SchemaError: an invalid dim, element type, or name.
    """

    __slots__ = ("__weakref__", "block", "extra_attributes", "is_parameter", "need_check_feed",
                 "op", "persistable", "site", "stop_gradient", "trainable", "unknown_fields", "value")  # fmt: skip

    block: Block
    name: str
    op: Op | None
    value: Any
    site: Site
    extra_attributes: tuple[bytes, ...]

    @tells_line
    def __init__(
        self,
        name: str | None = None,
        data_type: Any = None,
        shape: Sequence[Any] | None = None,
        value: Any = None,
        trainable: bool = True,
        *,
        dims: Sequence[Any] | None = None,
        type: Any = None,
        lod_level: int = 0,
        persistable: bool = False,
        stop_gradient: bool = False,
        block: Block | None = None,
    ) -> None:
        if shape is not None and dims is not None:
            raise SchemaError("a variable takes shape or dims, not both: they are two names of one thing")
        if data_type is not None and type is not None:
            raise SchemaError("a variable takes data_type or type, not both: they are two names of one thing")
        block = block if block is not None else current_block()
        name = name if name is not None else block.program.layer_name("variable")
        element = data_type if data_type is not None else type
        sizes = shape if shape is not None else dims
        self._begin(name, block, _spec_of(name, element, sizes, lod_level, value), here())
        self.value = value
        self.trainable = trainable
        self.persistable = persistable or value is not None
        self.stop_gradient = stop_gradient
        block.add_variable(self)

    def _begin(self, name: str, block: Block, spec: Spec | None, site: Site) -> Variable:
        self.name = name
        self.block = block
        self.inferred_spec = spec
        self.declared = None
        self.known = True
        self.op = None
        self.site = site
        self.value = None
        self.persistable = False
        self.trainable = True
        self.stop_gradient = False
        self.is_parameter = False
        self.need_check_feed = False
        self.extra_attributes = ()
        self.unknown_fields = b""
        return self

    @classmethod
    def make(cls, name: str, block: Block, spec: Spec | None, site: Site) -> Variable:
        """Return a new variable ``name`` of a ``block``, not added to it yet, of a known or open ``spec``, made at the line ``site``."""
        return object.__new__(cls)._begin(name, block, spec, site)

    @classmethod
    def from_form(cls, name: str, block: Block, form: DeclaredForm) -> Variable:
        """Return the variable ``name`` of a ``block`` as a file's ``form`` has it, without its op, which is linked later. Thousands are made at once."""
        variable = object.__new__(cls)
        variable.name = name
        variable.block = block
        variable.inferred_spec = None
        variable.declared = form.declared
        variable.known = True
        variable.site = form.site
        variable.value = form.value
        variable.persistable = form.persistable
        variable.trainable = form.trainable
        variable.stop_gradient = form.stop_gradient
        variable.is_parameter = form.is_parameter
        variable.need_check_feed = form.need_check_feed
        variable.extra_attributes = form.extra
        variable.unknown_fields = form.unknown_fields
        return variable

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return ``op`` of a variable read alone: it is linked when all of its block is made."""
            if name == "op" and self.block.ops is not None:
                return object.__getattribute__(self, name)
            hint = "" if name.startswith("_") else elsewhere("layer.called_elsewhere:METHOD_HINTS").get(name, "")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}" + (f": here it is {hint}" if hint else ""), name=name)

    def _apply(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None) -> Any:
        return current_block().apply(type, inputs, attrs)

    @property
    def entry_spec(self) -> Spec:
        """Return its spec at the beginning of a run: for an input overwritten by an op, the spec of the feed."""
        entry = self.block.program.inference.entry_specs.get(self)
        return self.spec if entry is None else entry

    @property
    def call_site(self) -> CallSite | None:
        return call_site(self.site if self.op is None else self.op.site)

    @property
    def role_words(self) -> str:
        """Return the words for its origin in an error message."""
        if self.is_parameter:
            return "parameter"
        if self.op is not None:
            return layer_name(self.op.type)
        return f'data("{self.name}")' if self.need_check_feed else f'variable "{self.name}"'

    def forget(self) -> None:
        """Drop the spec; `Program.infer` brings it back. An array is one before anything is written to it."""
        spec = self.spec
        self.inferred_spec = Spec(LOD_TENSOR_ARRAY, spec.dtype, None) if spec.kind is LOD_TENSOR_ARRAY else None
        self.declared = None
        self.known = False

    def __repr__(self) -> str:
        return cut(f"{escape(self.name)}: {self.spec.text()}", _MOST_SHOWN)

    def _repr_html_(self) -> str:
        return self.block.program.html_of(self)


def _spec_of(name: str, of: Any, shape: Sequence[Any] | None, lod_level: int, value: Any) -> Spec:
    if isinstance(of, Kind) and of not in TENSOR_KINDS:
        return Spec(of, None, None)
    if of is None and isinstance(value, str):
        return Spec(kind("STRING"), None, None)
    element = FP32 if of is None else dtype(of)
    if shape is None:
        import numpy

        shape = [] if value is None else numpy.shape(value)
        if value is None:
            return Spec(LOD_TENSOR, element, None)
    return Spec(LOD_TENSOR, element, *dims_of(name, shape, lod_level))


def dims_of(name: str, shape: Sequence[Any], lod_level: int = 0) -> tuple[tuple[Size, ...], Lod | None]:
    """Return the packed dims and the raggedness of a described input: unknown sizes get their symbols.

    Raises:
        ShapeError, TypeMismatchError: an invalid dim.
    """
    sizes: list[Size] = []
    for axis, size in enumerate(shape):
        if isinstance(size, str):
            sizes.append(symbol(size))
        elif size is None or size is UNK or (isinstance(size, int) and size == -1):
            plain = "batch" if axis == 0 and not lod_level else name if axis == 0 else f"{name}.{axis}"
            sizes.append(symbol(plain))
        elif isinstance(size, bool) or not (hasattr(size, "__index__") or hasattr(size, "terms")):
            raise TypeMismatchError.must(f"dim {axis} of {name}", "an integer, a symbol's name, -1 or UNK", f"{size!r}")
        elif isinstance(size, int) and size < 0:
            raise ShapeError.must(f"dim {axis} of {name}", "at least 0, or -1 for unknown", size)
        else:
            sizes.append(size if hasattr(size, "terms") else int(size))
    if not lod_level:
        return tuple(sizes), None
    if not 0 < lod_level <= 8:
        raise ShapeError.must("lod_level", "from 0 to 8", lod_level)
    if not sizes:
        raise ShapeError(f"{name} is ragged, so that it needs at least the dim of its rows")
    counts = [symbol("batch")] + [symbol(f"{name}.level{k}") for k in range(1, lod_level)]
    return tuple(sizes), Lod(name, tuple(counts))
