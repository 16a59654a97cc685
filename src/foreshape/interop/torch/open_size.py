"""`OpenSize`: a size of torch's graph not known before the run: a size of ours, and its ops, made where a tensor is needed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from foreshape import layer
from foreshape.core.dims import Dim, Size, equal, floordiv, less_equal, maximum, minimum, mod
from foreshape.core.spec import FP64, INT64
from foreshape.language.program import Variable
from foreshape.layer.functions import apply

AnySize: TypeAlias = "int | OpenSize"


class OpenSize:
    """A size.

    Attributes:
        size: as inference knows it; None where it does not.
    """

    __slots__ = ("_make", "_variable", "size")

    def __init__(self, size: Size | None, make: Callable[[], Variable]) -> None:
        self.size, self._make = size, make
        self._variable: Variable | None = None

    @property
    def variable(self) -> Variable:
        """Return it as an int64 tensor of one number, made once."""
        if self._variable is None:
            self._variable = self._make()
        return self._variable

    def __repr__(self) -> str:
        return f"OpenSize({self.size})"


def size_of(x: Variable, axis: int) -> AnySize:
    """Return the size of an axis."""
    dims = x.spec.known_dims
    axis %= max(len(dims), 1)
    found = dims[axis]
    if isinstance(found, int):
        return found
    return OpenSize(found, lambda: layer.cast(layer.slice(layer.shape(x), [0], [axis], [axis + 1]), INT64))


def value_of(x: Variable) -> AnySize:
    """Return the one number of a tensor of integers as a size."""
    known = x.spec.value
    size = known[0] if known is not None and len(known) == 1 else None
    return size if isinstance(size, int) else OpenSize(size, lambda: layer.reshape(layer.cast(x, INT64), [1]))


FLOORDIV: Any = operator.floordiv  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_OPERATIONS: Final[dict[Any, tuple[Callable[[Any, Any], Any], Callable[[Variable, Variable], Variable]]]] = {
    operator.add: (operator.add, layer.add),
    operator.sub: (operator.sub, layer.subtract),
    operator.mul: (operator.mul, layer.multiply),
    FLOORDIV: (floordiv, layer.floor_divide),
    operator.mod: (mod, layer.remainder),
    "sym_max": (maximum, layer.maximum),
    "sym_min": (minimum, layer.minimum),
}


class OpenQuotient(NamedTuple):
    """A quotient of sizes on its way to a rounded one."""

    over: AnySize
    under: AnySize


class OpenFloat:
    """A number computed from open sizes, as a root.

    Attributes:
        variable: a tensor of one number in double precision, ``[]``.
    """

    __slots__ = ("variable",)

    def __init__(self, variable: Variable) -> None:
        self.variable = variable


def float_variable(x: Any) -> Variable:
    """Return a number, a size, a quotient of sizes, or a function of them, as a tensor of one number in double precision, ``[]``."""
    if isinstance(x, OpenFloat):
        return x.variable
    if isinstance(x, OpenQuotient):
        return layer.divide(float_variable(x.over), float_variable(x.under))
    if isinstance(x, OpenSize):
        return layer.cast(layer.reshape(x.variable, []), FP64)
    return layer.fill_constant([], FP64, float(x))


def _power(x: Variable, y: Variable) -> Variable:
    return apply("elementwise_pow", {"X": x, "Y": y})


def _negative(x: Variable) -> Variable:
    return layer.scale(x, -1.0)


_BY_FLOATS: Final[dict[str, Callable[..., Variable]]] = {
    "add": layer.add,
    "sub": layer.subtract,
    "mul": layer.multiply,
    "truediv": layer.divide,
    "pow": _power,
    "pow_by_natural": _power,
    "float_pow": _power,
    "_sym_sqrt": layer.sqrt,
    "sqrt": layer.sqrt,
    "_sym_log2": layer.log2,
    "_sym_sin": layer.sin,
    "_sym_cos": layer.cos,
    "sym_max": layer.maximum,
    "sym_min": layer.minimum,
    "sym_float": layer.assign,
    "neg": _negative,
}
"""The functions of numbers other than sizes."""
_ROUNDED: Final[dict[str, Callable[[Variable], Variable]]] = {"floor": layer.floor, "trunc": layer.trunc, "sym_int": layer.trunc, "ceil": layer.ceil}
_SMALL: Final = 4096
"""The greatest denominator of a factor taken as a fraction."""


class Untold(NamedTuple):
    """A number without a form here; its readers are refused."""

    reason: str


class Compared(NamedTuple):
    """A relation of sizes, open before the run."""

    name: str
    left: AnySize
    right: AnySize

    @property
    def variable(self) -> Variable:
        """Return it as a tensor of one bool."""
        return getattr(layer, _RELATIONS[self.name])(as_variable(self.left), as_variable(self.right))


_RELATIONS: Final = {"eq": "equal", "ne": "not_equal", "lt": "less_than", "le": "less_equal", "gt": "greater_than", "ge": "greater_equal"}
_OPPOSITE: Final = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def _compared(name: str, left: AnySize, right: AnySize) -> Any:
    """Return the truth of a relation of sizes, if it is the same for all of them."""
    a, b = as_dim(left), as_dim(right)
    if a is None or b is None:
        return Compared(name, left, right)
    if name in ("eq", "ne"):
        known = equal(a, b)
    elif name in ("le", "ge"):
        known = less_equal(a, b) if name == "le" else less_equal(b, a)
    else:
        known = less_equal(a + 1, b) if name == "lt" else less_equal(b + 1, a)
    return Compared(name, left, right) if known is None else (not known if name == "ne" else known)


def is_arithmetic(function: Any) -> bool:
    """Tell whether it is a function of two sizes."""
    return function in _OPERATIONS or getattr(function, "__name__", "") in _OPERATIONS


def host_number(function: Any, arguments: Sequence[Any]) -> Any:
    """Return the result of a function of torch's graph, no operator: of numbers, sizes and quotients."""
    name = getattr(function, "__name__", str(function))
    if name == "sym_sum":
        return functools.reduce(lambda x, y: host_number(operator.add, (x, y)), arguments[0])
    if not any(isinstance(a, (OpenSize, OpenQuotient, OpenFloat, Untold, Compared)) for a in arguments):
        return function(*arguments)
    if any(isinstance(a, Untold) for a in arguments):
        return next(a for a in arguments if isinstance(a, Untold))
    first = arguments[0]
    if is_arithmetic(function) and not any(isinstance(a, (OpenQuotient, OpenFloat, float)) for a in arguments):
        return compute(function, *arguments)
    if name in _RELATIONS and all(isinstance(a, (int, OpenSize)) for a in arguments):
        return _compared(name, *arguments)
    if name in ("sym_not", "not_") and isinstance(first, Compared):
        return first._replace(name=_OPPOSITE[first.name])
    if name == "neg" and isinstance(first, OpenSize):
        return compute(operator.mul, first, -1)
    if name in ("pow", "pow_by_natural") and isinstance(first, OpenSize) and isinstance(arguments[1], int) and arguments[1] >= 0:
        return functools.reduce(functools.partial(compute, operator.mul), [first] * arguments[1], 1)
    if name == "truediv" and all(isinstance(a, (int, OpenSize)) for a in arguments):
        return OpenQuotient(*arguments)
    if name in ("floor", "trunc", "sym_int") and isinstance(first, OpenQuotient):
        return compute(FLOORDIV, first.over, first.under)
    if name == "ceil" and isinstance(first, OpenQuotient):
        return compute(FLOORDIV, compute(operator.sub, compute(operator.add, first.over, first.under), 1), first.under)
    if name in ("floor", "trunc", "ceil", "sym_int", "sym_float") and isinstance(first, OpenSize):
        return first
    if name in ("mul", "add") and isinstance(first, OpenQuotient) and isinstance(first.under, int) and isinstance(arguments[1], int):
        more = compute(operator.mul, first.over, arguments[1]) if name == "mul" else compute(operator.add, first.over, arguments[1] * first.under)
        return OpenQuotient(more, first.under)
    size, by = arguments if len(arguments) == 2 and isinstance(first, OpenSize) else (*reversed(arguments), None)[:2]
    if name == "mul" and isinstance(size, OpenSize) and isinstance(by, float) and by > 0 and by.as_integer_ratio()[1] <= _SMALL:
        over, under = by.as_integer_ratio()
        return OpenQuotient(compute(operator.mul, size, over), under)
    if any(isinstance(a, (Compared, bool)) for a in arguments):
        return Untold(f"{name} of sizes that are open")
    if name in _BY_FLOATS:
        return OpenFloat(_BY_FLOATS[name](*map(float_variable, arguments)))
    if name in _ROUNDED:
        rounded = _ROUNDED[name](float_variable(first))
        return OpenSize(None, lambda: layer.reshape(layer.cast(rounded, INT64), [1]))
    return Untold(f"{name} of sizes that are open")


def compute(function: Any, x: AnySize, y: AnySize) -> AnySize:
    """Return a sum, product, quotient, ... of sizes."""
    known, by_ops = _OPERATIONS.get(function) or _OPERATIONS[function.__name__]
    sizes = [s.size if isinstance(s, OpenSize) else s for s in (x, y)]
    size = None if any(s is None for s in sizes) else known(*sizes)
    if isinstance(size, int):
        return size
    return OpenSize(size, lambda: by_ops(as_variable(x), as_variable(y)))


def as_variable(x: AnySize) -> Variable:
    """Return a size as an int64 tensor of one number."""
    return x.variable if isinstance(x, OpenSize) else layer.fill_constant([1], INT64, x)


def as_dim(x: AnySize) -> int | Dim | None:
    """Return a size as inference knows it."""
    return x if isinstance(x, int) else x.size
