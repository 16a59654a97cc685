"""Requirements of composed losses on prediction, label and weight: refused in the layer's words, or guards if open."""

from __future__ import annotations

from types import TracebackType

from foreshape.errors import ShapeError
from foreshape.language.operator.require import RuleError, collector, require_same_dims
from foreshape.language.program.call_site import call_site, here
from foreshape.language.program.messages import describe_failure
from foreshape.language.program.variable import Variable


class stating:
    """A context for the functions of `foreshape.language.operator.require`: refusals are worded for these variables, and guards keep open conditions.

    Raises:
        ShapeError: a broken requirement, with the variables, their dims and the user's lines.
    """

    def __init__(self, layer: str, **variables: Variable) -> None:
        self.layer, self.variables = layer, variables

    def __enter__(self) -> None:
        self.before, collector.conditions = collector.conditions, []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        conditions, collector.conditions = collector.conditions or (), self.before
        if error is not None and not isinstance(error, RuleError):
            return
        site = call_site(here())
        if error is None and conditions:
            guards = next(iter(self.variables.values())).block.program.guards
            try:
                for condition in conditions:
                    guards.require(condition, self.layer, site)
            except ShapeError as contradicted:
                error = RuleError(str(contradicted), {})
        if error is not None:
            raise describe_failure(error, self.layer, {name: [v] for name, v in self.variables.items()}, site) from None


def same_dims(layer: str, **variables: Variable) -> None:
    """Require equal dims of all variables: nothing is broadcast.

    Raises:
        ShapeError: other dims, with the code to write if only dims of 1 differ.
    """
    (first, x), *remaining = variables.items()
    remaining = [(name, y) for name, y in remaining if y.spec.dims is not x.spec.dims]
    if remaining:
        with stating(layer, **variables):
            for name, y in remaining:
                require_same_dims(x.spec, y.spec, first, name)
