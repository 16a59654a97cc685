"""Quantization to whole numbers on a grid: quantize_linear, dequantize_linear, its older forms, and embedding tables kept in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, FP32, INT8, INT16, INT32, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.byte_computations import Dequantization, Observed, Quantization
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import fail, require, require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.ops.quantization.grid import (
    absolute_maximum,
    along,
    bits,
    channel_maximum,
    check_axis,
    check_not_empty,
    check_one,
    dequantized,
    largest_level,
    on_grid,
    rounding,
)

RATE = 0.9
"""The factor of the moving average's old value in a training step."""


def check_scale(axis: int, x: Spec, scale: Spec, slot: str) -> None:
    """Require one number for all if the axis is -1, otherwise one for each channel along it."""
    if axis == -1:
        check_one(scale, slot)
        return
    require(axis in (0, 1), f"quant_axis must be -1, 0 or 1, not {axis}")
    check_axis(axis, x)
    require_equal(scale.elements, x.known_dims[axis], f"{slot} must have one number for each channel of X", X=axis, **{slot: None})


class LinearQuantization(Operator):
    """The base: a scale for all or for each channel, and the rounding."""

    abstract = True
    gradient = NOT_DIFFERENTIABLE
    bit_length = bits()
    quant_axis = attribute(AttrType.INT, 0, doc="the axis of the channels, 0 or 1; -1: one scale for all")
    qmin = attribute(AttrType.INT, 0, since=3, doc="ignored, as in PaddlePaddle 3")
    qmax = attribute(AttrType.INT, 0, low=0, high=2**24, since=3, doc="the largest whole number; 0, of PaddlePaddle 2: that of bit_length")
    round_type = rounding(0, since=2)
    is_test = attribute(AttrType.BOOLEAN, True)
    only_observer = attribute(AttrType.BOOLEAN, False, doc="leave X as it is")

    def _limit(self) -> int:
        """Return the whole number of the scale."""
        return self.qmax or largest_level(self.bit_length)


