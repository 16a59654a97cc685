"""Constants told apart by their uses: trained weights, statistics of normalizations, and other numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from foreshape.language.program.variable import Variable
from foreshape.language.wire.onnx_records import FunctionRecord, GraphRecord, NodeRecord, TensorRecord

_ALL: Final = tuple(range(16))
_WEIGHTS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "DeformConv", "FusedConv", "CausalConvWithState"), (1, 2)),
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization", "GroupNormalization", "BatchNormalization"), (1, 2)),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "PRelu", "BiasGelu", "FastGelu"), (1,)),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), (2, 3, 4)),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), (1, 2, 3, 5, 6, 7)),
    **dict.fromkeys(("Gather", "GatherND", "GatherElements"), (0,)),
    **dict.fromkeys(("Gemm", "MatMul", "FusedMatMul", "FusedGemm", "Einsum", "Attention", "MultiHeadAttention", "EmbedLayerNormalization"), _ALL),
}
"""Operator -> its operands for weights, if they are constants."""
_TERMS: Final = ("Add", "Mul", "Sum")
"""A constant operand is a bias or a scale for each channel or place, if it has several numbers and the other operand is no size."""
_PRODUCTS: Final = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum")
_OF_SIZES: Final = ("Cast", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Add", "Sub", "Mul", "Div", "Floor", "Ceil")
_VIEWS: Final = ("Expand", "Reshape", "Slice", "Tile", "Pad", "Unsqueeze", "Squeeze", "CastLike")
_STEPS: Final = 32
_STATISTICS: Final = {"BatchNormalization": (3, 4)}
WEIGHT, STATISTIC, OTHER = "weight", "statistic", "other"


class Uses:
    """The uses of constants by the nodes of a graph or function; its table is made at the first question.

    Args:
        nodes: of the graph, in order.
        constants: the names of its initializers.
        functions: of the model.
    """

    __slots__ = ("_constant", "_functions", "_made_by", "_nodes", "_roles", "_users")

    def __init__(self, nodes: tuple[NodeRecord, ...], constants: Mapping[str, object], functions: Mapping[tuple[str, str], FunctionRecord]) -> None:
        self._nodes, self._functions, self._constant = nodes, functions, set(constants)
        self._roles: dict[tuple[str, bool], str] = {}
        self._users: dict[str, list[tuple[NodeRecord, int]]] | None = None
        self._made_by: dict[str, NodeRecord] = {}

    def role(self, name: str, several: bool) -> str:
        """Return `WEIGHT`, `STATISTIC`, or `OTHER`, by the uses of a constant, of its views, and of results of constants alone.

        Args:
            name: of the constant in the graph.
            several: whether it has more than one number.
        """
        role = self._roles.get((name, several))
        if role is None:
            role = self._roles[name, several] = self._role(name, several)
        return role

    def _role(self, name: str, several: bool) -> str:
        role, names, queue = OTHER, {name}, [name]
        while queue:
            current = queue.pop()
            for node, index in self._find(current):
                function = self._functions.get((node.domain, node.operator))
                if function is not None:
                    inner = Uses(function.nodes, {function.inputs[index]: None}, self._functions) if index < len(function.inputs) else None
                    if inner is not None and inner.role(function.inputs[index], several) is WEIGHT:
                        return WEIGHT
                elif index in _WEIGHTS.get(node.operator, ()) or (node.operator in _TERMS and self._is_term(node, index, several)):
                    return WEIGHT
                elif index in _STATISTICS.get(node.operator, ()):
                    role = STATISTIC
                elif node.operator == "Concat" or (index == 0 and node.operator in _VIEWS) or all(n in self._constant for n in node.inputs if n):
                    new = [n for n in node.outputs if n and n not in names]
                    names.update(new)
                    queue += new
        return role

    def _is_term(self, node: NodeRecord, index: int, several: bool) -> bool:
        operands = [n for k, n in enumerate(node.inputs) if k != index and n]
        if not several:
            return node.operator != "Mul" and any(n in self._made_by and self._made_by[n].operator in _PRODUCTS for n in operands)
        return not any(self._is_size(n) for n in operands)

    def _is_size(self, name: str) -> bool:
        """Tell whether a value is computed of the dims of a tensor."""
        for _ in range(_STEPS):
            node = self._made_by.get(name)
            if node is None or node.operator not in _OF_SIZES:
                return node is not None and node.operator in ("Shape", "Size")
            computed = [n for n in node.inputs if n and n not in self._constant]
            if not computed or (node.operator in ("Gather", "Slice") and computed[0] != node.inputs[0]):
                return False
            name = computed[0]
        return False

    def _find(self, name: str) -> list[tuple[NodeRecord, int]]:
        if self._users is None:
            self._users = {}
            constant, made_by, users = self._constant, self._made_by, self._users
            for node in self._nodes:
                if node.operator == "Constant" or (node.inputs and constant.issuperset(filter(None, node.inputs))):
                    constant.update(node.outputs)
                for output in node.outputs:
                    made_by[output] = node
            for node in _with_inner(self._nodes):
                for index, operand in enumerate(node.inputs):
                    users.setdefault(operand, []).append((node, index))
        return self._users.get(name, [])


def _with_inner(nodes: tuple[NodeRecord, ...]) -> Iterator[NodeRecord]:
    """Yield nodes, and the nodes of the graphs within them."""
    queue = [nodes]
    while queue:
        for node in queue.pop():
            yield node
            queue += [value.nodes for value in node.attributes.values() if isinstance(value, GraphRecord)]


class OnnxConstant:
    """Numbers of the file: of an initializer (``record``) or of a node (``array``). ``name`` is the parameter's.

    ``uses`` are of its name in its graph; True for a part of weights, None for numbers of the import itself.
    """

    __slots__ = ("array", "name", "record", "uses", "variable")

    def __init__(self, name: str, record: TensorRecord | None, array: Any = None, uses: Uses | bool | None = None) -> None:
        self.name, self.record, self.array, self.uses = name, record, array, uses
        self.variable: Variable | None = None
