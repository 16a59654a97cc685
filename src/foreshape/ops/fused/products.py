"""Products of matrices, one after the other, or squared, in one."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.operator.composition import Composition
from foreshape.operator.require import require, require_equal, require_rank
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.fused.parts import with_bias
from foreshape.spec import FLOATING, Spec

NOT_MADE = "not made here"


class FusionSquaredMatSub(Operator):
    """Out = scalar ((X Y)^2 - X^2 Y^2), with squares of each element, as factorization machines have it."""

    type = "fusion_squared_mat_sub"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[m, k]")
    Y = operand(FLOATING, same_type_as="X", doc="[k, n]")
    SquaredX = result(optional=True, doc=NOT_MADE)
    SquaredY = result(optional=True, doc=NOT_MADE)
    SquaredXY = result(optional=True, doc=NOT_MADE)
    Out = result(doc="[m, n]")
    scalar = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, X: Spec, Y: Spec) -> Any:
        require_rank(2, X, "X")
        require_rank(2, Y, "Y")
        require_equal(X.known_dims[1], Y.known_dims[0], "the columns of X must be as many as the rows of Y", X=1, Y=0)
        return None, None, None, X.with_dims((X.known_dims[0], Y.known_dims[1]))

    def work(self, X: Spec, Y: Spec) -> Size:
        return 2 * X.elements * Y.known_dims[1]

    def expand(self, of: Composition, X: Any, Y: Any) -> Any:
        squares = of("matmul_v2", X=of("square", X=X), Y=of("square", X=Y))
        out = of("elementwise_sub", X=of("square", X=of("matmul_v2", X=X, Y=Y)), Y=squares)
        return None, None, None, of("scale", {"scale": self.scalar}, X=out)

    samples = [sample(X=f32(2, 3), Y=f32(3, 5), scalar=0.5), sample(X=f32(0, 3), Y=f32(3, 5))]
    rejects = [reject(X=f32(2, 3), Y=f32(4, 5), says="as many as the rows of Y"), reject(X=f32(2, 3, 4), Y=f32(4, 5), says="X must have 2 dims")]


class FusionRepeatedFcRelu(Operator):
    """Out = max(0, ... max(0, max(0, X W_0 + Bias_0) W_1 + Bias_1) ...)."""

    type = "fusion_repeated_fc_relu"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[rows, width]")
    W = operand(FLOATING, many=True, doc="two or more, [width, columns] each")
    Bias = operand(FLOATING, many=True, doc="as many, with one number for each column")
    ReluOut = result(many=True, optional=True, doc=NOT_MADE)
    Out = result(doc="[rows, columns of the last]")

    def infer_shape(self, X: Spec, W: tuple[Spec, ...], Bias: tuple[Spec, ...]) -> Any:
        require_rank(2, X, "X")
        require(len(W) > 1, f"W must have two matrices at least, not {len(W)}", W=None)
        require(len(W) == len(Bias), f"Bias must be as many as W, {len(W)}, not {len(Bias)}", Bias=None)
        width = X.known_dims[1]
        for w, bias in zip(W, Bias, strict=True):
            require(w.dtype is X.dtype and bias.dtype is X.dtype, "X, W and Bias must be of one element type", X=None, W=None, Bias=None)
            require_rank(2, w, "W")
            require_equal(w.known_dims[0], width, "each W must have as many rows as what it multiplies has columns", W=None)
            width = w.known_dims[1]
            require_equal(bias.elements, width, "each Bias must have one number for each column of its W", Bias=None)
        return (), X.with_dims((X.known_dims[0], width))

    def work(self, X: Spec, W: tuple[Spec, ...], Bias: tuple[Spec, ...]) -> Size:
        return X.known_dims[0] * sum((w.elements for w in W), 0)

    def expand(self, of: Composition, X: Any, W: Any, Bias: Any) -> Any:
        out = X
        for w, bias in zip(W, Bias, strict=True):
            out = of("relu", X=with_bias(of, of("mul", X=out, Y=w), bias))
        return [], out

    samples = [
        sample(X=f32(2, 3), W=[f32(3, 4), f32(4, 5)], Bias=[f32(4), f32(1, 5)]),
        sample(X=f32(2, 3), W=[f32(3, 4), f32(4, 5), f32(5, 2)], Bias=[f32(4), f32(5), f32(2)]),
    ]
    rejects = [
        reject(X=f32(2, 3), W=[f32(3, 4), f32(3, 5)], Bias=[f32(4), f32(5)], says="as many rows as what it multiplies"),
        reject(X=f32(2, 3), W=[f32(3, 4)], Bias=[f32(4)], says="two matrices at least"),
        reject(X=f32(2, 3), W=[f32(3, 4), f32(4, 5)], Bias=[f32(4)], says="Bias must be as many as W"),
        reject(X=f32(2, 3), W=[f32(3, 4), f32(4, 5)], Bias=[f32(4), f32(4)], says="one number for each column"),
    ]
