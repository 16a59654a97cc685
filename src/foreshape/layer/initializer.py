"""Initial values: each initializer is an op of the startup program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.dims import Size
from foreshape.core.spec import DType
from foreshape.errors import ShapeError


class Initializer(ConstructorRepr):
    """The base: `op` returns the operator of the value, with its attributes."""

    __slots__ = ()

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        """Return the operator's type and attributes for a parameter.

        Args:
            shape: the sizes of the parameter.
            of: its element type.
        """
        raise TypeError(f"{type(self).__name__} is an abstract initializer")


class Constant(Initializer):
    """Every element is ``value``.

    Args:
        value: the number.
    """

    __slots__ = ("value",)

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return "fill_constant", _attributes(shape, of, value=float(self.value), str_value=repr(self.value))


class Uniform(Initializer):
    """Uniform in [min, max).

    Args:
        min, max: the ends; ``max`` itself is not drawn.
        seed: draws the same in each run of the startup program; 0 takes the program's ``random_seed`` or the executor's generator.
    """

    __slots__ = ("max", "min", "seed")

    def __init__(self, min: float = -1.0, max: float = 1.0, seed: int = 0) -> None:
        self.min, self.max, self.seed = min, max, seed

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return "uniform_random", _attributes(shape, of, min=self.min, max=self.max, seed=self.seed)


class Normal(Initializer):
    """Normal with mean and standard deviation.

    Args:
        mean, std: mean and standard deviation.
        seed: as for `Uniform`.
    """

    __slots__ = ("mean", "seed", "std")

    def __init__(self, mean: float = 0.0, std: float = 1.0, seed: int = 0) -> None:
        self.mean, self.std, self.seed = mean, std, seed

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return "gaussian_random", _attributes(shape, of, mean=self.mean, std=self.std, seed=self.seed)


class TruncatedNormal(Normal):
    """Normal, drawn again outside of two standard deviations."""

    __slots__ = ()

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return "truncated_gaussian_random", super().op(shape, of)[1]


def _of_variance(variance: float, uniform: bool, shape: Sequence[Size], dtype: DType, seed: int) -> tuple[str, dict[str, Any]]:
    if uniform:
        limit = math.sqrt(3.0 * variance)
        return "uniform_random", _attributes(shape, dtype, min=-limit, max=limit, seed=seed)
    return "gaussian_random", _attributes(shape, dtype, mean=0.0, std=math.sqrt(variance), seed=seed)


class Xavier(Initializer):
    """Glorot and Bengio, 2010: variance 2 / (fan in + fan out).

    Args:
        uniform: drawn from the uniform distribution of this variance; otherwise from the normal one.
        seed: as for `Uniform`.
    """

    __slots__ = ("seed", "uniform")

    def __init__(self, uniform: bool = True, seed: int = 0) -> None:
        self.uniform, self.seed = uniform, seed

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return _of_variance(2.0 / max(1, sum(fans(shape))), self.uniform, shape, of, self.seed)


class Kaiming(Initializer):
    """He et al., 2015: variance 2 / fan in.

    Args:
        uniform: drawn from the uniform distribution of this variance; otherwise from the normal one.
        seed: as for `Uniform`.
    """

    __slots__ = ("seed", "uniform")

    def __init__(self, uniform: bool = False, seed: int = 0) -> None:
        self.uniform, self.seed = uniform, seed

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return _of_variance(2.0 / max(1, fans(shape)[0]), self.uniform, shape, of, self.seed)


def _attributes(shape: Sequence[Size], dtype: DType, **attributes: Any) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype.code, **attributes}


_FIELDS: Final[dict[type, Callable[[Any], Any]]] = {
    Constant: attrgetter("value"),
    Uniform: attrgetter("min", "max", "seed"),
    **dict.fromkeys((Normal, TruncatedNormal), attrgetter("mean", "std", "seed")),
    **dict.fromkeys((Xavier, Kaiming), attrgetter("uniform", "seed")),
}


def key_of(initializer: Initializer) -> tuple[type, str] | None:
    """Return a key shared by initializers with equal attributes; None for a user's classes, since they may do anything."""
    fields = _FIELDS.get(initializer.__class__)
    return None if fields is None else (initializer.__class__, repr(fields(initializer)))  # repr tells 0.0 from -0.0


def fans(shape: Sequence[Size]) -> tuple[int, int]:
    """Return fan in and fan out: of a matrix its rows and columns, of a filter [out, in, *window] with the window counted in."""
    sizes: list[int] = []
    for size in shape:
        if not isinstance(size, int):
            raise ShapeError.must("a parameter's shape", "numbers", f"{list(shape)}")
        sizes.append(size)
    if len(sizes) < 2:
        return (sizes[0], sizes[0]) if sizes else (1, 1)
    if len(sizes) == 2:
        return sizes[0], sizes[1]
    window = math.prod(sizes[2:])
    return sizes[1] * window, sizes[0] * window
