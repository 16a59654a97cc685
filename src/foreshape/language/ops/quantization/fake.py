"""Numbers on the grid of a few bits, for quantization-aware training: with a scale of the numbers at hand, or kept from step to step."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import turned
from foreshape.language.operator.traits import ShardingRule, rule_along
from foreshape.language.ops.quantization.grid import (
    Passing,
    absolute_maximum,
    along,
    bits,
    channel_maximum,
    check_axis,
    check_not_empty,
    check_one,
    largest_level,
    on_grid,
    rounding,
)


class Fake(Operator):
    """The base: Out = the whole numbers of X on the grid of a scale; the largest number of ``bit_length`` bits is the scale. Values beyond it are clipped."""

    abstract = True
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X")
    bit_length = bits()
    round_type = rounding(1, since=3)  # PaddlePaddle 2.6 reads it too, but does not count it among its attributes
    _returns = False
    """True if the whole numbers are multiplied by the scale again."""

    def _placed(self, x: Tensor, scale: Tensor) -> Tensor:
        """Return X on the grid of a scale that broadcasts with it."""
        limit = largest_level(self.bit_length)
        out = on_grid(x, scale, limit, self.round_type)
        return out.mul_(scale).div_(limit) if self._returns else out


class FakeQuantizeAbsMax(Fake):
    """Out = round(X / OutScale * (2^(bit_length - 1) - 1)), where OutScale = max(|X|)."""

    type = "fake_quantize_abs_max"
    gradient = NOT_DIFFERENTIABLE
    OutScale = result(doc="[1]")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        check_not_empty(X)
        return X.like(), X.dense((1,))

    def sharding_rule(self, X: Spec) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], range(X.rank))

    def workspace(self, X: Spec) -> Size:
        return 3 * X.nbytes

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        scale = absolute_maximum(X)
        return self._placed(X, scale), scale.reshape(1)

    samples = [
        sample(X=f32(2, 3, 5)),
        sample(X=f32(6, data=[0.5, 1.5, 2.5, -0.5, -2.5, 127.0])),
        sample(X=f32(6, data=[0.5, 1.5, 2.5, -0.5, -2.5, 127.0]), round_type=0),
        sample(X=f32(2, 3), bit_length=4),
        sample(X=f32(2, 3, data=[[0.0] * 3] * 2)),
        sample(X=f32()),
    ]
    rejects = [reject(X=f32(0, 3), says="X must not be empty")]


class FakeQuantizeDequantizeAbsMax(Passing, FakeQuantizeAbsMax):
    """Out = `fake_quantize_abs_max` of X, times OutScale / (2^(bit_length - 1) - 1). Its gradient passes straight through."""

    type = "fake_quantize_dequantize_abs_max"
    gradient = None
    _returns = True
    samples = [
        sample(X=f32(2, 3, 5), differentiate=False),
        sample(X=f32(2, 3), bit_length=4, differentiate=False),
        sample(X=f32(2, 3), round_type=0, differentiate=False),
        sample(X=f32(), differentiate=False),
    ]


class FakeChannelWiseQuantizeAbsMax(Fake):
    """Out = round(X / OutScale * (2^(bit_length - 1) - 1)), where OutScale = max(|X|) of each channel along ``quant_axis``.

    (In a test PaddlePaddle reads OutScale; for unchanged weights it is the same.)
    """

    type = "fake_channel_wise_quantize_abs_max"
    gradient = NOT_DIFFERENTIABLE
    OutScale = result(doc="[channels]")
    quant_axis = attribute(AttrType.INT, 0, doc="0 or 1")
    is_test = attribute(AttrType.BOOLEAN, False, doc="ignored")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        check_axis(self.quant_axis, X)
        check_not_empty(X)
        axis: int = self.quant_axis
        channels = X.known_dims[axis]
        return X.like(), X.dense((channels,)) if axis else X.with_dims((channels,))

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        scale = channel_maximum(X, self.quant_axis)
        return self._placed(X, along(scale, X, self.quant_axis)), scale

    samples = [
        sample(X=f32(4, 3, 5)),
        sample(X=f32(4, 3, 5), quant_axis=1, bit_length=4),
        sample(X=f32(4, 3, 2, 5), quant_axis=1, round_type=0),
        sample(X=f32(4)),
    ]
    rejects = [
        reject(X=f32(4), quant_axis=1, says="the axis 1 of the channels"),
        reject(X=f32(4, 0), says="X must not be empty"),
    ]


class FakeChannelWiseQuantizeDequantizeAbsMax(Passing, FakeChannelWiseQuantizeAbsMax):
    """Out = `fake_channel_wise_quantize_abs_max` of X, times OutScale / (2^(bit_length - 1) - 1). Its gradient passes straight through."""

    type = "fake_channel_wise_quantize_dequantize_abs_max"
    gradient = None
    _returns = True
    samples = [
        sample(X=f32(4, 3, 5), differentiate=False),
        sample(X=f32(4, 3, 5), quant_axis=1, bit_length=4, round_type=0, differentiate=False),
    ]


def averaged(x: Tensor, accumulated: Tensor, count: Tensor, rate: float) -> Tensor:
    """Return the scale of the updated moving average, without dims: both its sums are changed in place."""
    accumulated.mul_(rate).add_(absolute_maximum(x))
    count.mul_(rate).add_(1.0)
    return (accumulated / count).reshape(())


def check_average(x: Spec, is_test: bool, accumulated: Spec | None, count: Spec | None) -> None:
    """Require in training both sums of the average, of one number each, and elements of X."""
    check_one(accumulated, "InAccum")
    check_one(count, "InState")
    if not is_test:
        require(accumulated is not None and count is not None, "InAccum and InState are needed in training", X=None)
        check_not_empty(x)


class FakeQuantizeMovingAverageAbsMax(Fake):
    """Out = round(X / s * (2^(bit_length - 1) - 1)), with X clipped at the scale s: InScale in a test. In training s is OutScale = OutAccum / OutState, where
    OutAccum = moving_rate * InAccum + max(|X|) and OutState = moving_rate * InState + 1."""

    type = "fake_quantize_moving_average_abs_max"
    gradient = NOT_DIFFERENTIABLE
    InScale = operand(FLOATING, same_type_as="X", doc="one number")
    InAccum = operand(FLOATING, optional=True, same_type_as="X", doc="one number")
    InState = operand(FLOATING, optional=True, same_type_as="X", doc="one number")
    OutScale = result(updates="InScale", doc="one number")
    OutState = result(updates="InState", doc="made if InState is given")
    OutAccum = result(updates="InAccum", doc="made if InAccum is given")
    moving_rate = attribute(AttrType.FLOAT, 0.9)
    is_test = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, InScale: Spec, InAccum: Spec | None, InState: Spec | None) -> Any:
        check_one(InScale, "InScale")
        check_average(X, self.is_test, InAccum, InState)
        return X.like(), InScale, InState, InAccum

    def sharding_rule(self, X: Spec, *operands: Any) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], () if self.is_test else range(X.rank))

    def workspace(self, X: Spec, InScale: Spec, InAccum: Spec | None, InState: Spec | None) -> Size:
        return 3 * X.nbytes

    def kernel(self, X: Tensor, InScale: Tensor, InAccum: Tensor | None, InState: Tensor | None) -> Any:
        if not self.is_test and InAccum is not None and InState is not None:
            InScale.copy_(averaged(X, InAccum, InState, self.moving_rate).reshape(InScale.shape))
        return self._placed(X, InScale.reshape(())), InScale, InState, InAccum

    samples = [
        sample(X=f32(4, 3), InScale=f32(1, data=[1.5]), is_test=True),
        sample(X=f32(4, 3), InScale=f32(1, data=[1.5]), InAccum=f32(1, data=[3.0]), InState=f32(1, data=[1.5]), moving_rate=0.75, bit_length=4),
        sample(X=f32(5, data=[0.5, 1.5, -2.5, 200.0, -200.0]), InScale=f32(1, data=[127.0]), is_test=True, round_type=0),
        sample(X=f32(0, 3), InScale=f32(data=1.5), is_test=True),
    ]
    rejects = [
        reject(X=f32(4, 3), InScale=f32(1), says="InAccum and InState are needed in training"),
        reject(X=f32(0, 3), InScale=f32(1), InAccum=f32(1), InState=f32(1), says="X must not be empty"),
    ]


class FakeQuantizeDequantizeMovingAverageAbsMax(Passing, FakeQuantizeMovingAverageAbsMax):
    """Out = `fake_quantize_moving_average_abs_max` of X, times its scale / (2^(bit_length - 1) - 1). Its gradient passes straight through."""

    type = "fake_quantize_dequantize_moving_average_abs_max"
    gradient = None
    _returns = True
    samples = [
        sample(X=f32(4, 3), InScale=f32(1, data=[1.5]), is_test=True, differentiate=False),
        sample(X=f32(4, 3), InScale=f32(1, data=[0.5]), is_test=True, round_type=0, differentiate=False),
        sample(
            X=f32(4, 3), InScale=f32(1, data=[1.5]), InAccum=f32(1, data=[3.0]), InState=f32(1, data=[1.5]), moving_rate=0.75, bit_length=4, differentiate=False
        ),
    ]


class FakeQuantizeRangeAbsMax(Fake):
    """Out = round(X / InScale * (2^(bit_length - 1) - 1)), with X clipped at InScale.

    Only in a test: in training the scale is the largest of the last ``window_size`` ones, and this operator reads them from a result.
    """

    type = "fake_quantize_range_abs_max"
    gradient = NOT_DIFFERENTIABLE
    InScale = operand(FLOATING, same_type_as="X", doc="one number")
    Iter = operand(INDEX, optional=True, doc="for training")
    OutScale = result(updates="InScale", doc="one number")
    OutScales = result(optional=True, doc="for training: not made here")
    window_size = attribute(AttrType.INT, 10000, low=1)
    is_test = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, InScale: Spec, Iter: Spec | None) -> Any:
        require(self.is_test, "fake_quantize_range_abs_max must have is_test=True: its form for training is not supported", X=None)
        check_one(InScale, "InScale")
        return X.like(), InScale, None

    def workspace(self, X: Spec, InScale: Spec, Iter: Spec | None) -> Size:
        return 3 * X.nbytes

    def kernel(self, X: Tensor, InScale: Tensor, Iter: Tensor | None) -> Any:
        return self._placed(X, InScale.reshape(())), InScale, None

    samples = [
        sample(X=f32(4, 3), InScale=f32(1, data=[1.5]), is_test=True),
        sample(X=f32(4, 3), InScale=f32(1, data=[1.5]), Iter=i64(1), is_test=True, bit_length=4, round_type=0),
    ]
    rejects = [reject(X=f32(4, 3), InScale=f32(1), Iter=i64(1), says="its form for training is not supported")]


class MovingAverageAbsMaxScale(Passing):
    """Out = X. In training OutScale = OutAccum / OutState, as of `fake_quantize_moving_average_abs_max`; in a test it is not made."""

    type = "moving_average_abs_max_scale"
    X = operand(FLOATING, doc="any shape")
    InAccum = operand(FLOATING, optional=True, same_type_as="X", doc="one number")
    InState = operand(FLOATING, optional=True, same_type_as="X", doc="one number")
    Out = result(doc="as X")
    OutScale = result(optional=True, doc="[1]")
    OutState = result(updates="InState", doc="made if InState is given")
    OutAccum = result(updates="InAccum", doc="made if InAccum is given")
    moving_rate = attribute(AttrType.FLOAT, 0.9)
    is_test = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, InAccum: Spec | None, InState: Spec | None) -> Any:
        check_average(X, self.is_test, InAccum, InState)
        return X.like(), None if self.is_test else X.dense((1,)), InState, InAccum

    def workspace(self, X: Spec, InAccum: Spec | None, InState: Spec | None, *, strided: frozenset[str]) -> Size:
        return turned(strided, X=X)

    def kernel(self, X: Tensor, InAccum: Tensor | None, InState: Tensor | None) -> Any:
        scale = None
        if not self.is_test and InAccum is not None and InState is not None:
            scale = averaged(X, InAccum, InState, self.moving_rate).reshape(1)
        return X.clone(), scale, InState, InAccum

    samples = [
        sample(X=f32(4, 3), InAccum=f32(1, data=[3.0]), InState=f32(1, data=[1.5]), moving_rate=0.75, differentiate=False),
        sample(X=f32(4, 3), is_test=True),
        sample(X=f32(0, 3), InAccum=f32(1, data=[3.0]), InState=f32(1, data=[1.5]), is_test=True, differentiate=False),
    ]
    rejects = [reject(X=f32(4, 3), says="InAccum and InState are needed in training")]
