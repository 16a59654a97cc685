"""An operator's gradient beside finite differences of its results, in fp64."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import SchemaError
from foreshape.language.operator.fields import Gradient, NoGradient
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.operator_checks.agreement import agree, require_that
from foreshape.runtime.operator_checks.sample_programs import SampleProgram, sample_program
from foreshape.transforms.backward import REACHED, append_backward

EACH, TOGETHER = 10, 3
"""The elements of a larger operand moved one at a time, and the drawn directions in which all of them are moved together."""
MANY = 8
"""So many operands, or more, are each moved in the drawn directions, and one element of each alone."""
STEP = 1e-5


def has_gradient(cls: type[Operator], sample: Sample) -> bool:
    """Tell whether finite differences apply to a sample."""
    return not isinstance(cls.gradient, NoGradient) and sample.differentiate


def check_gradient(cls: type[Operator], sample: Sample) -> None:
    """Compare the gradients of a sample's results with finite differences, and their dims with the rule's.

    Raises:
        ExecutionError: they differ, or no gradient could be compared.
    """
    import numpy

    if not has_gradient(cls, sample):
        return
    probe = sample_program(cls, sample.arguments, double=True)
    rng = numpy.random.RandomState(3)
    floating = [n for n, a in probe.feed.items() if numpy.asarray(a).dtype == numpy.float64]
    compared = 0
    for slot, names in probe.outputs.items():
        if slot not in cls.untrained and (not isinstance(cls.gradient, Gradient) or f"{slot}@GRAD" in cls.gradient.inputs):
            for position in range(len(names)):
                compared += _compare(sample_program(cls, sample.arguments, double=True), slot, position, floating, rng)
    results = [probe.block.vars[n] for n in probe.results]
    empty = all(0 in numpy.shape(probe.feed[n]) for n in floating)
    constant = not any(v.dtype is not None and v.dtype.is_floating and 0 not in v.dims for v in results)
    require_that(bool(compared) or empty or constant, "no gradient could be compared: no result depends on an operand with a gradient")


def _compare(case: SampleProgram, slot: str, position: int, floating: list[str], rng: Any) -> int:
    """Compare the gradients of one result, and return their number."""
    import numpy

    out = case.block.vars[case.outputs[slot][position]]
    if out.dtype is None or not out.dtype.is_floating or not floating:
        return 0
    own = out.kind is not LOD_TENSOR_ARRAY
    if not own:  # it cannot be fed, nor can its gradient: a tensor of all its elements can
        (out, _) = case.block.apply("tensor_array_to_tensor", {"X": out})
    value = Executor().run(case.program, case.feed, [out.name], Scope())[0]
    if 0 in numpy.shape(value):
        return 0
    weight = _with_numbers(value, rng.standard_normal(numpy.shape(value)))
    made = out.spec.like() if own else Spec(LOD_TENSOR, out.dtype, numpy.shape(value))
    arriving = case.block.create_variable("out_gradient", made, need_check_feed=True)
    for name in floating:
        case.block.vars[name].stop_gradient = False
    try:
        pairs = append_backward(out, list(floating), loss_gradient=arriving)
    except SchemaError as error:
        if error.required == REACHED:
            return 0
        raise
    for variable, gradient in pairs:
        got = Executor().run(case.program, case.feed | {"out_gradient": weight}, [gradient.name], Scope())[0]
        got = got.to_dense() if hasattr(got, "to_dense") else got
        dims = list(numpy.shape(case.feed[variable.name]))
        what = f"d {out.name} / d {variable.name}"
        require_that(list(numpy.shape(got)) == dims, f"{what}: the gradient must have the dims {dims} of {variable.name}; seen {list(numpy.shape(got))}")
        require_that(gradient.packed_dims == dims, f"{what}: the rule of the gradient must say {dims}; it says {gradient.packed_dims}")
        along = _directions(dims, rng, len(floating))
        slopes = _slopes(case, variable.name, out.name, weight, along)
        seen = [float((numpy.asarray(got) * d).sum()) for d in along]
        agree(seen, slopes, f"{what} along drawn directions, from the gradient", "finite differences", rtol=2e-5, atol=2e-6)
    return len(pairs)


def _with_numbers(fed: Any, numbers: Any) -> Any:
    """Return other numbers with the raggedness of a fed value."""
    return LoDTensor(numbers, fed.sequence_lengths) if isinstance(fed, LoDTensor) else numbers


def _directions(dims: list[int], rng: Any, operands: int) -> list[Any]:
    import numpy

    count, each = int(numpy.prod(dims)), EACH if operands < MANY else 1
    if count <= each + TOGETHER:
        return list(numpy.eye(count).reshape(count, *dims))
    single = numpy.eye(count)[rng.choice(count, each, replace=False)]
    return list(numpy.concatenate([single, rng.standard_normal((TOGETHER, count))]).reshape(-1, *dims))


def _slopes(case: SampleProgram, name: str, out: str, weight: Any, along: list[Any]) -> list[float]:
    """Return the derivatives of the weighted sum of a result in each of the directions."""
    import numpy

    executor, scope = Executor(), Scope()
    fed, weight = case.feed[name], numpy.asarray(weight)
    slopes: list[float] = []
    for direction in along:
        ends: list[float] = []
        for sign in (1, -1):
            moved = _with_numbers(fed, numpy.asarray(fed) + sign * STEP * direction)
            ends.append(float((numpy.asarray(executor.run(case.program, case.feed | {name: moved}, [out], scope)[0]) * weight).sum()))
        slopes.append((ends[0] - ends[1]) / (2 * STEP))
    return slopes
