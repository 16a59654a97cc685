"""Pieces of transformers: attention over one product, softmax of masked scores, sums with a layer norm, embeddings of several tables."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FLOATING, INDEX, Spec
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import fail, require, require_at_most, require_broadcast_to, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.fused.dense import check_norm
from foreshape.language.ops.fused.parts import attention, heads_of, layer_norm, with_bias


class FusedSoftmaxMask(Operator):
    """Out = softmax(X + Mask) along the last axis. Mask has no gradient."""

    type = "fused_softmax_mask"
    examples = ("X", "Mask")
    X = operand(FLOATING, doc="[batch, heads, queries, keys]")
    Mask = operand(FLOATING, same_type_as="X", doc="[batch, 1, queries, keys]")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec, Mask: Spec) -> Spec:
        require_rank(4, X, "X")
        require_rank(4, Mask, "Mask")
        require_equal(Mask.known_dims[1], 1, "dim 1 of Mask must be 1", Mask=1)
        for axis in (0, 2, 3):
            require_equal(X.known_dims[axis], Mask.known_dims[axis], "Mask must have the dims of X, but 1 for the heads", X=axis, Mask=axis)
        return X.like()

    def expand(self, of: Composition, X: Any, Mask: Any) -> Any:
        return of("softmax", {"axis": -1}, X=of("elementwise_add", X=X, Y=Mask))

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out"}, called={"Out": "Softmax"})
    def backward(self, of: Composition, Out: Any, d_out: Any) -> Any:
        return of("softmax_grad", {"axis": -1}, **{"Out": Out, "Out@GRAD": d_out})

    samples = [sample(X=f32(2, 3, 4, 5), Mask=f32(2, 1, 4, 5)), sample(X=f32(1, 2, 8, 8), Mask=f32(1, 1, 8, 8))]


class FusedSoftmaxMaskUpperTriangle(Operator):
    """Out = softmax along the last axis over the lower triangle of X's last two dims, with the diagonal; 0 above it."""

    type = "fused_softmax_mask_upper_triangle"
    examples = ("X",)
    X = operand(FLOATING, doc="[batch, heads, steps, steps]")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        require_equal(X.known_dims[2], X.known_dims[3], "the last two dims of X must be equal", X=3)
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 2 * X.known_dims[3] * X.known_dims[3]

    def kernel(self, X: Tensor) -> Tensor:
        above = torch.ones(X.shape[2:], dtype=torch.bool, device=X.device).triu_(1)
        return torch.softmax(X.masked_fill(above, -torch.inf), -1)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out"})
    def backward(self, Out: Tensor, d_out: Tensor) -> Any:
        return private.softmax_gradient(d_out, Out, -1, Out.dtype)

    samples = [sample(X=f32(2, 3, 4, 4)), sample(X=f32(1, 2, 1, 1))]


class MultiheadMatmul(Operator):
    """Out = softmax(alpha * Q K' + BiasQK) V for each head, where Q, K and V are the three parts of Input W + Bias."""

    type = "multihead_matmul"
    examples = ("Input", "BiasQK")
    gradient = NOT_WRITTEN
    Input = operand(FLOATING, doc="[batch, steps, features]")
    W = operand(FLOATING, same_type_as="Input", doc="[features, 3, hidden], or [features, 3, heads, hidden / heads]")
    Bias = operand(FLOATING, same_type_as="Input", doc="[3, hidden], or [3, heads, hidden / heads]")
    BiasQK = operand(FLOATING, optional=True, same_type_as="Input", doc="broadcast to [batch, heads, steps, steps]")
    Out = result(doc="[batch, steps, hidden]")
    transpose_Q = attribute(AttrType.BOOLEAN, False, choices=(False,))
    transpose_K = attribute(AttrType.BOOLEAN, True, choices=(True,))
    transpose_V = attribute(AttrType.BOOLEAN, False, choices=(False,))
    alpha = attribute(AttrType.FLOAT, 1.0)
    head_number = attribute(AttrType.INT, 1, low=1)

    def infer_shape(self, Input: Spec, W: Spec, Bias: Spec, BiasQK: Spec | None) -> Spec:
        require_rank(3, Input, "Input")
        batch, steps, features = Input.known_dims
        require(W.rank in (3, 4), f"W must have 3 or 4 dims, not {W.rank}", W=None)
        require_equal(W.known_dims[0], features, "W must have as many rows as Input has features", W=0, Input=2)
        require_equal(W.known_dims[1], 3, "W must have three parts, for queries, keys and values", W=1)
        hidden = product(W.known_dims[2:])
        require_equal(Bias.elements, 3 * hidden, "Bias must have one number for each column of W", Bias=None, W=None)
        require_divides(self.head_number, hidden, f"the {self.head_number} heads must divide the columns of each part of W", W=2)
        if BiasQK is not None:
            require_rank(4, BiasQK, "BiasQK")
            for axis, (a, b) in enumerate(zip(BiasQK.known_dims, (batch, self.head_number, steps, steps), strict=True)):
                require_broadcast_to(a, b, "BiasQK must broadcast to [batch, heads, steps, steps]", BiasQK=axis)
        return Input.with_dims((batch, steps, hidden))

    def work(self, Input: Spec, W: Spec, Bias: Spec, BiasQK: Spec | None) -> Size:
        return product(Input.known_dims) * product(W.known_dims[1:])

    def expand(self, of: Composition, Input: Any, W: Any, Bias: Any, BiasQK: Any) -> Any:
        weight = of("reshape2", {"shape": [0, -1]}, X=W)[0]
        projected = with_bias(of, of("matmul_v2", X=Input, Y=weight), Bias)
        return attention(of, *heads_of(of, projected, self.head_number), BiasQK, self.alpha)

    samples = [
        sample(Input=f32(2, 3, 8), W=f32(8, 3, 8), Bias=f32(3, 8), BiasQK=f32(2, 2, 3, 3), head_number=2, alpha=0.5),
        sample(Input=f32(2, 3, 5), W=f32(5, 3, 2, 4), Bias=f32(3, 2, 4), BiasQK=f32(2, 1, 1, 3), head_number=2),
        sample(Input=f32(2, 3, 4), W=f32(4, 3, 4), Bias=f32(12)),
    ]
    rejects = [
        reject(Input=f32(2, 3, 8), W=f32(7, 3, 8), Bias=f32(3, 8), says="as many rows as Input has features"),
        reject(Input=f32(2, 3, 8), W=f32(8, 2, 8), Bias=f32(2, 8), says="three parts"),
        reject(Input=f32(2, 3, 8), W=f32(8, 3, 8), Bias=f32(3, 7), says="one number for each column of W"),
        reject(Input=f32(2, 3, 8), W=f32(8, 3, 8), Bias=f32(3, 8), head_number=3, says="the 3 heads must divide"),
        reject(Input=f32(2, 3, 8), W=f32(8, 3, 8), Bias=f32(3, 8), BiasQK=f32(2, 3, 3, 3), head_number=2, says="BiasQK must broadcast"),
    ]


