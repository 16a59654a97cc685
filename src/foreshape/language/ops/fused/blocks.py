"""Whole layers of a transformer in one operator, in a test: attention, the two products after it, and sums with dropout."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import product
from foreshape.core.spec import FLOATING, Spec
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import require, require_broadcast_to, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.fused.dense import check_alike, check_norm
from foreshape.language.ops.fused.parts import attention, heads_of, layer_norm, with_bias

IMPLEMENTATIONS = ("downgrade_in_infer", "upscale_in_train")
NOT_MADE = "for training: not made here"


def check_test(is_test: bool, *rates: float) -> None:
    """Require a test, or rates of 0: there is no dropout here."""
    requirement = "it must have is_test=True, or dropout rates of 0: its form for training is not supported"
    require(is_test or not any(rates), requirement)


def after_dropout(of: Composition, x: Any, rate: float, implementation: str, is_test: bool) -> Any:
    """Return ``x`` after dropout in a test."""
    return of("scale", {"scale": 1.0 - rate}, X=x) if is_test and rate and implementation != "upscale_in_train" else x


def rate(default: float = 0.5) -> Any:
    """Return the attribute of a dropout probability."""
    return attribute(AttrType.FLOAT, default, low=0.0, high=1.0)


def mode() -> Any:
    """Return the attribute of dropout's way to keep the mean."""
    return attribute(AttrType.STRING, "downgrade_in_infer", choices=IMPLEMENTATIONS)


class FusedDropoutAdd(Operator):
    """out = dropout(x) + y, in a test: x + y, or x * (1 - p) + y if ``mode`` is downgrade_in_infer (or downscale_in_infer)."""

    type = "fused_dropout_add"
    gradient = NOT_WRITTEN
    x = operand(FLOATING, doc="any shape")
    y = operand(FLOATING, same_type_as="x", doc="as x")
    seed_tensor = operand(optional=True, doc="for training")
    PTensor = operand(optional=True, doc="for training: must be absent")
    out = result(doc="as x")
    seed_offset = result(optional=True, doc=NOT_MADE)
    p = rate()
    is_test = attribute(AttrType.BOOLEAN, False)
    mode = attribute(AttrType.STRING, "upscale_in_train", choices=("downscale_in_infer", *IMPLEMENTATIONS))
    seed = attribute(AttrType.INT, 0)
    fix_seed = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, x: Spec, y: Spec, seed_tensor: Spec | None, PTensor: Spec | None) -> Any:
        check_test(self.is_test, self.p)
        require(PTensor is None, "a probability that is a tensor is not supported", PTensor=None)
        check_alike(x, y, "y")
        return x.like(), None

    def expand(self, of: Composition, x: Any, y: Any, seed_tensor: Any, PTensor: Any) -> Any:
        return of("elementwise_add", X=after_dropout(of, x, self.p, self.mode, self.is_test), Y=y), None

    samples = [
        sample(x=f32(2, 3, 5), y=f32(2, 3, 5), is_test=True),
        sample(x=f32(2, 3, 5), y=f32(2, 3, 5), is_test=True, p=0.25, mode="downscale_in_infer"),
        sample(x=f32(0, 3), y=f32(0, 3), p=0.0),
    ]
    rejects = [reject(x=f32(2, 3), y=f32(2, 3), says="its form for training is not supported")]


