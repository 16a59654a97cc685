"""Normalization over each example and its gradient on torch's kernels, with the inverse of the deviation handed from one to the other."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import Spec
from foreshape.core.values.torch_proxy import Lazy, aten, torch
from foreshape.machine.kernels.call_record import NamedConstant, NumberedOperand, Part, Subscript, X, Y, Z, call
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.kernels.onednn import thread_count
from foreshape.machine.kernels.view_calls import shape


def forward(begin: int, epsilon: float, parameters: tuple[bool, bool]) -> FusedKernel:
    """Return the result, the mean and the inverse deviation of X, and of a scale and a shift where ``parameters`` says so."""
    record = call(NamedConstant("normalize", Lazy(lambda: torch.native_layer_norm)), X, _dims(X, begin), *_parameters(parameters, 1), epsilon)
    return FusedKernel("{op} normalize", record, effects=Effects(contiguous=(0,)))


def gradient(begin: int, parameters: tuple[bool, bool], requested: tuple[bool, bool, bool], scale: Spec | None) -> FusedKernel:
    """Return the gradients of X, the scale and the shift, of the gradient of the result, X, the mean, the inverse deviation, and what `forward` had."""
    needs = None if scale is None else lambda: _sums(scale)
    undo = NamedConstant("undo", Lazy(lambda: aten.native_layer_norm_backward))
    record = call(undo, X, Y, _dims(Y, begin), Z, NumberedOperand(3), *_parameters(parameters, 4), requested)
    return FusedKernel("{op} undo", record, effects=Effects(contiguous=(0, 1)), workspace=needs)


def _dims(operand: NumberedOperand, begin: int) -> Part:
    """Return the dims of an example."""
    return Subscript(shape(operand), slice(begin, None))


def _parameters(parameters: tuple[bool, bool], begin: int) -> list[NumberedOperand | None]:
    """Return the scale and the shift, operands from ``begin`` on."""
    return [NumberedOperand(begin + sum(parameters[:index])) if exists else None for index, exists in enumerate(parameters)]


def _sums(scale: Spec) -> Size:
    """Return the bytes of the sums of each thread for two gradients."""
    return 2 * thread_count() * scale.nbytes
