"""Samples and rejects of an operator, for the tests of all operators: inputs it must take, and inputs it must refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from foreshape.core.data_class import data_class
from foreshape.core.spec import BOOL, FP32, FP64, INT32, INT64, DType
from foreshape.errors import ShapeError


@data_class(frozen=True)
class SampleTensor:
    """A sample tensor: element type, dims, the range of its numbers, and whether they are all different."""

    dtype: DType
    dims: tuple[int, ...]
    low: float
    high: float
    distinct: bool = False
    data: Any = None
    """The exact numbers, where random ones will not do."""
    lengths: tuple[tuple[int, ...], ...] = ()
    """The lengths of sequences for each level, outermost first, if ragged."""

    def ragged(self, *lengths: Sequence[int]) -> SampleTensor:
        """Return the same rows grouped into sequences, by lengths for each level, outermost first; the last level's sum is the first dim."""
        return replace(self, lengths=tuple(tuple(level) for level in lengths))


@data_class(frozen=True)
class Sample:
    """Inputs (slot -> `SampleTensor`, a list, or None) and attributes an operator must accept.

    ``differentiate``: False without finite differences, as at kinks, or for random results; ``exact``: False if the kernel is no function of its
    inputs, as for random ones.
    """

    arguments: Mapping[str, Any]
    differentiate: bool = True
    exact: bool = True


@data_class(frozen=True)
class Reject:
    """Inputs and attributes an operator must refuse, with a part of the message and the class of the error."""

    arguments: Mapping[str, Any]
    says: str
    error: type[Exception]


def sample(*, differentiate: bool = True, exact: bool = True, **arguments: Any) -> Sample:
    """Return an accepted case; keyword arguments are slots and attributes. Make the dims pairwise different."""
    return Sample(arguments, differentiate, exact)


def reject(*, says: str, error: type[Exception] = ShapeError, **arguments: Any) -> Reject:
    """Return a refused case, with ``says`` in the message."""
    return Reject(arguments, says, error)


def _value(dtype: DType, dims: Sequence[int], low: float, high: float, distinct: bool, data: Any) -> SampleTensor:
    return SampleTensor(dtype, tuple(dims), low, high, distinct, data, ())


def f32(*dims: int, low: float = -2.0, high: float = 2.0, distinct: bool = False, data: Any = None) -> SampleTensor:
    """Return fp32 numbers, uniform in [low, high]; ``distinct`` keeps them apart, for maxima and sorting."""
    return _value(FP32, dims, low, high, distinct, data)


def f64(*dims: int, low: float = -2.0, high: float = 2.0, distinct: bool = False, data: Any = None) -> SampleTensor:
    return _value(FP64, dims, low, high, distinct, data)


def i64(*dims: int, low: float = 0, high: float = 5, distinct: bool = False, data: Any = None) -> SampleTensor:
    """Return int64 numbers, uniform in low..high, both included."""
    return _value(INT64, dims, low, high, distinct, data)


def i32(*dims: int, low: float = 0, high: float = 5, distinct: bool = False, data: Any = None) -> SampleTensor:
    return _value(INT32, dims, low, high, distinct, data)


def b1(*dims: int, data: Any = None) -> SampleTensor:
    """Return bool values, both equally likely."""
    return _value(BOOL, dims, 0, 1, False, data)
