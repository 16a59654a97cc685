"""Gradients: appends the gradient ops of a loss, in PaddlePaddle's naming."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foreshape.core.dims import equal, product
from foreshape.core.gc_pause import collector_waits
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.infer.loop_state import GRAD
from foreshape.language.program import Block, Role, Variable
from foreshape.language.program.call_site import tells_line
from foreshape.transforms.backward.append import undo
from foreshape.transforms.backward.path import find_path, is_floating
from foreshape.transforms.backward.recompute import recompute_marked
from foreshape.transforms.backward.steps import GradientSlots

__all__ = ["GRAD", "REACHED", "GradientSlots", "append_backward", "append_backward_of"]

REACHED = "reached by a trainable parameter"
"""The requirement of a loss, in the error of a loss without gradients."""


@tells_line
@collector_waits
def append_backward(
    loss: Variable, parameters: Iterable[Variable | str] | None = None, no_gradient: Iterable[Variable | str] = (), loss_gradient: Variable | None = None
) -> list[tuple[Variable, Variable]]:
    """Append the gradient ops of ``loss``.

    Args:
        loss: one number, unless ``loss_gradient`` is given.
        parameters: the variables for gradients; by default all trainable parameters. Inputs may be among them.
        no_gradient: variables at which the backward pass ends.
        loss_gradient: the gradient of the loss, of its shape; by default one.

    Returns:
        (parameter, gradient) pairs, in the order in which the parameters were made.

    Raises:
        ShapeError: the loss is not one number. SchemaError: an operator on the path has no gradient, or the loss depends on no parameter.
    """
    block = loss.block
    program = block.program
    program.refresh()
    if block.idx != 0:
        raise SchemaError("the loss must be a variable of the global block")
    stop = {v.name if isinstance(v, Variable) else v for v in no_gradient}
    parameter_names = _sources(block, parameters, stop)
    path = find_path(block, parameter_names, [loss.name], stop)
    if path.final(loss.name) not in path.reached:
        raise _unreached(loss)
    _append_loss_gradient(loss, loss_gradient)
    grads = undo(path, block, [loss.name], parameter_names)
    recompute_marked(block)
    out: list[tuple[Variable, Variable]] = []
    for name in parameter_names:
        gradient = block.vars.get(name + GRAD)
        if gradient is not None and (name in grads or path.final(name) in grads):
            out.append((block.vars[name], gradient))
    if not out:
        raise _unreached(loss)
    return out


def _unreached(loss: Variable) -> SchemaError:
    return SchemaError(f"no trainable parameter reaches {loss.name}: nothing is to be trained").told(slot=loss.name, required=REACHED)


@collector_waits
def append_backward_of(results: Sequence[Variable], sources: Sequence[str]) -> tuple[dict[str, str], dict[str, set[str]], dict[str, SchemaError]]:
    """Append the gradient ops of several results, whose gradients ``name@GRAD`` are new inputs of the program.

    Args:
        results: variables of the global block.
        sources: names of parameters and inputs.

    Returns:
        Name of a wanted one -> the name of its gradient; result -> the wanted ones that it depends on; and result -> the error where an operator on its way
        has no gradient.
    """
    block = results[0].block
    block.program.refresh()
    reach: dict[str, set[str]] = {}
    refused: dict[str, SchemaError] = {}
    for result in results:
        if not is_floating(result):
            continue
        try:
            path = find_path(block, sources, [result.name], ())
        except SchemaError as error:
            refused[result.name] = error
            continue
        if reached := path.needed & set(sources):
            reach[result.name] = reached
    if not reach:
        return {}, reach, refused
    for name in reach:
        result_variable = block.vars[name]
        block.create_variable(name + GRAD, result_variable.spec, need_check_feed=True, stop_gradient=True)
    path = find_path(block, sources, [*reach], ())
    grads = undo(path, block, [*reach], sources)
    recompute_marked(block)
    return {n: n + GRAD for n in sources if n in grads or path.final(n) in grads}, reach, refused


def _sources(block: Block, parameters: Iterable[Variable | str] | None, stop: set[str]) -> dict[str, None]:
    if parameters is None:
        return {n: None for n, v in block.vars.items() if v.is_parameter and v.trainable and not v.stop_gradient and n not in stop}
    out: dict[str, None] = {}
    for parameter in parameters:
        variable = block.var(parameter) if isinstance(parameter, str) else parameter
        if variable.name in stop:
            raise SchemaError(f"{variable.name} is both wanted and in no_gradient")
        out[variable.name] = None
    return out


def _append_loss_gradient(loss: Variable, gradient: Variable | None) -> str:
    block = loss.block
    if loss.op is not None:
        loss.op.role |= Role.LOSS
    name = loss.name + GRAD
    if gradient is not None:
        if len(gradient.spec.known_dims) != len(loss.spec.known_dims) or any(
            equal(a, b) is False for a, b in zip(gradient.spec.known_dims, loss.spec.known_dims, strict=True)
        ):
            raise ShapeError(f"loss_gradient must have the dims of the loss: {loss.name} is {loss.spec.text()}, {gradient.name} is {gradient.spec.text()}")
        block.append_op("assign", {"X": gradient}, {"Out": name}, role=Role.BACKWARD | Role.LOSS, site=loss.op.site if loss.op else None)
        return name
    if product(loss.spec.known_dims) != 1:
        raise ShapeError(f"a loss is one number; {loss.name} is {loss.spec.text()}: take its mean, or give loss_gradient")
    attrs = {"shape": list(loss.spec.known_dims), "dtype": loss.spec.known_dtype.code, "value": 1.0}
    block.append_op("fill_constant", {}, {"Out": name}, attrs, role=Role.BACKWARD | Role.LOSS, site=loss.op.site if loss.op else None)
    return name
