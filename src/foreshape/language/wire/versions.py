"""Ops of older operator versions, by a file's op_version_map, rewritten with present ops of the same results.

A version counts the changes of an operator's definition; PaddlePaddle 2.x saves the versions of all its operators. Nearly all of the changes add an
input or an attribute with a neutral default, or rename one, and the operators here read both names. Two changed the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

from google.protobuf.message import DecodeError

from foreshape.core.spec import BOOL, FP32
from foreshape.errors import FormatError
from foreshape.language.operator.registry import get
from foreshape.language.program.block import Block
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable
from foreshape.language.wire import framework_pb2 as pb

Written = Sequence[tuple[str, Mapping[str, str], Mapping[str, Any]]]
"""Ops of one result each: type, slot -> name, attributes. A name is "X" for the op's input, or the number of the op before."""


def _leaky_relu(op: Op) -> Written:
    """Rewrite leaky_relu: before version 1 ``max(X, alpha * X)``, different from ``X if X > 0 else alpha * X`` for alpha above 1."""
    alpha = getattr(op.operator, "alpha", 0.0)
    if not alpha > 1.0:
        return ()
    return [("scale", {"X": "X"}, {"scale": alpha}), ("elementwise_max", {"X": "X", "Y": "0"}, {"axis": -1})]


def _hard_shrink(op: Op) -> Written:
    """Rewrite hard_shrink: before version 1 ``X * ((X < -threshold) + (X > threshold))``, a sum of numbers: 2 X if a negative threshold makes both true."""
    threshold = getattr(op.operator, "threshold", 0.0)
    variable = op.block.find(op.input("X") or "")
    if not threshold < 0.0 or variable is None:
        return ()
    code = (variable.spec.dtype or FP32).code
    full: Callable[[float], Any] = lambda number: ("fill_any_like", {"X": "X"}, {"value": number, "dtype": -1})  # noqa: E731
    cast = {"in_dtype": BOOL.code, "out_dtype": code}
    return [
        full(-threshold), ("less_than", {"X": "X", "Y": "0"}, {}), ("cast", {"X": "1"}, cast),
        full(threshold), ("greater_than", {"X": "X", "Y": "3"}, {}), ("cast", {"X": "4"}, cast),
        ("elementwise_add", {"X": "2", "Y": "5"}, {}), ("elementwise_mul", {"X": "X", "Y": "6"}, {}),
    ]  # fmt: skip


_CHANGED: Final[Mapping[str, Callable[[Op], Written]]] = {"leaky_relu": _leaky_relu, "hard_shrink": _hard_shrink}
"""Operators whose version 1 computes something else than their version 0."""


def versions_of(program: Program) -> dict[str, int] | None:
    """Return operator -> version, as in the file; unlisted ones are at version 0. None if it has no map, as files not
    saved for use.

    Raises:
        FormatError: the map cannot be read.
    """
    if program.op_versions is None:
        return None
    try:
        message = pb.OpVersionMap.FromString(program.op_versions)
    except DecodeError as error:
        raise FormatError(f"program.op_version_map: {error}") from None
    return {pair.op_name: pair.op_version.version for pair in message.pair}


def honour_versions(program: Program, types: Set[str]) -> None:
    """Rewrite the ops of another meaning in the file's version. ``types``: the types of all ops."""
    if program.op_versions is None or types.isdisjoint(_CHANGED):
        return
    versions: dict[str, int] | None = None
    for block in program.blocks:
        suspects = [(index, op) for index, op in enumerate(block.ops) if op.type in _CHANGED and op.operator is not None]
        changed = [(index, op, written) for index, op in suspects if (written := _CHANGED[op.type](op))]
        for index, op, written in reversed(changed):
            versions = versions if versions is not None else versions_of(program) or {}
            if not versions.get(op.type, 0):
                block.ops[index : index + 1] = _written(block, op, written)


def _written(block: Block, op: Op, written: Written) -> list[Op]:
    source, target = op.input("X"), op.output("Out")
    if source is None or target is None:
        return [op]
    names = [block.program.unique_name(f"{target}.version_0") for _ in written[:-1]] + [target]
    read = block.find(source)
    out: list[Op] = []
    for name, (type, inputs, attrs) in zip(names, written, strict=True):
        slots = {slot: (source if source_name == "X" else names[int(source_name)],) for slot, source_name in inputs.items()}
        out.append(Op(block, get(type).describe(attrs), slots, {"Out": (name,)}, op.role, (), op.site))
        if name != target:
            variable = Variable.make(name, block, None, op.site)
            variable.declared = read.declared if read is not None else None
            block.vars[name] = variable
        if name in block.vars and (name != target or block.vars[name].op is op):
            block.vars[name].op = out[-1]
    return out
