"""Normalizations of rows whose scale and shift never change, by torch, or as a stage of a series by oneDNN's own library."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ShapeError
from foreshape.machine.kernels.onednn_library import NOTHING_AFTER, SCALE, SHIFT, Library, Memory, Primitive, Unimplemented
from foreshape.machine.kernels.onednn_packed import DescribedPrimitive, described, row_major_strides

STATISTICS = 16
"""The bytes of the mean and the variance of a row, with the gap between them."""
_FEW = 1 << 16
"""So many elements repay no second thread."""


class NormalizedRows(NamedTuple):
    """``scale * (x - mean) / sqrt(variance + epsilon) + shift``, with the mean and the variance over all dims from ``begin`` on.

    ``scale`` and ``shift``: fp32 with as many numbers as an example has elements, or None.
    """

    begin: int
    epsilon: float
    scale: Tensor | None
    shift: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        example = x.shape[self.begin :]
        scale, shift = (None if t is None else t.reshape(example) for t in (self.scale, self.shift))
        return torch.native_layer_norm(x, example, scale, shift, self.epsilon)[0]

    def described(self, library: Library, dims: Sequence[Sequence[int]]) -> DescribedPrimitive:
        """Return the computation for an operand of these dims.

        Raises:
            Unimplemented: oneDNN has no kernel for these sizes, or only a slow one. ShapeError: they do not fit.
        """
        (x,) = dims
        if not 0 < self.begin < len(x):
            raise ShapeError(f"an example must begin at one of the dims of {list(x)}; seen {self.begin}")
        rows, elements = prod(x[: self.begin]), prod(x[self.begin :])
        if len(x) == 4:
            raise Unimplemented("the last dim of images is not innermost")
        parameters = {name: t for name, t in ((SCALE, self.scale), (SHIFT, self.shift)) if t is not None}
        for t in parameters.values():
            if t.numel() != elements or t.dtype is not torch.float32 or t.device.type != "cpu" or not t.is_contiguous():
                raise ShapeError.must("a scale and a shift", f"{elements} fp32 numbers in memory, in a row", f"{t.dtype} {list(t.shape)} on {t.device}")
        arguments = (Memory((rows, elements), (elements, 1)), self.epsilon, SCALE in parameters, SHIFT in parameters, NOTHING_AFTER)
        record = Primitive("normalized_rows", arguments, 1 if rows * elements < _FEW else None)
        constants = {name: library.memory(library.strided((elements,), (1,)), t.data_ptr(), t) for name, t in parameters.items()}
        return described(library, record, constants, x, row_major_strides(x))


def normalized_rows(begin: int, epsilon: float, scales: bool, shifts: bool, *given: Tensor) -> NormalizedRows:
    """Return the normalization by the given persistables: a scale, a shift, both or none."""
    left = [t.contiguous() for t in given]
    scale = left.pop(0) if scales else None
    return NormalizedRows(begin, epsilon, scale, left.pop(0) if shifts else None)
