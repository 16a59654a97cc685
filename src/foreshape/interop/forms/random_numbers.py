"""Drawn numbers, in the other formats."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.core.spec import BF16, FP32, INT64, DType
from foreshape.interop.forms.creation import shape, tensor_options, to_onnx_filled
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.write.terms import Term, constant, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import OpenSize
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.program.variable import Variable

# --- from ONNX


def _from_onnx_drawn(c: Call, dtype: int, shape: list[int] | None, sizes: Variable | None) -> Any:
    """Return drawn numbers of a shape, or of a shape computed in the run."""
    attrs: dict[str, Any] = {"shape": shape or [], "dtype": dtype}
    if c.attribute("seed") is not None:  # any float, and 0 is none here
        attrs["seed"] = int(float(c.attribute("seed")) * 2**20) % (2**31 - 1) + 1
    if "Normal" in c.node.operator:
        return c.op("gaussian_random", {**attrs, "mean": float(c.attribute("mean", 0.0)), "std": float(c.attribute("scale", 1.0))}, ShapeTensor=sizes)
    return c.op("uniform_random", {**attrs, "min": float(c.attribute("low", 0.0)), "max": float(c.attribute("high", 1.0))}, ShapeTensor=sizes)


@from_onnx("RandomNormal", "RandomUniform")
def from_onnx_drawn(c: Call) -> Any:
    return _from_onnx_drawn(c, element_type(int(c.attribute("dtype", 1))).code, [int(n) for n in c.attribute("shape")], None)


@from_onnx("RandomNormalLike", "RandomUniformLike")
def drawn_like(c: Call) -> Any:
    x, code = c.x(), c.attribute("dtype")
    dtype = x.spec.known_dtype if code is None else element_type(int(code))
    dims = x.spec.known_dims
    sizes = [d for d in dims if isinstance(d, int)]
    return _from_onnx_drawn(c, dtype.code, sizes, None) if len(sizes) == len(dims) else _from_onnx_drawn(c, dtype.code, None, c.shape_of(x))


@from_onnx("Bernoulli")
def from_onnx_bernoulli(c: Call) -> Any:
    x, code = c.x(), c.attribute("dtype")
    return c.cast(layer.bernoulli(x), x.spec.known_dtype if code is None else element_type(int(code)))


@from_onnx("Multinomial")
def from_onnx_multinomial(c: Call) -> Any:
    """Draw columns for each row of unnormalized logarithms of probabilities."""
    chances = layer.softmax(c.cast(c.x(), FP32), -1)
    columns = c.op("multinomial", {"num_samples": int(c.attribute("sample_size", 1)), "replacement": True}, X=chances)
    return c.cast(columns, element_type(int(c.attribute("dtype", 6))))


# --- to ONNX


def _to_onnx_drawn(w: WrittenOp, operator: str, shape: OnnxValue | list[int], dtype: DType, **numbers: float) -> Term:
    """Return numbers drawn by RandomUniform or RandomNormal, in dims that are known, or in computed ones."""
    seed = w.op.attributes.values.get("seed", 0)
    inner = FP32 if dtype.is_integer or dtype is BF16 else dtype
    attributes: dict[str, Any] = {**numbers, "dtype": w.writer.code_of(inner), "seed": float(seed) if seed else None}
    if isinstance(shape, list):
        return Term(w, w.node(operator, shape=shape, **attributes), inner).cast(dtype)
    return Term(w, w.node(f"{operator}Like", to_onnx_filled(w, shape, 0.0, inner), **attributes), inner).cast(dtype)


def _shape(w: WrittenOp) -> OnnxValue | list[int]:
    if w.has("ShapeTensor"):
        return w.row("ShapeTensor")
    if w.op.input_slots.get("ShapeTensorList"):
        return w.row_of("ShapeTensorList")
    return [int(d) for d in w.of.shape]


@to_onnx()
def _to_onnx_uniform_random(w: WrittenOp) -> Any:
    if w.of.diag_num:
        raise Refused("with a diagonal that is set")
    return _to_onnx_drawn(w, "RandomUniform", _shape(w), w.result("Out").known_dtype, low=float(w.of.min), high=float(w.of.max)).value


@to_onnx()
def _to_onnx_gaussian_random(w: WrittenOp) -> Any:
    if not w.of.std:
        return to_onnx_filled(w, _shape(w), float(w.of.mean), w.result("Out").known_dtype)
    return _to_onnx_drawn(w, "RandomNormal", _shape(w), w.result("Out").known_dtype, mean=float(w.of.mean), scale=float(w.of.std)).value


@to_onnx()
def _to_onnx_uniform_random_batch_size_like(w: WrittenOp) -> Any:
    shape, axis = [int(d) for d in w.of.shape], int(w.of.output_dim_idx)
    size = w.shape(w.x("Input"), w.of.input_dim_idx, w.of.input_dim_idx + 1)
    parts = [*([w.ints(*shape[:axis])] if axis else []), size, *([w.ints(*shape[axis + 1 :])] if shape[axis + 1 :] else [])]
    dims = w.node("Concat", *parts, axis=0) if len(parts) > 1 else size
    return _to_onnx_drawn(w, "RandomUniform", dims, w.result("Out").known_dtype, low=float(w.of.min), high=float(w.of.max)).value


@to_onnx()
def _to_onnx_randint(w: WrittenOp) -> Any:
    low, high = int(w.of.low), int(w.of.high)
    numbers = _to_onnx_drawn(w, "RandomUniform", _shape(w), FP32, low=float(low), high=float(high)).node("Floor").least(float(high - 1))
    return numbers.cast(w.result("Out").known_dtype).value


@to_onnx()
def _to_onnx_randperm(w: WrittenOp) -> Any:
    order = _to_onnx_drawn(w, "RandomUniform", [int(w.of.n)], FP32, low=0.0, high=1.0).sorted(0)[1]
    return order.cast(w.result("Out").known_dtype).value


@to_onnx()
def _to_onnx_bernoulli(w: WrittenOp) -> Any:
    x = term(w, "X")
    return (_to_onnx_drawn(w, "RandomUniform", x.dims(), FP32, low=0.0, high=1.0).cast(x.of) < x).cast(x.of).value


def gumbel(w: WrittenOp, like: Term) -> Term:
    """Return numbers drawn from Gumbel's distribution."""
    return -(-_to_onnx_drawn(w, "RandomUniform", like.dims(), FP32, low=1e-38, high=1.0).cast(like.of).node("Log")).node("Log")


