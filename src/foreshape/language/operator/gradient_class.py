"""Gradient operators from the gradients declared by operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from foreshape.core.dims import symbols_of
from foreshape.core.spec import ANY_OR_COMPLEX, COMPLEX, FLOATING, Spec
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.language.operator.fields import DENSE, FLOAT_RESULT_KINDS, NOT_WRITTEN, Gradient, Operand, Result
from foreshape.language.operator.kernel_parameters import check_in_place, note_keywords, positional
from foreshape.language.operator.registry import register
from foreshape.language.operator.require import PLACEHOLDER, RuleError, require_equal
from foreshape.language.operator.schema import Schema

if TYPE_CHECKING:
    from foreshape.language.operator.operator import Operator


def gradient_class(cls: type[Operator], root: type[Operator], declared: Gradient, label: str) -> type[Operator]:
    """Return the operator ``<type>_grad`` declared by a class; ``root`` is the class of all operators.

    Raises:
        SchemaError: it names unknown slots of the operator, or its kernel has other parameters.
    """
    schema = cls.schema
    operands = {o.name: o for o in schema.operands}
    results = {r.name: r for r in schema.results}
    inputs: list[Operand] = []
    for name in declared.inputs:
        base = name.removesuffix("@GRAD")
        if name in operands:
            operand = operands[name]
            if name in declared.absent and not operand.optional:
                operand = replace(operand, optional=True)
            if operand.same_type_as is not None and operand.same_type_as not in declared.inputs:
                operand = replace(operand, same_type_as=None)
            inputs.append(operand)
        elif name in results or (name != base and base in results):
            many = results[base].many
            types, kinds = ((*FLOATING, *COMPLEX), DENSE) if name != base else (ANY_OR_COMPLEX, FLOAT_RESULT_KINDS)
            operand = Operand(types, "", many, results[base].optional or name in declared.absent, kinds, None, name)
            remembers = name == base and any(o.unknown_dims for o in schema.operands)  # a result with the dims of an operand that may not be known
            inputs.append(replace(operand, unknown_dims=True) if remembers else operand)
        else:
            raise SchemaError(f"{label}: its gradient takes {name}, which is no slot of it")
    gives: list[Result] = []
    for name in declared.gives:
        base = name.removesuffix("@GRAD")
        if base == name or base not in operands:
            raise SchemaError(f"{label}: its gradient gives {name}, which is not the gradient of an operand")
        if declared.infer is None and base not in declared.inputs and name not in declared.like:
            raise SchemaError(f"{label}: its gradient gives {name}; take {base}, or say with like= what it is shaped like")
        gives.append(Result("", operands[base].many, True, declared.may_share.get(name), declared.view_of.get(name), None, name=name,
                            layout=declared.layout.get(name, "same")))  # fmt: skip
    for name in declared.called:
        if name not in declared.inputs:
            raise SchemaError(f"{label}: its gradient does not take {name}, which it calls {declared.called[name]}")
    if declared.called:
        inputs = [replace(o, name=declared.called.get(o.name, o.name), same_type_as=declared.called.get(o.same_type_as or "", o.same_type_as)) for o in inputs]
    kernel = declared.kernel
    expands = [*signature(kernel).parameters][1:2] == ["of"]
    count = positional(kernel) - 1 - expands
    if count != len(inputs):
        raise SchemaError(f"{label}: the gradient's kernel must have {len(inputs)} parameters after self; seen {count}")
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": f"{cls.__qualname__}.gradient",
        "__doc__": f"The gradient of {cls.type}.",
        "abstract": True,
        "infer_shape": _gradient_rule(cls, declared),
        "expand" if expands else "kernel": kernel,
        "gradient": NOT_WRITTEN,
    }
    if declared.kinds is not None:
        body["infer_var_type"] = declared.kinds
    body["workspace"] = declared.workspace or root.workspace
    body["computes"], body["backward_of"] = root.computes, cls.computes
    body["sharding_rule"], body["per_element"], body["linear"] = root.sharding_rule, cls.per_element, ()
    body["works_along"] = ""
    body |= dict.fromkeys(("examples", "example_results", "reads_dims", "sets_dims", "takes_scores"), ())
    for name, value in vars(cls).items():  # helpers of the kernel
        if name.startswith("_") and not name.startswith("__") and name not in ("_instances", "_described"):
            body.setdefault(name, value)
    gradient: type[Operator] = type(f"{cls.__name__}Grad", tuple(b for b in cls.__bases__) if cls.__bases__ != (root,) else (root,), body)
    gradient.type = f"{cls.type}_grad"
    gradient.abstract = False
    gradient.schema = Schema(inputs, gives, list(schema.attributes.values()))
    gradient.forward_class = cls
    gradient.apart = declared.apart
    if not expands:
        note_keywords(gradient)
        check_in_place(gradient, f"{label}: its gradient")
    register(gradient)
    return gradient


def _gradient_rule(cls: type[Operator], declared: Gradient) -> Callable[..., Any]:
    inputs, gives = declared.inputs, declared.gives
    labels = [declared.called.get(name, name) for name in inputs]
    sources = [inputs.index(declared.like.get(g, g.removesuffix("@GRAD"))) if declared.infer is None else -1 for g in gives]
    pairs = [(inputs.index(t), inputs.index(t.removesuffix("@GRAD"))) for t in inputs if t.endswith("@GRAD") and t.removesuffix("@GRAD") in inputs]
    operands = [o.name for o in cls.schema.operands]
    remembered = [
        (index, k) for index, t in enumerate(inputs) for k, r in enumerate(cls.schema.results) if r.name == t.removesuffix("@GRAD") and t not in operands
    ]
    knows_all = set(operands) <= set(inputs)

    def infer_shape(self: Any, *specs: Any) -> Any:
        for grad, value in pairs:
            _check_same_dims(specs[grad], specs[value], labels[grad], labels[value])
        if declared.infer is not None:
            return declared.infer(self, *specs)
        if knows_all:
            forward = cls.with_values({n: getattr(self, n) for n in cls.schema.attributes})
            answer = forward.infer_shape(*(specs[inputs.index(o)] for o in operands))
            results = _results(answer, len(cls.schema.results) == 1 and cls.schema.results[0].many)
            for index, k in remembered:
                _check_same_dims(specs[index], results[k], labels[index], cls.schema.results[k].name)
        out: list[Any] = []
        for index in sources:
            spec = specs[index]
            out.append(None if spec is None else spec.like() if isinstance(spec, Spec) else tuple(s.like() for s in spec))
        return out[0] if len(out) == 1 else tuple(out)

    return infer_shape


def _check_same_dims(a: Any, b: Any, a_slot: str, b_slot: str) -> None:
    """Check the dims of forward results: backward kernels read memory by them, unchecked. Dims set by the run may be any."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        for first, second in zip(a, b, strict=False):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            _check_same_dims(first, second, a_slot, b_slot)
    if not isinstance(a, Spec) or not isinstance(b, Spec) or a.dims is None or b.dims is None:
        return
    if a.dtype is not None and b.dtype is not None and a.dtype is not b.dtype:
        raise RuleError(f"{a_slot} must have the element type of {b_slot}", {a_slot: None, b_slot: None}, TypeMismatchError)
    if a.elements == 1 and b.elements == 1:
        return
    words = f"{a_slot} must have the dims of {b_slot}"
    if len(a.dims) != len(b.dims):
        raise RuleError(words, {a_slot: None, b_slot: None})
    for x, y in zip(a.dims, b.dims, strict=True):
        if not any(n.startswith(PLACEHOLDER) for n in symbols_of(y)):
            require_equal(x, y, words, **{a_slot: None})


def _results(answer: Any, is_list: bool) -> tuple[Any, ...]:
    """Return the results of a shape rule one by one."""
    return (answer,) if is_list or not isinstance(answer, tuple) else answer  # pyright: ignore[reportUnknownVariableType]
