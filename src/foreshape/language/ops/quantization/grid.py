"""The common parts of quantizing operators: the grid of whole numbers, scales, and the straight-through gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import require, require_at_most, require_equal
from foreshape.language.operator.samples import f32, sample
from foreshape.language.ops.math.steps import rounded_away


def bits(default: int = 8) -> Any:
    """Return the attribute of the bits of a number, its sign included."""
    return attribute(AttrType.INT, default, low=2, high=16, doc="the bits of a number, its sign included")


def rounding(default: int, since: int) -> Any:
    """Return the attribute of the rounding of halves."""
    return attribute(AttrType.INT, default, choices=(0, 1), since=since, doc="0: halves are rounded to even, 1: away from 0")


def largest_level(bit_length: int) -> int:
    """Return the largest whole number of this many bits."""
    return (1 << (bit_length - 1)) - 1


def check_one(spec: Spec | None, slot: str) -> None:
    """Require one number in ``slot``."""
    if spec is not None:
        require_equal(spec.elements, 1, f"{slot} must hold one number", **{slot: None})


def check_not_empty(x: Spec) -> None:
    """Require an element, for a largest number."""
    require_at_most(1, x.elements, "X must not be empty", X=None)


def check_axis(axis: int, x: Spec) -> None:
    """Require 0 or 1 as the axis of the channels."""
    require(axis in (0, 1), f"quant_axis must be 0 or 1, not {axis}")
    require(axis < x.rank, f"X must have the axis {axis} of the channels", X=None)


def along(scale: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return the scale, one for all or one for each channel, in dims for broadcasting with ``x``."""
    return scale.reshape(()) if axis < 0 else scale.reshape(-1, *[1] * (x.dim() - 1 - axis))


def absolute_maximum(x: Tensor) -> Tensor:
    """Return max(|x|), without dims."""
    low, high = x.aminmax()
    return torch.maximum(-low, high)


def channel_maximum(x: Tensor, axis: int) -> Tensor:
    """Return max(|x|) of each channel."""
    axes = [a for a in range(x.dim()) if a != axis]
    return torch.maximum(x.amax(axes), x.amin(axes).neg_()) if axes else x.abs()


def inverse(scale: Tensor) -> Tensor:
    """Return 1 / scale; about 1e6 for a scale of 0."""
    return torch.where(scale <= 1e-30, scale + 1e-6, scale).reciprocal_()


def levels(x: Tensor, scale: Tensor, limit: int) -> Tensor:
    """Return ``x`` within the scale, as whole numbers from -limit to most, halves away from 0. Takes as much memory as ``x``."""
    return rounded_away(torch.clamp(x, -scale, scale).mul_(inverse(scale) * limit))


def on_grid(x: Tensor, scale: Tensor, limit: int, round_type: int) -> Tensor:
    """Return ``x / scale * limit`` as whole numbers up to ``limit``: halves to even and the least -limit - 1 if ``round_type`` is 0, else `levels`."""
    return levels(x, scale, limit) if round_type == 1 else (x * (inverse(scale) * limit)).round_().clamp_(-limit - 1, limit)


def in_type(of: Composition, x: Any, like: Any) -> Any:
    """Return ``x`` in the element type of another tensor."""
    source, target = x.spec.known_dtype, like.spec.known_dtype
    return x if source is target else of("cast", {"in_dtype": source.code, "out_dtype": target.code}, X=x)


def dequantized(of: Composition, x: Any, scale: Any, axis: int, limit: float) -> Any:
    """Return ``x * scale / limit`` in the element type of the scale, which is one number (where ``axis`` is below 0) or one for each channel."""
    dims = [] if axis < 0 else [-1]
    if scale.spec.rank != len(dims):
        scale = of("reshape2", {"shape": dims}, X=scale)[0]
    return of("elementwise_mul", {"axis": max(axis, -1)}, X=in_type(of, x, scale), Y=of("scale", {"scale": 1.0 / limit}, X=scale))


class StraightThrough(Operator):
    """X@GRAD = Out@GRAD: the gradient of rounded numbers, under PaddlePaddle's name for it."""

    type = "stright_throuth_estimator_grad"
    d_out = replace(operand(FLOATING, doc="any shape"), name="Out@GRAD")
    d_x = replace(result(doc="as Out@GRAD", may_share="Out@GRAD"), name="X@GRAD")
    gradient = NOT_WRITTEN

    def infer_shape(self, *specs: Spec) -> Spec:
        return specs[0].like()

    def kernel(self, *tensors: Tensor, into: Tensor | None = None) -> Tensor:
        return into if into is not None else tensors[0].clone()

    samples = [sample(**{"Out@GRAD": f32(2, 3, 5)}), sample(**{"Out@GRAD": f32(0, 4)})]  # pyright: ignore[reportArgumentType]


class Passing(Operator):
    """The base of operators with a straight-through gradient from Out to X."""

    abstract = True

    def gradient_ops(self, slots: GradientSlots) -> None:
        if any(name in slots.available for name in slots.output("Out")):  # nothing flows through the scales
            slots.add("stright_throuth_estimator_grad", {"Out@GRAD": slots.grad_of_output("Out")}, {"X@GRAD": slots.input("X")})