@to_onnx()
def _to_onnx_multinomial(w: WrittenOp) -> Any:
    """Draw with Gumbel's numbers: the largest sums of these and the logarithms are drawn without replacement."""
    x, count, rank = term(w, "X"), int(w.of.num_samples), w.rank("X")
    logs = x.node("Log")
    if w.of.replacement:
        row = logs.with_dims(rank - 1)
        shape = w.node("Concat", *([w.shape(x.value, 0, rank - 1)] if rank > 1 else []), w.ints(count), x.size(rank - 1).value, axis=0)
        row = row.spread(shape)
        return (row + gumbel(w, row)).node("ArgMax", axis=rank, keepdims=0, to=INT64).value
    return (logs + gumbel(w, logs)).best(constant(w, [count], INT64), rank - 1)[1].value


# --- from torch


@from_torch("rand", "randn")
def _random(t: TorchCall, size: Any, **_: Any) -> Any:
    return layer.uniform_random(t.sizes(size), t.dtype, 0.0, 1.0) if t.name == "rand" else layer.gaussian_random(t.sizes(size), dtype=t.dtype)


@from_torch("rand_like", "randn_like")
def _random_like(t: TorchCall, x: Variable, **_: Any) -> Any:
    size = layer.shape(x)
    return layer.uniform_random(size, t.dtype, 0.0, 1.0) if t.name == "rand_like" else layer.gaussian_random(size, dtype=t.dtype)