class QuantizeLinear(LinearQuantization):
    """Y = round(X / s * m) from -m - 1 to m, where m = ``qmax``, or 2^(bit_length - 1) - 1 if this is 0.

    With ``round_type`` 1 X is clipped at the scale s before.

    In a test s is Scale. In training it is OutScale: the largest number of each channel, or, with one scale for all, OutAccum / OutState. Here OutAccum = 0.9 *
    InAccum + max(|X|) and OutState = 0.9 * InState + 1. ZeroPoint is ignored, as in PaddlePaddle.
    """

    type = "quantize_linear"
    X = operand(FLOATING, doc="any shape")
    Scale = operand(FLOATING, same_type_as="X", doc="one number, or one for each channel")
    ZeroPoint = operand(optional=True, doc="ignored")
    InAccum = operand(FLOATING, optional=True, same_type_as="X", doc="one number")
    InState = operand(FLOATING, optional=True, same_type_as="X", doc="one number")
    Y = result(doc="as X")
    OutState = result(updates="InState", doc="made if InState is given")
    OutAccum = result(updates="InAccum", doc="made if InAccum is given")
    OutScale = result(updates="Scale", doc="as Scale")

    def computes(self) -> Quantization | Observed | None:
        if not self.is_test:
            return None
        return Observed() if self.only_observer else Quantization(self.quant_axis, self._limit()) if self.round_type == 0 else None

    def infer_shape(self, X: Spec, Scale: Spec, ZeroPoint: Spec | None, InAccum: Spec | None, InState: Spec | None) -> Any:
        check_scale(self.quant_axis, X, Scale, "Scale")
        check_one(InAccum, "InAccum")
        check_one(InState, "InState")
        if not self.is_test:
            check_not_empty(X)
            averages = InAccum is not None and InState is not None
            require(averages or self.quant_axis >= 0, "InAccum and InState are needed in training with one scale for all", X=None)
        return X.like(), InState, InAccum, Scale

    def workspace(self, X: Spec, Scale: Spec, ZeroPoint: Spec | None, InAccum: Spec | None, InState: Spec | None) -> Size:
        return 4 * X.nbytes

    def kernel(self, X: Tensor, Scale: Tensor, ZeroPoint: Tensor | None, InAccum: Tensor | None, InState: Tensor | None) -> Any:
        statistics = InState, InAccum, Scale
        if not self.is_test:
            self._observe(X, Scale, InAccum, InState)
        if self.only_observer:
            return X.clone(), *statistics
        return on_grid(X, along(Scale, X, self.quant_axis), self._limit(), self.round_type), *statistics

    def _observe(self, x: Tensor, scale: Tensor, accumulated: Tensor | None, count: Tensor | None) -> None:
        if self.quant_axis >= 0:
            scale.copy_(channel_maximum(x, self.quant_axis).reshape(scale.shape))
        elif accumulated is not None and count is not None:
            accumulated.mul_(RATE).add_(absolute_maximum(x))
            count.mul_(RATE).add_(1.0)
            scale.copy_((accumulated / count).reshape(scale.shape))

    samples = [
        sample(X=f32(4, 3, 5), Scale=f32(1, data=[1.5]), ZeroPoint=f32(1), quant_axis=-1),
        sample(X=f32(6, data=[0.5, 1.5, 2.5, -0.5, -2.5, -200.0]), Scale=f32(data=127.0), quant_axis=-1),
        sample(X=f32(6, data=[0.5, 1.5, 2.5, -0.5, -2.5, -200.0]), Scale=f32(data=127.0), quant_axis=-1, round_type=1),
        sample(X=f32(4, 3, 5), Scale=f32(4, low=0.5), ZeroPoint=f32(4), bit_length=4),
        sample(X=f32(4, 3), Scale=f32(1, data=[0.5]), quant_axis=-1, bit_length=4, qmin=-128, qmax=255),
        sample(X=f32(4, 3), Scale=f32(1, data=[0.5]), quant_axis=-1, qmin=-8, qmax=7, round_type=1),
        sample(X=f32(4, 3, 5), Scale=f32(3, low=0.5), quant_axis=1, round_type=1, is_test=False),
        sample(X=f32(4, 3), Scale=f32(1, data=[1.5]), InAccum=f32(1, data=[3.0]), InState=f32(1, data=[1.5]), quant_axis=-1, is_test=False),
        sample(X=f32(4, 3), Scale=f32(1, data=[1.5]), quant_axis=-1, only_observer=True),
        sample(X=f32(0, 3), Scale=f32(1, data=[1.5]), quant_axis=-1),
    ]
    rejects = [
        reject(X=f32(4, 3, 5), Scale=f32(3), says="Scale must have one number for each channel"),
        reject(X=f32(4), Scale=f32(4), quant_axis=1, says="the axis 1 of the channels"),
        reject(X=f32(4, 3), Scale=f32(1), quant_axis=-1, is_test=False, says="InAccum and InState are needed in training"),
    ]


class DequantizeLinear(LinearQuantization):
    """Y = X * Scale / m, where m = ``qmax``, or 2^(bit_length - 1) - 1 if this is 0, in the element type of Scale. ZeroPoint is ignored, as in PaddlePaddle."""

    type = "dequantize_linear"
    X = operand((*FLOATING, INT8, INT32), doc="whole numbers, any shape")
    Scale = operand(FLOATING, doc="one number, or one for each channel")
    ZeroPoint = operand(optional=True, doc="ignored")
    InAccum = operand(FLOATING, optional=True, doc="ignored")
    InState = operand(FLOATING, optional=True, doc="ignored")
    Y = result(doc="as X")
    OutState = result(updates="InState", doc="InState as it is")
    OutAccum = result(updates="InAccum", doc="InAccum as it is")
    OutScale = result(updates="Scale", doc="Scale as it is")

    def computes(self) -> Dequantization | Observed:
        return Observed() if self.only_observer else Dequantization(self.quant_axis, self._limit())

    def infer_shape(self, X: Spec, Scale: Spec, ZeroPoint: Spec | None, InAccum: Spec | None, InState: Spec | None) -> Any:
        if X.known_dtype.is_floating and X.dtype is not Scale.dtype:
            fail("Scale must have the element type of X, where that is floating-point", TypeMismatchError, X=None, Scale=None)
        check_scale(self.quant_axis, X, Scale, "Scale")
        return X.with_dims(X.known_dims).with_dtype(Scale.known_dtype), InState, InAccum, Scale

    def workspace(self, X: Spec, Scale: Spec, ZeroPoint: Spec | None, InAccum: Spec | None, InState: Spec | None) -> Size:
        return 2 * Scale.nbytes

    def kernel(self, X: Tensor, Scale: Tensor, ZeroPoint: Tensor | None, InAccum: Tensor | None, InState: Tensor | None) -> Any:
        out = X.to(Scale.dtype, copy=True)
        return out if self.only_observer else out.mul_(along(Scale * (1.0 / self._limit()), X, self.quant_axis)), InState, InAccum, Scale

    samples = [
        sample(X=f32(4, 3, 5), Scale=f32(1, data=[1.5]), ZeroPoint=f32(1), quant_axis=-1),
        sample(X=f32(4, 3, 5), Scale=f32(4, low=0.5), bit_length=4),
        sample(X=f32(4, 3, 5), Scale=f32(4, low=0.5), bit_length=4, qmin=-128, qmax=255),
        sample(X=i32(4, 3, 5, low=-127, high=127), Scale=f32(3, low=0.5), quant_axis=1),
        sample(X=f32(4, 3), Scale=f32(1, data=[1.5]), quant_axis=-1, only_observer=True),
        sample(X=f32(0, 3), Scale=f32(1, data=[1.5]), quant_axis=-1),
    ]
    rejects = [reject(X=f32(4, 3, 5), Scale=f32(3), says="Scale must have one number for each channel")]


