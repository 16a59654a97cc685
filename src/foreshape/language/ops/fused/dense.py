"""Products of matrices with other operators: fc, with an epilogue, a residual sum or a layer norm, in a row, and squared."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, Spec
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import require, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.fused.parts import activated, layer_norm, with_bias


def linear_dims(x: Spec, w: Spec, bias: Spec | None, flat: int, slots: tuple[str, str, str]) -> tuple[Size, ...]:
    """Return the dims of the product of ``x``, with its dims from ``flat`` on as one, and ``w``, plus a bias."""
    x_slot, w_slot, bias_slot = slots
    require(1 <= flat < x.rank, f"the dims of {x_slot} before those of a row must be in [1, {x.rank}); seen {flat}", **{x_slot: None})
    require_rank(2, w, w_slot)
    inner = product(x.known_dims[flat:])
    require_equal(inner, w.known_dims[0], f"the numbers of a row of {x_slot} must be as many as the rows of {w_slot}", **{x_slot: flat, w_slot: 0})
    if bias is not None:
        require_equal(bias.elements, w.known_dims[1], f"{bias_slot} must have one number for each column of {w_slot}", **{bias_slot: None, w_slot: 1})
    return (*x.known_dims[:flat], w.known_dims[1])


class Fc(Operator):
    """Out = activation(Input W + Bias), where the dims of Input from ``in_num_col_dims`` on are one.

    With ``padding_weights`` W has 4 unused rows and columns more.
    """

    type = "fc"
    examples = ("Input",)
    gradient = NOT_WRITTEN
    Input = operand(FLOATING, doc="[*rows, *features]")
    W = operand(FLOATING, same_type_as="Input", doc="[features, columns]")
    Bias = operand(FLOATING, optional=True, same_type_as="Input", doc="columns numbers")
    Out = result(doc="[*rows, columns]")
    in_num_col_dims = attribute(AttrType.INT, 1, low=1)
    activation_type = attribute(AttrType.STRING, "", choices=("", "relu"))
    padding_weights = attribute(AttrType.BOOLEAN, False)
    use_quantizer = attribute(AttrType.BOOLEAN, False, doc="ignored")
    Scale_in = attribute(AttrType.FLOAT, 1.0, doc="for quantized inference: must be 1")
    Scale_weights = attribute(AttrType.FLOATS, [1.0], doc="for quantized inference: must be 1")
    Scale_out = attribute(AttrType.FLOAT, 1.0, doc="for quantized inference: must be 1")
    force_fp32_output = attribute(AttrType.BOOLEAN, False, doc="ignored")

    def infer_shape(self, Input: Spec, W: Spec, Bias: Spec | None) -> Spec:
        plain = self.Scale_in == 1.0 and self.Scale_out == 1.0 and all(s == 1.0 for s in self.Scale_weights)
        require(plain, "Scale_in, Scale_weights and Scale_out must be 1: quantized products are not supported", Input=None)
        if self.padding_weights:
            require_rank(2, W, "W")
        w = W.with_dims([d - 4 for d in W.known_dims]) if self.padding_weights else W
        return Input.with_dims(linear_dims(Input, w, Bias, self.in_num_col_dims, ("Input", "W", "Bias")))

    def work(self, Input: Spec, W: Spec, Bias: Spec | None) -> Size:
        return product(Input.known_dims) * W.known_dims[1]

    def expand(self, of: Composition, Input: Any, W: Any, Bias: Any) -> Any:
        weight = W
        if self.padding_weights:
            rows, columns = W.spec.known_dims
            weight = of("slice", {"axes": [0, 1], "starts": [0, 0], "ends": [rows - 4, columns - 4]}, Input=W)
        out = with_bias(of, of("mul", {"x_num_col_dims": self.in_num_col_dims}, X=Input, Y=weight), Bias)
        return activated(of, out, self.activation_type)

    samples = [
        sample(Input=f32(4, 5), W=f32(5, 3), Bias=f32(3)),
        sample(Input=f32(2, 4, 5), W=f32(5, 3), Bias=f32(1, 3), in_num_col_dims=2, activation_type="relu"),
        sample(Input=f32(4, 2, 3), W=f32(6, 5)),
        sample(Input=f32(4, 5), W=f32(9, 7), Bias=f32(3), padding_weights=True),
        sample(Input=f32(0, 5), W=f32(5, 3), Bias=f32(3)),
    ]
    rejects = [
        reject(Input=f32(4, 5), W=f32(6, 3), says="as many as the rows of W"),
        reject(Input=f32(4, 5), W=f32(5, 3), Bias=f32(4), says="one number for each column of W"),
        reject(Input=f32(4, 5), W=f32(5, 3), in_num_col_dims=2, says="must be in [1, 2)"),
        reject(Input=f32(4, 5), W=f32(5, 3), Scale_in=0.5, says="quantized products are not supported"),
    ]


class FusedGemmEpilogue(Operator):
    """Out = activation(X Y + Bias), where the dims of X but the last are its rows; ``trans_x`` and ``trans_y`` mark transposed operands.

    gelu is its tanh approximation.
    """

    type = "fused_gemm_epilogue"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[*rows, features]; [features, rows] with trans_x")
    Y = operand(FLOATING, same_type_as="X", doc="[features, columns]; [columns, features] with trans_y")
    Bias = operand(FLOATING, same_type_as="X", doc="[columns]")
    Out = result(doc="[*rows, columns]")
    ReserveSpace = result(optional=True, doc="for training: not made here")
    trans_x = attribute(AttrType.BOOLEAN, False)
    trans_y = attribute(AttrType.BOOLEAN, False)
    activation = attribute(AttrType.STRING, "none", choices=("none", "relu", "gelu"))

    def infer_shape(self, X: Spec, Y: Spec, Bias: Spec) -> Any:
        require_rank(2, Y, "Y")
        if self.trans_x:
            require_rank(2, X, "X")
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        x = X.dense(X.known_dims[::-1]) if self.trans_x else X
        y = Y.with_dims(Y.known_dims[::-1]) if self.trans_y else Y
        return x.with_dims(linear_dims(x, y, Bias, x.rank - 1, ("X", "Y", "Bias"))), None

    def work(self, X: Spec, Y: Spec, Bias: Spec) -> Size:
        return product(X.known_dims) * Bias.elements

    def expand(self, of: Composition, X: Any, Y: Any, Bias: Any) -> Any:
        out = of("matmul_v2", {"trans_x": self.trans_x, "trans_y": self.trans_y}, X=X, Y=Y)
        return activated(of, with_bias(of, out, Bias), self.activation), None

    samples = [
        sample(X=f32(2, 4, 5), Y=f32(5, 3), Bias=f32(3)),
        sample(X=f32(5, 4), Y=f32(3, 5), Bias=f32(3), trans_x=True, trans_y=True, activation="relu"),
        sample(X=f32(4, 5), Y=f32(5, 3), Bias=f32(3), activation="gelu"),
    ]
    rejects = [reject(X=f32(2, 4, 5), Y=f32(5, 3), Bias=f32(3), trans_x=True, says="X must have 2 dims")]


class FusedFcElementwiseLayernorm(Operator):
    """Out = layer_norm(activation(X W + Bias0) + Y), over the dims from ``begin_norm_axis`` on, times Scale, plus Bias1."""

    type = "fused_fc_elementwise_layernorm"
    examples = ("X", "Y")
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[*rows, *features]")
    W = operand(FLOATING, same_type_as="X", doc="[features, columns]")
    Y = operand(FLOATING, same_type_as="X", doc="[*rows, columns]")
    Bias0 = operand(FLOATING, optional=True, same_type_as="X", doc="columns numbers")
    Scale = operand(FLOATING, optional=True, same_type_as="X", doc="[elements of an example]")
    Bias1 = operand(FLOATING, optional=True, same_type_as="X", doc="[elements of an example]")
    Out = result(doc="[*rows, columns]")
    Mean = result(optional=True, doc="not made here")
    Variance = result(optional=True, doc="not made here")
    x_num_col_dims = attribute(AttrType.INT, 1, low=1)
    activation_type = attribute(AttrType.STRING, "", choices=("", "relu"))
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    begin_norm_axis = attribute(AttrType.INT, 1, low=1)

    def infer_shape(self, X: Spec, W: Spec, Y: Spec, Bias0: Spec | None, Scale: Spec | None, Bias1: Spec | None) -> Any:
        out = X.with_dims(linear_dims(X, W, Bias0, self.x_num_col_dims, ("X", "W", "Bias0")))
        check_alike(out, Y, "Y")
        check_norm(out, self.begin_norm_axis, "X", Scale=Scale, Bias1=Bias1)
        return out, None, None

    def expand(self, of: Composition, X: Any, W: Any, Y: Any, Bias0: Any, Scale: Any, Bias1: Any) -> Any:
        out = with_bias(of, of("mul", {"x_num_col_dims": self.x_num_col_dims}, X=X, Y=W), Bias0)
        out = of("elementwise_add", X=activated(of, out, self.activation_type), Y=Y)
        return layer_norm(of, out, self.begin_norm_axis, Scale, Bias1, self.epsilon), None, None

    samples = [
        sample(X=f32(4, 5), W=f32(5, 3), Y=f32(4, 3), Bias0=f32(3), Scale=f32(3), Bias1=f32(3)),
        sample(X=f32(2, 4, 5), W=f32(5, 3), Y=f32(2, 4, 3), x_num_col_dims=2, begin_norm_axis=2, activation_type="relu", epsilon=1e-3),
    ]
    rejects = [reject(X=f32(4, 5), W=f32(6, 3), Y=f32(4, 3), says="as many as the rows of W")]


def check_alike(out: Spec, addend: Spec, slot: str) -> None:
    """Require the dims of the sum of its other operand."""
    requirement = f"{slot} must have the dims of the sum that it is in"
    require(addend.rank == out.rank, requirement, **{slot: None})
    for axis, (a, b) in enumerate(zip(addend.known_dims, out.known_dims, strict=True)):
        require_equal(a, b, requirement, **{slot: axis})


def check_norm(x: Spec, begin: int, slot: str, **parameters: Spec | None) -> None:
    """Require one number for each element of an example from the operands of a layer norm of the dims from ``begin`` on."""
    require(1 <= begin < x.rank, f"begin_norm_axis must be in [1, {x.rank}); seen {begin}", **{slot: None})
    elements = product(x.known_dims[begin:])
    for name, spec in parameters.items():
        if spec is not None:
            require_equal(spec.elements, elements, f"{name} must have one number for each element of an example", **{name: None, slot: None})


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


class FusionRepeatedFcRelu(Operator):
    """Out = max(0, ... max(0, max(0, X W_0 + Bias_0) W_1 + Bias_1) ...)."""

    type = "fusion_repeated_fc_relu"
    examples = ("X",)
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
