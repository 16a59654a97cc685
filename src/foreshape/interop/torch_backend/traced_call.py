"""`TracedCall`: a node of a graph as the record of a call: its function, its tensors and open sizes, its effects on memory, and its work."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, Final

from foreshape.core.spec import LOD_TENSOR, DType, Spec
from foreshape.core.values.torch_types import torch_dtype
from foreshape.interop.torch.eager_workspaces import WITH_WORKSPACE, workspace
from foreshape.interop.torch.open_size import OpenFloat, OpenQuotient, OpenSize, float_variable
from foreshape.interop.torch.untyped_torch import is_list, pytree, torch
from foreshape.interop.torch_backend.matrix_product import product_function
from foreshape.interop.torch_backend.prepared_graph import EFFECT
from foreshape.interop.torch_backend.torch_operator import TorchFunction
from foreshape.language.program import Variable
from foreshape.machine.kernels.call_record import CallRecord, NamedConstant, NumberedOperand, Part, StepName, Subscript, TupleRecord
from foreshape.machine.kernels.fused import Effects, FusedKernel, Order

_SHOWN: Final = 160
"""Characters of a call in a program at most."""
_BUILT_IN: Final = BuiltinFunctionType, MethodDescriptorType
"""torch's functions of Python with the arguments of operators, and not its own code in Python."""
_ATEN: Final[Any] = torch.ops.aten
NORM: Final = _ATEN._native_batch_norm_legit_functional.default
"""The normalization of a batch with new values of its moving mean and variance."""
NORM_STATE: Final = 3, 4
"""Their places among its results, as among its arguments."""
INTO: Final = "foreshape_into"
"""The mark of a call with its results in the memory of its operands, among the facts of a node."""
_WORK: Final = "foreshape_work"
"""The place of its multiplications among the facts of a node."""
_HIDDEN_VIEWS: Final = frozenset(
    f"aten::{name}" for name in ("_unsafe_view", "_reshape_alias", "lift", "lift_fresh", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")
)
"""Operators whose results lie in the memory of an operand, and whose schema does not say so."""


_WRITERS: Final = frozenset(
    f"aten::{name}" for name in ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_put", "masked_scatter")
)
"""Operators that write elements into a copy of their first operand."""


class TracedCall:
    """The call of a node.

    Args:
        node: of a graph.
        value: from an argument to its variable, its open size, or the value of Python itself.
        exact: only torch's own kernels.

    Attributes:
        tensors, sizes: the variables read by it, in the order of the record's operands.
        words: the call as a person reads it.
    """

    def __init__(self, node: Any, value: Callable[[Any], Any], exact: bool) -> None:
        self.node, self.value, self.exact = node, value, exact
        self.tensors: list[Variable] = []
        self.sizes: list[Variable] = []
        self._numbers: dict[int, Variable] = {}
        for argument in (*node.args, *node.kwargs.values()):
            self._collect(argument)
        self._constants = 0
        self.arguments = tuple([self._part(item) for item in node.args])
        self.keywords = tuple([(key, self._part(item)) for key, item in node.kwargs.items()])
        text = ", ".join([*map(self._words, node.args), *(f"{key}={self._words(item)}" for key, item in node.kwargs.items())])
        words = f"{node.target}({text})"
        self.words = words if len(words) <= _SHOWN else words[: _SHOWN - 3] + "..."

    def function(self, results: tuple[Spec, ...], traced: Sequence[Any]) -> TorchFunction:
        """Return the function of the record.

        Args:
            results: the specs of its tensors.
            traced: its results, one after the other, without numbers: tensors and None.
        """
        target, value = self.node.target, self.node.meta["val"]
        name = str(getattr(getattr(target, "_schema", None), "name", "")).removeprefix("aten::") or getattr(target, "__name__", "function")
        alone = isinstance(value, torch.Tensor)
        nested = not alone and any(is_list(item) for item in value or ())
        product = None if self.exact else product_function(self.node, self.value)
        changed = self._changed()
        if changed:
            function = _changing(target)
        else:
            function = product if product is not None else _Flat(target) if nested else _function(target)
        call: CallRecord | Subscript = CallRecord(NamedConstant(_identifier(name), function), self.arguments, self.keywords)
        places = tuple([index for index, item in enumerate(traced) if item is not None])
        if is_list(value) and len(traced) == 1:
            call = Subscript(call, 0)
        operand = self._dying(results[0]) if alone and not changed else None
        written = None if operand is None else self._written(name, operand)
        orders = {index: _order(traced[index]) for index in places}
        effects = Effects(
            views=dict.fromkeys(places, 0) if is_view(target) and self.tensors else {},
            layouts={index: "strided" for index, order in orders.items() if order is None},
            result_order=orders,
            in_place=changed,
            takes_over=None if written is None or operand is None else (0, operand),
        )
        kernel = FusedKernel(name, call, written, effects, partial(workspace_of_node, self.node) if name in WITH_WORKSPACE else None)
        return TorchFunction(kernel, results, None if places and len(traced) == 1 else places, len(traced), work_of_node(self.node))

    def _changed(self) -> dict[int, int]:
        """Return the results in the memory of operands, changed by the call: place -> number of the operand."""
        node = self.node
        if INTO not in node.meta and node.target is not _ATEN.copy_.default:
            return {}
        if node.target is NORM:
            return {place: _place(self.value(node.args[place]), self.tensors) for place in NORM_STATE}
        first = node.args[0]
        return {place: _place(self.value(item), self.tensors) for place, item in enumerate(first if is_list(first) else [first])}

    def number(self, element: DType) -> TorchFunction:
        """Return the function of the record, with the number it gives as a tensor.

        Args:
            element: the type of the tensor.
        """
        call = CallRecord(NamedConstant("number_", partial(_number_tensor, self.node.target, torch_dtype(element))), self.arguments, self.keywords)
        return TorchFunction(FusedKernel("number", call), (Spec(LOD_TENSOR, element, ()),), None, 1)

    def _written(self, name: str, operand: int) -> Part:
        """Return the record of the call with its result in the memory of an operand; None for an operator without such a variant."""
        target = self.node.target
        if self.arguments[0] == NumberedOperand(operand):
            in_place = _variant(target, f"{name}_")
            if in_place is not None:
                return CallRecord(NamedConstant(f"{_identifier(name)}_", _function(in_place)), self.arguments, self.keywords)
        variant = _variant(target, name)
        if variant is None or not variant.has_kernel_for_dispatch_key("CPU"):  # generated: it copies a result of its own
            return None
        keyword = next(item.name for item in variant._schema.arguments if item.is_out)
        return CallRecord(NamedConstant(_identifier(name), variant._op), self.arguments, (*self.keywords, (keyword, NumberedOperand(operand))))

    # --- arguments

    def _collect(self, argument: Any) -> None:
        value = self.value(argument) if isinstance(argument, torch.fx.Node) else None
        if isinstance(value, Variable):
            if not any(item is value for item in self.tensors):
                self.tensors.append(value)
        elif isinstance(value, (OpenSize, OpenFloat, OpenQuotient)):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = _number_variable(value)
            variable = self._numbers[id(value)]
            if not any(item is variable for item in self.sizes):
                self.sizes.append(variable)
        elif is_list(argument):
            for item in argument:
                self._collect(item)

    def _part(self, argument: Any) -> Part:
        value = self.value(argument)
        if isinstance(value, Variable):
            return NumberedOperand(_place(value, self.tensors))
        if isinstance(value, (OpenSize, OpenFloat, OpenQuotient)):
            number = "int" if isinstance(value, OpenSize) else "float"
            return CallRecord(StepName(number), (NumberedOperand(len(self.tensors) + _place(self._numbers[id(value)], self.sizes)),))
        if is_list(argument):
            return TupleRecord(tuple([self._part(item) for item in argument]))
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return value
        self._constants += 1
        return NamedConstant(f"c{self._constants}_", value)

    def _words(self, argument: Any) -> str:
        value = self.value(argument)
        if isinstance(value, Variable):
            return value.name
        if isinstance(value, OpenSize):
            return str(value.size)
        if is_list(argument):
            return f"[{', '.join(map(self._words, argument))}]"
        return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    # --- memory

    def _dying(self, result: Spec) -> int | None:
        """Return the operand into whose memory the result may go: of its spec and its layout, and with no later use in the graph."""
        target = self.node.target
        if torch.Tag.pointwise in getattr(target, "tags", ()):
            operands = self.node.all_input_nodes
        elif getattr(getattr(target, "_schema", None), "name", "") in _WRITERS:
            operands = [self.node.args[0]]
        else:
            return None
        traced = self.node.meta["val"]
        rank, layout = traced.dim(), _strides(traced)
        layouts = [_strides(item.meta["val"]) for item in operands if isinstance(item.meta.get("val"), torch.Tensor)]
        if any(other != layout and other[:rank] == layout[:rank] for other in layouts):
            return None  # of operands in several layouts torch's kernels choose one otherwise than its traces
        bits = traced.is_conj(), traced.is_neg()  # torch's marks of numbers that a reader turns: a written view keeps its own
        for item in operands:
            value = self.value(item)
            if not isinstance(value, Variable) or value.spec != result or item.op != "call_function" or next(reversed(item.users)) is not self.node:
                continue
            operand = item.meta["val"]
            if _strides(operand) == layout and bits == (operand.is_conj(), operand.is_neg()):
                return _place(value, self.tensors)
        return None


class _Flat:
    """A function with its nested results one after the other."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> list[Any]:
        return pytree().tree_flatten(self.function(*arguments, **keywords))[0]


def _normalize(*arguments: Any) -> tuple[Any, ...]:
    """Normalize by the batch's own mean and variance, and change the moving ones."""
    return (*torch.native_batch_norm(*arguments), *[arguments[place] for place in NORM_STATE])


class _ChangedList:
    """A function changing the tensors of its first operand, and returning them."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        self.function(tensors, *arguments, **keywords)
        return tensors


def _changing(target: Any) -> Callable[..., Any]:
    """Return the function of an operator with its results in its operands' memory."""
    if target is NORM:
        return _normalize
    variant = in_place_variant(target) or target
    return _function(variant) if variant._schema.returns else _ChangedList(variant._op)


def in_place_variant(target: Any) -> Any:
    """Return the operator with the same numbers in the memory of its first operand, one tensor or several; None if torch has none."""
    schema = getattr(target, "_schema", None)
    return None if schema is None or schema.is_mutable else _variant(target, f"{schema.name.removeprefix('aten::')}_")


def _number_tensor(function: Any, dtype: Any, *arguments: Any, **keywords: Any) -> Any:
    return torch.scalar_tensor(function(*arguments, **keywords), dtype=dtype)


def is_view(target: Any) -> bool:
    """Tell whether results of an operator may lie in the memory of its first tensor."""
    schema = getattr(target, "_schema", None)
    return is_declared_view(target) or (schema is not None and schema.name in _HIDDEN_VIEWS)


def is_declared_view(target: Any) -> bool:
    """Tell whether results of an operator are views by its schema, so that torch's autograd counts writes to all of them together."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(item.alias_info is not None and not item.alias_info.is_write for item in schema.returns)


def is_random(node: Any) -> bool:
    """Tell whether a call may draw random numbers, or do more than give its results."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or EFFECT in node.meta or INTO in node.meta:
        return True
    return schema.is_mutable or not schema.returns or torch.Tag.nondeterministic_seeded in node.target.tags


def _number_variable(value: Any) -> Variable:
    return value.variable if isinstance(value, OpenSize) else float_variable(value)


def _place(variable: Variable, among: Sequence[Variable]) -> int:
    return next(index for index, item in enumerate(among) if item is variable)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name) + "_"


