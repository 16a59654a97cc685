"""An activation written out as sums, products and functions of one tensor, as one kernel.

Before: ``y = x sigmoid(x)`` (swish), ``y = x min(max(x + 3, 0), 6) / 6`` (hardswish), ``y = x (1 + erf(x / sqrt(2))) / 2`` or its approximation by tanh
    (gelu), of fp32 in a frozen step, in any order of its sums and products
After: ``y = activation(x)``; gelu by tanh, which may be one operator, too, by oneDNN's own library
Unless: something else reads a value between
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.frozen import affine_of, constant_number
from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall, OpCall, Value
from foreshape.core.spec import FP32
from foreshape.language.operator import written_out
from foreshape.language.operator.computations import Activation, ErrorFunction, Power, Product, Quotient, Relu, Scaling, Subtraction, Sum
from foreshape.language.operator.written_out import Form
from foreshape.machine.kernels import elementwise

_BY_TANH = written_out.GELU_BY_TANH
_MOST = 12
"""The most calls of one activation."""


@rewrite(RewriteStage.FUSE, begins=(Product, Scaling, Quotient, Activation))
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    ends = [i for i, _ in graph.computing(Product)] + [i for kind in (Scaling, Quotient) for i, _ in graph.computing(kind)]
    count = sum(_rewrite(graph, x) for x in dict.fromkeys(v for i in ends for v in _roots(graph, i)))
    slow = [(i, computation) for i, computation in graph.computing(Activation) if computation == _BY_TANH]
    return count + sum(
        graph.replace({i: [fused(i, elementwise.activation(computation.name, computation.form), i.arguments[:1], i.results[:1], computation)]})
        for i, computation in slow
    )


def _roots(graph: Graph, end: KernelCall) -> list[Value]:
    """Return the operands of a call with several readers: an activation of one may end here."""
    return [v for v in end.arguments if isinstance(v, Value) and len(graph.readers(v)) > 1]


def _rewrite(graph: Graph, x: Value) -> bool:
    spec = spec_of(x)
    if spec is None or spec.dtype is not FP32 or x.lod is not None:
        return False
    forms: dict[Value, Form] = {x: written_out.X}
    makers: dict[Value, OpCall] = {}
    waiting = [*graph.readers(x)]
    while waiting and len(makers) <= _MOST:
        i = waiting.pop(0)
        out = i.results[0] if isinstance(i, OpCall) and i.results else None
        if not isinstance(i, OpCall) or not isinstance(out, Value) or out in forms or dims_of(out) != spec.dims or not graph.makes_one(i):
            continue
        form = _form(graph, i, forms)
        if form is None:
            continue
        forms[out], makers[out] = form, i
        computation = written_out.activation(form)
        if computation is not None and _stand_in(graph, x, out, makers, computation):
            return True
        waiting += graph.readers(out)
    return False


def _stand_in(graph: Graph, x: Value, out: Value, makers: dict[Value, OpCall], computation: Activation) -> bool:
    """Replace the calls between x and a value by one, if nothing else needs their results."""
    calls: dict[KernelCall, None] = {}
    waiting: list[Argument] = [out]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Value) and value in makers and makers[value] not in calls:
            calls[makers[value]] = None
            waiting += makers[value].arguments
    inner = [i.results[0] for i in calls if i.results[0] is not out]
    if any(graph.is_fixed(v) or any(r not in calls for r in graph.readers(v)) for v in inner):
        return False
    end = makers[out]
    kernel = elementwise.activation(computation.name, computation.form)
    return graph.replace({**dict.fromkeys(calls, ()), end: [fused(end, kernel, [x], [out], computation)]})


def _form(graph: Graph, i: KernelCall, forms: dict[Value, Form]) -> Form | None:
    """Return the form of a call's result; None if it is no function of the tensor alone, or of a kind not known here."""
    operands = [_operand(graph, a, forms) for a in i.arguments if a is not None]
    if None in operands or not operands:
        return None
    a, b = operands[0], operands[-1]
    assert a is not None and b is not None
    affine, power = affine_of(graph, i), computes(i, Power)
    if affine is not None:
        scaled = written_out.product(a, written_out.number(affine[0]))
        return None if scaled is None else written_out.plus(scaled, written_out.number(affine[1]))
    if power is not None:
        return written_out.power(a, power.of)
    if computes(i, ErrorFunction) is not None:
        return written_out.function("error", a)
    activation = Activation("hardtanh", (0.0, float("inf"))) if computes(i, Relu) is not None else computes(i, Activation)
    if activation is not None:
        return written_out.of_activation(activation, a)
    if computes(i, Sum) is not None:
        return written_out.plus(a, b)
    if computes(i, Subtraction) is not None:
        return written_out.plus(a, b, -1.0)
    if computes(i, Product) is not None:
        return written_out.product(a, b)
    return None


def _operand(graph: Graph, value: Argument, forms: dict[Value, Form]) -> Form | None:
    """Return the form of an operand: one of ``forms``, or a constant number."""
    if isinstance(value, Value) and value in forms:
        return forms[value]
    number = constant_number(graph, value)
    return None if number is None else written_out.number(number)
