"""`JaggedInputs`: the inputs of a graph for the rows and the lengths of jagged tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

from foreshape import layer
from foreshape.core.spec import FP64, INT64
from foreshape.language.program import Op, Variable
from foreshape.language.program.current import current_block


class JaggedInput(NamedTuple):
    """An input of a graph for rows or lengths of a jagged tensor, and the other one."""

    is_lengths: bool
    other: Any
    name: str


class JaggedInputs:
    """The jagged inputs of a graph.

    Attributes:
        holders: the name of a variable of lengths -> ragged rows with these.
    """

    def __init__(self, exported: Any) -> None:
        self._parts: dict[Any, JaggedInput] = {}
        self.holders: dict[str, Variable] = {}
        self._made: list[tuple[Variable, list[Op]]] = []
        inputs = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
        for node in exported.graph.nodes:
            if _is_jagged(node) and all(one.op == "placeholder" and one.name in inputs for one in node.args):
                rows, lengths = node.args
                self._parts[rows] = JaggedInput(False, lengths, rows.name.removesuffix("_rows"))
                self._parts[lengths] = JaggedInput(True, rows, lengths.name)

    def part(self, node: Any) -> JaggedInput | None:
        """Return the role of an input, or None."""
        return self._parts.get(node)

    def lengths(self, part: JaggedInput, rows: Variable) -> Variable:
        """Return the lengths of an input, computed from its rows."""
        block = current_block()
        first = len(block.ops)
        made = lengths_of(rows)
        self._made.append((made, block.ops[first:]))
        self.holders[made.name] = rows
        return made

    @staticmethod
    def result(node: Any, value: Any) -> Any:
        """Return a result, ragged only of a jagged tensor: rows given as they are become dense."""
        if not isinstance(value, Variable) or value.spec.lod is None or _is_jagged(node):
            return value
        return layer.squeeze(layer.unsqueeze(value, [0]), [0])

    def drop_unused(self) -> None:
        """Take out unread lengths."""
        for made, ops in self._made:
            if not any(made.name in op.input_names() for op in made.block.program.all_ops()):
                for op in reversed(ops):
                    names = op.output_names()
                    op.block.remove_op(op)
                    for name in names:
                        op.block.remove_variable(name)


def _is_jagged(node: Any) -> bool:
    return getattr(getattr(node, "target", None), "_opname", "") == "jagged"


def lengths_of(ragged: Variable) -> Variable:
    """Return the lengths of ragged rows, ``[sequences]``."""
    ones = layer.fill_constant([layer.slice(layer.shape(ragged), [0], [0], [1])], FP64, 1.0)
    return layer.cast(layer.sequence_pool(layer.lod_reset(ones, ragged), "sum"), INT64)