class FusedEmbeddingEltwiseLayernorm(Operator):
    """Out = layer_norm(the sum of Embs[k][Ids[k]]) over the last dim, times Scale, plus Bias."""

    type = "fused_embedding_eltwise_layernorm"
    examples = ("Ids",)
    gradient = NOT_WRITTEN
    Ids = operand(INDEX, many=True, doc="[batch, steps] or [batch, steps, 1] each")
    Embs = operand(FLOATING, many=True, doc="[rows, width], one for each of Ids")
    Bias = operand(FLOATING, doc="[width]")
    Scale = operand(FLOATING, same_type_as="Bias", doc="[width]")
    Out = result(doc="[batch, steps, width]")
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)

    def infer_shape(self, Ids: tuple[Spec, ...], Embs: tuple[Spec, ...], Bias: Spec, Scale: Spec) -> Spec:
        require(len(Ids) == len(Embs), f"Embs must have as many tensors as Ids: {len(Ids)}, not {len(Embs)}", Embs=None, Ids=None)
        dims = Ids[0].known_dims[:2]
        for ids in Ids:
            require(ids.rank in (2, 3), f"Ids must have 2 or 3 dims, not {ids.rank}", Ids=None)
            if ids.rank == 3:
                require_equal(ids.known_dims[2], 1, "Ids of 3 dims must have 1 at the last", Ids=None)
            for a, b in zip(ids.known_dims[:2], dims, strict=True):
                require_equal(a, b, "Ids must be of one minibatch: their dims must be equal", Ids=None)
        for table in Embs:
            require_rank(2, table, "Embs")
            require_equal(table.known_dims[1], Embs[0].known_dims[1], "Embs must be of one width", Embs=None)
            require_at_most(1, table.known_dims[0], "Embs must have rows", Embs=None)
            if table.dtype is not Bias.dtype:
                fail("Embs must have the element type of Bias", TypeMismatchError, Embs=None, Bias=None)
        out = Ids[0].with_dims((*dims, Embs[0].known_dims[1])).with_dtype(Bias.known_dtype)
        check_norm(out, 2, "Embs", Scale=Scale, Bias=Bias)
        return out

    def expand(self, of: Composition, Ids: Any, Embs: Any, Bias: Any, Scale: Any) -> Any:
        ids = [i if i.spec.rank == 2 else of("reshape2", {"shape": [0, 0]}, X=i)[0] for i in Ids]
        rows = [of("lookup_table_v2", W=table, Ids=i) for i, table in zip(ids, Embs, strict=True)]
        return layer_norm(of, of("sum", X=rows) if len(rows) > 1 else rows[0], 2, Scale, Bias, self.epsilon)

    samples = [
        sample(Ids=[i64(2, 3, high=6), i64(2, 3, high=4)], Embs=[f32(7, 5), f32(5, 5)], Bias=f32(5), Scale=f32(5)),
        sample(Ids=[i64(2, 3, 1, high=6)], Embs=[f32(7, 5)], Bias=f32(5), Scale=f32(5), epsilon=1e-3),
    ]
    rejects = [
        reject(Ids=[i64(2, 3), i64(2, 3)], Embs=[f32(7, 5)], Bias=f32(5), Scale=f32(5), says="as many tensors as Ids"),
        reject(Ids=[i64(2, 3), i64(2, 4)], Embs=[f32(7, 5), f32(7, 5)], Bias=f32(5), Scale=f32(5), says="of one minibatch"),
        reject(Ids=[i64(2, 3, 4)], Embs=[f32(7, 5)], Bias=f32(5), Scale=f32(5), says="must have 1 at the last"),
    ]
