"""An elementwise operator and an activation in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.operator import FLOATING, AttrType, F, Operator, aten, attribute, f32, gradient, operand, reject, require, result, sample, torch
from foreshape.ops.rules.broadcast import aligned, broadcast_dims, sum_to
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

BINARY = ("elementwise_add", "elementwise_mul")
UNARY = ("scale", "relu", "tanh", "sigmoid", "gelu")
_TAKES = ("X", "Y", "Out", "IntermediateOut", "Out@GRAD")


class FusedElemwiseActivation(Operator):
    """With ``functor_list`` [unary, binary]: Out = unary(binary(X, Y)); with [binary, unary]: Out = binary(X, unary(Y)).

    binary is elementwise_add or elementwise_mul, with Y at ``axis`` of X; unary is relu, tanh, sigmoid, gelu (by tanh), or scale, which
    multiplies by ``scale``. IntermediateOut, where ``save_intermediate_out``, is what the one that comes first gives.
    """

    type = "fused_elemwise_activation"
    X = operand(FLOATING, doc="any shape")
    Y = operand(FLOATING, same_type_as="X", doc="of no more dims than X, and broadcast to it")
    Out = result(doc="as X")
    IntermediateOut = result(optional=True, doc="as X, or as Y; made where save_intermediate_out")
    axis = attribute(AttrType.INT, -1, low=-1)
    scale = attribute(AttrType.FLOAT, 0.0)
    save_intermediate_out = attribute(AttrType.BOOLEAN, False)
    functor_list = attribute(AttrType.STRINGS, choices=(*BINARY, *UNARY))

    def _functions(self) -> tuple[str, str, bool]:
        """The binary function, the unary one, and whether this comes last."""
        given: Sequence[str] = self.functor_list
        last = len(given) == 2 and given[0] in UNARY and given[1] in BINARY
        first = len(given) == 2 and given[0] in BINARY and given[1] in UNARY
        require(first or last, f"functor_list must be one of {', '.join(BINARY)} and one of {', '.join(UNARY)}; seen {', '.join(given)}")
        return (given[1], given[0], True) if last else (given[0], given[1], False)

    def infer_shape(self, X: Spec, Y: Spec) -> Any:
        _, _, last = self._functions()
        require(Y.rank <= X.rank, f"Y must have no more dims than X: {X.rank}, not {Y.rank}", X=None, Y=None)
        ragged = X.lod is not None, Y.lod is not None
        dims = broadcast_dims(X.known_dims, Y.known_dims, self.axis, ragged=ragged)
        return X.with_dims(dims), (X.with_dims(dims) if last else Y.like()) if self.save_intermediate_out else None

    def _unary(self, x: Tensor, name: str) -> Tensor:
        return x * self.scale if name == "scale" else F.gelu(x, approximate="tanh") if name == "gelu" else getattr(torch, name)(x)

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return X.nbytes + Y.nbytes

    def kernel(self, X: Tensor, Y: Tensor) -> Any:
        binary, unary, last = self._functions()
        y = aligned(Y, X, self.axis)
        apply = torch.add if binary == "elementwise_add" else torch.mul
        if last:
            inner = apply(X, y)
            out = self._unary(inner, unary)
        else:
            inner = self._unary(Y, unary)
            out = apply(X, aligned(inner, X, self.axis))
        return out, inner if self.save_intermediate_out else None

    def _infer_gradient(self, X: Spec, Y: Spec, Out: Spec, IntermediateOut: Spec | None, d_out: Spec) -> tuple[Spec, Spec]:
        out, inner = FusedElemwiseActivation.infer_shape(self, X, Y)  # pyright: ignore[reportArgumentType]
        check_made(Out=(Out, out), Out_GRAD=(d_out, out))
        if IntermediateOut is not None and inner is not None:
            check_made(IntermediateOut=(IntermediateOut, inner))
        return X.like(), Y.like()

    def _slope(self, d: Tensor, x: Tensor, name: str) -> Tensor:
        """The gradient of what a unary function takes, from that of what it gives."""
        if name == "scale":
            return d * self.scale
        if name == "relu":
            return aten.threshold_backward(d, x, 0)
        if name == "gelu":
            return aten.gelu_backward(d, x, approximate="tanh")
        return aten.tanh_backward(d, torch.tanh(x)) if name == "tanh" else aten.sigmoid_backward(d, torch.sigmoid(x))

    def _gradient_workspace(self, X: Spec, Y: Spec, Out: Spec, IntermediateOut: Spec | None, d_out: Spec) -> Size:
        return 5 * Out.nbytes + 2 * Y.nbytes

    @gradient(*_TAKES, gives=("X@GRAD", "Y@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Out: Tensor, IntermediateOut: Tensor | None, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        binary, unary, last = self._functions()
        adds = binary == "elementwise_add"
        y = aligned(Y, X, self.axis)
        if last:
            d = self._slope(d_out, X + y if adds else X * y, unary)
            d_x, d_y = (d, d) if adds else (d * y, d * X)
            return sum_to(d_x.clone(), X, Y, self.axis) if requested[0] else None, sum_to(d_y.clone(), Y, X, self.axis) if requested[1] else None
        inner = aligned(self._unary(Y, unary), X, self.axis)
        d_x = (d_out.clone() if adds else d_out * inner) if requested[0] else None
        d_y = self._slope(sum_to(d_out if adds else d_out * X, Y, X, self.axis), Y, unary) if requested[1] else None
        return d_x if d_x is None else sum_to(d_x, X, Y, self.axis), d_y

    samples = [
        sample(X=f32(2, 3, 5), Y=f32(2, 3, 5), functor_list=["relu", "elementwise_add"]),
        sample(X=f32(2, 3, 5), Y=f32(3), axis=1, functor_list=["elementwise_add", "relu"], save_intermediate_out=True),
        sample(X=f32(2, 3, 5), Y=f32(5), functor_list=["tanh", "elementwise_add"], save_intermediate_out=True),
        sample(X=f32(2, 3, 5), Y=f32(5), functor_list=["elementwise_mul", "tanh"]),
        sample(X=f32(2, 3, 5), Y=f32(3, 5), functor_list=["gelu", "elementwise_add"]),
        sample(X=f32(2, 3), Y=f32(3), functor_list=["sigmoid", "elementwise_mul"]),
        sample(X=f32(2, 3), Y=f32(3), functor_list=["elementwise_mul", "scale"], scale=0.5),
        sample(X=f32(2, 3), Y=f32(2, 3), functor_list=["scale", "elementwise_add"], scale=0.5),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(3), functor_list=["relu", "tanh"], says="functor_list must be one of"),
        reject(X=f32(2, 3), Y=f32(3), functor_list=["relu"], says="functor_list must be one of"),
        reject(X=f32(2, 3), Y=f32(3), functor_list=["elementwise_sub", "relu"], says="one of", error=SchemaError),
        reject(X=f32(2, 3), Y=f32(4), functor_list=["relu", "elementwise_add"], says="must be equal or 1"),
        reject(X=f32(3), Y=f32(2, 3), functor_list=["relu", "elementwise_add"], says="Y must have no more dims than X"),
    ]


class FusedElemwiseAddActivation(FusedElemwiseActivation):
    """`fused_elemwise_activation`, by another name."""

    type = "fused_elemwise_add_activation"
    samples = FusedElemwiseActivation.samples[:3]
    rejects = FusedElemwiseActivation.rejects[:2]
