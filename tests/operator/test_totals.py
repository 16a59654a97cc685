"""What operators say of their results: a sum over examples is the sum of those of two parts, and a mean is theirs by what it says that it is over."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape.language.operator import all_operators
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample, SampleTensor


def cases() -> list[Any]:
    """Each operator that says something, with a sample whose operands can be divided along their first dims."""
    out: list[Any] = []
    for cls in (cls for _, cls in sorted(all_operators().items())):
        if cls.totals is not Operator.totals and cls.schema.operands:
            out += [pytest.param(cls, one, id=f"{cls.type}-{at}") for at, one in enumerate(cls.samples) if _divides(cls, one)]
    return out


def _divides(cls: Any, one: Sample) -> bool:
    first = one.arguments.get(cls.schema.operands[0].name)
    reduced = one.arguments.get("dim", ())
    whole = not reduced or one.arguments.get("reduce_all") or 0 in reduced or (isinstance(first, SampleTensor) and -len(first.dims) in reduced)
    return (
        isinstance(first, SampleTensor)
        and len(first.dims) > 0
        and first.dims[0] > 1
        and not first.lengths
        and bool(whole)
        and first.dtype.name != "complex64"
        and not (cls.type == "reduce_mean" and first.dtype.is_integer)  # cut
    )


def _run(cls: Any, one: Sample, arrays: dict[str, Any]) -> dict[str, Any]:
    with fs.program() as program:
        block = program.global_block
        inputs: dict[str, str] = {}
        for slot, array in arrays.items():
            spec = one.arguments[slot]
            block.create_variable(slot, fs.core.spec.tensor(spec.dtype, *array.shape), need_check_feed=True)
            inputs[slot] = slot
        attrs = {n: v for n, v in one.arguments.items() if n in cls.schema.attributes}
        op = block.append_op(cls.type, inputs, attrs=attrs)
        operator = op.operator
        assert operator is not None
        names = {slot: op.outputs[slot][0] for slot in operator.totals()}
        fetched = fs.Executor().run(program, arrays, list(names.values()), fs.Scope())
    return dict(zip(names, fetched, strict=True)) | {"": operator}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("cls", "one"), cases())
def test_totals_are_those_of_parts(cls: Any, one: Sample) -> None:
    r = np.random.RandomState(5)
    whole: dict[str, Any] = {}
    for operand in cls.schema.operands:
        value = one.arguments.get(operand.name)
        if isinstance(value, SampleTensor):
            numbers = np.asarray(value.data) if value.data is not None else r.uniform(value.low, value.high + (value.dtype.is_integer), value.dims)
            whole[operand.name] = np.floor(numbers).reshape(value.dims).astype(value.dtype.numpy_name) if value.dtype.is_integer or value.dtype.name == "bool" \
                else numbers.reshape(value.dims).astype(value.dtype.numpy_name)  # fmt: skip
    count = next(iter(whole.values())).shape[0]
    parts = [{n: a[cut] if a.ndim and a.shape[0] == count else a for n, a in whole.items()} for cut in (slice(0, 1), slice(1, None))]
    found, *some = (_run(cls, one, arrays) for arrays in (whole, *parts))
    for slot, total in found[""].totals().items():
        if total.of:
            weights = [p[total.of].shape[0] if total.rows else math.prod(p[total.of].shape) for p in parts]
        else:
            weights = [sum(float(s[by].sum()) for by in total.by) if total.by else 1.0 for s in some]
        expected = sum(w * s[slot].astype("float64") for w, s in zip(weights, some, strict=True))
        if total.of or total.by:
            expected = expected / (sum(weights) or 1.0)
        np.testing.assert_allclose(found[slot], expected, rtol=1e-5, atol=1e-6, err_msg=slot)
