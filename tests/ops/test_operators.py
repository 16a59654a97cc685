"""Written once, run for every operator: its samples and rejects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.harness import Case, answer, build, key_of, of_each_operator, operators, rejected, sampled, tensors

import foreshape.wire  # noqa: F401  the codec
from foreshape.backward import append_backward
from foreshape.dims import evaluate, symbol, symbols_of
from foreshape.engine import Executor, Scope
from foreshape.operator.fields import Gradient, NoGradient
from foreshape.operator.operator import Operator
from foreshape.operator.require import RuleError
from foreshape.operator.samples import Reject, Sample
from foreshape.ops import Offsets
from foreshape.program import Program
from foreshape.spec import LOD_RANK_TABLE, LOD_TENSOR, LOD_TENSOR_ARRAY, Lod, Spec
from foreshape.values.lod_tensor import LoDTensor
from foreshape.values.tensor_array import TensorArray
from foreshape.values.torch_types import dtype_of_torch

CASES = list(sampled())


def run(program: Program, feed: dict[str, Any], fetch: list[str]) -> list[Any]:
    return Executor().run(program, feed, fetch, Scope())


def made_of_others(case: Case) -> tuple[Any, ...]:
    """The results of an operator that has no kernel of its own, as a kernel would give them."""
    import torch

    names = [n for of in case.outputs.values() for n in of]
    found = dict(zip(names, (torch.from_numpy(np.asarray(v)) for v in run(case.program, case.feed, names)), strict=True))
    made = [[found[n] for n in case.outputs.get(r.name, ())] for r in case.cls.schema.results]
    return tuple(m if r.many else m[0] if m else None for m, r in zip(made, case.cls.schema.results, strict=True))


def with_numbers(fed: Any, numbers: np.ndarray) -> Any:
    """The same raggedness with other numbers."""
    return LoDTensor(numbers, fed.sequence_lengths) if isinstance(fed, LoDTensor) else numbers


@of_each_operator((c.type, c) for c in operators())
def test_every_operator_has_samples_and_words(name: str, cls: type[Operator]) -> None:
    assert cls.samples or cls.region, f"{cls.type} has no samples"  # what runs a block needs one: see tests/control
    assert (cls.__doc__ or "").strip(), f"{cls.type} has no docstring"


@of_each_operator(CASES)
def test_the_kernel_gives_what_the_rule_says(name: str, cls: type[Operator], sample: Sample) -> None:
    import torch

    case = build(cls, sample.arguments)
    operator, key = key_of(case)
    expected = answer(operator, key).results
    arguments, offsets = tensors(case)
    named: dict[str, Any] = {"requested": (True,) * len(cls.schema.results)} if cls.kernel_requested else {}
    named |= {"offsets": offsets} if cls.kernel_offsets else {}
    named |= {"before": [None] * len(cls.accumulates)} if cls.accumulates else {}
    if cls.expand is not Operator.expand:
        given = made_of_others(case)
    else:
        with torch.inference_mode():
            given = cls.kernel(operator, *arguments, **named)
    results = given if isinstance(given, tuple) else (given,)
    makers = [r for r in cls.schema.results if r.new_offsets]
    assert len(results) == len(cls.schema.results) + len(makers)
    for field, made in zip(makers, results[len(cls.schema.results) :], strict=True):
        at = cls.schema.results.index(field)
        for spec, rows, own in zip(*(x if field.many else [x] for x in (expected[at], results[at], made)), strict=True):
            if own is not None and isinstance(spec, Spec) and spec.lod is not None:
                assert len(own.levels) == len(spec.lod.counts), field.name
                for count, level, below in zip(spec.lod.counts, own.levels, [*(len(x) - 1 for x in own.levels[1:]), len(rows)], strict=True):
                    assert level.dtype is torch.int64 and int(level[0]) == 0 and int(level[-1]) == below and bool((level.diff() >= 0).all()), field.name
                    assert not isinstance(count, int) or count == len(level) - 1, field.name
    results = results[: len(cls.schema.results)]
    for field, spec, value in zip(cls.schema.results, expected, results, strict=True):
        if spec is None or (value is None and field.optional):
            continue
        pairs = zip(spec, value, strict=True) if isinstance(spec, tuple) else [(spec, value)]
        for s, v in pairs:
            assert isinstance(s, Spec)
            if isinstance(v, Offsets):
                assert s.kind is LOD_RANK_TABLE and s.dims == (v.rows,) and s.lod is not None and s.lod.counts == tuple(len(x) - 1 for x in v.levels)
                continue
            assert isinstance(v, TensorArray) is (s.kind is LOD_TENSOR_ARRAY), field.name
            for one in [t for t in v.tensors if t is not None] if isinstance(v, TensorArray) else [v]:
                assert list(one.shape) == [d if isinstance(d, int) else size for d, size in zip(s.known_dims, one.shape, strict=True)], field.name
                assert dtype_of_torch(one.dtype) is s.dtype, field.name
            if s.value is not None and all(isinstance(x, int) for x in s.value):
                assert v.reshape(-1).tolist() == list(s.value), field.name


@of_each_operator(CASES, quick=3)
def test_the_symbolic_answer_substituted_is_the_concrete_one(name: str, cls: type[Operator], sample: Sample) -> None:
    operator, key = key_of(build(cls, sample.arguments))
    concrete = answer(operator, key).results
    flat = [s for k in key for s in (k if isinstance(k, tuple) else (k,)) if s is not None]
    for size in sorted({d for s in flat for d in s.dims or () if isinstance(d, int) and d > 1}):
        n = symbol("n")

        def swap(spec: Spec, size: int = size, n: Any = n) -> Spec:
            lod = spec.lod and Lod(spec.lod.source, tuple(n if c == size else c for c in spec.lod.counts))
            return Spec(spec.kind, spec.dtype, tuple(n if d == size else d for d in spec.known_dims), lod, spec.value)

        symbolic_key = tuple(None if k is None else swap(k) if isinstance(k, Spec) else tuple(swap(s) for s in k) for k in key)
        try:
            found = answer(operator, symbolic_key)
        except RuleError as error:
            words = str(error)
            assert "must be known" in words or "number" in words or symbolic_mismatch(words), words
            continue
        if not all(c.answer({"n": size}) for c in found.conditions if c.symbols <= {"n"}):
            raise AssertionError(f"a guard refuses the sample: {found.conditions}")
        for want, got in zip(concrete, found.results, strict=True):
            for w, g in zip(want if isinstance(want, tuple) else (want,), got if isinstance(got, tuple) else (got,), strict=True):
                if w is None or g is None:
                    assert w is g
                    continue
                assert len(w.known_dims) == len(g.known_dims)
                for a, b in zip(w.known_dims, g.known_dims, strict=True):
                    if symbols_of(b) <= {"n"} and isinstance(a, int):
                        assert evaluate(b, {"n": size}) == a, (str(w), str(g))


def symbolic_mismatch(words: str) -> bool:
    """A value that is fixed in the sample (an attribute, a shape's numbers) may leave no room for another size."""
    return any(w in words for w in ("must", "cannot"))


def each_of(first: list[Any], second: list[Any]) -> list[tuple[Any, Any]]:
    """Fetched values in pairs, of arrays element by element."""
    out: list[tuple[Any, Any]] = []
    for a, b in zip(first, second, strict=True):
        out += each_of([x for x in a if x is not None], [x for x in b if x is not None]) if isinstance(a, list) else [(a, b)]
    return out


@of_each_operator((c for c in CASES if c[2].exact), quick=6)
def test_the_program_runs_saves_and_reads_back(name: str, cls: type[Operator], sample: Sample) -> None:
    case = build(cls, sample.arguments)
    if any(r.updates for r in cls.schema.results) or not case.outputs:
        fetch = [n for names in case.outputs.values() for n in names][:1]
    else:
        fetch = [n for names in case.outputs.values() for n in names]
    first = run(case.program, case.feed, fetch)
    again = Program.from_bytes(case.program.to_bytes())
    assert again.to_bytes() == case.program.to_bytes()
    if not any(v.spec.value is not None for v in case.program.all_variables() if v.op is None):  # the text has such values, the file has not
        assert str(again) == str(case.program)
    again.forget()
    again.infer()
    for variable in case.program.all_variables():
        dims = again.var(variable.name).dims  # a value that was known while describing is not in the file
        assert len(dims) == len(variable.dims) and all(a in (-1, b) for a, b in zip(dims, variable.dims, strict=True))
    for a, b in each_of(first, run(again, case.feed, fetch)):  # where a matrix lies decides the last digits of some decompositions
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if all(np.isfinite(np.asarray(a)).all() for a in case.feed.values()):  # checked mode stops at a NaN, fed ones too
        checked = Executor(check=True).run(case.program, case.feed, fetch, Scope())
        for a, b in each_of(first, checked):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@of_each_operator(CASES, quick=6)
def test_the_text_form_reads_back(name: str, cls: type[Operator], sample: Sample) -> None:
    program = build(cls, sample.arguments).program
    parsed = Program.parse(str(program))
    assert str(parsed) == str(program)


def gradient_cases() -> list[tuple[str, type[Operator], Sample]]:
    return [c for c in CASES if not isinstance(c[1].gradient, NoGradient) and c[2].differentiate]


@of_each_operator(gradient_cases(), quick=6)
def test_the_gradient_agrees_with_finite_differences(name: str, cls: type[Operator], sample: Sample) -> None:
    probe = build(cls, sample.arguments, double=True)
    rng = np.random.RandomState(3)
    floating = [n for n, a in probe.feed.items() if np.asarray(a).dtype == np.float64]
    compared = 0
    for slot, names in probe.outputs.items():
        if isinstance(cls.gradient, Gradient) and f"{slot}@GRAD" not in cls.gradient.inputs:
            continue
        for position, _ in enumerate(names):
            case = build(cls, sample.arguments, double=True)
            out = case.block.vars[case.outputs[slot][position]]
            if out.dtype is None or not out.dtype.is_floating or not floating:
                continue
            if out.kind is LOD_TENSOR_ARRAY:  # which cannot be fed, so that no gradient of it can be: that of all its elements can
                out, _ = case.block.apply("tensor_array_to_tensor", {"X": out})
            value = run(case.program, case.feed, [out.name])[0]
            if 0 in np.shape(value):
                continue
            weight = with_numbers(value, rng.standard_normal(np.shape(value)))
            made = out.spec.like() if out.name in names else Spec(LOD_TENSOR, out.dtype, np.shape(value))
            grad_in = case.block.create_variable("out_gradient", made, need_check_feed=True)
            for n in floating:
                case.block.vars[n].stop_gradient = False
            try:
                pairs = append_backward(out, list(floating), loss_gradient=grad_in)
            except Exception as error:
                if "nothing is to be trained" in str(error):
                    continue
                raise
            for variable, gradient in pairs:
                feed = case.feed | {"out_gradient": weight}
                got = run(case.program, feed, [gradient.name])[0]
                got = got.to_dense() if hasattr(got, "to_dense") else got
                assert np.shape(got) == np.shape(case.feed[variable.name]), f"{gradient.name} has another shape"
                assert gradient.packed_dims == list(np.shape(got))
                along = directions(np.shape(got), rng, len(floating))
                want = numeric(case, variable.name, out.name, weight, along)
                seen = [float((np.asarray(got) * d).sum()) for d in along]
                np.testing.assert_allclose(seen, want, rtol=2e-5, atol=2e-6, err_msg=f"d {out.name} / d {variable.name}")
                compared += 1
    results = [probe.block.vars[n] for names in probe.outputs.values() for n in names]
    assert (
        compared
        or not floating
        or all(0 in np.shape(probe.feed[n]) for n in floating)
        or not any(v.dtype is not None and v.dtype.is_floating and 0 not in v.dims for v in results)
    ), "no gradient was compared"


EACH, TOGETHER = 10, 3
"""Of larger operands not each element is moved by itself, but some, and all of them together, in directions that are drawn."""
MANY = 8
"""Of so many operands, or more, each is moved in the drawn directions and one of its own alone."""


def directions(dims: tuple[int, ...], rng: np.random.RandomState, operands: int = 1) -> list[np.ndarray]:
    count, each = int(np.prod(dims)), EACH if operands < MANY else 1
    if count <= each + TOGETHER:
        return list(np.eye(count).reshape(count, *dims))
    single = np.eye(count)[rng.choice(count, each, replace=False)]
    return list(np.concatenate([single, rng.standard_normal((TOGETHER, count))]).reshape(-1, *dims))


def numeric(case: Case, name: str, out: str, weight: Any, along: list[np.ndarray]) -> list[float]:
    """The derivatives of the weighted sum of what comes out, in each of the directions."""
    executor, scope = Executor(), Scope()
    step = 1e-5
    fed, weight = case.feed[name], np.asarray(weight)
    slopes: list[float] = []
    for direction in along:
        ends = []
        for sign in (1, -1):
            moved = np.asarray(fed) + sign * step * direction
            out_moved = np.asarray(executor.run(case.program, case.feed | {name: with_numbers(fed, moved)}, [out], scope)[0])
            ends.append(float((out_moved * weight).sum()))
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return slopes


@of_each_operator(rejected())
def test_what_it_refuses_is_refused_with_words(name: str, cls: type[Operator], reject: Reject) -> None:
    with pytest.raises(reject.error) as caught:
        build(cls, reject.arguments)
    assert reject.says in str(caught.value)
    assert type(caught.value) is reject.error
    error = caught.value
    assert error.op == cls.type and error.required is not None and error.required.split("\n")[0] in str(error)
    assert error.slot is None or error.slot in {f.name for f in cls.schema.operands}