class FusedBiasDropoutResidualLayerNorm(Operator):
    """Y = layer_norm(Residual + dropout(X + Bias)) over the last dim, times LnScale, plus LnBias; in a test."""

    type = "fused_bias_dropout_residual_layer_norm"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[batch, steps, width]")
    Residual = operand(FLOATING, same_type_as="X", doc="as X")
    Bias = operand(FLOATING, optional=True, same_type_as="X", doc="[width]")
    LnScale = operand(FLOATING, optional=True, same_type_as="X", doc="[width]")
    LnBias = operand(FLOATING, optional=True, same_type_as="X", doc="[width]")
    Y = result(doc="as X")
    BiasDropoutResidualOut = result(optional=True, doc=NOT_MADE)
    DropoutMaskOut = result(optional=True, doc=NOT_MADE)
    LnMean = result(optional=True, doc=NOT_MADE)
    LnVariance = result(optional=True, doc=NOT_MADE)
    dropout_rate = rate()
    is_test = attribute(AttrType.BOOLEAN, False)
    dropout_fix_seed = attribute(AttrType.BOOLEAN, True)
    dropout_seed = attribute(AttrType.INT, 1)
    dropout_implementation = mode()
    ln_epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)

    def infer_shape(self, X: Spec, Residual: Spec, Bias: Spec | None, LnScale: Spec | None, LnBias: Spec | None) -> Any:
        check_test(self.is_test, self.dropout_rate)
        require_rank(3, X, "X")
        check_alike(X, Residual, "Residual")
        check_norm(X, 2, "X", Bias=Bias, LnScale=LnScale, LnBias=LnBias)
        return X.like(), None, None, None, None

    def expand(self, of: Composition, X: Any, Residual: Any, Bias: Any, LnScale: Any, LnBias: Any) -> Any:
        out = after_dropout(of, with_bias(of, X, Bias), self.dropout_rate, self.dropout_implementation, self.is_test)
        return layer_norm(of, of("elementwise_add", X=out, Y=Residual), 2, LnScale, LnBias, self.ln_epsilon), None, None, None, None

    samples = [
        sample(X=f32(2, 3, 5), Residual=f32(2, 3, 5), Bias=f32(5), LnScale=f32(5), LnBias=f32(5), is_test=True),
        sample(X=f32(2, 3, 5), Residual=f32(2, 3, 5), is_test=True, dropout_implementation="upscale_in_train", ln_epsilon=1e-3),
        sample(X=f32(2, 3, 5), Residual=f32(2, 3, 5), Bias=f32(5), dropout_rate=0.0),
    ]
    rejects = [reject(X=f32(2, 3, 5), Residual=f32(2, 3, 5), says="its form for training is not supported")]