class FakeDequantizeMaxAbs(Operator):
    """Out = X * Scale / max_range."""

    type = "fake_dequantize_max_abs"
    examples = ("X",)
    gradient = NOT_DIFFERENTIABLE
    X = operand((*FLOATING, INT8), doc="whole numbers, any shape")
    Scale = operand(FLOATING, doc="one number")
    Out = result(doc="as X, in the element type of Scale")
    max_range = attribute(AttrType.FLOAT)

    def infer_shape(self, X: Spec, Scale: Spec) -> Spec:
        check_one(Scale, "Scale")
        require(self.max_range > 0.0, f"max_range must be more than 0, not {self.max_range}")
        return X.like().with_dtype(Scale.known_dtype)

    def expand(self, of: Composition, X: Any, Scale: Any) -> Any:
        return dequantized(of, X, Scale, -1, self.max_range)

    samples = [
        sample(X=f32(4, 3), Scale=f32(1, data=[1.5]), max_range=127.0),
        sample(X=f32(0, 3), Scale=f32(data=1.5), max_range=7.0),
    ]
    rejects = [reject(X=f32(4, 3), Scale=f32(1), max_range=0.0, says="max_range must be more than 0")]


class FakeChannelWiseDequantizeMaxAbs(Operator):
    """Out = X * Scales[0] / (2^(quant_bits[0] - 1) - 1), with one number for each channel along ``quant_axis``.

    With two Scales the channels are along ``x_num_col_dims``. Out is then also multiplied by Scales[1], one number, and divided by 2^(quant_bits[1] - 1) - 1.
    """

    type = "fake_channel_wise_dequantize_max_abs"
    gradient = NOT_DIFFERENTIABLE
    X = operand((*FLOATING, INT8), doc="whole numbers, any shape")
    Scales = operand(FLOATING, many=True, doc="[channels]; and one number")
    Out = result(doc="as X, in the element type of Scales")
    quant_bits = attribute(AttrType.INTS, [8], low=2, high=16)
    quant_axis = attribute(AttrType.INT, 0, doc="0 or 1")
    x_num_col_dims = attribute(AttrType.INT, 1, low=1)

    def _axis(self, count: int) -> int:
        return self.quant_axis if count == 1 else self.x_num_col_dims

    def infer_shape(self, X: Spec, Scales: tuple[Spec, ...]) -> Spec:
        count = len(Scales)
        require(count in (1, 2), f"Scales must have 1 or 2 tensors, not {count}", Scales=None)
        widths: Sequence[int] = self.quant_bits
        require(len(widths) >= count, f"quant_bits must have a number for each of Scales: {count}, not {len(widths)}")
        require(self.quant_axis in (0, 1), f"quant_axis must be 0 or 1, not {self.quant_axis}")
        axis = self._axis(count)
        require(axis < X.rank, f"X must have the axis {axis} of the channels", X=None)
        require_equal(Scales[0].elements, X.known_dims[axis], "Scales must have one number for each channel of X", X=axis, Scales=None)
        for scale in Scales[1:]:
            check_one(scale, "Scales")
            if scale.dtype is not Scales[0].dtype:
                fail("Scales must be of one element type", TypeMismatchError, Scales=None)
        return X.like().with_dtype(Scales[0].known_dtype)

    def expand(self, of: Composition, X: Any, Scales: Any) -> Any:
        out = dequantized(of, X, Scales[0], self._axis(len(Scales)), largest_level(self.quant_bits[0]))
        return out if len(Scales) == 1 else dequantized(of, out, Scales[1], -1, largest_level(self.quant_bits[1]))

    samples = [
        sample(X=f32(4, 3, 5), Scales=[f32(4, low=0.5)]),
        sample(X=f32(4, 3, 5), Scales=[f32(3, low=0.5)], quant_axis=1, quant_bits=[4]),
        sample(X=f32(4, 3, 5), Scales=[f32(5, low=0.5), f32(1, low=0.5)], x_num_col_dims=2, quant_bits=[8, 4]),
    ]
    rejects = [
        reject(X=f32(4, 3, 5), Scales=[f32(5), f32(2)], x_num_col_dims=2, quant_bits=[8, 8], says="Scales must hold one number"),
        reject(X=f32(4, 3, 5), Scales=[f32(5), f32(1)], x_num_col_dims=3, quant_bits=[8, 8], says="the axis 3 of the channels"),
        reject(X=f32(4, 3, 5), Scales=[f32(5), f32(1)], x_num_col_dims=2, says="a number for each of Scales"),
    ]


