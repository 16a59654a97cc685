"""Operators where their operands are 0, 1, equal or infinite: where the results are numbers, so are the gradients, but where mathematics says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.harness import Case, build, of_each_operator, sampled

from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError, FeedError
from foreshape.language.operator.fields import Gradient, NoGradient
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.language.operator.samples import Sample, f32, i32, i64
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.backward import append_backward

INF = float("inf")
EXPECTED = {
    "acos": "the slope is infinite at -1 and 1", "acosh": "the slope is infinite at 1", "asin": "the slope is infinite at -1 and 1",
    "sqrt": "the slope is infinite at 0", "atan2": "no angle at (0, 0), and infinity over infinity squared",
    "cholesky_solve": "a factor with an infinite element",
    "elementwise_pow": "the logarithm of infinity times 0",
    "gru": "infinite weights", "gru_unit": "infinite weights", "lstm": "infinite weights and states", "lstmp": "infinite weights and states",
    "hierarchical_sigmoid": "the gradient of W is infinite, as X is", "hinge_loss": "a label of -infinity", "margin_rank_loss": "a label of infinity",
    "lu": "singular matrices", "polygamma": "poles", "qr": "rank-deficient matrices",
    "spectral_norm": "infinite vectors", "svd": "equal or no singular values",
}  # fmt: skip
"""Operators whose gradient is no number somewhere where the results are: why. PaddlePaddle 2.6.2 has no number there either, where it has them."""


def gradient_cases() -> list[tuple[str, type[Operator], Sample]]:
    return [c for c in sampled() if not isinstance(c[1].gradient, NoGradient) and c[2].differentiate and c[2].exact and not c[1].random]


def floats(case: Case) -> list[str]:
    return [n for n, a in case.feed.items() if np.asarray(a).dtype == np.float32 and np.size(np.asarray(a))]


def singular(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is fed, with the numbers of each operand singular in turn, and of all."""
    names = [n for n in floats(case) if n != "out_gradient"]

    def fed(**changed: np.ndarray) -> dict[str, Any]:
        return case.feed | {n: LoDTensor(a, x.sequence_lengths) if isinstance(x := case.feed[n], LoDTensor) else a for n, a in changed.items()}

    for name in names:
        like = np.array(case.feed[name], "float32")
        for number in (0.0, 1.0, -1.0):
            yield f"{name} all {number:g}", fed(**{name: np.full_like(like, number)})
        for number in (0.0, INF, -INF):
            one = like.copy()
            one[(0,) * (1 if number == 0.0 and one.ndim else one.ndim)] = number
            yield f"{name}[0] = {number:g}", fed(**{name: one})
    for number in (0.0, 1.0) if len(names) > 1 else ():
        yield f"all {number:g}", fed(**{n: np.full_like(np.asarray(case.feed[n]), number) for n in names})
    for dims in {np.shape(case.feed[n]) for n in names} if len(names) > 1 else ():
        alike = [n for n in names if np.shape(case.feed[n]) == dims]
        yield f"{' and '.join(alike)} equal", fed(**{n: np.array(case.feed[alike[0]], "float32") for n in alike})


def with_gradients(cls: type[Operator], sample: Sample) -> Iterator[tuple[Case, list[str], list[str]]]:
    """For each result a program of the op and its gradient for a gradient of ones: the results, and the gradients of the operands."""
    probe = build(cls, sample.arguments)
    for slot, names in probe.outputs.items():
        if (isinstance(cls.gradient, Gradient) and f"{slot}@GRAD" not in cls.gradient.inputs) or (cls.type == "cross_entropy2" and slot != "Y"):
            continue
        for position, _ in enumerate(names):
            case = build(cls, sample.arguments)
            out = case.block.vars[case.outputs[slot][position]]
            if out.dtype is None or not out.dtype.is_floating or out.kind is LOD_TENSOR_ARRAY or out.spec.dims is None:
                continue
            value = Executor().run(case.program, case.feed, [out.name], Scope())[0]
            ones = np.ones_like(np.asarray(value))
            made = out.spec.like() if out.name in names else Spec(LOD_TENSOR, out.dtype, np.shape(value))
            fed = case.block.create_variable("out_gradient", made, need_check_feed=True)
            case.feed["out_gradient"] = LoDTensor(ones, value.sequence_lengths) if isinstance(value, LoDTensor) else ones
            for n in (wanted := floats(probe)):
                case.block.vars[n].stop_gradient = False
            try:
                pairs = append_backward(out, wanted, loss_gradient=fed)
            except Exception as error:
                if "nothing is to be trained" in str(error):
                    continue
                raise
            made_by_op = [v for n in {x for of in case.outputs.values() for x in of} if (v := case.block.vars.get(n)) is not None]
            results = [v.name for v in made_by_op if v.kind is LOD_TENSOR and v.dtype is not None and v.dtype.is_floating]
            yield case, results, [g.name for _, g in pairs if g.kind is LOD_TENSOR]


def is_finite(value: Any) -> bool:
    return bool(np.isfinite(np.asarray(value)).all())


def without_numbers(cls: type[Operator], sample: Sample) -> list[str]:
    """Where the gradients of a sample are no numbers, though its results are."""
    found: list[str] = []
    for case, results, gradients in with_gradients(cls, sample):
        for title, feed in singular(case):
            try:
                values = Executor().run(case.program, feed, [*results, *gradients], Scope())
            except (ExecutionError, FeedError):  # refused, or of another size
                continue
            if all(map(is_finite, values[: len(results)])):
                found += [f"{n} where {title}" for n, v in zip(gradients, values[len(results) :], strict=True) if not is_finite(v)]
    return found