def _order(tensor: Any) -> Order | None:
    """Return the order of the axes of a contiguous tensor; None for other tensors, and where sizes known only in a run decide."""
    common: Any = importlib.import_module("torch._prims_common")
    return tuple(range(tensor.dim())) if common.is_contiguous_or_false(tensor) else None


def _strides(tensor: Any) -> list[str]:
    return [str(n) for n in (*tensor.shape, *tensor.stride())]


def _function(target: Any) -> Any:
    """Return torch's function for Python of an operator, with half the time of a call of the operator; otherwise the operator."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return target
    space, name = schema.name.split("::")
    if space == "aten" and not any(
        "?[]" in str(item.type)
        or str(item.type) == "List[Optional[Tensor]]"
        or (item.name == "reduction" and item.has_default_value())  # torch's function for Python takes 0, none, for the schema's mean
        for item in schema.arguments
    ):
        if name in ("view", "_unsafe_view") and target._overloadname == "default":
            return torch.reshape  # the same where a view can be; values of other layouts than traced are copied
        for owner in (torch, torch.nn.functional, torch.Tensor):
            function = getattr(owner, name, None)
            if isinstance(function, _BUILT_IN):
                return function
    return target._op


def _variant(target: Any, name: str) -> Any:
    """Return the operator ``name`` with the arguments of another one and its result in its first operand or in one of its own; None if there is none."""
    arguments = [(item.name, str(item.type)) for item in target._schema.arguments]
    packet = getattr(torch.ops.aten, name, None) if target.namespace == "aten" else None
    for overload in packet.overloads() if packet is not None else ():
        schema = getattr(packet, overload)._schema
        outs, plain = sum(item.is_out for item in schema.arguments), [(item.name, str(item.type)) for item in schema.arguments if not item.is_out]
        if outs == (not name.endswith("_")) and schema.is_mutable and plain == arguments:
            return getattr(packet, overload)
    return None


def work_of_node(node: Any) -> int | None:
    """Return the multiplications of a node, by torch's own formulas, at the sizes of the example; None where it has none."""
    if _WORK not in node.meta:
        node.meta[_WORK] = _work(node)
    return node.meta[_WORK]


def _work(node: Any) -> int | None:
    counter: Any = importlib.import_module("torch.utils.flop_counter")
    formula = counter.flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if formula is None:
        return None
    try:
        return int(formula(*map(_example, node.args), **{key: _example(item) for key, item in node.kwargs.items()}, out_val=_example(node.meta["val"]))) // 2
    except Exception:  # a formula of torch's that does not take this call: an estimate stops nothing
        return None


def workspace_of_node(node: Any) -> int:
    """Return the bytes of the workspace of torch's kernel of a node, at the sizes of the example."""
    name = str(getattr(getattr(node.target, "_schema", None), "name", "")).removeprefix("aten::")
    return workspace(name, [_example(item) for item in node.args], _example(node.meta["val"])) if name in WITH_WORKSPACE else 0


def _example(value: Any) -> Any:
    """Return an argument with tensors without numbers, of the example's sizes and layouts."""
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return torch.empty_strided([*map(hinted, value.shape)], [*map(hinted, value.stride())], dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt):
        return hinted(value)
    return [_example(item) for item in value] if is_list(value) else value


def hinted(size: Any) -> int:
    """Return a size of torch's, a symbol's as in the example."""
    return size if isinstance(size, int) else int(size.node.hint or 1)