_DICTIONARY = 128
_BYTES = replace(i32(4, 3, low=-128, high=127), dtype=INT8)


class DequantizeAbsMax(Operator):
    """Out = Scale * X / max_range, in fp32."""

    type = "dequantize_abs_max"
    examples = ("X",)
    gradient = NOT_DIFFERENTIABLE
    X = operand((INT8, INT16), doc="any shape")
    Scale = operand((FP32,), doc="one number")
    Out = result(doc="fp32, as X")
    max_range = attribute(AttrType.FLOAT, doc="not 0")

    def infer_shape(self, X: Spec, Scale: Spec) -> Spec:
        check_one(Scale, "Scale")
        require(self.max_range != 0.0, "max_range must not be 0")
        return X.like().with_dtype(FP32)

    def expand(self, of: Composition, X: Any, Scale: Any) -> Any:
        return dequantized(of, X, Scale, -1, self.max_range)

    samples = [
        sample(X=_BYTES, Scale=f32(1, data=[1.5]), max_range=127.0),
        sample(X=replace(i32(2, 3, 5, low=-30000, high=30000), dtype=INT16), Scale=f32(1, data=[0.75]), max_range=32767.0),
    ]
    rejects = [reject(X=_BYTES, Scale=f32(1), max_range=0.0, says="max_range must not be 0")]


class DequantizeLog(Operator):
    """Out = Dict[X], and -Dict[X + 128] for negative X: a sign, and the number of one of 128 magnitudes."""

    type = "dequantize_log"
    examples = ("X",)
    gradient = NOT_DIFFERENTIABLE
    X = operand((INT8,), doc="any shape")
    Dict = operand((FP32,), doc=f"[{_DICTIONARY}]")
    Out = result(layout="row", doc="fp32, as X")

    def infer_shape(self, X: Spec, Dict: Spec) -> Spec:
        require_rank(1, Dict, "Dict")
        require_equal(Dict.known_dims[0], _DICTIONARY, f"Dict must have {_DICTIONARY} numbers", Dict=0)
        return X.like().with_dtype(FP32)

    def workspace(self, X: Spec, Dict: Spec) -> Size:
        return 24 * X.elements

    def kernel(self, X: Tensor, Dict: Tensor) -> Tensor:
        numbers = Dict[X.long().remainder_(_DICTIONARY)]
        return torch.where(X < 0, -numbers, numbers).contiguous()

    samples = [
        sample(X=_BYTES, Dict=f32(_DICTIONARY)),
        sample(X=replace(i32(5, data=[-128, -1, 0, 1, 127]), dtype=INT8), Dict=f32(_DICTIONARY)),
    ]
