"""`Optimizer`: gradients, clip, weight decay, state and update ops, in that order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from foreshape.backward import append_backward
from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.layer.initializer import Constant
from foreshape.layer.parameter import initialise, settings
from foreshape.optimizer.decay import WeightDecay, as_decay
from foreshape.program import Op, Program, Role, Variable, program_guard, startup_of
from foreshape.program.collector import collector_waits
from foreshape.spec import FP32, DType, tensor

UpdateOp: TypeAlias = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
"""The update op of one parameter: type, inputs, outputs, attributes."""


class Optimizer:
    """The base of the optimizers.

    Args:
        learning_rate: a number, a variable, or a schedule.
        weight_decay: `L1Decay`, `L2Decay`, a number (the coefficient of `L2Decay`), or None.
        clip: a `foreshape.optimizer.clip` object, or None.

    A lookup with ``is_sparse`` has a sparse gradient: the rows that the step has looked up. Clip and weight decay then work on those
    rows, those of one id summed. Each optimizer says which rows it moves.
    """

    def __init__(self, learning_rate: Any = 0.001, *, weight_decay: float | WeightDecay | None = None, clip: Any = None) -> None:
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip = clip
        self._rates: dict[int, Variable] = {}

    def minimize(
        self, loss: Variable, startup: Program | None = None, parameters: Iterable[Variable | str] | None = None, no_gradient: Iterable[Variable | str] = ()
    ) -> tuple[list[Op], list[tuple[Variable, Variable]]]:
        """Append the gradients of ``loss`` and the updates of its parameters.

        Returns:
            The update ops, and the (parameter, gradient) pairs.

        Raises:
            ShapeError, SchemaError: as `foreshape.append_backward`.
        """
        pairs = append_backward(loss, parameters, no_gradient)
        program = loss.block.program
        with program_guard(program, startup if startup is not None else startup_of(program)):
            return self.apply(pairs), pairs

    @collector_waits
    def apply(self, pairs: Sequence[tuple[Variable, Variable]]) -> list[Op]:
        """Append clip, weight decay and updates for (parameter, gradient) pairs. Returns the update ops."""
        if not pairs:
            raise SchemaError("there is no gradient to apply")
        program = pairs[0][0].block.program
        before = program.role
        program.role = Role.OPTIMIZE
        try:
            if self.clip is not None:
                pairs = self.clip.append(pairs)
            pairs = self._decayed(pairs)
            rate = self.rate_variable(program)
            return [self._update(p, g, self._rate_of(p, rate)) for p, g in pairs]
        finally:
            program.role = before

    # --- what a subclass defines

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        """The update op of one parameter: type, inputs, outputs, attributes."""
        raise TypeError(f"{type(self).__name__} does not say how it updates")

    # --- what it is made of

    def _update(self, parameter: Variable, gradient: Variable, rate: Variable) -> Op:
        kind, inputs, outputs, attrs = self.update(parameter, gradient, rate)
        block = parameter.block
        return block.append_op(kind, inputs, outputs, attrs, role_variables=(parameter.name, gradient.name), site=parameter.site)

    def _decayed(self, pairs: Sequence[tuple[Variable, Variable]]) -> Sequence[tuple[Variable, Variable]]:
        decay = as_decay(self.weight_decay)
        if decay is None:
            return pairs
        out: list[tuple[Variable, Variable]] = []
        for parameter, gradient in pairs:
            given = settings(parameter.block.program).get(parameter.name)
            if given is not None and not given.need_decay:
                out.append((parameter, gradient))
                continue
            out.append((parameter, decay.append(parameter, gradient)))
        return out

    def rate_variable(self, program: Program) -> Variable:
        """The learning rate as a variable of the program, a number without dims; made at the first question."""
        found = self._rates.get(id(program))
        if found is not None and found.block.program is program:
            return found
        given = self.learning_rate
        if isinstance(given, Variable):
            found = given
        elif hasattr(given, "append"):
            found = given.append(program)
        else:
            found = self.state(program, program.unique_name("learning_rate"), (), FP32, float(given))
        self._rates[id(program)] = found
        return found

    def _rate_of(self, parameter: Variable, rate: Variable) -> Variable:
        given = settings(parameter.block.program).get(parameter.name)
        if given is None or given.learning_rate == 1.0:
            return rate
        return parameter.block.apply("scale", {"X": rate}, {"scale": given.learning_rate})

    def state(self, program: Program, name: str, dims: Sequence[Size], of: DType, value: float) -> Variable:
        """A persistable variable of the optimizer's own, which the startup program fills with ``value``."""
        made = program.global_block.create_variable(name, tensor(of, *dims), persistable=True, stop_gradient=True)
        initialise(made, Constant(value))
        return made

    def accumulator(self, parameter: Variable, what: str, value: float = 0.0, dims: Sequence[Size] | None = None) -> Variable:
        """State of one parameter, of its shape unless said otherwise, named ``parameter_what_0``."""
        program = parameter.block.program
        spec = parameter.spec
        name = program.unique_name(f"{parameter.name}_{what}")
        return self.state(program, name, spec.known_dims if dims is None else dims, spec.known_dtype, value)
