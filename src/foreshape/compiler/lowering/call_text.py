"""The text of kernel calls: all Python that a step is written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from foreshape.compiler.lowering.kernel_calls import Argument, FusedCall, KernelCall, OpCall
from foreshape.core.values.torch_proxy import Lazy
from foreshape.machine.kernels.call_record import (
    BySize,
    CallRecord,
    NamedConstant,
    Negative,
    NumberedOperand,
    ObjectAttribute,
    Part,
    StepName,
    Subscript,
    TupleRecord,
    Unless,
)
from foreshape.machine.kernels.fused import FusedKernel

Namer = Callable[[str, Any], str]
"""A function that takes a wished name and a constant, and returns the constant's name in the text."""


def call_text(i: KernelCall, name: Namer, requested: tuple[bool, ...] = ()) -> str:
    """Return the Python expression of a call.

    Args:
        requested: the flags of requested results, for a kernel with `OpCall.kernel_requested`.
    """
    arguments = [_argument(a) for a in i.arguments]
    if isinstance(i, FusedCall):
        return _text(i.kernel.call if i.into is None else i.kernel.in_place, arguments, name)
    assert isinstance(i, OpCall)
    if i.kernel_requested:
        arguments.append(f"requested={name('w', requested)}")
    if i.offsets is not None:
        arguments.append(f"offsets=[{', '.join(map(_argument, i.offsets))}]")
    if i.before is not None:
        arguments.append(f"before={_argument(i.before)}")
    if i.into is not None:
        arguments.append(f"into={i.into}")
    if i.region is not None and i.region.held:
        arguments.append(f"bound={i.region.held}")
    return f"{name('k', i.kernel)}({', '.join(arguments)})"


def function_of(kernel: FusedKernel, operands: int) -> Callable[..., Any]:
    """Return the call of a kernel as a function of so many operands."""
    names, constants = [f"x{n}" for n in range(operands)], dict[str, Any]()
    return compiled(f"def call({', '.join(names)}):\n    return {_text(kernel.call, names, namer(constants))}\n", constants)


def namer(names: dict[str, Any], suffix: int | str = "") -> Namer:
    """Return a function that puts constants, looked up where they are lazy, among the names of a function, with a suffix."""

    def name(wish: str, value: Any) -> str:
        names[f"{wish}{suffix}"] = value.get() if isinstance(value, Lazy) else value
        return f"{wish}{suffix}"

    return name


def compiled(text: str, names: dict[str, Any]) -> FunctionType:
    """Return the function of a text over its names."""
    module = compile(text, "<kernel call>", "exec")
    return FunctionType(next(c for c in module.co_consts if isinstance(c, CodeType)), names)


def _argument(argument: Argument) -> str:
    """Return an argument as a step writes it."""
    if isinstance(argument, list):
        return f"[{', '.join(map(repr, argument))}]"
    return repr(argument)


def _text(part: Part, operands: Sequence[str], name: Namer) -> str:
    """Return the Python expression of a part of a record."""
    if type(part) is NumberedOperand:
        return operands[part.number]
    if type(part) is CallRecord:
        arguments = [operands[a.number] if type(a) is NumberedOperand else _text(a, operands, name) for a in part.arguments]
        if part.keywords:
            arguments += [f"{keyword}={_text(value, operands, name)}" for keyword, value in part.keywords]
        return f"{_text(part.function, operands, name)}({', '.join(arguments)})"
    if type(part) is NamedConstant:
        return name(part.name, part.value)
    if type(part) is ObjectAttribute:
        return f"{_text(part.owner, operands, name)}.{part.name}"
    if type(part) is int:
        return str(part)
    if type(part) is StepName:
        return part.name
    if type(part) is Subscript:
        places = part.place if type(part.place) is tuple else (part.place,)
        return f"{_text(part.owner, operands, name)}[{', '.join([_text(place, operands, name) for place in places])}]"
    if type(part) is slice:
        return f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}"
    if type(part) is TupleRecord:
        return f"({' '.join([f'{_text(element, operands, name)},' for element in part.parts])})"
    if type(part) is Negative:
        return f"-{_text(part.number, operands, name)}"
    if type(part) is BySize:
        large, small = _text(part.large, operands, name), _text(part.small, operands, name)
        return f"({large} if {operands[0]}.numel() >= {part.least} else {small})"
    if type(part) is Unless:
        return f"{' and '.join([_text(test, operands, name) for test in part.tests])} or {_text(part.call, operands, name)}"
    return repr(part)
