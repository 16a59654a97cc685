"""Normalization over each example and its gradient on torch's kernels, with the inverse of the deviation handed from one to the other."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import Spec
from foreshape.core.values.torch_proxy import Lazy, aten, torch
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.kernels.onednn import thread_count


def forward(begin: int, epsilon: float, by: tuple[bool, bool]) -> FusedKernel:
    """Return the result, the mean and the inverse deviation of X, and of a scale and a shift where ``by`` says so."""
    text = f"{{normalize}}({{0}}, {{0}}.shape[{begin}:], {_given(by)[0]}, {_given(by)[1]}, {epsilon!r})"
    return FusedKernel("{op} normalize", text, {"normalize": Lazy(lambda: torch.native_layer_norm)}, effects=Effects(contiguous=(0,)))


def gradient(begin: int, by: tuple[bool, bool], wanted: tuple[bool, bool, bool], scale: Spec | None) -> FusedKernel:
    """Return the gradients of X, the scale and the shift, of the gradient of the result, X, the mean, the inverse deviation, and what `forward` had."""
    parts = ", ".join(_given(by, 4))
    text = f"{{undo}}({{0}}, {{1}}, {{1}}.shape[{begin}:], {{2}}, {{3}}, {parts}, {wanted!r})"
    needs = None if scale is None else lambda: _sums(scale)
    undo = Lazy(lambda: aten.native_layer_norm_backward)
    return FusedKernel("{op} undo", text, {"undo": undo}, effects=Effects(contiguous=(0, 1)), workspace=needs)


def _given(by: tuple[bool, bool], begin: int = 1) -> list[str]:
    """Return the texts of the scale and the shift, operands from ``begin`` on."""
    return [f"{{{begin + sum(by[:at])}}}" if there else "None" for at, there in enumerate(by)]


def _sums(scale: Spec) -> Size:
    """Return the bytes of the sums of each thread for two gradients."""
    return 2 * thread_count() * scale.nbytes
