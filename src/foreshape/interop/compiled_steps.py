"""The steps of a compiled network for one size: series of oneDNN's kernels, and small computations between them by numpy.

A file may come from anywhere. So each computation is one of `_KINDS` with arguments of their types, on operands known before it. A result of other dims or
elements than written is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from foreshape.core.checked_json.readers import Reader, anything, count, listing, number, one_of, optional, record, series, truth, tupled
from foreshape.errors import ForeshapeError, FormatError
from foreshape.machine.kernels.onednn_library import Library
from foreshape.machine.kernels.written_chain import LARGEST, CompiledSize, compiled_size

if TYPE_CHECKING:
    from foreshape.language.operator.computation import Computation

SERIES: Final = "series"
ELEMENTS: Final = ("float32", "int64", "int32", "bool", "float64", "int16", "int8", "uint8")
_RANK: Final = 32


class ArrayForm(NamedTuple):
    """An array: numpy's name of its elements, and its dims."""

    element: str
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return its bytes."""
        import numpy

        return prod(self.dims) * numpy.dtype(self.element).itemsize


class StepForm(NamedTuple):
    """A step.

    Attributes:
        kind: one of the computations, or a series.
        arguments: of the computation; of a series its number.
        operands, results: the numbers of values; an operand may be several.
    """

    kind: str
    arguments: list[Any]
    operands: Sequence[int | list[int]]
    results: list[int]

    @property
    def read(self) -> list[int]:
        """Return the values of all operands."""
        return [v for operand in self.operands for v in (operand if isinstance(operand, list) else [operand])]


class StepsForm(NamedTuple):
    """The steps for one size as they are written.

    Attributes:
        inputs: the number of inputs: the first values.
        values: all values.
        constants: the numbers of constant values, each with the number of its bytes in the file.
        series: the series of kernels.
        steps: in order.
    """

    inputs: int
    values: list[ArrayForm]
    constants: list[tuple[int, int]]
    series: list[CompiledSize]
    steps: list[StepForm]

    @property
    def given(self) -> list[ArrayForm]:
        """Return its inputs."""
        return self.values[: self.inputs]

    @property
    def nbytes(self) -> int:
        """Return the bytes of its values, also between kernels."""
        constants = {value for value, _ in self.constants}
        return sum(form.nbytes for value, form in enumerate(self.values) if value not in constants) + sum(s.nbytes for s in self.series)


_Dims = tuple[int, ...]


class _Kind(NamedTuple):
    """A kind of computation by numpy.

    Attributes:
        name: of the class of its computation.
        readers: of its arguments.
        elements: the number of its result's elements, from the dims of the operands and the arguments; None for at most as many as of the first operand.
        views: its result lies in its operand, or is rows picked from it.
        fractions: numpy and other kernels agree for floating elements alone.
    """

    name: str
    readers: tuple[Reader[Any], ...] = ()
    elements: Callable[[Sequence[_Dims], Sequence[Any]], int] | None = None
    views: bool = False
    fractions: bool = False


def _broadcast(dims: Sequence[_Dims], arguments: Sequence[Any]) -> int:
    """Return the elements of operands broadcast together; the last argument of a computation of two is its axis."""
    import numpy

    x: _Dims = dims[0]
    y: _Dims = dims[1] if len(dims) > 1 else ()
    axis = arguments[-1] if arguments and type(arguments[-1]) is int else -1
    if axis != -1 and len(y) + axis != len(x) and y:
        y = (*y, *(1,) * (len(x) - axis - len(y)))
    return prod(numpy.broadcast_shapes(x, y, *dims[2:]))


def _picked(dims: Sequence[_Dims], arguments: Sequence[Any]) -> int:
    axis: int = arguments[0]
    return prod(dims[1]) * prod(dims[0]) // max(dims[0][axis], 1)


def _embedded(dims: Sequence[_Dims], arguments: Sequence[Any]) -> int:
    return _picked(dims, [0])


def _summed(dims: Sequence[_Dims], arguments: Sequence[Any]) -> int:
    return sum(map(prod, dims))


_axis, _place = count(-_RANK, _RANK), count(-LARGEST, LARGEST)
_axes = tupled(_axis, _RANK)
_cut = series(lambda *of: of, _axis, _place, _place)
_of_two = {"sum": "Sum", "difference": "Subtraction", "product": "Product"}
_KINDS: Final[Mapping[str, _Kind]] = {
    **{name: _Kind(make, (_axis,), _broadcast) for name, make in _of_two.items()},
    "quotient": _Kind("Quotient", (_axis,), _broadcast, fractions=True),
    "compared": _Kind("ComparedElements", (one_of("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"), _axis), _broadcast),
    "extreme": _Kind("ExtremeElements", (one_of("max", "min"), _axis), _broadcast),
    "connected": _Kind("Connective", (one_of("and", "or"),), _broadcast),
    "chosen": _Kind("ChosenElements", (), _broadcast),
    "same": _Kind("Identity"),
    "cast": _Kind("Cast"),
    "scaled": _Kind("Scaling", (number,), fractions=True),
    "affine": _Kind("Affine", (number, number), fractions=True),
    "power": _Kind("Power", (number,), fractions=True),
    "function": _Kind("Function", (one_of("sin", "cos", "log1p", "exp", "abs", "sign", "floor", "ceil"),), fractions=True),
    "logarithm": _Kind("Logarithm", fractions=True),
    "relu": _Kind("Relu"),
    "activation": _Kind("Activation", (one_of("sigmoid", "tanh", "swish"),), fractions=True),
    "softmax": _Kind("Softmax", (_axis,), fractions=True),
    "reduced": _Kind("Reduction", (one_of("SUM", "AVERAGE", "SQRT"), optional(_axes), truth), fractions=True),
    "reshaped": _Kind("Reshape", views=True),
    "transposed": _Kind("Transposition", (_axes,), views=True),
    "cut": _Kind("Slicing", (tupled(_cut, _RANK), _axes), views=True),
    "joined": _Kind("Concat", (_axis,), _summed),
    "stacked": _Kind("Stacking", (_axis,), _summed),
    "picked": _Kind("Picking", (_axis,), _picked, views=True),
    "embedded": _Kind("Embedding", (_place,), _embedded, views=True),
}
_NAMES: Final = {kind.name: name for name, kind in _KINDS.items()}
MOST_ELEMENTS: Final = 1 << 22
"""So many elements at most are computed by numpy: of more, kernels with several threads are faster."""

_form = series(ArrayForm, one_of(*ELEMENTS), tupled(count(0, LARGEST), _RANK))
_number = count(0, 100_000)
_several = listing(_number, 1024, 1)


def _operand(field: str, value: Any) -> int | list[int]:
    return _several(field, value) if isinstance(value, list) else _number(field, value)


steps_form: Reader[StepsForm] = record(
    StepsForm,
    inputs=count(0, 1000),
    values=listing(_form, 100_000),
    constants=listing(series(lambda *of: of, _number, _number), 100_000),
    series=listing(compiled_size, 1000),
    steps=listing(series(StepForm, one_of(SERIES, *_KINDS), listing(anything, 100), listing(_operand, 1000), listing(_number, 1000, 1)), 20_000),
)
"""The reader of the steps for one size."""


def kind_of(computation: Computation | None, results: int) -> tuple[str, list[Any]] | None:
    """Return the kind and the arguments of a computation in words of JSON; None for other computations.

    Args:
        results: the number of its results.
    """
    name = None if computation is None else _NAMES.get(type(computation).__name__)
    if name is None or computation is None or results != 1:
        return None
    kind = _KINDS[name]
    arguments = [getattr(computation, field.name) for field in fields(computation)][: len(kind.readers)]
    words = [*map(_in_words, arguments)]
    try:
        rebuilt = type(computation)(*(read(name, word) for read, word in zip(kind.readers, words, strict=True)))
    except (FormatError, ValueError):
        return None
    return (name, words) if rebuilt == computation else None


def is_by_numpy(kind: str, arguments: Sequence[Any], form: ArrayForm) -> bool:
    """Tell whether numpy computes a result of a kind, equal to other kernels within rounding and as fast.

    Args:
        kind, arguments: as `kind_of` returns them.
        form: of the result.
    """
    is_whole = kind in ("scaled", "affine") and all(float(x).is_integer() and abs(x) < 2**31 for x in arguments)
    is_same = form.element.startswith("float") or not _KINDS[kind].fractions or is_whole
    return is_same and (_KINDS[kind].views or prod(form.dims) <= MOST_ELEMENTS)


def _in_words(x: Any) -> Any:
    return [*map(_in_words, cast("tuple[Any, ...]", x))] if isinstance(x, tuple) else x


class CompiledSteps:
    """The steps for one size, made again.

    Args:
        library: oneDNN's.
        form: as they are written.
        constants: the address and the bytes of each constant, to be kept by the caller.
        array: returns a constant of a number as an array of a form.
        kept: the values of results.
        threads: as for `CompiledChain`.

    Raises:
        DoesNotFit: as `CompiledChain`. FormatError: the steps do not fit together.
    """

    def __init__(
        self,
        library: Library,
        form: StepsForm,
        constants: Sequence[tuple[int, int]],
        array: Callable[[int, ArrayForm], Any],
        kept: Sequence[int],
        threads: int | None,
    ) -> None:
        self._form, values = form, form.values
        if form.inputs > len(values) or max(kept, default=0) >= len(values):
            raise FormatError("it has fewer values than inputs and results")
        self._constants: dict[int, Any] = {}
        for value, constant in form.constants:
            if value >= len(values) or value < form.inputs or value in self._constants or constant >= len(constants):
                raise FormatError(f"value {value} is no constant {constant}")
            self._constants[value] = array(constant, values[value])
        self._steps: list[tuple[Callable[..., Sequence[Any]], Sequence[int | list[int]], list[int]]] = []
        known, last = {*range(form.inputs), *self._constants}, dict[int, int]()
        for index, step in enumerate(form.steps):
            what, results = f"step {index}, a {step.kind}", {*step.results}
            if not known.issuperset(step.read) or not known.isdisjoint(results) or len(results) != len(step.results) or max(results) >= len(values):
                raise FormatError(f"{what}: an operand is not computed before it, or a result is there already")
            known |= results
            last.update(dict.fromkeys((*step.read, *step.results), index))
            compute = self._series(what, library, step, constants, threads) if step.kind == SERIES else self._by_numpy(what, step)
            self._steps.append((compute, step.operands, step.results))
        if not known.issuperset(kept):
            raise FormatError("not every result is computed")
        self._dead: list[list[int]] = [[] for _ in form.steps]
        for value, index in last.items():
            if value not in kept and value not in self._constants:
                self._dead[index].append(value)

    def _series(self, what: str, library: Library, step: StepForm, constants: Sequence[tuple[int, int]], threads: int | None) -> Callable[..., Sequence[Any]]:
        from foreshape.machine.kernels.compiled_chain import CompiledChain  # not for networks that are not compiled

        number = step.arguments[0] if len(step.arguments) == 1 else None
        if type(number) is not int or not 0 <= number < len(self._form.series):
            raise FormatError(f"{what}: there is no series {step.arguments}")
        size = self._form.series[number]
        for values, dims in ((step.read, size.given), (step.results, size.results)):
            if [self._form.values[v] for v in values] != [ArrayForm("float32", d) for d in dims]:
                raise FormatError(f"{what}: its operands or results are not those of series {number}")
        chain, contiguous = CompiledChain(library, size, constants, threads), _contiguous
        return lambda *arrays: chain([contiguous(x) for x in arrays])

    def _by_numpy(self, what: str, step: StepForm) -> Callable[..., Sequence[Any]]:
        from foreshape.interop.row_functions import row_function  # not awaited by a network of kernels alone
        from foreshape.language.operator import computations

        kind, dims = _KINDS[step.kind], [self._form.values[v].dims for v in step.read]
        if len(step.arguments) != len(kind.readers) or len(step.results) != 1 or not dims:
            raise FormatError(f"{what}: it has {len(step.arguments)} arguments, {len(dims)} operands and {len(step.results)} results")
        (result,) = step.results
        form = self._form.values[result]
        arguments = [read(what, x) for read, x in zip(kind.readers, step.arguments, strict=True)]
        try:
            elements = prod(dims[0]) if kind.elements is None else kind.elements(dims, arguments)
            function = row_function(getattr(computations, kind.name)(*arguments), [form.dims], form.element, ())
        except (ValueError, IndexError, TypeError) as error:
            raise FormatError(f"{what}: its operands do not fit: {error}") from None
        if function is None or (prod(form.dims) != elements if kind.elements is not None else prod(form.dims) > elements):
            raise FormatError(f"{what}: of operands {[list(d) for d in dims]} it has no result {list(form.dims)}")

        def compute(*operands: Any) -> Sequence[Any]:
            import numpy

            out = numpy.asarray(function(*operands))
            if out.shape != form.dims or out.dtype != form.element:
                raise FormatError(f"{what}: its result is {out.dtype} {list(out.shape)}, and not {form.element} {list(form.dims)}")
            return (out,)

        return compute

    def __call__(self, inputs: Sequence[Any]) -> dict[int, Any]:
        """Return the results by their values' numbers.

        Args:
            inputs: contiguous arrays of the elements and dims of the form.

        Raises:
            ExecutionError: a number is not in its table. FormatError: the steps do not fit together.
        """
        import numpy

        values: dict[int, Any] = {**self._constants, **dict(enumerate(inputs))}
        with numpy.errstate(all="ignore"):
            for (compute, operands, results), dead in zip(self._steps, self._dead, strict=True):
                try:
                    arrays = compute(*[[values[v] for v in x] if isinstance(x, list) else values[x] for x in operands])
                except ForeshapeError:
                    raise
                except Exception as error:
                    raise FormatError(f"a step of the compiled network does not fit its operands: {error}") from None
                values.update(zip(results, arrays, strict=True))
                for value in dead:
                    values.pop(value, None)
        return values


def _contiguous(x: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(x).reshape(x.shape)
