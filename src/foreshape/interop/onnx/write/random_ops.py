"""Writing of random numbers: other ones than here, drawn from the same distributions."""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx.write.filling_ops import filled
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.terms import Term, constant, count_to, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import BF16, FP32, INT64, DType


def _drawn(w: WrittenOp, operator: str, shape: OnnxValue | list[int], of: DType, **numbers: float) -> Term:
    """Return numbers drawn by RandomUniform or RandomNormal, in dims that are known, or in computed ones."""
    seed = w.op.attributes.values.get("seed", 0)
    held = FP32 if of.is_integer or of is BF16 else of
    attributes: dict[str, Any] = {**numbers, "dtype": w.writer.code_of(held), "seed": float(seed) if seed else None}
    if isinstance(shape, list):
        return Term(w, w.node(operator, shape=shape, **attributes), held).cast(of)
    return Term(w, w.node(f"{operator}Like", filled(w, shape, 0.0, held), **attributes), held).cast(of)


def _shape(w: WrittenOp) -> OnnxValue | list[int]:
    if w.has("ShapeTensor"):
        return w.row("ShapeTensor")
    if w.op.input_slots.get("ShapeTensorList"):
        return w.row_of("ShapeTensorList")
    return [int(d) for d in w.of.shape]


@writes("uniform_random")
def _uniform(w: WrittenOp) -> Any:
    if w.of.diag_num:
        raise Refused("with a diagonal that is set")
    return _drawn(w, "RandomUniform", _shape(w), w.result("Out").known_dtype, low=float(w.of.min), high=float(w.of.max)).value


@writes("gaussian_random")
def _gaussian(w: WrittenOp) -> Any:
    if not w.of.std:
        return filled(w, _shape(w), float(w.of.mean), w.result("Out").known_dtype)
    return _drawn(w, "RandomNormal", _shape(w), w.result("Out").known_dtype, mean=float(w.of.mean), scale=float(w.of.std)).value


@writes("uniform_random_batch_size_like")
def _uniform_like(w: WrittenOp) -> Any:
    shape, at = [int(d) for d in w.of.shape], int(w.of.output_dim_idx)
    size = w.shape(w.x("Input"), w.of.input_dim_idx, w.of.input_dim_idx + 1)
    parts = [*([w.ints(*shape[:at])] if at else []), size, *([w.ints(*shape[at + 1 :])] if shape[at + 1 :] else [])]
    made = w.node("Concat", *parts, axis=0) if len(parts) > 1 else size
    return _drawn(w, "RandomUniform", made, w.result("Out").known_dtype, low=float(w.of.min), high=float(w.of.max)).value


@writes("randint")
def _randint(w: WrittenOp) -> Any:
    low, high = int(w.of.low), int(w.of.high)
    made = _drawn(w, "RandomUniform", _shape(w), FP32, low=float(low), high=float(high)).node("Floor").least(float(high - 1))
    return made.cast(w.result("Out").known_dtype).value


@writes("randperm")
def _permutation(w: WrittenOp) -> Any:
    order = _drawn(w, "RandomUniform", [int(w.of.n)], FP32, low=0.0, high=1.0).sorted(0)[1]
    return order.cast(w.result("Out").known_dtype).value


@writes("bernoulli")
def _bernoulli(w: WrittenOp) -> Any:
    x = term(w, "X")
    return (_drawn(w, "RandomUniform", x.dims(), FP32, low=0.0, high=1.0).cast(x.of) < x).cast(x.of).value


def _gumbel(w: WrittenOp, like: Term) -> Term:
    """Return numbers drawn from Gumbel's distribution."""
    return -(-_drawn(w, "RandomUniform", like.dims(), FP32, low=1e-38, high=1.0).cast(like.of).node("Log")).node("Log")


@writes("multinomial")
def _multinomial(w: WrittenOp) -> Any:
    """Draw with Gumbel's numbers: the largest sums of these and the logarithms are drawn without replacement."""
    x, count, rank = term(w, "X"), int(w.of.num_samples), w.rank("X")
    logs = x.node("Log")
    if w.of.replacement:
        row = logs.with_dims(rank - 1)
        shape = w.node("Concat", *([w.shape(x.value, 0, rank - 1)] if rank > 1 else []), w.ints(count), x.size(rank - 1).value, axis=0)
        row = row.spread(shape)
        return (row + _gumbel(w, row)).node("ArgMax", axis=rank, keepdims=0, to=INT64).value
    return (logs + _gumbel(w, logs)).best(constant(w, [count], INT64), rank - 1)[1].value


@writes("gumbel_softmax")
def _gumbel_softmax(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    if not rank:
        return constant(w, 1.0, x.of).value
    axis = int(w.of.axis) % rank
    logits = (x + _gumbel(w, x)) / float(w.of.temperature)
    if not w.of.hard:
        return logits.node("Softmax", axis=axis).value
    largest = logits.node("ArgMax", axis=axis, keepdims=1, to=INT64)
    number = count_to(x.size(axis)).shaped(*[-1 if a == axis else 1 for a in range(rank)])
    return number.same(largest).cast(x.of).value


@writes("rrelu")
def _random_relu(w: WrittenOp) -> Any:
    if not w.of.is_test:
        raise Refused("rrelu in training")
    x = term(w, "X")
    noise = (x < 0.0).where((float(w.of.lower) + float(w.of.upper)) / 2.0, 1.0, x.of)
    return (x * noise).value, noise.value
