"""Import of jagged tensors: their rows as ragged ones, and functions of whole sequences as the operators for these."""

from __future__ import annotations

from typing import Any, NamedTuple

from foreshape import layer
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import as_dim, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Op, Variable
from foreshape.program.current import current_block
from foreshape.spec import FLOATING, FP64, INT64


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


def _ragged(t: TorchCall, rows: Variable, lengths: Variable) -> Variable:
    """Return rows as ragged ones with sequences of these lengths."""
    known = t.importer.jagged.holders
    holder = known.get(lengths.name)
    if holder is None:
        ends = layer.cumsum(t.cast(lengths, INT64), 0)
        known[lengths.name] = made = layer.lod_reset(rows, layer.concat([layer.fill_constant([1], INT64, 0), ends], 0))
        return made
    return rows if rows.spec.lod is holder.spec.lod else layer.lod_reset(rows, holder)


@aten("foreshape.jagged")
def _jagged(t: TorchCall, rows: Variable, lengths: Variable) -> Any:
    return _ragged(t, rows, lengths)


@aten("foreshape.jagged_pool")
def _pool(t: TorchCall, rows: Variable, lengths: Variable, kind: str, empty: float) -> Any:
    of = rows.spec.known_dtype
    x = _ragged(t, rows if of in FLOATING else layer.cast(rows, FP64), lengths)
    made = layer.sequence_pool(x, {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min"}[kind], empty)
    return t.cast(made, of)


@aten("foreshape.jagged_softmax")
def _softmax(t: TorchCall, rows: Variable, lengths: Variable, log: bool) -> Any:
    x = _ragged(t, rows, lengths)
    dims = x.spec.known_dims
    if not log and (len(dims) == 1 or (len(dims) == 2 and dims[1] == 1)):
        return layer.sequence_softmax(x)
    most = layer.sequence_pool(x, "max")
    most.stop_gradient = True
    moved = layer.subtract(x, layer.sequence_expand_as(most, x))
    powers = _ragged(t, layer.exp(moved), lengths)
    total = layer.sequence_pool(powers, "sum")
    return layer.subtract(moved, layer.sequence_expand_as(layer.log(total), x)) if log else layer.divide(powers, layer.sequence_expand_as(total, x))


@aten("foreshape.jagged_expand")
def _expand(t: TorchCall, each: Variable, lengths: Variable, rows: Variable) -> Any:
    return layer.sequence_expand_as(each, _ragged(t, rows, lengths))


@aten("foreshape.jagged_pad")
def _pad(t: TorchCall, rows: Variable, lengths: Variable, value: float) -> Any:
    flat = t.rank(rows) == 1
    x = _ragged(t, layer.reshape(rows, [-1, 1]) if flat else rows, lengths)
    made, _ = layer.sequence_pad(x, t.tensor(value, x.spec.known_dtype))
    return layer.squeeze(made, [2]) if flat else made


@aten("foreshape.jagged_attention")
def _attention(t: TorchCall, q: Variable, k: Variable, v: Variable, lengths: Variable, key_lengths: Variable, causal: bool, scale: float) -> Any:
    heads, width = (int(as_dim(size_of(q, axis)) or 0) for axis in (1, 2))
    given = [_ragged(t, layer.reshape(x, [-1, heads * width]), of) for x, of in ((q, lengths), (k, key_lengths), (v, key_lengths))]
    made = t.op("sequence_attention", {"heads": heads, "causal": causal, "scale": scale}, Q=given[0], K=given[1], V=given[2])[0]
    return layer.reshape(made, [-1, heads, width])
