"""Numbers on the grid of a few bits, as quantization-aware training computes them: fake_quantize, fake_dequantize, and both in one."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.quantization.grid import (
    Passing,
    absolute_maximum,
    along,
    bits,
    channel_maximum,
    check_axis,
    check_not_empty,
    largest_level,
    levels,
)
from foreshape.spec import FLOATING, Spec
from foreshape.values.torch_proxy import Tensor


class Fake(Operator):
    """The base: Out = the whole numbers of X on the grid of a scale; the largest number of ``bit_length`` bits is the scale.

    Values beyond the scale are clipped; of two whole numbers as near, the one away from 0 is taken.
    """

    abstract = True
    X = operand(FLOATING, doc="any shape")
    Out = result(doc="as X")
    bit_length = bits()
    _returns = False
    """True if the whole numbers are multiplied by the scale again."""

    def _placed(self, x: Tensor, scale: Tensor) -> Tensor:
        """Return X on the grid of a scale that broadcasts with it."""
        most = largest_level(self.bit_length)
        out = levels(x, scale, most)
        return out.mul_(scale).div_(most) if self._returns else out


class FakeQuantizeAbsMax(Fake):
    """Out = round(X / OutScale * (2^(bit_length - 1) - 1)), where OutScale = max(|X|)."""

    type = "fake_quantize_abs_max"
    gradient = NOT_DIFFERENTIABLE
    OutScale = result(doc="[1]")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        check_not_empty(X)
        return X.like(), X.dense((1,))

    def workspace(self, X: Spec) -> Size:
        return 3 * X.nbytes

    def kernel(self, X: Tensor) -> tuple[Tensor, Tensor]:
        scale = absolute_maximum(X)
        return self._placed(X, scale), scale.reshape(1)

    samples = [
        sample(X=f32(2, 3, 5)),
        sample(X=f32(6, data=[0.5, 1.5, 2.5, -0.5, -2.5, 127.0])),
        sample(X=f32(2, 3), bit_length=4),
        sample(X=f32(2, 3, data=[[0.0] * 3] * 2)),
        sample(X=f32()),
    ]
    rejects = [
        reject(X=f32(2, 3), bit_length=17, says="at most 16", error=SchemaError),
        reject(X=f32(0, 3), says="X must not be empty"),
    ]


class FakeQuantizeDequantizeAbsMax(Passing, FakeQuantizeAbsMax):
    """Out = `fake_quantize_abs_max` of X, times OutScale / (2^(bit_length - 1) - 1). Its gradient passes straight through."""

    type = "fake_quantize_dequantize_abs_max"
    gradient = None
    _returns = True
    samples = [
        sample(X=f32(2, 3, 5), differentiate=False),
        sample(X=f32(2, 3), bit_length=4, differentiate=False),
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
        sample(X=f32(4, 3, 2, 5), quant_axis=1),
        sample(X=f32(4)),
    ]
    rejects = [
        reject(X=f32(4, 3, 5), quant_axis=2, says="quant_axis must be 0 or 1"),
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
        sample(X=f32(4, 3, 5), quant_axis=1, bit_length=4, differentiate=False),
    ]
