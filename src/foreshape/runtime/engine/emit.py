"""Code generation: one straight-line Python function from instructions."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakMethod

from foreshape.compiler.lowering.call_text import call_text, namer
from foreshape.compiler.lowering.kernel_calls import KernelCall, OpCall, Step, Value, region_of, values_of
from foreshape.compiler.lowering.small_steps import SmallStep
from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.emitted_code import STEP_FILE, with_ops
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError
from foreshape.language.program import Op
from foreshape.runtime.engine.scope import Scope
from foreshape.runtime.feeding.state_checks import Held, compare_held, compare_spec


class Emitted:
    """The code of a step and the values of its names; `bind` makes it a function over one scope."""

    __slots__ = ("code", "constants", "lowered", "read_again", "source")

    def __init__(self, lowered: Step, source: str, constants: dict[str, Any], lines: dict[int, Op]) -> None:
        self.lowered, self.source, self.constants = lowered, source, constants
        read = {v for i in lowered.calls for v in i.reads()}
        self.read_again = {place.name for i in lowered.calls for place, _ in i.stores if place in read}
        """The persistables with reads after writes: their open dims must stay equal."""
        module = compile(source, STEP_FILE, "exec")
        self.code = with_ops(next(c for c in module.co_consts if isinstance(c, CodeType)), lines)

    def bind_region(self) -> FunctionType:
        """Return the function of a block of an op: all that it reads from outside comes in as an argument."""
        return FunctionType(self.code, {**self.constants, "__builtins__": builtins}, "block")

    def bind(self, scope: Scope, device: Any = None) -> Bound:
        """Return the step over the values of a scope, moved to ``device`` where one is given.

        Raises:
            ExecutionError: a persistable variable has no value, or one of another shape or element type.
        """
        values: list[Any] = []
        lent: set[int] = set()
        lendable = self.lowered.lent() if self.lowered.frozen and device is None else set[str]()
        missing: list[str] = []
        for p in self.lowered.persistables:
            if p.name not in scope and p.variable is not None and p.variable.value is not None:
                scope.store(p.name, constant_tensor(p.variable))
            if p.name not in scope:
                missing.append(p.name)
            elif p.name in lendable and (value := scope.lend(p.name)) is not None:
                lent.add(len(values))
                values.append(value)
            elif device is None:
                place = getattr(value := scope.tensor(p.name), "device", None)
                values.append(value if place is None or place.type == "cpu" else scope.move(p.name, "cpu"))
            else:
                values.append(scope.move(p.name, "cpu" if p in self.lowered.rates else device))  # a rate is read as a number in each step
        if missing:
            names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise ExecutionError(f"not initialised: {names}; run the startup program first, or load parameters into the scope")
        scope_dims = compare_held(self.lowered.persistables, values)
        namespace = {**self.constants, "__builtins__": builtins}  # torch's own code imports by them
        weak = WeakMethod(scope.store)  # the step does not keep its scope alive
        specs = {place.name: place.variable.spec for i in self.lowered.calls for place, _ in i.stores if place.variable is not None}
        shapes = {p.name: tuple(value.shape) for p, value in zip(self.lowered.persistables, values, strict=True) if p.name in self.read_again}

        def store(name: str, value: Any, owned: bool = True) -> Any:
            method = weak()
            assert method is not None
            if value is None:  # a result that its operator does not make with these attributes: the held value stays
                owner: Any = getattr(method, "__self__")  # noqa: B009
                return owner.tensor(name) if name in owner else None
            compare_spec(name, specs[name], value)
            if name in shapes and tuple(value.shape) != shapes[name]:
                raise ExecutionError(f"{name} is {list(shapes[name])} and read again in this run: it must not become {list(value.shape)} within it")
            return method(name, value, owned)

        namespace["store"] = store
        with device or nullcontext():  # constants are made there
            bound = self.lowered.bound(*values)
        bound = tuple([None if index in lent else value for index, value in enumerate(bound)])  # packed: in memory once
        return Bound.of(self.code, namespace, bound, scope_dims, {})


class Bound(NamedTuple):
    """A step over the values of one scope, the symbols that these set, and the names and the values that its text is bound to.

    ``small``: its functions for sizes for which it is small; None if its text alone counts.
    """

    function: FunctionType
    held: Held
    names: Mapping[str, Any]
    values: tuple[Any, ...]
    small: dict[SmallStep, Callable[..., Any]] | None

    @classmethod
    def of(
        cls, code: CodeType, names: dict[str, Any], values: tuple[Any, ...], scope_dims: Held, small: dict[SmallStep, Callable[..., Any]] | None = None
    ) -> Bound:
        """Return the step of some code."""
        return cls(FunctionType(code, names, "step", values), scope_dims, names, values, small)


def constant_tensor(variable: Any) -> Any:
    """Return the tensor of a variable with a constant value."""
    spec = variable.spec
    if spec.dtype is None:
        raise ExecutionError(f"{variable.name} is {spec.text()}, which no kernel takes")
    value = to_tensor(variable.value).to(torch_dtype(spec.dtype))
    shape = [d if isinstance(d, int) else 1 for d in spec.known_dims]
    return torch.broadcast_to(value, shape).clone()


def emit(lowered: Step, clocked: bool = False) -> Emitted:
    """Write the step: one line per kernel, values dropped after their last use.

    Args:
        clocked: call ``tick`` after each instruction, with its number and the last result of ``tick``, at first ``now()``. The function needs both names.
            Blocks are not compiled then.
    """
    text = Writer(lowered)
    lines: dict[int, Op] = {}
    out = [f"def step({', '.join(text.parameters())}):", *(f"    {rate.number} = {rate}.item()" for rate in lowered.rates)]
    if lowered.taken:
        out += [f"    {', '.join(map(repr, lowered.taken))}, = taken", "    taken.clear()"]
    if clocked:
        out.append("    last = now()")
    for index, i in enumerate(lowered.calls):
        region = region_of(i)
        if region is not None and not clocked:
            region.function = emit(region.lowered).bind_region()
        for line in text.lines(index):
            out.append(f"    {line}")
            lines[len(out)] = i.op
        dead = text.dead(index)
        if dead:
            out.append(f"    del {', '.join(map(repr, dead))}")
        if clocked:
            out.append(f"    last = tick({index}, last)")
    returned = lowered.returns()
    out.append(f"    return ({', '.join(map(repr, returned))}{',' if len(returned) == 1 else ''})")
    return Emitted(lowered, "\n".join(out) + "\n", text.constants, lines)


class Writer:
    """The text of a step, instruction by instruction, and its constants.

    Args:
        every: request and name unread results too.
    """

    def __init__(self, lowered: Step, every: bool = False) -> None:
        self.lowered, self.every = lowered, every
        self.constants: dict[str, Any] = {}
        self._last = _last_uses(lowered)
        self._kept = {id(v) for v in lowered.returns()} | {id(p) for p in lowered.persistables}

    def parameters(self) -> list[str]:
        """Return the parameters of the step, then the values that it is bound to."""
        names = [*map(repr, self.lowered.parameters()), *(["taken"] if self.lowered.taken else []), *map(repr, self.lowered.persistables)]
        return [*names, *(name for name, _, _ in self.lowered.derived)]

    def lines(self, index: int) -> list[str]:
        """Return the statements of an instruction."""
        i = self.lowered.calls[index]
        out = [f"{copy} = {source}.clone()" for copy, source in i.copies]
        names = self._targets(i)
        out.append((", ".join(names) + " = " if names else "") + self._call(i, index))
        gone = ["_"] if "_" in names and not _wants_to_know(i) else []
        for place, result in enumerate(i.results):
            if isinstance(result, list) and any(self._is_wanted(i, v) for v in result):
                parts = [repr(v) if self._is_wanted(i, v) else "_" for v in result]
                out.append(f"{', '.join(parts)}, = l{place}")
                gone = [*dict.fromkeys([*gone, *(n for n in parts if n == "_")]), f"l{place}"]
        if gone:
            out.append(f"del {', '.join(gone)}")  # or unread values would be held
        out += [f"{place} = store({place.name!r}, {value}{'' if _is_fresh(i, value) else ', False'})" for place, value in i.stores]
        return out

    def dead(self, index: int) -> list[Value]:
        """Return the values with no use after an instruction."""
        i = self.lowered.calls[index]
        used = [v for v in [*i.reads(), *(v for _, v in i.copies)] if self._last.get(id(v)) == index]
        used += [v for v in [*(v for _, v in i.stores), *(i.writes() if self.every else ())] if id(v) not in self._last]
        return [v for v in dict.fromkeys(used) if id(v) not in self._kept]

    def _is_wanted(self, i: KernelCall, v: Value | None) -> bool:
        """Return True if a result is given its name."""
        return v is not None and (self.every or id(v) in self._last or id(v) in self._kept or any(v is stored for _, stored in i.stores))

    def _targets(self, i: KernelCall) -> list[str]:
        names: list[str] = []
        for index, r in enumerate(i.results):
            if isinstance(r, list):
                names.append(f"l{index}" if any(self._is_wanted(i, v) for v in r) else "_")
            elif r is None or (index in i.in_place and all(r is not v for _, v in i.stores)) or not self._is_wanted(i, r):
                names.append("_")
            else:
                names.append(repr(r))
        return [] if all(n == "_" for n in names) else names

    def _call(self, i: KernelCall, index: int) -> str:
        wishes = tuple(any(self._is_asked(i, v) for v in values_of([r])) for r in i.results) if _wants_to_know(i) else ()
        return call_text(i, namer(self.constants, index), wishes)

    def _is_asked(self, i: KernelCall, v: Value) -> bool:
        """Return True if a kernel is asked to make a result."""
        return v.persistable or self._is_wanted(i, v)


def _last_uses(lowered: Step) -> dict[int, int]:
    last: dict[int, int] = {}
    for index, i in enumerate(lowered.calls):
        for value in i.reads():
            last[id(value)] = index
        for _, source in i.copies:
            last[id(source)] = index
    return last


def _wants_to_know(i: KernelCall) -> bool:
    """Return True if a kernel takes the flags of requested results."""
    return isinstance(i, OpCall) and i.kernel_requested


def _is_fresh(i: KernelCall, value: Value) -> bool:
    """Return True if a result has memory of its own."""
    effects = i.effects
    return (
        region_of(i) is None
        and not effects.outlives
        and any(value in values_of([r]) for index, r in enumerate(i.results) if index not in effects.views and index not in effects.in_place)
    )
