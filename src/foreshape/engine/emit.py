"""From instructions to one straight-line Python function."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod

from foreshape.engine.scope import Scope
from foreshape.errors import ExecutionError
from foreshape.lowering.instruction import Argument, Instruction, Lowered, Value
from foreshape.ops.rows import Rows
from foreshape.ops.torch_proxy import Late
from foreshape.ops.torch_types import torch_dtype
from foreshape.program import Op
from foreshape.spec import LOD_TENSOR

STEP_FILE = "<foreshape step>"


_lines: WeakKeyDictionary[CodeType, dict[int, Op]] = WeakKeyDictionary()


def op_at(code: CodeType, line: int) -> Op | None:
    """The op of a line of an emitted function."""
    return _lines.get(code, {}).get(line)


class Emitted:
    """The code of a step and what its names stand for; `bind` makes it a function over one scope."""

    __slots__ = ("code", "constants", "lowered", "source")

    def __init__(self, lowered: Lowered, source: str, constants: dict[str, Any], lines: dict[int, Op]) -> None:
        self.lowered, self.source, self.constants = lowered, source, constants
        module = compile(source, STEP_FILE, "exec")
        self.code = next(c for c in module.co_consts if isinstance(c, CodeType))
        _lines[self.code] = lines

    def bind_region(self) -> FunctionType:
        """The function of a block that an op runs: all that it reads from outside comes in as an argument."""
        return FunctionType(self.code, dict(self.constants), "block")

    def bind(self, scope: Scope, device: Any = None) -> FunctionType:
        """The step over the values of a scope, moved to ``device`` where one is given.

        Raises:
            ExecutionError: a persistable variable has no value, or one of another shape or element type.
        """
        values: list[Any] = []
        missing: list[str] = []
        for p in self.lowered.persistables:
            if p.name in scope:
                values.append(scope.tensor(p.name) if device is None else scope.move(p.name, device))
            elif p.variable is not None and p.variable.value is not None:
                scope.store(p.name, constant_tensor(p.variable))
                values.append(scope.tensor(p.name) if device is None else scope.move(p.name, device))
            else:
                missing.append(p.name)
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise ExecutionError(f"not initialised: {shown}; run the startup program first, or load parameters into the scope")
        for p, value in zip(self.lowered.persistables, values, strict=True):
            check_held(p, value)
        namespace = dict(self.constants)
        weak = WeakMethod(scope.store)  # the step does not keep its scope alive

        def store(name: str, value: Any, owned: bool = True) -> Any:
            method = weak()
            assert method is not None
            return method(name, value, owned)

        namespace["store"] = store
        tensors = {id(p): t for p, t in zip(self.lowered.persistables, values, strict=True)}
        values += [make(tensors[id(p)]) for _, p, make in self.lowered.derived]
        return FunctionType(self.code, namespace, "step", tuple(values))


def check_held(place: Value, value: Any) -> None:
    """Refuse a value of a scope that is not what its variable is described to be."""
    spec = place.variable.spec if place.variable is not None else None
    if spec is None or spec.kind is not LOD_TENSOR or spec.dims is None or spec.dtype is None or isinstance(value, Rows):
        return
    shape = list(value.shape)
    fits = len(shape) == len(spec.dims) and all(d == s for d, s in zip(spec.dims, shape, strict=True) if isinstance(d, int))
    if not fits or value.dtype is not torch_dtype(spec.dtype):
        raise ExecutionError(f"{place.name} must be {spec.text()}; the scope holds {str(value.dtype).removeprefix('torch.')}{shape}")


def constant_tensor(variable: Any) -> Any:
    """The tensor of a variable with a constant value."""
    from foreshape.engine.scope import to_tensor
    from foreshape.ops.torch_proxy import torch

    spec = variable.spec
    if spec.dtype is None:
        raise ExecutionError(f"{variable.name} is {spec.text()}, which no kernel takes")
    value = to_tensor(variable.value).to(torch_dtype(spec.dtype))
    shape = [d if isinstance(d, int) else 1 for d in spec.known_dims]
    return torch.broadcast_to(value, shape).clone()


def emit(lowered: Lowered) -> Emitted:
    """Write the step: one line per kernel, values dropped after their last use."""
    constants: dict[str, Any] = {}
    lines: dict[int, Op] = {}
    parameters = [repr(f) for f in lowered.parameters()] + [repr(p) for p in lowered.persistables] + [name for name, _, _ in lowered.derived]
    out = [f"def step({', '.join(parameters)}):", *(f"    {line}" for line in lowered.prologue)]
    last = _last_uses(lowered)
    returned = lowered.returns()
    kept = {id(v) for v in returned} | {id(p) for p in lowered.persistables}
    for at, i in enumerate(lowered.instructions):
        if i.region is not None:
            i.region.function = emit(i.region.lowered).bind_region()
        for copy, source in i.copies:
            out.append(f"    {copy} = {source}.clone()")
            lines[len(out)] = i.op
        targets = _targets(i, last, kept)
        out.append(f"    {targets}{_call(i, at, constants, last, kept)}")
        lines[len(out)] = i.op
        stored = {id(v) for _, v in i.stores}
        for place_of, result in enumerate(i.results):
            if isinstance(result, list) and any(v is not None and (id(v) in last or id(v) in kept or id(v) in stored) for v in result):
                names = [repr(v) if v is not None else "_" for v in result]
                out.append(f"    {', '.join(names)}, = l{place_of}")
                lines[len(out)] = i.op
                out.append(f"    del l{place_of}")
        for place, value in i.stores:
            owned = _is_fresh(i, value)
            out.append(f"    {place} = store({place.name!r}, {value}{'' if owned else ', False'})")
            lines[len(out)] = i.op
        dead = [repr(v) for v in dict.fromkeys([*i.reads(), *(v for _, v in i.copies)]) if last.get(id(v)) == at and id(v) not in kept]
        if dead:
            out.append(f"    del {', '.join(dict.fromkeys(dead))}")
    out.append(f"    return ({', '.join(map(repr, returned))}{',' if len(returned) == 1 else ''})")
    return Emitted(lowered, "\n".join(out) + "\n", constants, lines)


def _call(i: Instruction, at: int, constants: dict[str, Any], last: dict[int, int], kept: set[int]) -> str:
    if i.expression is not None:
        named = {name: f"{name}{at}" for name in i.constants}
        constants.update({named[name]: value.get() if isinstance(value, Late) else value for name, value in i.constants.items()})
        text = i.expression if i.into is None else i.in_place_expression
        return text.format(*(_text(a) for a in i.arguments), **named)
    constants[f"k{at}"] = i.kernel
    arguments = [_text(a) for a in i.arguments]
    if i.takes_wants:
        constants[f"w{at}"] = wants_of(i, last, kept)
        arguments.append(f"wants=w{at}")
    if i.offsets is not None:
        arguments.append(f"offsets=[{', '.join(_text(a) for a in i.offsets)}]")
    if i.before is not None:
        arguments.append(f"before={_text(i.before)}")
    if i.into is not None:
        arguments.append(f"into={i.into}")
    return f"k{at}({', '.join(arguments)})"


def wants_of(i: Instruction, last: dict[int, int], kept: set[int]) -> tuple[bool, ...]:
    """Which results of an instruction somebody reads."""
    stored = {id(v) for _, v in i.stores}

    def wanted(v: Value | None) -> bool:
        return v is not None and (id(v) in last or id(v) in kept or id(v) in stored or v.persistable)

    return tuple(any(wanted(v) for v in r) if isinstance(r, list) else wanted(r) for r in i.results)


def _last_uses(lowered: Lowered) -> dict[int, int]:
    last: dict[int, int] = {}
    for at, i in enumerate(lowered.instructions):
        for value in i.reads():
            last[id(value)] = at
        for _, source in i.copies:
            last[id(source)] = at
    return last


def _text(argument: Argument) -> str:
    if isinstance(argument, list):
        return "[" + ", ".join("None" if v is None else repr(v) for v in argument) + "]"
    return "None" if argument is None else repr(argument)


def _targets(i: Instruction, last: dict[int, int], kept: set[int]) -> str:
    names: list[str] = []
    stored = {id(v) for _, v in i.stores}
    for at, r in enumerate(i.results):
        if isinstance(r, list):
            names.append(f"l{at}" if any(v is not None and (id(v) in last or id(v) in kept or id(v) in stored) for v in r) else "_")
        elif r is None or (at in i.in_place and id(r) not in stored) or (id(r) not in last and id(r) not in kept and id(r) not in stored):
            names.append("_")
        else:
            names.append(repr(r))
    if all(n == "_" for n in names):
        return ""
    return ", ".join(names) + " = "


def _is_fresh(i: Instruction, value: Value) -> bool:
    """Whether a result has memory of its own."""
    operator = i.op.operator
    if operator is None:
        return False
    for r, result in zip(i.results, operator.schema.results, strict=False):
        if r is value or (isinstance(r, list) and value in r):
            return result.view_of is None and result.updates is None
    return False
