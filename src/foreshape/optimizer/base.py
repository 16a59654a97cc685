"""`Optimizer`: gradients, clip, weight decay, state and update ops, in this order."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.dims import Size
from foreshape.core.gc_pause import collector_waits
from foreshape.core.spec import FP32, DType, tensor
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import shown
from foreshape.language.operator.traits import is_update
from foreshape.language.program import Op, Program, Role, Variable, default_startup_program, program_guard, startup_of
from foreshape.layer.initializer import Constant
from foreshape.layer.parameter import initialise, settings
from foreshape.optimizer.decay import WeightDecay, as_decay
from foreshape.optimizer.groups import Group, check_all_match, checked_patterns, frozen_names, matches
from foreshape.optimizer.ownership import Owner
from foreshape.optimizer.schedule import Schedule
from foreshape.transforms.backward import append_backward
from foreshape.transforms.backward.no_loss import warn_of_no_loss
from foreshape.transforms.backward.scattered import warn_of_scattered

_FRACTION = (1.0, "at least 0 and below 1")
_NOT_NEGATIVE = (math.inf, "a finite number of at least 0")
_BOUNDS: dict[str, tuple[float, str]] = {
    **dict.fromkeys(("beta1", "beta2", "rho"), _FRACTION),
    **dict.fromkeys(("momentum", "epsilon", "initial_accumulator_value", "coefficient", "lars_coeff", "lars_weight_decay", "l1", "l2"), _NOT_NEGATIVE),
}
"""A setting of optimizers -> the number above all its values, from 0 on, and its words."""
UpdateOp: TypeAlias = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
"""The update op of one parameter: type, inputs, outputs, attributes."""


class Optimizer(ConstructorRepr):
    """The base of the optimizers.

    Args:
        learning_rate: a number, a variable, or a schedule.
        weight_decay: `L1Decay`, `L2Decay`, a number (the coefficient of `L2Decay`), or None.
        clip: a `foreshape.optimizer.clip` object, or None.
        groups: `Group` objects: parameters by patterns of their names, with a learning rate or a weight decay of their own.
        freeze: patterns of names of parameters to leave unchanged: ``["encoder.*"]``. Gradients needed by these alone are not computed.

    A pattern without a parameter is an error when the updates are appended.

    Its rate, moments and counters are its own: another optimizer over the same parameters has values of other names.

    A lookup with ``is_sparse`` has a sparse gradient: the rows looked up in the step. Clip and weight decay then work on these
    rows, summed per id. Each optimizer documents the rows that it moves.
    """

    always_shown: ClassVar[tuple[str, ...]] = ("learning_rate",)
    decays_itself: ClassVar[bool] = False
    """True if the update has a decay of its own, whose coefficient is a group's ``weight_decay``."""

    def __init__(
        self, learning_rate: Any = 0.001, *, weight_decay: float | WeightDecay | None = None, clip: Any = None, groups: Sequence[Group] = (),
        freeze: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.learning_rate = _checked_rate(learning_rate)
        as_decay(weight_decay)  # an invalid coefficient is refused here
        self.weight_decay = weight_decay
        if clip is not None and (not hasattr(clip, "append") or hasattr(clip, "__len__")):
            raise SchemaError(f"clip= is an object, such as fs.optimizer.ClipByGlobalNorm(1.0); seen {clip!r}")
        self.clip = clip
        self.groups = _checked_groups(groups, self.decays_itself)
        self.freeze = checked_patterns("freeze=", freeze)
        self._owner = Owner()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting. Raises `SchemaError` for a number out of its range."""
        bounds = _BOUNDS.get(name)
        if bounds is not None and isinstance(value, (int, float)) and not 0 <= value < bounds[0]:
            raise SchemaError.must(f"{type(self).__name__}: {name}", bounds[1], shown(value))
        super().__setattr__(name, value)

    def for_run(self, *, epochs: float | None, steps_per_epoch: float | None) -> Optimizer:
        """Return the optimizer for a run of so many epochs: schedules in epochs, or over the whole run, get steps.

        Args:
            epochs: of the whole run; None if unknown.
            steps_per_epoch: the number of updates of an epoch, not necessarily whole if gradients of several batches are
                accumulated; None if unknown.

        Returns:
            The optimizer itself if its learning rate does not depend on these, otherwise a copy.

        Raises:
            SchemaError: a schedule needs an argument that is None here; the message says how to give it.
        """
        rate = self.learning_rate
        if not isinstance(rate, Schedule):
            return self
        adapted = rate.for_run(epochs, steps_per_epoch)
        if adapted is rate:
            return self
        out = copy.copy(self)
        out.learning_rate, out._owner = adapted, self._owner
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_owner"}  # of existing state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._owner = Owner()

    def minimize(
        self, loss: Variable, startup: Program | None = None, parameters: Iterable[Variable | str] | None = None, no_gradient: Iterable[Variable | str] = ()
    ) -> tuple[list[Op], list[tuple[Variable, Variable]]]:
        """Append the gradients of ``loss`` and the updates of its parameters.

        Args:
            loss: one number of a program.
            startup: the program that makes the first values of state and counters; by default the startup program of the parameters.
            parameters: the parameters, variables or names; by default all trainable ones behind the loss.
            no_gradient: variables or names without a gradient.

        Returns:
            The update ops, and the (parameter, gradient) pairs.

        Raises:
            ShapeError, SchemaError: as `foreshape.append_backward`; a pattern without a parameter; parameters that are updated by this loss already.
        """
        program = loss.block.program
        program.refresh()
        self._check_groups(program)
        frozen = frozen_names(program, self.freeze)
        chosen = None if parameters is None else list(parameters)
        for wish in chosen or () if frozen else ():
            name = wish.name if isinstance(wish, Variable) else wish
            if name in frozen:
                raise SchemaError(f"{name} is wanted in parameters=, and freeze={list(self.freeze)!r} freezes it")
        _refuse_second_updates(loss, chosen)
        warn_of_scattered(loss)
        pairs = append_backward(loss, chosen, [*no_gradient, *frozen])
        warn_of_no_loss(loss, {parameter.name for parameter, _ in pairs})
        with program_guard(program, startup if startup is not None else startup_of(program)):
            return self.apply(pairs), pairs

    @collector_waits
    def apply(self, pairs: Sequence[tuple[Variable, Variable]]) -> list[Op]:
        """Append clip, weight decay and updates for (parameter, gradient) pairs. Returns the update ops."""
        if not pairs:
            raise SchemaError("there is no gradient to apply")
        program = pairs[0][0].block.program
        self._check_groups(program)
        if self.freeze:
            frozen = frozen_names(program, self.freeze)
            pairs = [p for p in pairs if p[0].name not in frozen]
            if not pairs:
                raise SchemaError(f"freeze={list(self.freeze)!r} freezes all of the parameters whose gradients are given")
        role = program.role
        program.role = Role.OPTIMIZE
        try:
            with self._owner.claiming(program, default_startup_program()):
                if self.clip is not None:
                    pairs = self.clip.append(pairs)
                pairs = self._decayed(pairs)
                rate = self.rate_variable(program)
                rates = {1.0: rate}
                return [self._update(p, g, self._rate_of(p, rates)) for p, g in pairs]
        finally:
            program.role = role

    # --- methods of a subclass

    def update(self, parameter: Variable, gradient: Variable, rate: Variable) -> UpdateOp:
        """Return the update op of one parameter: type, inputs, outputs, attributes.

        Args:
            parameter, gradient: of one another's shape; the gradient may be sparse rows.
            rate: the learning rate, one number.
        """
        raise SchemaError(f"{type(self).__name__} does not say how it updates")

    # --- arguments

    def _check_groups(self, program: Program) -> None:
        for group in self.groups:
            check_all_match(program, group.patterns, repr(group))

    def decay_of(self, parameter: Variable) -> WeightDecay | None:
        """Return the decay added to a parameter's gradient: the last setting of its groups, or the optimizer's."""
        setting = settings(parameter.block.program).get(parameter.name)
        if setting is not None and not setting.need_decay:
            return None
        decay = None if self.decays_itself else self._group_setting("weight_decay", parameter)
        return as_decay(self.weight_decay if decay is None else decay)

    def coefficient_of(self, parameter: Variable, own: float, decays: bool = True) -> float:
        """Return the coefficient of the decay in the update itself: ``own`` if it ``decays``, or a group's; 0 for none.

        Args:
            parameter: its parameter.
            own: the optimizer's argument.
            decays: False for a parameter without decay.
        """
        setting = settings(parameter.block.program).get(parameter.name)
        if setting is not None and not setting.need_decay:
            return 0.0
        decay = self._group_setting("weight_decay", parameter)
        return float(decay) if decay is not None else own if decays else 0.0

    def _group_setting(self, setting: str, parameter: Variable) -> Any:
        """Return the last group's setting for a parameter; None if there is none."""
        for group in reversed(self.groups):
            if getattr(group, setting) is not None and matches(group.patterns, parameter.name):
                return getattr(group, setting)
        return None

    def _update(self, parameter: Variable, gradient: Variable, rate: Variable) -> Op:
        kind, inputs, outputs, attrs = self.update(parameter, gradient, rate)
        for name, number in attrs.items():  # other values are refused by its operator
            if isinstance(number, float) and (not math.isfinite(number) or (name == "epsilon" and number < 0.0)):
                required = "a finite number of at least 0" if name == "epsilon" else "a finite number"
                raise SchemaError.must(f"{type(self).__name__}: {name}", f"{required}", number)
        block = parameter.block
        return block.append_op(kind, inputs, outputs, attrs, role_variables=(parameter.name, gradient.name), site=parameter.site)

    def _decayed(self, pairs: Sequence[tuple[Variable, Variable]]) -> Sequence[tuple[Variable, Variable]]:
        out: list[tuple[Variable, Variable]] = []
        for parameter, gradient in pairs:
            decay = self.decay_of(parameter)
            out.append((parameter, gradient if decay is None or self.includes(decay) else decay.append(parameter, gradient)))
        return out

    def includes(self, decay: WeightDecay) -> bool:
        """Tell whether the update op itself adds a decay to its gradient."""
        return False

    def rate_of(self, program: Program) -> Variable:
        """Return the variable of the learning rate, to fetch it, in a program with a loss minimised by this optimizer.

        A pass that copies the program keeps its name there. Factors of groups and layers are not in it.

        Raises:
            SchemaError: the optimizer has appended no updates to the program.
        """
        rate = self._owner.rates.get(id(program))
        if rate is None or rate.block.program is not program:
            raise SchemaError("the optimizer has no learning rate in this program: minimise a loss of it first")
        return rate

    def rate_variable(self, program: Program) -> Variable:
        """Return the learning rate as a variable of the program, a number without dims; made at the first request."""
        variable = self._owner.rates.get(id(program))
        if variable is not None and variable.block.program is program:
            return variable
        rate = self.learning_rate
        if isinstance(rate, Variable):
            variable = rate
        elif hasattr(rate, "append"):
            variable = rate.append(program)
        else:
            variable = self.state(program, program.unique_name("learning_rate"), (), FP32, float(rate))
        self._owner.rates[id(program)] = variable
        return variable

    def _rate_of(self, parameter: Variable, rates: dict[float, Variable]) -> Variable:
        """Return the learning rate of one parameter. ``rates``: the existing ones, by their factors."""
        setting = settings(parameter.block.program).get(parameter.name)
        group_factor = self._group_setting("learning_rate_factor", parameter)
        factor = (1.0 if setting is None else setting.learning_rate) * (1.0 if group_factor is None else group_factor)
        if factor not in rates:
            rates[factor] = parameter.block.apply("scale", {"X": rates[1.0]}, {"scale": factor})
        return rates[factor]

    def state(self, program: Program, name: str, dims: Sequence[Size], of: DType, value: float) -> Variable:
        """Return a persistable variable of the optimizer's own, filled with ``value`` by the startup program.

        Args:
            program: the program of the updates.
            name: an unused name.
            dims, of: its sizes and element type.
            value: a number.
        """
        variable = program.global_block.create_variable(name, tensor(of, *dims), persistable=True, stop_gradient=True)
        initialise(variable, Constant(value))
        return variable

    def accumulator(self, parameter: Variable, what: str, value: float = 0.0, dims: Sequence[Size] | None = None) -> Variable:
        """Return the state of one parameter, by default of its shape, named ``parameter_what_0``, or with the next number.

        Args:
            parameter: its parameter.
            what: a word for the name.
            value: its first value.
            dims: sizes other than the parameter's.
        """
        program = parameter.block.program
        spec = parameter.spec
        name = program.unique_name(f"{parameter.name}_{what}")
        return self.state(program, name, spec.known_dims if dims is None else dims, spec.known_dtype, value)


def update_op(type: str, parameter: Variable, gradient: Variable, rate: Variable, state: Mapping[str, Variable], attrs: dict[str, Any]) -> UpdateOp:
    """Return an update by an operator that writes each state that it reads, as ``Moment`` to ``MomentOut``."""
    inputs = {"Param": parameter, "Grad": gradient, **state, "LearningRate": rate}
    outputs = {"ParamOut": parameter}
    for slot in state:
        outputs[f"{slot}Out"] = state[slot]
    return type, inputs, outputs, attrs


def _refuse_second_updates(loss: Variable, chosen: Sequence[Variable | str] | None) -> None:
    """Refuse to update parameters by the gradients of one loss twice: a step would apply both."""
    block = loss.block.program.global_block
    if f"{loss.name}@GRAD" not in block.vars:
        return
    names = None if chosen is None else {p.name if isinstance(p, Variable) else p for p in chosen}
    for op in block.ops:
        parameter = op.input("Param") if op.operator is not None and is_update(type(op.operator)) else None
        if parameter is not None and (names is None or parameter in names):
            # without a line: the site of an update is its parameter's, for errors of its run
            raise SchemaError(
                f"{parameter} is updated by the gradient of {loss.name} already, by {op.type}; a step would apply both updates: minimize a loss once, "
                "or give each optimizer its own parameters, by minimize(loss, parameters=[...])"
            )


def _checked_rate(rate: Any) -> Any:
    """Check a learning rate. Raises `SchemaError` for an invalid one."""
    if isinstance(rate, Variable) or (hasattr(rate, "append") and not hasattr(rate, "__len__")):
        return rate
    number, advice = math.nan, ""
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        number = float(rate)
    if isinstance(rate, (str, bytes, bool)):  # which float() takes
        number, advice = math.nan, "" if math.isnan(number) else f": give it as a number, {number!r}"
    if not 0.0 <= number < math.inf:
        required = "a number of at least 0, a variable or a schedule, such as fs.optimizer.cosine(0.1)"
        raise SchemaError(f"a learning rate is {required}; seen {shown(rate)}{advice}").told(slot="learning_rate", required=required, seen=shown(rate))
    return rate


def _checked_groups(value: object, decays_itself: bool) -> tuple[Group, ...]:
    groups: tuple[object, ...] = tuple(value) if isinstance(value, (list, tuple)) else (value,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for group in groups:
        if not isinstance(group, Group):
            raise SchemaError(f'groups= takes Group objects, such as Group("*.bias", weight_decay=0); seen {group!r}')
        if decays_itself and isinstance(group.weight_decay, WeightDecay):
            raise SchemaError(f"{group!r}: this optimizer has a decay of its own, of which a group says the coefficient: a number")
    return tuple(g for g in groups if isinstance(g, Group))