@pytest.mark.quick_cases(one_in=2, turn=1)
@of_each_operator(gradient_cases(), quick=24)
def test_gradients_are_numbers_where_results_are(name: str, cls: type[Operator], sample: Sample) -> None:
    assert cls.type in EXPECTED or not (found := without_numbers(cls, sample)), "; ".join(found)


@pytest.mark.long
def test_each_exception_is_one() -> None:
    for of in EXPECTED:
        assert any(without_numbers(get(of), sample) for sample in get(of).samples if sample.differentiate and sample.exact), of


X = "X@GRAD"
NUMBERS: list[tuple[str, str, dict[str, Any], str, dict[str, Any]]] = [
    ("a slope at the corner", "leaky_relu", {"X": f32(3, data=[-1, 0, 2]), "alpha": 0.1}, "Out", {X: [0.1, 1, 1]}),
    ("one number alone, however large", "softmax", {"X": f32(data=INF)}, "Out", {"Out": 1, X: 0}),
    ("one number alone, however small", "log_softmax", {"X": f32(data=-INF)}, "Out", {"Out": 0, X: 0}),
    ("a path through an infinite score", "hierarchical_sigmoid", {
        "X": f32(2, 2, data=[[INF, 1], [1, 2]]), "W": f32(4, 2, data=[[1, 2], [2, 1], [1, 1], [-1, 2]]), "Label": i64(2, 1, data=[[0], [3]]),
        "Bias": f32(4, 1, data=[[0.5], [0], [0], [1]]), "num_classes": 5}, "Out",
     {"Out": [[40.693146], [13.540379]], X: [[1, 2], [1.9779437, 4.937901]], "Bias@GRAD": [[1.9959298], [0.9820138], [0], [0.9820138]]}),
    ("an infinite weight of a class that is ignored", "nll_loss", {
        "X": f32(2, 2, data=[[-1, -2], [-3, -0.5]]), "Label": i64(2, data=[1, 0]), "Weight": f32(2, data=[INF, 2]), "ignore_index": 0}, "Out",
     {"Out": 2, X: [[0, -1], [0, 0]]}),
    ("a class without probability", "warpctc", {
        "Logits": f32(2, 1, 3, data=[[[0, 1, -INF]], [[1, 0, 0.5]]]), "Label": i32(1, 1, data=[[1]]), "LogitsLength": i64(1, data=[2]),
        "LabelLength": i64(1, data=[1])}, "Loss",
     {"Loss": [[0.58592534]], "Logits@GRAD": [[[0.17891085, -0.17891085, 0]], [[-0.15876055, -0.14843532, 0.3071959]]]}),
]  # fmt: skip
"""As PaddlePaddle 2.6.2 has them: what it is, the operator, its operands and attributes, the result whose gradient is of ones, what is wanted."""
ROWS = {"X": f32(3, 2, data=[[0, 0], [1, 2], [3, 4]]), "Y": f32(3, 2, data=[[1, 2], [2, 1], [0, 0]])}
NUMBERS += [
    ("a probability of 0, for which PaddlePaddle has an infinite slope", "cross_entropy",
     {"X": f32(2, 2, data=[[0, 1], [0.25, 0.75]]), "Label": i64(2, 1, data=[[0], [1]])}, "Y", {"Y": [[1e20], [0.2876821]], X: [[0, 0], [0, -1.3333334]]}),
    ("the same of a distribution, with zeros in both", "cross_entropy",
     {"X": f32(2, 2, data=[[0, 1], [0, 1]]), "Label": f32(2, 2, data=[[0, 1], [1, 0]]), "soft_label": True}, "Y", {"Y": [[0], [1e20]], X: [[0, -1], [0, 0]]}),
    ("the same", "cross_entropy2", {"X": f32(1, 2, data=[[0, 1]]), "Label": i64(1, 1, data=[[0]])}, "Y", {"Y": [[1e20]], X: [[0, 0]]}),
    ("a row of zeros, as cosine_similarity of PaddlePaddle 2 has it", "cos_sim", ROWS, "Out",
     {"Out": [[0], [0.8], [0]], X: [[0, 0], [0.24, -0.12], [0, 0]], "Y@GRAD": [[0, 0], [-0.12, 0.24], [0, 0]]}),
]  # fmt: skip


@pytest.mark.parametrize(("of", "arguments", "result", "wanted"), [pytest.param(*case[1:], id=case[0]) for case in NUMBERS])
def test_numbers_at_singular_points(of: str, arguments: dict[str, Any], result: str, wanted: dict[str, Any]) -> None:
    case = build(get(of), arguments)
    for n in (names := floats(case)):
        case.block.vars[n].stop_gradient = False
    out = case.block.vars[case.outputs[result][0]]
    ones = case.block.apply("fill_any_like", {"X": out}, {"value": 1.0, "dtype": -1})
    gradients = {f"{v.name}@GRAD": g.name for v, g in append_backward(out, list(names), loss_gradient=ones)}
    fetch = [gradients.get(n) or case.outputs[n][0] for n in wanted]
    for name, found in zip(wanted, Executor().run(case.program, case.feed, fetch, Scope()), strict=True):
        np.testing.assert_allclose(found, np.array(wanted[name], "float32"), rtol=2e-5, atol=1e-6, err_msg=name)