class FusedAttention(Operator):
    """Self-attention with its residual sum and layer norm, in a test.

    With ``pre_layer_norm``, X is first normalised with LnScale, LnBias and ``epsilon``. Queries, keys and values are its products with QKVW, plus QKVBias.
    Scores are the products of queries and keys, over the root of their length, plus SrcMask. The heads' result is multiplied by OutLinearW, plus OutLinearBias,
    and X is added with ``add_residual``. Without ``pre_layer_norm`` the sum is normalised with Ln2Scale, Ln2Bias and ``ln_epsilon``.
    """

    type = "fused_attention"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[batch, steps, width]")
    LnScale = operand(FLOATING, optional=True, doc="[width]")
    LnBias = operand(FLOATING, optional=True, doc="[width]")
    QKVW = operand(FLOATING, same_type_as="X", doc="[3, heads, numbers of a head, width]; [width, 3 hidden] with transpose_qkv_wb")
    QKVBias = operand(FLOATING, optional=True, same_type_as="X", doc="[3, heads, numbers of a head]; [3 hidden]")
    CacheKV = operand(FLOATING, optional=True, doc="must be absent")
    SrcMask = operand(FLOATING, optional=True, same_type_as="X", doc="broadcast to [batch, heads, steps, steps]")
    OutLinearW = operand(FLOATING, same_type_as="X", doc="[hidden, width]")
    OutLinearBias = operand(FLOATING, optional=True, same_type_as="X", doc="[width]")
    Ln2Scale = operand(FLOATING, optional=True, doc="[width]")
    Ln2Bias = operand(FLOATING, optional=True, doc="[width]")
    Y = result(doc="as X")
    LnMean = result(optional=True, doc=NOT_MADE)
    LnVariance = result(optional=True, doc=NOT_MADE)
    LnOut = result(optional=True, doc=NOT_MADE)
    QKVOut = result(optional=True, doc=NOT_MADE)
    QKVBiasOut = result(optional=True, doc=NOT_MADE)
    TransposeOut2 = result(optional=True, doc=NOT_MADE)
    QKOut = result(optional=True, doc=NOT_MADE)
    QKTVOut = result(optional=True, doc=NOT_MADE)
    SoftmaxOut = result(optional=True, doc=NOT_MADE)
    AttnDropoutMaskOut = result(optional=True, doc=NOT_MADE)
    AttnDropoutOut = result(optional=True, doc=NOT_MADE)
    SrcMaskOut = result(optional=True, doc=NOT_MADE)
    FMHAOut = result(optional=True, doc=NOT_MADE)
    OutLinearOut = result(optional=True, doc=NOT_MADE)
    DropoutMaskOut = result(optional=True, doc=NOT_MADE)
    Ln2Mean = result(optional=True, doc=NOT_MADE)
    Ln2Variance = result(optional=True, doc=NOT_MADE)
    BiasDropoutResidualOut = result(optional=True, doc=NOT_MADE)
    CacheKVOut = result(optional=True, doc=NOT_MADE)
    num_heads = attribute(AttrType.INT, 0, doc="the number of heads, for transpose_qkv_wb")
    transpose_qkv_wb = attribute(AttrType.BOOLEAN, False)
    pre_layer_norm = attribute(AttrType.BOOLEAN, False)
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    attn_dropout_rate = rate()
    is_test = attribute(AttrType.BOOLEAN, False)
    attn_dropout_fix_seed = attribute(AttrType.BOOLEAN, False)
    attn_dropout_seed = attribute(AttrType.INT, 0)
    attn_dropout_implementation = mode()
    dropout_rate = rate()
    dropout_fix_seed = attribute(AttrType.BOOLEAN, False)
    dropout_seed = attribute(AttrType.INT, 0)
    dropout_implementation = mode()
    ln_epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    add_residual = attribute(AttrType.BOOLEAN, True)
    ring_id = attribute(AttrType.INT, -1, choices=(-1,), doc="for heads divided over ranks: not supported")

    def infer_shape(self, *specs: Any) -> Any:
        by_slot: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        check_test(self.is_test, self.attn_dropout_rate, self.dropout_rate)
        x, weight = by_slot["X"], by_slot["QKVW"]
        require(by_slot["CacheKV"] is None, "CacheKV, the keys and values of earlier steps, is not supported", CacheKV=None)
        require_rank(3, x, "X")
        batch, steps, width = x.known_dims
        if self.transpose_qkv_wb:
            require_rank(2, weight, "QKVW")
            require(self.num_heads > 0, f"num_heads must be more than 0, not {self.num_heads}")
            heads, inner, hidden = self.num_heads, weight.known_dims[0], weight.known_dims[1] // 3
            require_equal(
                3 * self.num_heads * (weight.known_dims[1] // (3 * self.num_heads)),
                weight.known_dims[1],
                f"three times the {self.num_heads} heads must divide the columns of QKVW",
                QKVW=1,
            )
        else:
            require_rank(4, weight, "QKVW")
            require_equal(weight.known_dims[0], 3, "QKVW must have three parts, for queries, keys and values", QKVW=0)
            heads, inner, hidden = weight.known_dims[1], weight.known_dims[3], product(weight.known_dims[1:3])
        require_equal(inner, width, "QKVW must take as many numbers as X is wide", QKVW=None, X=2)
        if by_slot["QKVBias"] is not None:
            require_equal(by_slot["QKVBias"].elements, 3 * hidden, "QKVBias must have one number for each that QKVW gives", QKVBias=None, QKVW=None)
        if by_slot["SrcMask"] is not None:
            require_rank(4, by_slot["SrcMask"], "SrcMask")
            for axis, (a, b) in enumerate(zip(by_slot["SrcMask"].known_dims, (batch, heads, steps, steps), strict=True)):
                require_broadcast_to(a, b, "SrcMask must broadcast to [batch, heads, steps, steps]", SrcMask=axis)
        require_rank(2, by_slot["OutLinearW"], "OutLinearW")
        require_equal(by_slot["OutLinearW"].known_dims[0], hidden, "OutLinearW must have a row for each number of all heads", OutLinearW=0)
        require_equal(by_slot["OutLinearW"].known_dims[1], width, "OutLinearW must have as many columns as X is wide", OutLinearW=1, X=2)
        check_norm(x, 2, "X", **{s: by_slot[s] for s in ("LnScale", "LnBias", "OutLinearBias", "Ln2Scale", "Ln2Bias")})
        return (x.like(), *[None] * (len(self.schema.results) - 1))

    def work(self, *specs: Any) -> Any:
        x, weight = specs[0], specs[3]
        return product(x.known_dims) * product(weight.known_dims[1:])

    def expand(self, of: Composition, *operands: Any) -> Any:
        by_slot: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), operands, strict=True))
        x, weight = by_slot["X"], by_slot["QKVW"]
        inner = layer_norm(of, x, 2, by_slot["LnScale"], by_slot["LnBias"], self.epsilon) if self.pre_layer_norm else x
        heads = self.num_heads if self.transpose_qkv_wb else weight.spec.known_dims[1]
        matrix = weight if self.transpose_qkv_wb else of("flatten2", {"axis": 3}, X=weight)[0]
        projected = with_bias(of, of("matmul_v2", {"trans_y": not self.transpose_qkv_wb}, X=inner, Y=matrix), by_slot["QKVBias"])
        query, key, value = heads_of(of, projected, heads)
        out = attention(of, query, key, value, by_slot["SrcMask"], query.spec.known_dims[-1] ** -0.5)
        out = after_dropout(of, out, self.attn_dropout_rate, self.attn_dropout_implementation, self.is_test)
        out = with_bias(of, of("matmul_v2", X=out, Y=by_slot["OutLinearW"]), by_slot["OutLinearBias"])
        out = after_dropout(of, out, self.dropout_rate, self.dropout_implementation, self.is_test)
        if self.add_residual:
            out = of("elementwise_add", X=out, Y=x)
        if not self.pre_layer_norm:
            out = layer_norm(of, out, 2, by_slot["Ln2Scale"], by_slot["Ln2Bias"], self.ln_epsilon)
        return (out, *[None] * (len(self.schema.results) - 1))

    samples = [
        sample(X=f32(2, 3, 8), QKVW=f32(3, 2, 5, 8), QKVBias=f32(3, 2, 5), SrcMask=f32(2, 1, 1, 3), OutLinearW=f32(10, 8), OutLinearBias=f32(8),
               Ln2Scale=f32(8), Ln2Bias=f32(8), is_test=True),
        sample(X=f32(2, 3, 8), LnScale=f32(8), LnBias=f32(8), QKVW=f32(8, 24), QKVBias=f32(24), OutLinearW=f32(8, 8), num_heads=2,
               transpose_qkv_wb=True, pre_layer_norm=True, is_test=True, dropout_implementation="upscale_in_train", add_residual=False),
        sample(X=f32(2, 3, 8), QKVW=f32(3, 2, 4, 8), OutLinearW=f32(8, 8), attn_dropout_rate=0.0, dropout_rate=0.0),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(2, 3, 8), QKVW=f32(3, 2, 4, 8), OutLinearW=f32(8, 8), says="its form for training is not supported"),
        reject(X=f32(2, 3, 8), QKVW=f32(3, 2, 4, 8), OutLinearW=f32(7, 8), is_test=True, says="a row for each number of all heads"),
        reject(X=f32(2, 3, 8), QKVW=f32(3, 2, 4, 8), OutLinearW=f32(8, 8), CacheKV=f32(2, 2), is_test=True, says="CacheKV"),
        reject(X=f32(2, 3, 8), QKVW=f32(3, 2, 4, 8), SrcMask=f32(2, 3, 3, 3), OutLinearW=f32(8, 8), is_test=True, says="SrcMask must broadcast"),
        reject(X=f32(2, 3, 8), QKVW=f32(8, 22), OutLinearW=f32(8, 8), num_heads=2, transpose_qkv_wb=True, is_test=True, says="must divide the columns"),
    ]


