"""Import of complex numbers and of Fourier transforms."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import COMPLEX


@aten("complex")
def _complex(t: TorchCall, x: Any, y: Any) -> Any:
    return layer.complex(x, y)


@aten("polar")
def _polar(t: TorchCall, size: Variable, angle: Variable) -> Any:
    return layer.complex(layer.multiply(size, layer.cos(angle)), layer.multiply(size, layer.sin(angle)))


@aten("view_as_real", "view_as_complex", "real", "imag", "angle", "_conj", "conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg")
def _parts(t: TorchCall, x: Variable) -> Any:
    name = t.name
    if name in ("resolve_conj", "resolve_neg") or (("conj" in name or name == "real") and x.dtype not in COMPLEX):
        return x
    functions = {"view_as_real": layer.as_real, "view_as_complex": layer.as_complex, "real": layer.real, "imag": layer.imag, "angle": layer.angle}
    return functions.get(name, layer.conj)(x)


@aten("_neg_view")
def _negated(t: TorchCall, x: Variable) -> Any:
    return layer.scale(x, -1.0)


def _normalization(mode: int, forward: bool) -> str:
    """Return our word for torch's number: nothing, the root, or the count of elements is divided by."""
    return "ortho" if mode == 1 else "backward" if (mode == 0) == forward else "forward"


@aten("_fft_c2c")
def _transform(t: TorchCall, x: Variable, dim: Any, normalization: int, forward: bool) -> Any:
    return t.op("fft_c2c", {"axes": t.axes(x, dim), "normalization": _normalization(normalization, forward), "forward": forward}, X=x)


@aten("_fft_r2c")
def _transform_of_reals(t: TorchCall, x: Variable, dim: Any, normalization: int, onesided: bool) -> Any:
    attrs = {"axes": t.axes(x, dim), "normalization": _normalization(normalization, True), "forward": True, "onesided": onesided}
    return t.op("fft_r2c", attrs, X=x)


@aten("_fft_c2r")
def _transform_to_reals(t: TorchCall, x: Variable, dim: Any, normalization: int, size: Any) -> Any:
    axes = t.axes(x, dim) or []
    attrs: dict[str, Any] = {"axes": axes, "normalization": _normalization(normalization, False), "forward": False}
    if isinstance(size, int):
        attrs["last_dim_size"] = size
    return t.op("fft_c2r", attrs, X=x)
