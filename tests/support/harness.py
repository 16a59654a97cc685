"""From an operator's samples to programs, feeds and expected results: what the generic tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from foreshape.language.infer.rules import answer
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import all_operators
from foreshape.language.operator.samples import Reject, Sample
from foreshape.language.program import Program, program_guard
from foreshape.runtime.operator_checks.sample_programs import SEED, placed, sample_program
from foreshape.runtime.operator_checks.sample_programs import SampleProgram as Case
from foreshape.runtime.operator_checks.sample_programs import numbers_of as array
from foreshape.runtime.operator_checks.sample_programs import split_arguments as split
from support.some import is_quick


@cache
def operators() -> tuple[type[Operator], ...]:
    """Every forward operator, by type."""
    return tuple(c for t, c in sorted(all_operators().items()) if c.forward_class is None and c.__module__.startswith("foreshape."))


@cache
def sampled() -> tuple[tuple[str, type[Operator], Sample], ...]:
    return tuple((f"{cls.type}-{at}", cls, sample) for cls in operators() for at, sample in enumerate(cls.samples))


@cache
def with_kernels() -> tuple[tuple[str, type[Operator], Sample], ...]:
    """The samples of operators that have a kernel: the others are made of these."""
    return tuple(c for c in sampled() if c[1].expand is Operator.expand)


def rejected() -> Iterator[tuple[str, type[Operator], Reject]]:
    for cls in operators():
        for at, reject in enumerate(cls.rejects):
            yield f"{cls.type}-{at}", cls, reject


def of_each_operator(cases: Iterable[tuple[Any, ...]], quick: int = 1, always: Iterable[str] = ()) -> Callable[[Callable[..., None]], Callable[[str], None]]:
    """Makes a test of one case, ``(name, class, ...)``, one of all cases of a file of operators, which tells of each that fails.

    Thousands of tests of a millisecond would take longer to be handed out and reported than to be run. One operator in ``quick`` is quick,
    and those with the types ``always``; the others of its file are a long test of their own.
    """
    groups: dict[str, list[tuple[Any, ...]]] = {}
    kept = set(always)
    assert kept <= all_operators().keys(), f"no operators {sorted(kept - all_operators().keys())}"
    for case in cases:
        file = case[1].__module__.removeprefix("foreshape.language.ops.").replace(".", "/")
        groups.setdefault(file if case[1].type in kept or is_quick(case[1].type, quick) else f"{file}, the others", []).append(case)

    def decorate(test: Callable[..., None]) -> Callable[[str], None]:
        def of_all(of: str) -> None:
            failures: list[Exception] = []
            for case in groups[of]:
                try:
                    with program_guard(Program(), Program()):
                        test(*case)
                except Exception as error:
                    error.add_note(f"this is {case[0]}")
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(groups[of])} cases of {of}: {', '.join(f.__notes__[-1] for f in failures)}", failures)

        of_all.__name__, of_all.__doc__, of_all.__module__ = test.__name__, test.__doc__, test.__module__
        given = [pytest.param(g, marks=pytest.mark.long if g.endswith(", the others") else ()) for g in groups]
        return pytest.mark.parametrize("of", given)(of_all)

    return decorate


def build(cls: type[Operator], arguments: Mapping[str, Any], seed: int = SEED, double: bool = False, as_layers: bool = False) -> Case:
    """A program whose inputs are the sample's tensors and whose only op is the operator's.

    Args:
        as_layers: the op is written as layers and optimizers write it: what it changes in place is persistable, and the result has its
            name; and single results that may be left out are there.
    """

    def prepare(inputs: dict[str, Any], attrs: dict[str, Any]) -> dict[str, list[str]]:
        outputs: dict[str, list[str]] = {}
        for result in cls.schema.results:
            if result.updates in inputs:
                changed = inputs[result.updates] if result.many else [inputs[result.updates]]
                outputs[result.name] = [v.name for v in changed]
                for variable_changed in changed:
                    variable_changed.persistable = True
            elif result.optional and not result.many and result.updates is None:
                outputs[result.name] = [f"{result.name}_of_{cls.type}"]
        if "infer_flags" in cls.schema.attributes and "infer_flags" not in attrs:
            attrs["infer_flags"] = [1] * len(attrs["axes"])
        if cls.type == "expand_as_v2" and "Y" in inputs:
            attrs["target_shape"] = list(inputs["Y"].spec.known_dims)
        return outputs

    return sample_program(cls, arguments, seed, double, prepare if as_layers else None)


__all__ = ["Case", "answer", "array", "build", "of_each_operator", "operators", "placed", "rejected", "sampled", "split"]