class FusedFeedforward(Operator):
    """Two products with an activation between them, a residual sum and a layer norm, in a test.

    With ``pre_layer_norm`` X is normalised first, with Ln1Scale, Ln1Bias and ``ln1_epsilon``. Otherwise the sum is, with Ln2Scale, Ln2Bias and ``ln2_epsilon``.
    X is added with ``add_residual``.
    """

    type = "fused_feedforward"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[batch, steps, width]")
    Dropout1Seed = operand(optional=True, doc="for training")
    Dropout2Seed = operand(optional=True, doc="for training")
    Linear1Weight = operand(FLOATING, same_type_as="X", doc="[width, hidden]")
    Linear1Bias = operand(FLOATING, optional=True, same_type_as="X", doc="[hidden]")
    Linear2Weight = operand(FLOATING, same_type_as="X", doc="[hidden, width]")
    Linear2Bias = operand(FLOATING, optional=True, same_type_as="X", doc="[width]")
    Ln1Scale = operand(FLOATING, optional=True, doc="[width]")
    Ln1Bias = operand(FLOATING, optional=True, doc="[width]")
    Ln2Scale = operand(FLOATING, optional=True, doc="[width]")
    Ln2Bias = operand(FLOATING, optional=True, doc="[width]")
    Out = result(doc="as X")
    Dropout1Mask = result(optional=True, doc=NOT_MADE)
    Dropout2Mask = result(optional=True, doc=NOT_MADE)
    Ln1Mean = result(optional=True, doc=NOT_MADE)
    Ln1Variance = result(optional=True, doc=NOT_MADE)
    Ln2Mean = result(optional=True, doc=NOT_MADE)
    Ln2Variance = result(optional=True, doc=NOT_MADE)
    Linear1Out = result(optional=True, doc=NOT_MADE)
    Ln1Out = result(optional=True, doc=NOT_MADE)
    Dropout1Out = result(optional=True, doc=NOT_MADE)
    Dropout2Out = result(optional=True, doc=NOT_MADE)
    pre_layer_norm = attribute(AttrType.BOOLEAN, False)
    ln1_epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    ln2_epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    act_method = attribute(AttrType.STRING, "gelu", choices=("gelu", "relu"))
    dropout1_rate = rate()
    dropout2_rate = rate()
    dropout1_implementation = mode()
    dropout2_implementation = mode()
    is_test = attribute(AttrType.BOOLEAN, False)
    dropout1_fix_seed = attribute(AttrType.BOOLEAN, False)
    dropout2_fix_seed = attribute(AttrType.BOOLEAN, False)
    dropout1_seed = attribute(AttrType.INT, 0)
    dropout2_seed = attribute(AttrType.INT, 0)
    add_residual = attribute(AttrType.BOOLEAN, True)
    ring_id = attribute(AttrType.INT, -1, choices=(-1,), doc="for weights divided over ranks: not supported")

    def infer_shape(self, *specs: Any) -> Any:
        by_slot: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        check_test(self.is_test, self.dropout1_rate, self.dropout2_rate)
        x, first, second = by_slot["X"], by_slot["Linear1Weight"], by_slot["Linear2Weight"]
        require_rank(3, x, "X")
        for slot, weight in (("Linear1Weight", first), ("Linear2Weight", second)):
            require_rank(2, weight, slot)
        require_equal(first.known_dims[0], x.known_dims[2], "Linear1Weight must have as many rows as X is wide", Linear1Weight=0, X=2)
        require_equal(second.known_dims[0], first.known_dims[1], "Linear2Weight must have as many rows as Linear1Weight has columns", Linear2Weight=0)
        require_equal(second.known_dims[1], x.known_dims[2], "Linear2Weight must have as many columns as X is wide", Linear2Weight=1, X=2)
        if by_slot["Linear1Bias"] is not None:
            require_equal(by_slot["Linear1Bias"].elements, first.known_dims[1], "Linear1Bias must have one number for each column", Linear1Bias=None)
        check_norm(x, 2, "X", **{s: by_slot[s] for s in ("Linear2Bias", "Ln1Scale", "Ln1Bias", "Ln2Scale", "Ln2Bias")})
        return (x.like(), *[None] * (len(self.schema.results) - 1))

    def work(self, *specs: Any) -> Any:
        return 2 * product(specs[0].known_dims) * specs[3].known_dims[1]

    def expand(self, of: Composition, *operands: Any) -> Any:
        by_slot: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), operands, strict=True))
        x = by_slot["X"]
        inner = layer_norm(of, x, 2, by_slot["Ln1Scale"], by_slot["Ln1Bias"], self.ln1_epsilon) if self.pre_layer_norm else x
        hidden = of(self.act_method, X=with_bias(of, of("matmul_v2", X=inner, Y=by_slot["Linear1Weight"]), by_slot["Linear1Bias"]))
        hidden = after_dropout(of, hidden, self.dropout1_rate, self.dropout1_implementation, self.is_test)
        out = with_bias(of, of("matmul_v2", X=hidden, Y=by_slot["Linear2Weight"]), by_slot["Linear2Bias"])
        out = after_dropout(of, out, self.dropout2_rate, self.dropout2_implementation, self.is_test)
        if self.add_residual:
            out = of("elementwise_add", X=out, Y=x)
        if not self.pre_layer_norm:
            out = layer_norm(of, out, 2, by_slot["Ln2Scale"], by_slot["Ln2Bias"], self.ln2_epsilon)
        return (out, *[None] * (len(self.schema.results) - 1))

    samples = [
        sample(X=f32(2, 3, 5), Linear1Weight=f32(5, 7), Linear1Bias=f32(7), Linear2Weight=f32(7, 5), Linear2Bias=f32(5), Ln2Scale=f32(5),
               Ln2Bias=f32(5), is_test=True),
        sample(X=f32(2, 3, 5), Linear1Weight=f32(5, 7), Linear2Weight=f32(7, 5), Ln1Scale=f32(5), Ln1Bias=f32(5), is_test=True, act_method="relu",
               pre_layer_norm=True, dropout1_implementation="upscale_in_train", add_residual=False),
    ]  # fmt: skip
    rejects = [reject(X=f32(2, 3, 5), Linear1Weight=f32(5, 7), Linear2Weight=f32(7, 5), says="its form for training is not supported")]
