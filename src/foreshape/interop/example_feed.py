"""A feed of the smallest sizes of a network, to try it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.interop.model import InferenceModel


def example_feed(model: InferenceModel, inputs: Sequence[str]) -> dict[str, Any] | None:
    """Return a feed of the smallest sizes, with random numbers; None if there are none. Ids are 0 or 1."""
    import numpy

    block, feeds = model.program.global_block, model.program.feeds
    specs = {n: block.var(n).spec for n in inputs}
    shapes = {n: [3, *([1] * (len(s.known_dims) - 1))] for n, s in specs.items() if n in feeds and s.lod is not None}
    sizes = feeds.nearest(shapes) if shapes else feeds.smallest
    if sizes is None:
        return None
    draw, out = numpy.random.default_rng(0), dict[str, Any]()
    for name, spec in specs.items():
        dims = sizes[name]
        kind = spec.known_dtype.numpy_name or "float32"
        array = (draw.integers(-8, 9, dims) / 4 if spec.known_dtype.is_floating else draw.integers(0, 2, dims)).astype(kind)
        levels = [] if spec.lod is None else [*([[1]] * (len(spec.lod.counts) - 1)), [dims[0]]]
        out[name] = LoDTensor(array, levels) if levels else array
    return out
