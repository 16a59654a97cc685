"""The gradient of a weight added to it at once, if only its step of gradient descent reads it.

Before: ``g = mm(x', d)``, ``w -= rate * g``
After: ``w.addmm_(x', d, alpha=-rate)``, or oneDNN's product, added at once (by torch's oneDNN in pieces); of another dense gradient ``w.add_(g, alpha=-rate)``
Unless: the step keeps the weight in full precision besides; and of the product, something else reads g, or reads w in between
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, fused, fused_as, spec_of
from foreshape.compiler.lowering.fusion.products import WeightGradient
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import KernelCall, Value
from foreshape.language.operator.computations import SgdUpdate
from foreshape.machine.kernels import elementwise, linear


@rewrite(RewriteStage.FUSE, begins=(SgdUpdate,), after={"linear_gradient": "makes the product that is added to a matrix in place"})
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i) for i, _ in graph.computing(SgdUpdate))


def _rewrite(graph: Graph, i: KernelCall) -> bool:
    param, grad, rate = i.arguments[:3]
    if not isinstance(param, Value) or not isinstance(rate, Value) or i.copies or i.stores:
        return graph.stopped(i, "the parameter is not updated in its place")
    if spec_of(grad) is None or not isinstance(grad, Value) or not graph.is_constant(rate) or not param.persistable:
        return graph.stopped(i, "the gradient is sparse, or the learning rate is computed in the step")
    maker = graph.maker(grad)
    done = False
    of_x, of_param = spec_of(maker.arguments[0]) if maker is not None and fused_as(maker, WeightGradient) is not None else None, spec_of(param)
    if maker is not None and of_x is not None and of_param is not None and of_param.rank == 2:
        x, d = maker.arguments
        call = fused(i, linear.descent(of_x, of_param, rate.number), [x, d, param], [param])
        done = graph.replace({maker: [call], i: ()})
    if not done:
        call = fused(i, elementwise.descent(rate.number), [param, grad], [param])
        done = graph.replace({i: [call]})
    if done and rate not in graph.lowered.rates:
        graph.lowered.rates.append(rate)
    return done
