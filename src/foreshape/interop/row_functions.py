"""Computations in numpy, for the small parts of a network of ragged rows: lookups, reductions over sequences, shapes, gates, turns.

A function takes the arrays of an op's operands, ``[rows, ...]``, constants or tuples of them, and returns its result's. Those of `row_function` for operands on
rows compute each row by itself, so they work on any part of the rows. Those of `sequence_function` need the sequences' begins too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from foreshape.errors import ExecutionError
from foreshape.language.operator import computations as c
from foreshape.language.operator import sequence_computations as s
from foreshape.language.operator.computation import Computation
from foreshape.machine.kernels.row_kernels import Array

Function = Callable[..., Any]
Dims = Sequence[Any]
"""Dims as in a specification: numbers, or symbols for the rows."""


def _unary(compute: Callable[[Any], Any]) -> Function:
    return compute


def _binary_function(compute: Callable[[Any, Any], Any]) -> Function:
    return compute


def _numpy() -> Any:
    import numpy

    return numpy


def lined_up(y: Array, rank: int, axis: int) -> Array:
    """Return the second operand of a broadcast operation with a first one of this rank: its dim 0 stands at ``axis``; -1 lines up the last dims."""
    return y if axis == -1 or y.ndim + axis == rank or not y.ndim else y.reshape(*y.shape, *(1,) * (rank - axis - y.ndim))


def _binary(name: str, axis: int) -> Function:
    ufunc = getattr(_numpy(), name)
    return _binary_function(lambda x, y: ufunc(x, lined_up(y, x.ndim, axis)))


def _quotient(axis: int) -> Function:
    def compute(x: Array, y: Array) -> Array:
        y = lined_up(y, x.ndim, axis)
        if x.dtype.kind not in "iu":
            return x / y
        quotient = x // y
        return quotient + ((quotient < 0) & (quotient * y != x))  # of whole numbers it is rounded towards zero

    return compute


def _power(exponent: float) -> Function:
    numpy = _numpy()
    if exponent == -0.5:
        return _unary(lambda x: 1.0 / numpy.sqrt(x))
    return {0.5: numpy.sqrt, 2.0: numpy.square}.get(exponent) or _unary(lambda x: numpy.power(x, x.dtype.type(exponent)))


def _softmax(axis: int) -> Function:
    numpy = _numpy()

    def compute(x: Array) -> Array:
        if not x.size:
            return x
        out = numpy.exp(x - x.max(axis, keepdims=True))
        out /= out.sum(axis, keepdims=True)
        return out

    return compute


def _reduction(computation: c.Reduction) -> Function:
    def compute(x: Array) -> Array:
        count = 1
        for axis in computation.axes or ():
            count *= x.shape[axis]
        total = x.sum(computation.axes, keepdims=computation.keeps)
        return total if computation.how == "SUM" else total * x.dtype.type(1.0 / count if computation.how == "AVERAGE" else count**-0.5)

    return compute


def _extreme(computation: c.ExtremeReduction) -> Function:
    return _unary(lambda x: getattr(x, computation.how)(computation.axes, keepdims=computation.keeps))


def _vector_norm(computation: c.VectorNorm) -> Function:
    numpy, power = _numpy(), computation.of

    def compute(x: Array) -> Array:
        sizes, axes, keeps = numpy.abs(x), computation.axes, computation.keeps
        if power == numpy.inf:
            return sizes.max(axes, keepdims=keeps)
        if power == 0.0:
            return (sizes != 0).sum(axes, x.dtype, keepdims=keeps)
        return numpy.power(numpy.power(sizes, x.dtype.type(power)).sum(axes, keepdims=keeps), x.dtype.type(1.0 / power))

    return compute


def _batch_norm(epsilon: float) -> Function:
    numpy = _numpy()

    def compute(x: Array, scale: Array | None, shift: Array | None, mean: Array, variance: Array) -> Array:
        channels = (-1, *(1,) * (x.ndim - 2))
        factor = 1.0 / numpy.sqrt(variance + variance.dtype.type(epsilon)) * (1.0 if scale is None else scale)
        out = (x - mean.reshape(channels)) * factor.reshape(channels)
        return out if shift is None else out + shift.reshape(channels)

    return compute


def _embedding(computation: c.Embedding) -> Function:
    numpy = _numpy()

    def compute(table: Array, ids: Array) -> Array:
        low, high = int(ids.min(initial=0)), int(ids.max(initial=0))
        if low < 0 or high >= len(table):
            raise ExecutionError(f"an id must be in [0, {len(table)}), as the table has entries; seen {low if low < 0 else high}")
        out = numpy.take(table, ids, 0, mode="clip")  # with "raise", numpy copies once more
        if computation.padding != -1:
            out[ids == (computation.padding if computation.padding >= 0 else len(table) + computation.padding)] = 0
        return out

    return compute


def _slicing(computation: c.Slicing) -> Function:
    def compute(x: Array) -> Array:
        cuts: list[Any] = [slice(None)] * x.ndim
        for axis, begin, end in computation.cuts:
            cuts[axis] = slice(begin, None if (begin, end) == (-1, 0) and axis in computation.dropped else end)
        out = x[tuple(cuts)]
        return out.squeeze(computation.dropped) if computation.dropped else out

    return compute


def _split(computation: c.Split, dims: Sequence[Dims]) -> Function:
    numpy = _numpy()
    sizes = [part[computation.axis] for part in dims]
    return _unary(lambda x: tuple(numpy.split(x, numpy.cumsum(sizes)[:-1], computation.axis)))


def _unstacking(axis: int) -> Function:
    numpy = _numpy()
    return _unary(lambda x: tuple(numpy.moveaxis(x, axis, 0)))


def _running_sum(computation: c.RunningSum) -> Function:
    numpy = _numpy()

    def compute(x: Array) -> Array:
        out = numpy.cumsum(x, computation.axis, x.dtype)
        return out - x if computation.exclusive else out

    return compute


def _layer_norm(computation: c.LayerNorm) -> Function:
    numpy = _numpy()

    def compute(x: Array, scale: Array | None = None, shift: Array | None = None) -> Array:
        axes = tuple(range(computation.begin, x.ndim))
        centred = x - x.mean(axes, keepdims=True)
        centred /= numpy.sqrt(numpy.square(centred).mean(axes, keepdims=True) + x.dtype.type(computation.epsilon))
        inner = x.shape[computation.begin :]
        centred = centred if scale is None else centred * scale.reshape(inner)
        return centred if shift is None else centred + shift.reshape(inner)

    return compute


def _product(x_transposed: bool, y_transposed: bool) -> Function:
    def compute(x: Array, y: Array) -> Array:
        return (x.swapaxes(-1, -2) if x_transposed else x) @ (y.swapaxes(-1, -2) if y_transposed else y)

    return compute


def row_function(computation: Computation, dims: Sequence[Dims], element: Any, ranks: Sequence[int]) -> Function | None:
    """Return the function of a computation, for each row, or a constant; None if there is none.

    Args:
        dims: of its results; dim 0 of rows is open.
        element: numpy's type of the elements of its first result.
        ranks: of its operands on rows.
    """
    numpy, shape = _numpy(), [-1, *dims[0][1:]] if dims and dims[0] and not isinstance(dims[0][0], int) else list(dims[0])
    rank = max(ranks, default=0)

    def inside(*axes: int) -> bool:
        """Tell whether axes are none of the rows."""
        return not ranks or all(axis % (rank or 1) for axis in axes)

    match computation:
        case s.Regrouping() if len(ranks) == 2:  # all rows fed have the same sequences
            return _binary_function(lambda x, like: x)
        case c.Identity() | c.Cast():
            return _unary(lambda x: x.astype(element, copy=False))
        case c.Expansion() if ranks == [len(dims[0])] and all(isinstance(n, int) for n in dims[0][1:]):
            return _unary(lambda x: numpy.broadcast_to(x, (len(x), *dims[0][1:])))
        case c.Reshape() | c.Filled() | c.Expansion() if not all(isinstance(n, int) for n in shape):
            return None
        case c.Reshape():
            return _unary(lambda x: x.reshape(shape))
        case c.Numbers(numbers=numbers):
            constant = numpy.array(numbers, element).reshape(shape)
            return lambda: constant
        case c.Scaling(by=by):
            return _unary(lambda x: x * x.dtype.type(by))
        case c.Affine(by=by, shift=shift):
            return _unary(lambda x: x * x.dtype.type(by) + x.dtype.type(shift))
        case c.Power(of=power):
            return _power(power)
        case c.Function(name=name):
            compute = getattr(numpy, name)
            return _unary(lambda x: compute(x).astype(element, copy=False))
        case c.Logarithm():
            return numpy.log
        case c.Relu():
            return _unary(lambda x: numpy.maximum(x, 0))
        case c.Activation(name="sigmoid"):
            return _unary(lambda x: 1 / (1 + numpy.exp(-x)))
        case c.Activation(name="tanh"):
            return numpy.tanh
        case c.Activation(name="swish"):
            return _unary(lambda x: x / (1 + numpy.exp(-x)))
        case c.Activation(name="hardtanh", numbers=(low, high)):
            return _unary(lambda x: numpy.clip(x, low, high))
        case c.Sum(axis=axis):
            return _binary("add", axis)
        case c.Subtraction(axis=axis):
            return _binary("subtract", axis)
        case c.Product(axis=axis):
            return _binary("multiply", axis)
        case c.Quotient(axis=axis):
            return _quotient(axis)
        case c.PowerElements(axis=axis):
            return _binary("power", axis)
        case c.ExtremeElements(how=how, axis=axis):
            return _binary(how + "imum", axis)
        case c.ComparedElements(how=how, axis=axis):
            return _binary(how, axis)
        case c.Connective(how=how):
            return _binary("logical_" + how, -1)
        case c.ChosenElements():
            return numpy.where
        case c.Softmax(axis=axis) if inside(axis):
            return _softmax(axis)
        case c.LayerNorm(begin=begin) if inside(begin):
            return _layer_norm(computation)
        case c.Reduction(axes=axes) if not ranks or (axes is not None and inside(*axes)):
            return _reduction(computation)
        case c.ExtremeReduction(axes=axes) if not ranks or (axes is not None and inside(*axes)):
            return _extreme(computation)
        case c.VectorNorm(axes=axes) if not ranks or (axes is not None and inside(*axes)):
            return _vector_norm(computation)
        case c.FrozenBatchNorm(epsilon=epsilon) if len(ranks) < 2:
            return _batch_norm(epsilon)
        case c.Embedding():
            return _embedding(computation)
        case c.Picking(axis=0) if ranks == [1]:
            return _embedding(c.Embedding())
        case c.Slicing(cuts=cuts) if inside(*(axis for axis, _, _ in cuts)):
            return _slicing(computation)
        case c.Concat(axis=axis) if inside(axis):
            return _unary(lambda parts: numpy.concatenate(parts, axis))
        case c.Stacking(axis=axis) if not ranks or axis % (rank + 1):
            return _unary(lambda parts: numpy.stack(parts, axis))
        case c.Split(axis=axis) if inside(axis) and all(isinstance(part[axis], int) for part in dims):
            return _split(computation, dims)
        case c.Unstacking(axis=axis) if inside(axis):
            return _unstacking(axis)
        case c.Transposition(axes=axes) if not ranks or axes[0] % rank == 0:
            return _unary(lambda x: x.transpose(axes))
        case c.RunningSum(axis=axis) if inside(axis):
            return _running_sum(computation)
        case c.MatrixProduct(x_transposed=x_transposed, y_transposed=y_transposed) if not ranks or (rank > 1 and ranks[0] == rank and not x_transposed):
            return _product(x_transposed, y_transposed)
        case c.FlattenedProduct(x_rows=1, y_rows=1) if ranks == [2]:
            return _product(False, False)
        case _:
            return None if ranks else _function_of_all(computation, element)


def _function_of_all(computation: Computation, element: Any) -> Function | None:
    """Return the function of a computation not of each row, for complete arrays; None if there is none."""
    numpy = _numpy()
    match computation:
        case c.Counting():
            return _counting(element)
        case c.FlattenedProduct(x_rows=x_rows, y_rows=y_rows):
            return _flattened_product(x_rows, y_rows)
        case c.Picking(axis=axis):
            return _picking(axis)
        case c.PickingAlong(axis=axis):
            return _binary_function(lambda x, places: numpy.take_along_axis(x, places, axis))
        case c.PlacePicking():
            return _binary_function(lambda x, places: x[tuple(numpy.moveaxis(places, -1, 0))])
        case c.Triangle(lower=lower, diagonal=diagonal):
            return _unary(lambda x: (numpy.tril if lower else numpy.triu)(x, diagonal))
        case c.SteppedSlicing():
            return _stepped_slicing(computation)
        case c.ImageConvolution(strides=strides, paddings=paddings, dilations=dilations, groups=groups) if len(strides) == 2:
            return _convolution(strides, dilations, groups, lambda sizes, windows: [(p, p) for p in paddings])
        case c.PaddedImageConvolution(strides=strides, dilations=dilations, groups=groups, pads=pads) if len(strides) == 2:
            return _convolution(strides, dilations, groups, pads)
        case _:
            return None


def _flattened_product(x_rows: int, y_rows: int) -> Function:
    def compute(x: Array, y: Array) -> Array:
        rows, columns = x.shape[:x_rows], y.shape[y_rows:]
        return (x.reshape(prod(rows), -1) @ y.reshape(-1, prod(columns))).reshape(*rows, *columns)

    return compute


def _counting(element: Any) -> Function:
    numpy = _numpy()

    def compute(*limits: Array) -> Array:
        first, end, step = (x.reshape(()) for x in limits)
        count = int(numpy.ceil((end - first) / step)) if first.dtype.kind == "f" else len(range(int(first), int(end), int(step)))
        return (first + numpy.arange(max(count, 0)).astype(element) * step).astype(element)

    return compute


def _picking(axis: int) -> Function:
    numpy = _numpy()

    def compute(x: Array, places: Array) -> Array:
        low, high = int(places.min(initial=0)), int(places.max(initial=-1))
        if low < 0 or high >= x.shape[axis]:
            raise ExecutionError(f"an index into axis {axis} must be in [0, {x.shape[axis]}); seen {low if low < 0 else high}")
        return numpy.take(x, places.reshape(-1) if places.ndim else places, axis)

    return compute


def _stepped_slicing(computation: c.SteppedSlicing) -> Function:
    def compute(x: Array) -> Array:
        cuts: list[Any] = [slice(None)] * x.ndim
        for axis, begin, end, step in computation.cuts:
            size = x.shape[axis]
            if step > 0:
                cuts[axis] = slice(begin, None if (begin, end) == (-1, 0) and axis in computation.dropped else end, step)
            else:
                first = min(begin, size - 1) if begin >= 0 else max(size + begin, 0)
                last = end if end >= -1 else max(size + end, 0)
                cuts[axis] = slice(first, None if last < 0 else last, step)
        out = x[tuple(cuts)]
        return out.squeeze(computation.dropped) if computation.dropped else out

    return compute


def _convolution(strides: Sequence[int], dilations: Sequence[int], groups: int, pads: Callable[[Any, Any], Any]) -> Function:
    numpy = _numpy()

    def compute(x: Array, filters: Array) -> Array:
        windows = [(n - 1) * d + 1 for n, d in zip(filters.shape[2:], dilations, strict=True)]
        x = numpy.pad(x, [(0, 0), (0, 0), *pads(x.shape[2:], filters.shape[2:])])
        batch, channels = x.shape[:2]
        height, width = (max((n - w) // t + 1, 0) for n, w, t in zip(x.shape[2:], windows, strides, strict=True))
        weights = filters.reshape(groups, len(filters) // groups, *filters.shape[1:])
        out = numpy.zeros((batch, groups, len(filters) // groups, height * width), x.dtype)
        for i in range(filters.shape[2]):
            for j in range(filters.shape[3]):
                y, z = i * dilations[0], j * dilations[1]
                part = x[:, :, y : y + height * strides[0] : strides[0], z : z + width * strides[1] : strides[1]][:, :, :height, :width]
                out += weights[..., i, j] @ part.reshape(batch, groups, channels // groups, height * width)
        return out.reshape(batch, len(filters), height, width)

    return compute


def filled(computation: c.Filled, dims: Dims, element: Any) -> Callable[[int], Array] | None:
    """Return the function from the number of rows to rows of one number; None if it is unknown, or the dims are."""
    numpy, number = _numpy(), computation.number
    if number is None or not all(isinstance(n, int) for n in dims[1:]):
        return None
    return lambda count: numpy.full((count, *dims[1:]), number, element)


def sequence_function(computation: Computation) -> Callable[[Array, Array], Array] | None:
    """Return the function of a computation over sequences, from rows and the begins of the sequences (and the end); None if there is none."""
    match computation:
        case s.SequencePooling(how=how):
            return lambda x, begins: _pooled(x, begins, how)
        case s.SequenceMaximum():
            return lambda x, begins: _reduced("maximum", x, begins)
        case s.SoftmaxInSequences():
            return _softmax_in_sequences
        case s.SequenceEnd(last=last):
            return lambda x, begins: _ends(x, begins, last)
        case s.SequenceSpreading():
            return lambda x, begins: x.repeat(_numpy().diff(begins), 0)
        case _:
            return None


def _reduced(name: str, x: Array, begins: Array) -> Array:
    """Return a reduction of the rows of each sequence; zeros of an empty one."""
    numpy = _numpy()
    out = numpy.zeros((len(begins) - 1, *x.shape[1:]), x.dtype)
    full = numpy.diff(begins) > 0
    if full.any():
        out[full] = getattr(numpy, name).reduceat(x[: begins[-1]], begins[:-1][full], 0)
    return out


def _pooled(x: Array, begins: Array, how: c.Pooled) -> Array:
    numpy, out = _numpy(), _reduced("add", x, begins)
    if how != "SUM":
        counts = numpy.maximum(numpy.diff(begins), 1).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
        out /= counts if how == "AVERAGE" else numpy.sqrt(counts)
    return out


def _softmax_in_sequences(x: Array, begins: Array) -> Array:
    numpy, counts = _numpy(), _numpy().diff(begins)
    out = numpy.exp(x - _reduced("maximum", x, begins).repeat(counts, 0))
    out /= _reduced("add", out, begins).repeat(counts, 0)
    return out


def _ends(x: Array, begins: Array, last: bool) -> Array:
    numpy = _numpy()
    out = numpy.zeros((len(begins) - 1, *x.shape[1:]), x.dtype)
    full = numpy.diff(begins) > 0
    out[full] = x[(begins[1:] - 1 if last else begins[:-1])[full]]
    return out
