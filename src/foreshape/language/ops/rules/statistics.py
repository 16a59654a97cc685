"""The common rules of normalizations: the type of means and variances, and numbers for each channel."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import BF16, FP16, FP32, DType, Spec
from foreshape.errors import TypeMismatchError
from foreshape.language.operator.require import fail, require, require_at_most, require_equal


def statistics_type(x: Spec) -> DType:
    """Return the element type of means and variances: fp32 for half precision, otherwise the values' type."""
    return FP32 if x.dtype in (FP16, BF16) else x.known_dtype


def check_statistics_type(x: Spec, slot: str, spec: Spec) -> None:
    """Require the element type of statistics (or, for half precision, the values' type) from a tensor beside the values."""
    if spec.dtype is not statistics_type(x) and spec.dtype is not x.dtype:
        fail(f"{slot} must be {statistics_type(x).name}, since X is {x.known_dtype.name}", TypeMismatchError, X=None, **{slot: None})


def check_per_channel(x: Spec, channels: Size, axis: int, **statistics: Spec | None) -> None:
    """Require one number per channel of each given tensor, in the element type of statistics (half precision also its own)."""
    for slot, spec in statistics.items():
        if spec is None:
            continue
        check_statistics_type(x, slot, spec)
        require(spec.rank == 1, f"{slot} must have 1 dim, not {spec.rank}", **{slot: None})
        require_equal(spec.known_dims[0], channels, f"{slot} must have one number for each channel of X", **{slot: 0, "X": axis})


def channels_of(x: Spec, last: bool, low: int = 2, high: int = 5) -> tuple[Size, int]:
    """Return the number of channels, at least one, and their axis."""
    require(low <= x.rank <= high, f"X must have {low} to {high} dims, not {x.rank}", X=None)
    axis = x.rank - 1 if last else 1
    require_at_most(1, x.known_dims[axis], "X must have at least one channel", X=axis)
    return x.known_dims[axis], axis
