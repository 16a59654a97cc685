"""`fs.check_operator`: an operator of somebody's own is checked as the package's are, and each fault is told with its sample."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from support.own_operators import OwnBend

import foreshape as fs
from foreshape.language.operator import FLOATING, NOT_DIFFERENTIABLE, Operator, f32, gradient, i64, operand, reject, require_rank, result, sample
from foreshape.language.ops.math.matmul import MatmulV2


def faulty(fault: str = "bend") -> type[Operator]:
    """An operator Out = X |X| with a fault; one of its own for each, since answers of rules are kept."""

    class Faulty(Operator):
        """Out = X |X|."""

        type = f"faulty_{fault}"
        X = operand(FLOATING)
        Out = result()

        def infer_shape(self, X: Any) -> Any:
            require_rank(2, X, "X")
            return X.with_dims([d if isinstance(d, int) else 1 for d in X.known_dims]) if fault == "rule" else X

        def kernel(self, X: Any) -> Any:
            if fault == "error":
                raise ValueError("no such thing")
            out = X * X.abs()
            out = out[:, :1] if fault == "dims" else out.double() if fault == "type" else out
            return (out, out) if fault == "count" else out

        @gradient("X", "Out@GRAD", gives="X@GRAD")
        def backward(self, X: Any, d_out: Any) -> Any:
            return (1 if fault == "slope" else 2) * X.abs() * d_out

        samples = [sample(X=f32(2, 3))]
        rejects = [reject(X=f32(2, 3, 4), says="must have 2 dims")]
        if fault == "refusals":
            rejects = [reject(X=f32(2, 3), says="two"), reject(X=f32(2, 3, 4), says="three"), reject(X=i64(2, 3), says="floating", error=fs.ShapeError)]

    return Faulty


def test_an_operator_that_holds_is_reported_check_by_check() -> None:
    report = fs.check_operator(faulty())
    assert str(report) == (
        "faulty_bend: the kernel beside the shape rule (1), symbols beside numbers (1), the file (1), the text (1), "
        "the gradient beside finite differences (1), the refusal (1)"
    )
    assert report.type == "faulty_bend" and set(report.passed.values()) == {1}
    for cls in (OwnBend, MatmulV2):
        assert fs.check_operator(cls).passed["the gradient beside finite differences"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("dims", r"the kernel beside the shape rule, sample 0 \(X=f32\[2, 3\]\): Out must be of f32\[2, 3\] by the shape rule; the kernel gave \[2, 1\]"),
        ("type", r"Out must be of f32\[2, 3\] by the shape rule; the kernel gave torch.float64"),
        ("count", "the kernel must return 1 values, for Out; it returned 2"),
        ("rule", r"symbols beside numbers, sample 0 .*: Out must be f32\[2, 3\] for n = 2; with a symbol the rule gives f32\[1, 3\]"),
        ("slope", r"the gradient beside finite differences, sample 0 .*along drawn directions, from the gradient must be \S+ by finite differences"),
        ("error", r"the kernel beside the shape rule, sample 0 .*: ValueError: no such thing"),
    ],
)
def test_each_fault_is_told_with_its_sample(fault: str, says: str) -> None:
    with pytest.raises(fs.ExecutionError, match=says) as caught:
        fs.check_operator(faulty(fault))
    assert caught.value.op == f"faulty_{fault}"


def test_refusals_that_differ_are_told() -> None:
    with pytest.raises(fs.ExecutionError) as caught:
        fs.check_operator(faulty("refusals"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "faulty_refusals: failed checks: 3"
    assert "the refusal, reject 0 (X=f32[2, 3]): it must be refused with 'two', and was taken" in lines[1]
    assert "it must be refused with 'three'; seen" in str(caught.value) and "it must be refused by ShapeError; seen TypeMismatchError" in str(caught.value)


def test_what_cannot_be_checked_is_refused() -> None:
    class Bare(Operator):
        """Out = X."""

        type = "bare_of_samples"
        gradient = NOT_DIFFERENTIABLE
        X = operand(FLOATING)
        Out = result()

        def infer_shape(self, X: Any) -> Any:
            return X

        def kernel(self, X: Any) -> Any:
            return X.clone()

    with pytest.raises(fs.SchemaError, match=r"bare_of_samples has no samples: write samples = \[sample"):
        fs.check_operator(Bare)
    with pytest.raises(fs.SchemaError, match=r"must be a class derived from fs\.Operator; seen 'relu'"):
        fs.check_operator("relu")  # pyright: ignore[reportArgumentType]


@pytest.mark.long
def test_it_works_without_pytest() -> None:
    first = "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None"
    code = f"{first}\nimport foreshape as fs\nfrom foreshape.language.ops.math.activation import Relu\nprint(fs.check_operator(Relu).type)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "relu\n"
