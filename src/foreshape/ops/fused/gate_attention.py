"""Attention of tables of sequences with a gate, as networks that fold proteins have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, product
from foreshape.errors import SchemaError
from foreshape.kernels.products import affine, matmul
from foreshape.operator import (
    FLOATING,
    NOT_WRITTEN,
    AttrType,
    Operator,
    attribute,
    f32,
    fail,
    operand,
    reject,
    require_equal,
    require_rank,
    result,
    sample,
)
from foreshape.operator.require import require_broadcast_to
from foreshape.ops.fused.blocks import NOT_MADE

if TYPE_CHECKING:
    from torch import Tensor


class FusedGateAttention(Operator):
    """Out = (sigmoid(Query GateWeight + GateBias) * heads) OutLinearWeight + OutLinearBias, the gate only where ``has_gating``.

    heads = softmax(Q K' / sqrt(numbers of a head) + SrcMask + NonbatchedBias) V for each head of each sequence. With ``merge_qkv`` Q, K and V are
    the products of Query with the three parts of QKVWeight; otherwise Q is that of Query with QueryWeight, and K and V are those of Key with
    KeyWeight and ValueWeight. Formula: Jumper et al., "Highly accurate protein structure prediction with AlphaFold", 2021, algorithm 7.
    """

    type = "fused_gate_attention"
    gradient = NOT_WRITTEN
    Query = operand(FLOATING, doc="[batch, sequences, steps, width]")
    Key = operand(FLOATING, optional=True, same_type_as="Query", doc="[batch, sequences, other steps, other width]; without merge_qkv")
    QueryWeight = operand(FLOATING, optional=True, same_type_as="Query", doc="[width, heads, numbers of a head]; without merge_qkv")
    KeyWeight = operand(FLOATING, optional=True, same_type_as="Query", doc="[other width, heads, numbers of a head]; without merge_qkv")
    ValueWeight = operand(FLOATING, optional=True, same_type_as="Query", doc="as KeyWeight; without merge_qkv")
    QKVWeight = operand(FLOATING, optional=True, same_type_as="Query", doc="[3, heads, numbers of a head, width]; with merge_qkv")
    NonbatchedBias = operand(FLOATING, optional=True, same_type_as="Query", doc="broadcast to [batch, sequences, heads, steps, other steps]")
    SrcMask = operand(FLOATING, optional=True, same_type_as="Query", doc="broadcast to [batch, sequences, heads, steps, other steps]")
    GateWeight = operand(FLOATING, optional=True, same_type_as="Query", doc="[width, heads, numbers of a head]; with has_gating")
    GateBias = operand(FLOATING, optional=True, same_type_as="Query", doc="[heads, numbers of a head]; with has_gating")
    OutLinearWeight = operand(FLOATING, same_type_as="Query", doc="[heads, numbers of a head, out]")
    OutLinearBias = operand(FLOATING, same_type_as="Query", doc="[out]")
    QueryTransposeOut = result(optional=True, doc=NOT_MADE)
    KeyTransposeOut = result(optional=True, doc=NOT_MADE)
    ValueTransposeOut = result(optional=True, doc=NOT_MADE)
    QKVTransposeOut = result(optional=True, doc=NOT_MADE)
    SoftmaxOut = result(optional=True, doc=NOT_MADE)
    SoftmaxLse = result(optional=True, doc=NOT_MADE)
    FMHAOut = result(optional=True, doc=NOT_MADE)
    GateOut = result(optional=True, doc=NOT_MADE)
    Out = result(doc="[batch, sequences, steps, out]")
    has_gating = attribute(AttrType.BOOLEAN, True)
    merge_qkv = attribute(AttrType.BOOLEAN, True)
    use_flash_attn = attribute(AttrType.BOOLEAN, False, doc="of no meaning")

    def infer_shape(self, *specs: Any) -> Any:
        given: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        needed = ("QKVWeight",) if self.merge_qkv else ("Key", "QueryWeight", "KeyWeight", "ValueWeight")
        for slot in (*needed, *(("GateWeight", "GateBias") if self.has_gating else ())):
            if given[slot] is None:
                fail(f"{slot} must be given where merge_qkv={self.merge_qkv} and has_gating={self.has_gating}", SchemaError)
        query = given["Query"]
        require_rank(4, query, "Query")
        batch, sequences, steps, width = query.known_dims
        others = steps
        if self.merge_qkv:
            require_rank(4, given["QKVWeight"], "QKVWeight")
            parts, heads, numbers, inner = given["QKVWeight"].known_dims
            require_equal(parts, 3, "QKVWeight must have three parts, for queries, keys and values", QKVWeight=0)
            require_equal(inner, width, "QKVWeight must take as many numbers as Query is wide", QKVWeight=3, Query=3)
        else:
            require_rank(4, given["Key"], "Key")
            require_rank(3, given["QueryWeight"], "QueryWeight")
            others, key_width = given["Key"].known_dims[2:]
            for at, size in enumerate((batch, sequences)):
                require_equal(given["Key"].known_dims[at], size, "Key must be of as many sequences as Query", Key=at, Query=at)
            heads, numbers = given["QueryWeight"].known_dims[1:]
            self._check(given, "QueryWeight", (width, heads, numbers))
            self._check(given, "KeyWeight", (key_width, heads, numbers))
            self._check(given, "ValueWeight", (key_width, heads, numbers))
        if self.has_gating:
            self._check(given, "GateWeight", (width, heads, numbers))
            self._check(given, "GateBias", (heads, numbers))
        for slot in ("SrcMask", "NonbatchedBias"):
            if given[slot] is not None:
                require_rank(5, given[slot], slot)
                for at, (a, b) in enumerate(zip(given[slot].known_dims, (batch, sequences, heads, steps, others), strict=True)):
                    require_broadcast_to(a, b, f"{slot} must broadcast to [batch, sequences, heads, steps, other steps]", **{slot: at})
        weight = given["OutLinearWeight"]
        require_rank(3, weight, "OutLinearWeight")
        self._check(given, "OutLinearWeight", (heads, numbers, weight.known_dims[2]))
        self._check(given, "OutLinearBias", (weight.known_dims[2],))
        return (*[None] * (len(self.schema.results) - 1), query.with_dims((batch, sequences, steps, weight.known_dims[2])))

    @staticmethod
    def _check(given: dict[str, Any], slot: str, dims: tuple[Size, ...]) -> None:
        require_rank(len(dims), given[slot], slot)
        for at, (a, b) in enumerate(zip(given[slot].known_dims, dims, strict=True)):
            require_equal(a, b, f"{slot} must have the dims [{', '.join(map(str, dims))}]", **{slot: at})

    def _weights(self, specs: Any) -> Any:
        return specs[5] if self.merge_qkv else specs[2]

    def work(self, *specs: Any) -> Any:
        return 4 * product(specs[0].known_dims[:3]) * self._weights(specs).elements

    def workspace(self, *specs: Any, strided: frozenset[str]) -> Any:
        query, key, weight = specs[0], specs[1], self._weights(specs)
        batch, sequences, steps, _ = query.known_dims
        heads, numbers = weight.known_dims[1:3]
        others = steps if self.merge_qkv else key.known_dims[2]
        rows = batch * sequences * (steps + others) * heads * numbers
        scores = batch * sequences * heads * steps * others
        everything = sum((s.elements for s in specs if s is not None), 0)
        return (12 * rows + 4 * scores + 2 * everything) * query.known_dtype.itemsize

    def kernel(self, *tensors: Any) -> Any:
        given: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), tensors, strict=True))
        query = given["Query"]
        if self.merge_qkv:
            q, k, v = (self._heads(query, w.flatten(0, 1), w.shape[:2]) for w in given["QKVWeight"])
        else:
            turned = {s: given[s].flatten(1).t() for s in ("QueryWeight", "KeyWeight", "ValueWeight")}
            heads = given["QueryWeight"].shape[1:]
            q = self._heads(query, turned["QueryWeight"], heads)
            k, v = (self._heads(given["Key"], turned[s], heads) for s in ("KeyWeight", "ValueWeight"))
        scores = matmul(q * max(q.shape[-1], 1) ** -0.5, k.transpose(-1, -2))
        for slot in ("SrcMask", "NonbatchedBias"):
            if given[slot] is not None:
                scores.add_(given[slot])
        out = matmul(scores.softmax(-1), v).transpose(2, 3).flatten(3)
        if self.has_gating:
            out = out * affine(query, given["GateWeight"].flatten(1).t(), given["GateBias"].reshape(-1)).sigmoid_()
        return (*[None] * (len(self.schema.results) - 1), affine(out, given["OutLinearWeight"].flatten(0, 1).t(), given["OutLinearBias"]))

    @staticmethod
    def _heads(x: Tensor, weight: Tensor, heads: Sequence[int]) -> Tensor:
        """``[batch, sequences, heads, steps, numbers of a head]``; ``weight``: ``[heads * numbers, width]``; ``heads``: both numbers."""
        return affine(x, weight).view(*x.shape[:3], *heads).transpose(2, 3)

    samples = [
        sample(Query=f32(2, 3, 4, 5, low=-0.5, high=0.5), QKVWeight=f32(3, 2, 6, 5), SrcMask=f32(2, 3, 1, 1, 4), NonbatchedBias=f32(2, 1, 2, 4, 4),
               GateWeight=f32(5, 2, 6), GateBias=f32(2, 6), OutLinearWeight=f32(2, 6, 7, low=-0.1, high=0.1), OutLinearBias=f32(7)),
        sample(Query=f32(2, 3, 4, 5), Key=f32(2, 3, 6, 8), QueryWeight=f32(5, 2, 3), KeyWeight=f32(8, 2, 3), ValueWeight=f32(8, 2, 3),
               SrcMask=f32(2, 3, 1, 1, 6), OutLinearWeight=f32(2, 3, 7), OutLinearBias=f32(7), merge_qkv=False, has_gating=False),
    ]  # fmt: skip
    rejects = [
        reject(Query=f32(2, 3, 4, 5), OutLinearWeight=f32(2, 6, 7), OutLinearBias=f32(7), says="QKVWeight must be given", error=SchemaError),
        reject(Query=f32(2, 3, 4, 5), QKVWeight=f32(3, 2, 6, 4), OutLinearWeight=f32(2, 6, 7), OutLinearBias=f32(7), has_gating=False,
               says="as many numbers as Query is wide"),
        reject(Query=f32(2, 3, 4, 5), QKVWeight=f32(3, 2, 6, 5), GateWeight=f32(5, 2, 5), GateBias=f32(2, 6), OutLinearWeight=f32(2, 6, 7),
               OutLinearBias=f32(7), says="GateWeight must have the dims [5, 2, 6]"),
        reject(Query=f32(2, 3, 4, 5), QKVWeight=f32(3, 2, 6, 5), SrcMask=f32(2, 3, 1, 1, 3), OutLinearWeight=f32(2, 6, 7), OutLinearBias=f32(7),
               has_gating=False, says="SrcMask must broadcast"),
    ]  # fmt: skip
