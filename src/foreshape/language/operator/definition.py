"""The check of an operator's definition, when its class is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from foreshape.errors import SchemaError
from foreshape.language.operator.fields import Attribute, Gradient, NoGradient, Operand, Result, named
from foreshape.language.operator.gradient_class import gradient_class
from foreshape.language.operator.kernel_parameters import check_in_place, note_keywords
from foreshape.language.operator.registry import in_package, promise, register
from foreshape.language.operator.schema import Schema

if TYPE_CHECKING:
    from foreshape.language.operator.operator import Operator

_HOOKS = frozenset({"infer_shape", "infer_var_type", "kernel", "group_kernel", "instructions", "acts", "backward", "draws", "gradient_ops", "work", "workspace",
                    "retained_bytes", "rows_bytes", "sends", "sharding_rule", "computes", "totals", "backward_of", "expand"})  # fmt: skip
_SETTINGS = frozenset({"abstract", "accumulates", "again", "awaits", "collective", "described_results", "gradient", "gradient_reads_dims",
    "gradient_reads_for", "merges_rows", "moving", "random", "region", "rejects", "samples", "side_effects", "sub_blocks", "type"})  # fmt: skip


def define(cls: type[Operator], root: type[Operator]) -> None:
    """Make the schema of a new operator, check its declarations, and make its gradient operator, or promise it.

    Args:
        root: the class of all operators, with the default hooks.

    Raises:
        SchemaError: see `Operator`.
    """
    fields: dict[str, Operand | Result | Attribute] = {}
    bases = [base for base in reversed(cls.__mro__) if base is not object and base is not root]  # the two declare nothing
    for declared in [list(base.__dict__.items()) for base in bases]:  # all at once, since the findings are written into cls
        for name, value in declared:
            if isinstance(value, (Operand, Result, Attribute)):
                field = value if value.name else named(value, name)
                fields[field.name] = field
            elif isinstance(value, Gradient) and not isinstance(cls.__dict__.get("gradient"), NoGradient):
                cls.gradient = value
    label = f"operator {cls.__module__}.{cls.__qualname__}"
    for name in cls.__dict__:
        public = not name.startswith("_")
        if public and name not in fields and name not in _HOOKS and name not in _SETTINGS and callable(cls.__dict__[name]):
            raise SchemaError(f"{label}: {name} is not a hook; hooks are {', '.join(sorted(_HOOKS))} (helpers start with _)")
    cls.schema = Schema(
        [f for f in fields.values() if isinstance(f, Operand)],
        [f for f in fields.values() if isinstance(f, Result)],
        [f for f in fields.values() if isinstance(f, Attribute)],
    )
    _check_slots_named(cls, label)
    names = [o.name for o in cls.schema.operands]
    expands = cls.expand is not root.expand
    for hook in () if cls.sub_blocks else ("infer_shape", "expand") if expands else ("infer_shape", "kernel"):
        function = getattr(cls, hook, None)
        if function is None or function is getattr(root, hook, None):
            raise SchemaError(f"{label} needs {hook}({', '.join(['self', *names])})")
        _check_parameters(function, ["of", *names] if hook == "expand" else names, f"{label}: {hook}")
    if cls.infer_var_type is not root.infer_var_type:
        _check_parameters(cls.infer_var_type, names, f"{label}: infer_var_type")
    if cls.sharding_rule is not root.sharding_rule:
        _check_parameters(cls.sharding_rule, names, f"{label}: sharding_rule")
    if cls.workspace is not root.workspace and not expands:
        _check_parameters(cls.workspace, names, f"{label}: workspace")
    if cls.retained_bytes is not root.retained_bytes:
        _check_parameters(cls.retained_bytes, names, f"{label}: retained_bytes")
    _check_computes(cls, root, label)
    if not cls.sub_blocks and not expands:
        note_keywords(cls)
        check_in_place(cls, label)
    if cls.gradient is None and "gradient_ops" not in cls.__dict__ and not hasattr(cls, "gradient_ops"):
        raise SchemaError(f"{label} says nothing about its gradient: declare one, or gradient = ZERO_GRADIENT, NOT_DIFFERENTIABLE or NOT_WRITTEN")
    register(cls)
    if isinstance(cls.gradient, Gradient):
        make = partial(gradient_class, cls, root, cls.gradient, label)
        if in_package(cls):  # definitions are tested, and few of them are trained
            promise(f"{cls.type}_grad", make)
        else:
            make()


def _check_slots_named(cls: type[Operator], label: str) -> None:
    schema = cls.schema
    for o in schema.operands:
        if o.same_type_as is not None and o.same_type_as not in schema.operand_names:
            raise SchemaError(f"{label}: {o.name} has the same type as {o.same_type_as}, which is not an operand")
    for r in schema.results:
        for slot in (r.may_share, r.view_of, r.updates):
            if slot is not None and slot not in schema.operand_names:
                raise SchemaError(f"{label}: {r.name} names {slot}, which is not an operand")


def _check_computes(cls: type[Operator], root: type[Operator], label: str) -> None:
    """Refuse a class with its own kernel or gradient, and its computation inherited from a base."""
    if cls.computes is root.computes:
        return
    for base in cls.__mro__:
        members = base.__dict__
        if "computes" in members:
            return
        if "kernel" in members or any(isinstance(v, Gradient) and name != "gradient" for name, v in members.items()):
            raise SchemaError(f"{label} has a kernel or a gradient that is not that of its base, and the base's computes: say what it computes, or None")


def _check_parameters(function: Callable[..., Any], names: Sequence[str], label: str) -> None:
    code = getattr(function, "__code__", None)
    if code is not None and code.co_varnames[1 : code.co_argcount] == tuple(names) and not hasattr(function, "__signature__"):
        return
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    declared = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    if declared != list(names):
        raise SchemaError(f"{label} must have the parameters ({', '.join(['self', *names])}); seen ({', '.join(['self', *declared])})")
