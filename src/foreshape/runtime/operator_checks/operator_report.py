"""`check_operator`: the checks that this package runs over all its operators, for an operator of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from foreshape.core.spec import tensor
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Reject, Sample, SampleTensor
from foreshape.language.program import Program, program_guard
from foreshape.runtime.operator_checks.gradients import check_gradient, has_gradient
from foreshape.runtime.operator_checks.sample_checks import check_file, check_kernel, check_reject, check_symbols, check_text

Check = Callable[[type[Operator], Any], None]
CHECKS: Final[dict[str, Check]] = {
    "the kernel beside the shape rule": check_kernel,
    "symbols beside numbers": check_symbols,
    "the file": check_file,
    "the text": check_text,
    "the gradient beside finite differences": check_gradient,
}
"""The checks of each sample."""
REJECTED: Final = "the refusal"


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """The checks that an operator passed.

    Attributes:
        type: the operator's.
        passed: check -> the number of samples, or of rejects, that it was run over.
    """

    type: str
    passed: dict[str, int]

    def __str__(self) -> str:
        return f"{self.type}: " + ", ".join(f"{name} ({count})" for name, count in self.passed.items() if count)


def check_operator(operator: type[Operator]) -> OperatorReport:
    """Check an operator by its ``samples`` and ``rejects``, and return the passed checks.

    For each sample: the kernel's results have the dims, element types and values of the shape rule. The rule gives the same for symbols as for numbers.
    The program is the same read from a file and from its text. The gradient has its rule's dims, and agrees with finite differences in fp64. Each reject
    is refused by its error with its words.

    Examples:
        >>> print(fs.check_operator(MyOperator))

    Args:
        operator: a class, defined with its samples.

    Raises:
        SchemaError: no operator, one without samples, or a gradient operator: its forward operator checks it.
        ExecutionError: failed checks, each with its sample and in words.
    """
    if not (isinstance(operator, type) and issubclass(operator, Operator)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SchemaError.must("check_operator: operator", "a class derived from fs.Operator", f"{operator!r:.60}")
    if operator.forward_class is not None:
        raise SchemaError(f"check_operator: {operator.type} is a gradient; check its forward operator, {operator.forward_class.type}")
    if not operator.samples:
        raise SchemaError(f"check_operator: {operator.type} has no samples: write samples = [sample(X=f32(2, 3))], with dims pairwise different")
    passed = {**dict.fromkeys(CHECKS, 0), REJECTED: 0}
    failures: list[str] = []

    def run(name: str, check: Check, case: Sample | Reject, place: str) -> None:
        try:
            with program_guard(Program(), Program()):
                check(operator, case)
        except Exception as error:
            words = str(error) if isinstance(error, ExecutionError) else f"{type(error).__name__}: {error}"
            failures.append(f"{name}, {place} ({_words(case)}): {words}")
        else:
            passed[name] += 1

    for at, sample in enumerate(operator.samples):
        for name, check in CHECKS.items():
            if (check is not check_gradient or has_gradient(operator, sample)) and (check is not check_file or sample.exact):
                run(name, check, sample, f"sample {at}")
    for at, reject in enumerate(operator.rejects):
        run(REJECTED, check_reject, reject, f"reject {at}")
    if failures:
        raise ExecutionError(f"{operator.type}: failed checks: {len(failures)}" + "".join(f"\n  {f}" for f in failures)).told(op=operator.type)
    return OperatorReport(operator.type, passed)


def _words(case: Sample | Reject) -> str:
    """Return a sample in words: ``X=f32[3, 5], axis=1``."""
    return ", ".join(f"{name}={_value(value)}" for name, value in case.arguments.items())


def _value(value: Any) -> str:
    if isinstance(value, SampleTensor):
        lengths = f" ragged {[list(level) for level in value.lengths]}" if value.lengths else ""
        return f"{tensor(value.dtype, *value.dims).text()}{lengths}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, cast('Sequence[Any]', value)))}]"
    return f"{value!r:.60}"
