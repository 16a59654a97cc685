"""Numbers drawn at random: other ones than elsewhere with the same seed."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.node_rules import onnx
from foreshape.program.variable import Variable
from foreshape.spec import FP32


def _drawn(c: Call, dtype: int, shape: list[int] | None, sizes: Variable | None) -> Any:
    """Return drawn numbers of a shape, or of a shape computed in the run."""
    attrs: dict[str, Any] = {"shape": shape or [], "dtype": dtype}
    if c.attribute("seed") is not None:  # any float, and 0 is none here
        attrs["seed"] = int(float(c.attribute("seed")) * 2**20) % (2**31 - 1) + 1
    if "Normal" in c.node.operator:
        return c.op("gaussian_random", {**attrs, "mean": float(c.attribute("mean", 0.0)), "std": float(c.attribute("scale", 1.0))}, ShapeTensor=sizes)
    return c.op("uniform_random", {**attrs, "min": float(c.attribute("low", 0.0)), "max": float(c.attribute("high", 1.0))}, ShapeTensor=sizes)


@onnx("RandomNormal", "RandomUniform")
def drawn(c: Call) -> Any:
    return _drawn(c, element_type(int(c.attribute("dtype", 1))).code, [int(n) for n in c.attribute("shape")], None)


@onnx("RandomNormalLike", "RandomUniformLike")
def drawn_like(c: Call) -> Any:
    x, given = c.x(), c.attribute("dtype")
    of = x.spec.known_dtype if given is None else element_type(int(given))
    dims = x.spec.known_dims
    known = [d for d in dims if isinstance(d, int)]
    return _drawn(c, of.code, known, None) if len(known) == len(dims) else _drawn(c, of.code, None, c.shape_of(x))


@onnx("Bernoulli")
def bernoulli(c: Call) -> Any:
    x, given = c.x(), c.attribute("dtype")
    return c.cast(layer.bernoulli(x), x.spec.known_dtype if given is None else element_type(int(given)))


@onnx("Multinomial")
def multinomial(c: Call) -> Any:
    """Draw columns for each row of unnormalized logarithms of probabilities."""
    chances = layer.softmax(c.cast(c.x(), FP32), -1)
    found = c.op("multinomial", {"num_samples": int(c.attribute("sample_size", 1)), "replacement": True}, X=chances)
    return c.cast(found, element_type(int(c.attribute("dtype", 6))))
