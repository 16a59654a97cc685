"""All layers of a transformer for text generation in one operator, with the keys and values of earlier steps kept beside it."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import product
from foreshape.core.spec import FLOATING, INDEX
from foreshape.core.values.torch_proxy import F, Tensor
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require, require_at_most, require_broadcast_to, require_equal, require_rank
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.ops.fused.blocks import check_test, mode, rate
from foreshape.language.ops.fused.dense import check_norm
from foreshape.machine.kernels.products import affine, matmul

_REFUSED = "must be absent: not supported"


class FusedMultiTransformer(Operator):
    """Out = X after layers of attention and two products each, in a test; every list has one tensor per layer.

    A layer is ``x + attention(norm(x))``, and then ``x + FFN2(act(FFN1(norm(x))))``, with a norm before each if ``pre_layer_norm``, and otherwise one after
    each sum. With CacheKV, a first run (without TimeStep) writes the keys and values of all steps to its beginning. Then X is one step, number TimeStep; its
    keys and values are written there, and it sees all steps up to itself. CacheKVOut is CacheKV. The order of the numbers in CacheKV is as its dims say; no
    other operator is meant to read it.
    """

    type = "fused_multi_transformer"
    gradient = NOT_WRITTEN
    X = operand(FLOATING, doc="[batch, steps, width]")
    LnScale = operand(FLOATING, many=True, doc="[width] each")
    LnBias = operand(FLOATING, many=True, doc="[width] each")
    QKVW = operand(FLOATING, many=True, doc="[3, heads, numbers of a head, width] each; [width, 3, heads, numbers of a head] without trans_qkvw")
    QKVBias = operand(FLOATING, many=True, optional=True, doc="[3, heads, numbers of a head] each")
    CacheKV = operand(FLOATING, many=True, optional=True, doc="[2, batch, heads, most steps, numbers of a head] each")
    PreCaches = operand(many=True, optional=True, doc=_REFUSED)
    RotaryPosEmb = operand(optional=True, doc=_REFUSED)
    BeamCacheOffset = operand(optional=True, doc=_REFUSED)
    TimeStep = operand(INDEX, optional=True, doc="one number: the steps in CacheKV")
    SeqLengths = operand(optional=True, doc=_REFUSED)
    SrcMask = operand(FLOATING, optional=True, same_type_as="X", doc="broadcast to [batch, heads, steps, all steps]")
    OutLinearW = operand(FLOATING, many=True, doc="[hidden, width] each")
    OutLinearBias = operand(FLOATING, many=True, optional=True, doc="[width] each")
    FFNLnScale = operand(FLOATING, many=True, doc="[width] each")
    FFNLnBias = operand(FLOATING, many=True, doc="[width] each")
    FFN1Weight = operand(FLOATING, many=True, doc="[width, inner] each")
    FFN1Bias = operand(FLOATING, many=True, optional=True, doc="[inner] each")
    FFN2Weight = operand(FLOATING, many=True, doc="[inner, width] each")
    FFN2Bias = operand(FLOATING, many=True, optional=True, doc="[width] each")
    CacheKVOut = result(many=True, optional=True, updates="CacheKV", doc="CacheKV, with the new keys and values")
    Out = result(doc="as X")
    pre_layer_norm = attribute(AttrType.BOOLEAN, True)
    rotary_emb_dims = attribute(AttrType.INT, 0, choices=(0,), doc="for rotary position embeddings: not supported")
    epsilon = attribute(AttrType.FLOAT, 1e-5, low=0.0)
    dropout_rate = rate()
    is_test = attribute(AttrType.BOOLEAN, False)
    dropout_implementation = mode()
    act_method = attribute(AttrType.STRING, "gelu", choices=("gelu", "relu"))
    trans_qkvw = attribute(AttrType.BOOLEAN, True)
    ring_id = attribute(AttrType.INT, -1, choices=(-1,), doc="for weights divided over ranks: not supported")

    def infer_shape(self, *specs: Any) -> Any:
        by_slot: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        check_test(self.is_test, self.dropout_rate)
        for slot in ("PreCaches", "RotaryPosEmb", "BeamCacheOffset", "SeqLengths"):
            require(not by_slot[slot], f"{slot} is not supported", **{slot: None})
        x, layers = by_slot["X"], len(by_slot["QKVW"])
        require_rank(3, x, "X")
        batch, steps, width = x.known_dims
        for slot in self.schema.operands:
            if slot.many and slot.name != "PreCaches" and not (slot.optional and not by_slot[slot.name]):
                if len(by_slot[slot.name]) != layers:
                    fail(f"{slot.name} must have a tensor for each of the {layers} layers, not {len(by_slot[slot.name])}", SchemaError)
                for spec in by_slot[slot.name]:
                    require(spec.dtype is x.dtype, f"{slot.name} must have the element type of X", **{slot.name: None, "X": None})
        if by_slot["TimeStep"] is not None:
            require(bool(by_slot["CacheKV"]), "TimeStep must come with CacheKV", TimeStep=None)
            require_equal(by_slot["TimeStep"].elements, 1, "TimeStep must be one number", TimeStep=None)
            require_equal(steps, 1, "X must be one step where TimeStep is given", X=1)
        for layer in range(layers):
            of_layer: dict[str, Any] = {slot: value[layer] if isinstance(value, tuple) and value else None for slot, value in by_slot.items()}
            weight = of_layer["QKVW"]
            require_rank(4, weight, "QKVW")
            parts, heads, numbers = weight.known_dims[:3] if self.trans_qkvw else weight.known_dims[1:]
            require_equal(parts, 3, "QKVW must have three parts, for queries, keys and values", QKVW=None)
            require_equal(weight.known_dims[3 if self.trans_qkvw else 0], width, "QKVW must take as many numbers as X is wide", QKVW=None, X=2)
            if of_layer["QKVBias"] is not None:
                require_equal(of_layer["QKVBias"].elements, 3 * heads * numbers, "QKVBias must have one number for each that QKVW gives", QKVBias=None)
            if of_layer["CacheKV"] is not None:
                require_rank(5, of_layer["CacheKV"], "CacheKV")
                two, cached_batch, cached_heads, cached_steps, head_size = of_layer["CacheKV"].known_dims
                for axis, a, b in ((0, two, 2), (1, cached_batch, batch), (2, cached_heads, heads), (4, head_size, numbers)):
                    require_equal(a, b, "CacheKV must have the dims [2, batch, heads, most steps, numbers of a head]", CacheKV=axis)
                require_at_most(steps, cached_steps, "CacheKV must have room for the steps of X", CacheKV=3, X=1)
            if by_slot["SrcMask"] is not None:
                require_rank(4, by_slot["SrcMask"], "SrcMask")
                wide = by_slot["SrcMask"].known_dims[3] if by_slot["TimeStep"] is not None else steps
                for axis, (a, b) in enumerate(zip(by_slot["SrcMask"].known_dims, (batch, heads, steps, wide), strict=True)):
                    require_broadcast_to(a, b, "SrcMask must broadcast to [batch, heads, steps, all steps]", SrcMask=axis)
            self._check_products(of_layer, heads * numbers, width)
            check_norm(x, 2, "X", **{s: of_layer[s] for s in ("LnScale", "LnBias", "OutLinearBias", "FFNLnScale", "FFNLnBias", "FFN2Bias")})
        return tuple(c.like() for c in by_slot["CacheKV"]), x.like()

    @staticmethod
    def _check_products(of_layer: dict[str, Any], hidden: Any, width: Any) -> None:
        for slot in ("OutLinearW", "FFN1Weight", "FFN2Weight"):
            require_rank(2, of_layer[slot], slot)
        inner = of_layer["FFN1Weight"].known_dims[1]
        for slot, dims in (("OutLinearW", (hidden, width)), ("FFN1Weight", (width, inner)), ("FFN2Weight", (inner, width))):
            for axis, (a, b) in enumerate(zip(of_layer[slot].known_dims, dims, strict=True)):
                require_equal(a, b, f"{slot} must have the dims [{dims[0]}, {dims[1]}]", **{slot: axis})
        if of_layer["FFN1Bias"] is not None:
            require_equal(of_layer["FFN1Bias"].elements, inner, "FFN1Bias must have one number for each column of FFN1Weight", FFN1Bias=None)

    def work(self, *specs: Any) -> Any:
        by_slot = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        rows = product(by_slot["X"].known_dims[:2])
        return rows * sum((w.elements for slot in ("QKVW", "OutLinearW", "FFN1Weight", "FFN2Weight") for w in by_slot[slot]), 0)

    def workspace(self, *specs: Any, strided: frozenset[str]) -> Any:
        by_slot = dict(zip((o.name for o in self.schema.operands), specs, strict=True))
        x = by_slot["X"]
        batch, steps, _ = x.known_dims
        total: Any = 6 * x.elements
        for layer, weight in enumerate(by_slot["QKVW"]):
            heads, numbers = weight.known_dims[1:3] if self.trans_qkvw else weight.known_dims[2:]
            key_steps = by_slot["CacheKV"][layer].known_dims[3] if by_slot["CacheKV"] else steps
            total = total + 8 * batch * (steps + key_steps) * heads * numbers + 3 * batch * heads * steps * key_steps
            total = total + 3 * batch * steps * by_slot["FFN1Weight"][layer].known_dims[1] + (3 * weight.elements if strided or not self.trans_qkvw else 0)
        return total * x.known_dtype.itemsize

    def kernel(self, *tensors: Any) -> Any:
        by_slot: dict[str, Any] = dict(zip((o.name for o in self.schema.operands), tensors, strict=True))
        x, layers = by_slot["X"], len(by_slot["QKVW"])
        after_dropout = self._after_dropout()
        step = None if by_slot["TimeStep"] is None else int(by_slot["TimeStep"].reshape(-1)[0])
        for layer in range(layers):
            of_layer: dict[str, Any] = {slot: value[layer] if isinstance(value, list | tuple) and value else None for slot, value in by_slot.items()}
            inner = normalised(x, of_layer["LnScale"], of_layer["LnBias"], self.epsilon) if self.pre_layer_norm else x
            x = x + self._attended(inner, of_layer, by_slot["SrcMask"], step)
            if not self.pre_layer_norm:
                x = normalised(x, of_layer["LnScale"], of_layer["LnBias"], self.epsilon)
            inner = normalised(x, of_layer["FFNLnScale"], of_layer["FFNLnBias"], self.epsilon) if self.pre_layer_norm else x
            hidden = getattr(F, self.act_method)(affine(inner, of_layer["FFN1Weight"].t(), _flat(of_layer["FFN1Bias"])))
            hidden *= after_dropout
            out = affine(hidden, of_layer["FFN2Weight"].t(), _flat(of_layer["FFN2Bias"]))
            x = x + out * after_dropout
            if not self.pre_layer_norm:
                x = normalised(x, of_layer["FFNLnScale"], of_layer["FFNLnBias"], self.epsilon)
        return list(by_slot["CacheKV"]), x

    def _attended(self, x: Tensor, of_layer: dict[str, Any], mask: Tensor | None, step: int | None) -> Tensor:
        batch, steps, _ = x.shape
        weight, cache = of_layer["QKVW"], of_layer["CacheKV"]
        heads = weight.shape[1 if self.trans_qkvw else 2]
        matrix = weight.flatten(0, 2) if self.trans_qkvw else weight.flatten(1).t()
        parts = affine(x, matrix, _flat(of_layer["QKVBias"])).view(batch, steps, 3, heads, weight.shape[2 if self.trans_qkvw else 3])
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if cache is not None:
            begin = step or 0
            if not 0 <= begin <= cache.shape[3] - steps:
                raise ExecutionError(f"TimeStep must be from 0 to {cache.shape[3] - steps}, where CacheKV ends; seen {begin}")
            cache[0, :, :, begin : begin + steps], cache[1, :, :, begin : begin + steps] = key, value
            key, value = cache[0, :, :, : begin + steps], cache[1, :, :, : begin + steps]
        if mask is not None and mask.shape[3] not in (1, key.shape[2]):
            raise ExecutionError(f"SrcMask must have a column for each of the {key.shape[2]} steps so far, or one; seen {mask.shape[3]}")
        scores = matmul(query, key.transpose(-1, -2)).mul_(max(query.shape[-1], 1) ** -0.5)
        if mask is not None:
            scores.add_(mask)
        out = matmul(scores.softmax(-1), value).transpose(1, 2).flatten(2)
        return affine(out, of_layer["OutLinearW"].t(), _flat(of_layer["OutLinearBias"])) * self._after_dropout()

    def _after_dropout(self) -> float:
        return 1.0 - self.dropout_rate if self.is_test and self.dropout_implementation == "downgrade_in_infer" else 1.0

    samples = [
        sample(X=f32(2, 3, 8), LnScale=[f32(8), f32(8)], LnBias=[f32(8), f32(8)], QKVW=[f32(3, 2, 5, 8), f32(3, 2, 5, 8)],
               QKVBias=[f32(3, 2, 5), f32(3, 2, 5)], SrcMask=f32(2, 1, 3, 3), OutLinearW=[f32(10, 8), f32(10, 8)], OutLinearBias=[f32(8), f32(8)],
               FFNLnScale=[f32(8), f32(8)], FFNLnBias=[f32(8), f32(8)], FFN1Weight=[f32(8, 7), f32(8, 7)], FFN1Bias=[f32(7), f32(7)],
               FFN2Weight=[f32(7, 8), f32(7, 8)], FFN2Bias=[f32(8), f32(8)], is_test=True, dropout_implementation="upscale_in_train"),
        sample(X=f32(2, 1, 4), LnScale=[f32(4)], LnBias=[f32(4)], QKVW=[f32(4, 3, 2, 5)], CacheKV=[f32(2, 2, 2, 6, 5)], TimeStep=i32(1, data=[3]),
               SrcMask=f32(2, 1, 1, 4), OutLinearW=[f32(10, 4)], FFNLnScale=[f32(4)], FFNLnBias=[f32(4)], FFN1Weight=[f32(4, 7)], FFN2Weight=[f32(7, 4)],
               is_test=True, trans_qkvw=False, pre_layer_norm=False, act_method="relu"),
        sample(X=f32(2, 3, 4), LnScale=[f32(4)], LnBias=[f32(4)], QKVW=[f32(3, 2, 5, 4)], CacheKV=[f32(2, 2, 2, 6, 5)], OutLinearW=[f32(10, 4)],
               FFNLnScale=[f32(4)], FFNLnBias=[f32(4)], FFN1Weight=[f32(4, 7)], FFN2Weight=[f32(7, 4)], dropout_rate=0.0),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(2, 3, 4), LnScale=[f32(4)], LnBias=[f32(4)], QKVW=[f32(3, 2, 5, 4)], OutLinearW=[f32(10, 4)], FFNLnScale=[f32(4)], FFNLnBias=[f32(4)],
               FFN1Weight=[f32(4, 7)], FFN2Weight=[f32(7, 4)], says="its form for training is not supported"),
        reject(X=f32(2, 3, 4), LnScale=[f32(4)], LnBias=[f32(4)], QKVW=[f32(3, 2, 5, 4)], OutLinearW=[f32(10, 4)] * 2, FFNLnScale=[f32(4)],
               FFNLnBias=[f32(4)], FFN1Weight=[f32(4, 7)], FFN2Weight=[f32(7, 4)], is_test=True, says="for each of the 1 layers", error=SchemaError),
        reject(X=f32(2, 3, 4), LnScale=[f32(4)], LnBias=[f32(4)], QKVW=[f32(3, 2, 5, 4)], TimeStep=i32(1), OutLinearW=[f32(10, 4)], FFNLnScale=[f32(4)],
               FFNLnBias=[f32(4)], FFN1Weight=[f32(4, 7)], FFN2Weight=[f32(7, 4)], is_test=True, says="TimeStep must come with CacheKV"),
        reject(X=f32(2, 3, 4), LnScale=[f32(4)], LnBias=[f32(4)], QKVW=[f32(3, 2, 5, 4)], CacheKV=[f32(2, 2, 2, 2, 5)], OutLinearW=[f32(10, 4)],
               FFNLnScale=[f32(4)], FFNLnBias=[f32(4)], FFN1Weight=[f32(4, 7)], FFN2Weight=[f32(7, 4)], is_test=True, says="room for the steps"),
        reject(X=f32(2, 3, 4), LnScale=[f32(4)], LnBias=[f32(4)], QKVW=[f32(3, 2, 5, 4)], RotaryPosEmb=f32(2, 2), OutLinearW=[f32(10, 4)],
               FFNLnScale=[f32(4)], FFNLnBias=[f32(4)], FFN1Weight=[f32(4, 7)], FFN2Weight=[f32(7, 4)], is_test=True, says="RotaryPosEmb is not"),
    ]  # fmt: skip


def _flat(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.reshape(-1)


def normalised(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Return the layer norm of the last dim."""
    return F.layer_norm(x, x.shape[2:], scale.reshape(-1), bias.reshape(-1), epsilon)
