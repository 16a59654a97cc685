"""Values that rules know while a network is described: they are what the kernels make, of numbers and of symbols."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.harness import build, of_each_operator, sampled

from foreshape.core.dims import Dim, Ratio, evaluate, symbol, symbols_of
from foreshape.core.spec import FP32, FP64, INDEX, INT64, LOD_TENSOR, MAX_VALUE_ELEMENTS, Spec, dtype, tensor
from foreshape.errors import ForeshapeError
from foreshape.language.infer.rules import Answer, ask
from foreshape.language.operator import Operator
from foreshape.language.operator.require import PLACEHOLDER, RuleError
from foreshape.language.operator.samples import Sample
from foreshape.language.ops.rules.known_values import carry
from foreshape.language.program import Program

CASES = [c for c in sampled() if not c[1].region and c[1].expand is Operator.expand and not c[1].accumulates and c[2].exact]


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(CASES, quick=3)
def test_known_values_are_what_the_kernel_makes(name: str, cls: type[Operator], sample: Sample) -> None:
    case = build(cls, sample.arguments)
    operator, key = case.key()
    arguments, offsets = case.tensors()
    given = _each(lambda spec, value: _known(spec, value.reshape(-1).tolist()), key, arguments)
    numbers: dict[str, int] = {}
    for tried in (given, _each(lambda spec, _: _in_symbols(spec, numbers), given, given)):
        if tried == key:
            continue
        try:
            found = ask(operator, tried)
        except (RuleError, ForeshapeError):  # of symbols a rule may need to know more
            assert tried is not given
            continue
        if _tells_more(found, ask(operator, key)):
            _compare(found, _made(cls, operator, arguments, offsets), numbers)


def _each(change: Any, key: Any, values: Any) -> Any:
    """Change the dense tensors of a key, with the values for each."""

    def one(spec: Any, value: Any) -> Any:
        if isinstance(spec, tuple):
            return tuple(one(s, v) for s, v in zip(spec, value, strict=True))
        return change(spec, value) if isinstance(spec, Spec) and spec.kind is LOD_TENSOR and spec.lod is None else spec

    return tuple(one(spec, value) for spec, value in zip(key, values, strict=True))


def _known(spec: Spec, value: list[Any]) -> Spec:
    return spec if len(value) > MAX_VALUE_ELEMENTS or spec.known_dtype.is_complex else carry(spec, [int(v) if isinstance(v, bool) else v for v in value])


def _in_symbols(spec: Spec, numbers: dict[str, int]) -> Spec:
    """Put symbols in the place of whole numbers: sizes are not negative, and their arithmetic does not wrap."""
    if spec.value is None or spec.dtype not in (*INDEX, FP32, FP64):
        return spec
    if any(abs(v) >= 2**16 for v in spec.value):
        return spec.like()
    out: list[Any] = []
    for v in spec.value:
        whole = v >= 0 and v == int(v)
        out.append(symbol(f"s{len(numbers)}") if whole else v)
        if whole:
            numbers[f"s{len(numbers)}"] = int(v)
    return spec.with_value(out)


def _made(cls: type[Operator], operator: Operator, arguments: Any, offsets: Any) -> tuple[Any, ...]:
    import torch

    named: dict[str, Any] = {"requested": (True,) * len(cls.schema.results)} if cls.kernel_requested else {}
    named |= {"offsets": offsets} if cls.kernel_offsets else {}
    with torch.inference_mode():
        given = cls.kernel(operator, *arguments, **named)
    return given if isinstance(given, tuple) else (given,)


def _specs(found: Answer) -> list[Any]:
    return [s for r in found.results for s in (r if isinstance(r, tuple) else (r,))]


def _tells_more(found: Answer, without: Answer) -> bool:
    return any(a is not None and (a.value is not None or a != b) for a, b in zip(_specs(found), _specs(without), strict=False)) or found != without


def _compare(found: Answer, made: tuple[Any, ...], numbers: dict[str, int]) -> None:
    values = [v for r in made for v in (r if isinstance(r, (list, tuple)) else (r,))]
    for spec, value in zip(_specs(found), values, strict=False):
        if spec is None or spec.kind is not LOD_TENSOR or not hasattr(value, "shape"):
            continue
        assert len(spec.known_dims) == len(value.shape)
        for size, seen in zip(spec.known_dims, value.shape, strict=True):
            assert any(n.startswith(PLACEHOLDER) for n in symbols_of(size)) or _number(size, numbers) == seen, (spec, value.shape, numbers)
        if spec.value is not None:
            assert [_number(v, numbers) for v in spec.value] == value.reshape(-1).tolist(), (spec, spec.value, value, numbers)


def _number(v: Any, numbers: dict[str, int]) -> Any:
    if isinstance(v, Ratio):
        return evaluate(v.numerator, numbers) / v.denominator
    return evaluate(v, numbers) if isinstance(v, Dim) else v


SCALES = (0.5, 1.5, 2.0, 0.25, 3.0, 0.1, 0.7, 1 / 3, 0.29, 1.2, 1.3, 2.6, 0.6, 1e-3, 0.123456, 8.0, 31 / 7)


@pytest.mark.quick_cases("elementwise_div-fp32")
@pytest.mark.parametrize("of", ["fp32", "fp64"])
@pytest.mark.parametrize("way", ["elementwise_mul", "elementwise_div"])
def test_sizes_that_go_through_floats_are_the_numbers_of_the_run(of: str, way: str) -> None:
    """A size times a scale, moved and made whole, is known by its formula, or not at all; of usual scales it is known."""
    code, exact = dtype(of).code, np.dtype(dtype(of).numpy_name).type
    known = 0
    for scale in SCALES:
        for rounding in ("floor", "ceil", "round", "trunc", None):
            for more in (0.0, 0.5, -1.0):
                block = Program().global_block
                size = block.create_variable("size", tensor(INT64, 1).with_value((symbol("n"),)))
                x = block.apply("cast", {"X": size}, {"in_dtype": INT64.code, "out_dtype": code})
                by = block.apply("fill_constant", {}, {"shape": [1], "dtype": code, "value": scale, "str_value": repr(scale)})
                x = block.apply(way, {"X": x, "Y": by})
                x = block.apply("scale", {"X": x}, {"scale": 1.0, "bias": more}) if more else x
                x = block.apply(rounding, {"X": x}) if rounding is not None else x
                value = block.apply("cast", {"X": x}, {"in_dtype": code, "out_dtype": INT64.code}).spec.value
                if value is None:
                    continue
                known += 1
                for n in (*range(1, 600), 1000, 1023, 4096, 9999, 65535):
                    seen = exact(n) * exact(scale) if way == "elementwise_mul" else exact(n) / exact(scale)
                    seen = seen + exact(more)
                    seen = int({"floor": np.floor, "ceil": np.ceil, "round": np.round}.get(rounding, np.trunc)(seen))
                    assert evaluate(value[0], {"n": n}) == seen, (scale, rounding, more, n, value)
    assert known > 50
