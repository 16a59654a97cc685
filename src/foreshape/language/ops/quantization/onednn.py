"""Numbers as bytes and back, as oneDNN's rewrites put them into inference programs: quantize, dequantize, requantize."""

from __future__ import annotations

import math
from dataclasses import replace

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INT8, UINT8, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require
from foreshape.language.operator.samples import f32, i32, reject, sample

_BYTES = (INT8, UINT8)
_SIGNED = replace(i32(4, 3, 5, low=-128, high=127), dtype=INT8)
_UNSIGNED = replace(i32(4, 3, low=0, high=255), dtype=UINT8)


def _rounded(x: Tensor, signed: bool) -> Tensor:
    """Return the nearest whole numbers (halves to even) within the range of a byte; overwrites ``x``."""
    low, high, dtype = (-128.0, 127.0, torch.int8) if signed else (0.0, 255.0, torch.uint8)
    return x.round_().clamp_(low, high).to(dtype)


class Quantize(Operator):
    """Output = round(Scale * Input + Shift) as bytes: int8 if ``is_negative_input`` and Shift is 0, else uint8."""

    type = "quantize"
    examples = ("Input",)
    gradient = NOT_DIFFERENTIABLE
    Input = operand((FP32,), doc="any shape")
    Output = result(doc="int8 or uint8, as Input")
    is_negative_input = attribute(AttrType.BOOLEAN, False)
    Scale = attribute(AttrType.FLOAT, 1.0, doc="more than 0")
    Shift = attribute(AttrType.FLOAT, 0.0, low=0.0, high=255.0)
    output_format = attribute(AttrType.STRING, "NHWC", doc="ignored: the bytes' order in memory")
    bfloat16 = attribute(AttrType.BOOLEAN, False, doc="must be false: only bytes are supported")

    def _is_signed(self) -> bool:
        return self.is_negative_input and self.Shift == 0.0

    def infer_shape(self, Input: Spec) -> Spec:
        require(not self.bfloat16, "bfloat16 must be false: only bytes are supported", Input=None)
        require(self.Scale > 0.0, f"Scale must be more than 0, not {self.Scale}", Input=None)
        return Input.like().with_dtype(INT8 if self._is_signed() else UINT8)

    def workspace(self, Input: Spec) -> Size:
        return 2 * Input.nbytes

    def kernel(self, Input: Tensor) -> Tensor:
        return _rounded((Input * self.Scale).add_(self.Shift), self._is_signed())

    samples = [
        sample(Input=f32(4, 3, 5, low=0.0, high=4.0), Scale=50.0),
        sample(Input=f32(4, 3, 5, low=-3.0, high=3.0), Scale=50.0, is_negative_input=True),
        sample(Input=f32(4, 3), Scale=50.0, Shift=64.0, is_negative_input=True),
        sample(Input=f32(6, data=[0.5, 1.5, 2.5, -0.5, -2.5, -200.0]), is_negative_input=True),
    ]
    rejects = [
        reject(Input=f32(4, 3), bfloat16=True, says="bfloat16 must be false"),
        reject(Input=f32(4, 3), Scale=0.0, says="Scale must be more than 0"),
    ]


class Dequantize(Operator):
    """Output = (Input - Shift) / Scale, in fp32: the inverse of `quantize`."""

    type = "dequantize"
    examples = ("Input",)
    gradient = NOT_DIFFERENTIABLE
    Input = operand(_BYTES, doc="any shape")
    Output = result(doc="fp32, as Input")
    Scale = attribute(AttrType.FLOAT, 1.0, doc="more than 0")
    Shift = attribute(AttrType.FLOAT, 0.0, low=0.0, high=255.0)

    def infer_shape(self, Input: Spec) -> Spec:
        require(self.Scale > 0.0, f"Scale must be more than 0, not {self.Scale}", Input=None)
        return Input.like().with_dtype(FP32)

    def kernel(self, Input: Tensor) -> Tensor:
        return Input.float().sub_(self.Shift).div_(self.Scale)

    samples = [
        sample(Input=_SIGNED, Scale=50.0),
        sample(Input=_UNSIGNED, Scale=25.0, Shift=64.0),
    ]
    rejects = [reject(Input=_SIGNED, Scale=-1.0, says="Scale must be more than 0")]


class Requantize(Operator):
    """Output = round(r Input + s) as bytes, with r = Scale_out / Scale_in and s = Shift_out - r Shift_in: int8 if Input is and no shift is given.

    s must be a whole number; below 0 it is taken for 0, and above 255 for 255, as in PaddlePaddle.
    """

    type = "requantize"
    examples = ("Input",)
    gradient = NOT_DIFFERENTIABLE
    Input = operand(_BYTES, doc="any shape")
    Output = result(doc="int8 or uint8, as Input")
    Scale_in = attribute(AttrType.FLOAT, 1.0, doc="more than 0")
    Scale_out = attribute(AttrType.FLOAT, 1.0, doc="more than 0")
    Shift_in = attribute(AttrType.FLOAT, 1.0, low=0.0, high=255.0)
    Shift_out = attribute(AttrType.FLOAT, 1.0, low=0.0, high=255.0)

    def infer_shape(self, Input: Spec) -> Spec:
        require(self.Scale_in > 0.0 and self.Scale_out > 0.0, "Scale_in and Scale_out must be more than 0", Input=None)
        shift = self.Shift_out - self.Scale_out / self.Scale_in * self.Shift_in
        require(math.isfinite(shift) and shift == int(shift), f"Shift_out - Scale_out / Scale_in * Shift_in must be a whole number, not {shift}", Input=None)
        return Input.like().with_dtype(INT8 if Input.dtype is INT8 and not self._shifts() else UINT8)

    def _shifts(self) -> bool:
        return self.Shift_in != 0.0 or self.Shift_out != 0.0

    def workspace(self, Input: Spec) -> Size:
        return 8 * Input.nbytes

    def kernel(self, Input: Tensor) -> Tensor:
        factor = self.Scale_out / self.Scale_in
        shift = min(max(self.Shift_out - factor * self.Shift_in, 0.0), 255.0)
        return _rounded(Input.float().mul_(factor).add_(shift), Input.dtype is torch.int8 and not self._shifts())

    samples = [
        sample(Input=_SIGNED, Scale_in=50.0, Scale_out=25.0, Shift_in=0.0, Shift_out=0.0),
        sample(Input=_UNSIGNED, Scale_in=50.0, Scale_out=75.0, Shift_in=0.0, Shift_out=0.0),
        sample(Input=_UNSIGNED, Scale_in=64.0, Scale_out=32.0, Shift_in=16.0, Shift_out=32.0),
        sample(Input=_UNSIGNED, Scale_in=64.0, Scale_out=128.0),
    ]
    rejects = [
        reject(Input=_SIGNED, Scale_in=0.0, says="must be more than 0"),
        reject(Input=_UNSIGNED, Scale_in=2.0, Shift_in=3.0, says="must be a whole number"),
        reject(Input=_UNSIGNED, Scale_in=float("inf"), Scale_out=float("inf"), says="must be a whole number, not nan"),
    ]