@from_torch("uniform", "normal_functional", "exponential")
def _drawn_anew(t: TorchCall, x: Variable, first: float = 0.0, second: float = 1.0, **_: Any) -> Any:
    size = layer.shape(x)
    if t.name == "uniform":
        return layer.uniform_random(size, t.dtype, float(first), float(second))
    if t.name == "exponential":
        return layer.exponential(x, float(first) or 1.0)
    return layer.gaussian_random(size, float(first), float(second), dtype=t.dtype)


@from_torch()
def _from_torch_normal(t: TorchCall, mean: Any, std: Any = 1.0, size: Any = None, **_: Any) -> Any:
    if size is not None or not isinstance(mean, Variable):
        raise Refused("a normal distribution by numbers")
    drawn = layer.multiply(layer.gaussian_random(layer.shape(mean), dtype=t.dtype), t.tensor(std, t.dtype))
    return layer.add(mean, drawn)


@from_torch("bernoulli", "bernoulli.p")
def _from_torch_bernoulli(t: TorchCall, x: Variable, p: Any = None, **_: Any) -> Any:
    if isinstance(p, float) and 0.0 < p <= 1.0 and t.importer.asks_mode(t.node):  # drawn in training, as for a stochastic depth: a test takes the mean
        return layer.dropout(layer.fill_like(x, 1.0), 1.0 - p, implementation="downgrade_in_infer")
    return layer.bernoulli(x if p is None else layer.fill_like(x, float(p)))


@from_torch("randint", "randint.low")
def _integers(t: TorchCall, *arguments: Any, **_: Any) -> Any:
    low, high, size = (0, *arguments) if len(arguments) == 2 else arguments
    if isinstance(low, OpenSize) or isinstance(high, OpenSize):
        raise Refused("ends that are open sizes")
    return layer.randint(low, high, t.sizes(size), t.dtype)


@from_torch("randint_like", "randint_like.low_dtype")
def _integers_like(t: TorchCall, x: Variable, *ends: int, **_: Any) -> Any:
    low, high = ends if len(ends) == 2 else (0, ends[0])
    return t.cast(layer.randint(low, high, layer.shape(x), INT64), t.dtype)


@from_torch()
def _from_torch_randperm(t: TorchCall, n: Any, **_: Any) -> Any:
    if isinstance(n, OpenSize):
        raise Refused("a permutation of an open size")
    return layer.randperm(n, t.dtype)


@from_torch()
def _from_torch_multinomial(t: TorchCall, x: Variable, count: int, replacement: bool = False, **_: Any) -> Any:
    return layer.multinomial(x, count, replacement)


# --- to torch's code


@to_torch("uniform_random", "uniform_random_batch_size_like")
def _to_torch_uniform(w: PlainOp) -> str:
    if w.of.diag_num:
        raise Refused("it overwrites a diagonal")
    return f"torch.empty({shape(w)}, {tensor_options(w, w.result('Out').known_dtype)}).uniform_({number_code(w.of.min)}, {number_code(w.of.max)})"


@to_torch()
def _to_torch_gaussian_random(w: PlainOp) -> str:
    return f"torch.empty({shape(w)}, {tensor_options(w, w.result('Out').known_dtype)}).normal_({number_code(w.of.mean)}, {number_code(w.of.std)})"


@to_torch()
def _to_torch_randint(w: PlainOp) -> str:
    return f"torch.randint({w.of.low}, {w.of.high}, {shape(w)}, {tensor_options(w, w.result('Out').known_dtype)})"


@to_torch()
def _to_torch_randperm(w: PlainOp) -> str:
    return f"torch.randperm({w.of.n}, {tensor_options(w, w.result('Out').known_dtype)})"
