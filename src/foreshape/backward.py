"""Gradients: appends the gradient ops of a loss, in PaddlePaddle's naming."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foreshape.dims import equal, product
from foreshape.errors import SchemaError, ShapeError
from foreshape.ops.fields import NOT_DIFFERENTIABLE, NOT_WRITTEN, Gradient, NoGradient
from foreshape.ops.operator import Attributes, Operator, get
from foreshape.program import Block, Op, Role, Variable
from foreshape.program.call_site import tells_line
from foreshape.program.collector import collector_waits
from foreshape.program.op import EMPTY, Slots

GRAD = "@GRAD"


@dataclass(slots=True)
class _Step:
    """A gradient op that is to be appended. In ``outputs`` stand the names of the variables whose gradients they are."""

    forward: Op
    attributes: Attributes
    inputs: Slots
    outputs: Slots


@dataclass(slots=True)
class GradientSlots:
    """What ``gradient_ops`` of an operator is given: the names of its op's slots, and which gradients are needed.

    A gradient op is appended with `add`; the gradient of a variable ``x`` is written by naming ``x`` itself in ``gives``.
    """

    op: Op
    needed: Collection[str]
    available: Collection[str]
    added: list[tuple[str, dict[str, list[str]], dict[str, list[str]], dict[str, Any]]] = field(
        default_factory=list[tuple[str, dict[str, list[str]], dict[str, list[str]], dict[str, Any]]]
    )

    def input(self, slot: str) -> list[str]:
        """The names in an input slot of the forward op."""
        return list(self.op.inputs.get(slot, ()))

    def output(self, slot: str) -> list[str]:
        return list(self.op.outputs.get(slot, ()))

    def grad_of_output(self, slot: str) -> list[str]:
        """The names of the gradients of the results in a slot."""
        return [n + GRAD for n in self.op.outputs.get(slot, ())]

    def needs(self, name: str) -> bool:
        """Whether the gradient of this variable is needed."""
        return name in self.needed

    def add(self, type: str, takes: dict[str, list[str]], gives: dict[str, list[str]], attrs: dict[str, Any] | None = None) -> None:
        """Append an op: ``takes`` and ``gives`` are its slots; in ``gives`` stand the variables whose gradients it makes."""
        self.added.append((type, takes, gives, attrs or {}))


@tells_line
@collector_waits
def append_backward(
    loss: Variable, parameters: Iterable[Variable | str] | None = None, no_gradient: Iterable[Variable | str] = (),
    loss_gradient: Variable | None = None,
) -> list[tuple[Variable, Variable]]:  # fmt: skip
    """Append the ops that compute the gradients of ``loss``.

    Args:
        loss: one number, unless ``loss_gradient`` is given.
        parameters: whose gradients are wanted; all trainable parameters where it is left out. Inputs may be among them.
        no_gradient: variables at which the way back ends.
        loss_gradient: the gradient of the loss, of its shape; one where it is left out.

    Returns:
        (parameter, gradient) pairs, in the order in which the parameters were made.

    Raises:
        ShapeError: the loss is not one number. SchemaError: an operator on the way has no gradient, or no parameter is reached.
    """
    block = loss.block
    program = block.program
    program.refresh()
    if block.idx != 0:
        raise SchemaError("the loss must be a variable of the global block")
    stop = {v.name if isinstance(v, Variable) else v for v in no_gradient}
    wanted = _wanted(block, parameters, stop)
    path, needed = _path(block, loss, wanted, stop)
    steps: list[_Step] = []
    grads = {loss.name}
    for op in reversed(path):
        steps += _steps(op, needed, grads)
    start = _append_loss_gradient(loss, loss_gradient)
    _append(block, steps, start, wanted)
    out: list[tuple[Variable, Variable]] = []
    for name in wanted:
        gradient = block.vars.get(name + GRAD)
        if gradient is not None and name in grads:
            out.append((block.vars[name], gradient))
    if not out:
        raise SchemaError(f"no trainable parameter reaches {loss.name}: nothing is to be trained")
    return out


def _wanted(block: Block, parameters: Iterable[Variable | str] | None, stop: set[str]) -> dict[str, None]:
    if parameters is None:
        return {n: None for n, v in block.vars.items() if v.is_parameter and v.trainable and not v.stop_gradient and n not in stop}
    out: dict[str, None] = {}
    for given in parameters:
        variable = block.var(given) if isinstance(given, str) else given
        if variable.name in stop:
            raise SchemaError(f"{variable.name} is both wanted and in no_gradient")
        out[variable.name] = None
    return out


def _is_floating(variable: Variable | None) -> bool:
    return variable is not None and (variable.dtype is None or variable.dtype.is_floating)


def _path(block: Block, loss: Variable, wanted: Collection[str], stop: set[str]) -> tuple[list[Op], set[str]]:
    """The ops between the wanted variables and the loss, and the variables whose gradients are needed on the way."""
    reached: set[str] = set(wanted)
    writer: dict[str, Op] = {}
    candidates: list[Op] = []
    find = block.find
    for op in block.ops:
        if op.role & (Role.BACKWARD | Role.OPTIMIZE):
            continue
        if not any(n in reached for names in op._inputs.values() for n in names):  # pyright: ignore[reportPrivateUsage]
            continue
        candidates.append(op)
        for name in op.output_names():
            variable = find(name)
            if name not in stop and _is_floating(variable) and not (variable is not None and variable.stop_gradient and name not in wanted):
                if name in reached and name in writer:
                    raise SchemaError(f"{name} is written by {writer[name].type} and by {op.type}: a gradient cannot go through a variable that is overwritten")
                reached.add(name)
                writer[name] = op
    if loss.name not in reached:
        raise SchemaError(f"no trainable parameter reaches {loss.name}: nothing is to be trained")
    live = {loss.name}
    path: list[Op] = []
    for op in reversed(candidates):
        if any(n in live and n in reached for n in op.output_names()):
            reason = _no_gradient(op)
            if reason is NOT_DIFFERENTIABLE or reason is NOT_WRITTEN or op.operator is None:
                words = reason.reason if reason is not None else "its operator is not known here"
                raise SchemaError(f"{op.type} has no gradient ({words}), and the loss depends on it" + _at(op))
            if reason is not None:
                continue
            path.append(op)
            live.update(n for n in op.input_names() if n in reached)
    path.reverse()
    return path, live & reached


def _at(op: Op) -> str:
    site = op.call_site
    return f", at {site.short()}" if site is not None else ""


def _no_gradient(op: Op) -> NoGradient | None:
    operator = op.operator
    given = operator.gradient if operator is not None else None
    return given if isinstance(given, NoGradient) else None


def _steps(op: Op, needed: set[str], grads: set[str]) -> list[_Step]:
    operator = op.operator
    assert operator is not None
    cls = type(operator)
    if isinstance(cls.gradient, Gradient):
        return _declared_step(op, cls, cls.gradient, needed, grads)
    slots = GradientSlots(op, needed, grads)
    getattr(operator, "gradient_ops")(slots)  # noqa: B009
    out: list[_Step] = []
    for type_name, takes, gives, attrs in slots.added:
        for name in (n for names in gives.values() for n in names):
            grads.add(name)
        out.append(_Step(op, get(type_name).describe(attrs), _frozen(takes), _frozen(gives)))
    return out


def _frozen(slots: dict[str, list[str]]) -> Slots:
    return {slot: tuple(names) for slot, names in slots.items()}


def _declared_step(op: Op, cls: type[Operator], declared: Gradient, needed: set[str], grads: set[str]) -> list[_Step]:
    inputs, outputs = op._inputs, op._outputs  # pyright: ignore[reportPrivateUsage]
    gives: Slots = {}
    any_given = False
    for slot in declared.gives:
        names = inputs.get(slot[: -len(GRAD)])
        if names:
            kept = tuple([n if n in needed else EMPTY for n in names])
            if any(k is not EMPTY for k in kept):
                gives[slot] = kept
                any_given = True
    if not any_given:
        return []
    for slot, names in outputs.items():
        if slot + GRAD not in declared.takes and any(n in grads for n in names):
            raise SchemaError(f"{cls.type} has no gradient through its result {slot}, and the loss depends on it" + _at(op))
    takes: Slots = {}
    extra: list[_Step] = []
    for slot in declared.takes:
        if slot in inputs:
            takes[slot] = inputs[slot]
        elif outputs.get(slot):
            takes[slot] = outputs[slot]
        elif any(r.name == slot and not r.optional for r in cls.schema.results):
            takes[slot] = op.block.name_result(op, slot)
        elif slot.endswith(GRAD):
            names = outputs.get(slot[: -len(GRAD)])
            if names:
                for name in names:
                    if name not in grads:  # nothing flows into this result: its gradient is zero
                        extra.append(_Step(op, get("fill_zeros_like").describe(None), {"X": (name,)}, {"Out": (name,)}))
                        grads.add(name)
                takes[slot] = tuple([n + GRAD for n in names])
    for names in gives.values():
        grads.update(n for n in names if n is not EMPTY)
    return [*extra, _Step(op, op.attributes.gradient, takes, gives)]


def _append_loss_gradient(loss: Variable, given: Variable | None) -> str:
    block = loss.block
    if loss.op is not None:
        loss.op.role |= Role.LOSS
    name = loss.name + GRAD
    if given is not None:
        if len(given.spec.known_dims) != len(loss.spec.known_dims) or any(
            equal(a, b) is False for a, b in zip(given.spec.known_dims, loss.spec.known_dims, strict=True)
        ):
            raise ShapeError(f"loss_gradient must have the dims of the loss: {loss.name} is {loss.spec.text()}, {given.name} is {given.spec.text()}")
        block.append_op("assign", {"X": given}, {"Out": name}, role=Role.BACKWARD | Role.LOSS, site=loss.op.site if loss.op else None)
        return name
    if product(loss.spec.known_dims) != 1:
        raise ShapeError(f"a loss is one number; {loss.name} is {loss.spec.text()}: take its mean, or give loss_gradient")
    attrs = {"shape": list(loss.spec.known_dims), "dtype": loss.spec.known_dtype.code, "value": 1.0}
    block.append_op("fill_constant", {}, {"Out": name}, attrs, role=Role.BACKWARD | Role.LOSS, site=loss.op.site if loss.op else None)
    return name


def _append(block: Block, steps: Sequence[_Step], loss_gradient: str, wanted: Collection[str]) -> None:
    counts: dict[str, int] = {}
    for step in steps:
        for names in step.outputs.values():
            for name in names:
                if name is not EMPTY:
                    counts[name] = counts.get(name, 0) + 1
    parts: dict[str, list[str]] = {}
    for step in steps:
        complete: list[str] = []
        roles: list[str] = []
        outputs: Slots = {}
        for slot, names in step.outputs.items():
            given: list[str] = []
            for name in names:
                if name is EMPTY:
                    given.append(EMPTY)
                    continue
                if counts[name] == 1:
                    given.append(name + GRAD)
                else:
                    list_of = parts.setdefault(name, [])
                    part = f"{name}{GRAD}@RENAME@block0@{len(list_of)}"
                    list_of.append(part)
                    given.append(part)
                    if len(list_of) == counts[name]:
                        complete.append(name)
                if name in wanted:
                    roles += [name, name + GRAD]
            outputs[slot] = tuple(given)
        _append_op(block, step.attributes, step.inputs, outputs, tuple(roles), step.forward)
        for name in complete:
            roles = [name, name + GRAD] if name in wanted else []
            _append_op(block, get("sum").describe(None), {"X": tuple(parts[name])}, {"Out": (name + GRAD,)}, tuple(roles), step.forward)


def _append_op(block: Block, attributes: Attributes, inputs: Slots, outputs: Slots, roles: tuple[str, ...], forward: Op) -> None:
    if attributes.operator is None and attributes.error is None:
        raise SchemaError(f"there is no operator {attributes.type!r}")
    op = Op(block, attributes, inputs, outputs, Role.BACKWARD, roles, forward.site)
    block.infer_op(op)
    block.ops.append(op)
    block.program.touch()
