"""The demand on sizes that a network's own code makes, as an operator: `size_demand`."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size, equal, evaluate, less_equal, parse, substitute, symbols_of
from foreshape.core.spec import ANY_OR_COMPLEX, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import OWN, ZERO_GRADIENT, AttrType, Operator, attribute, operand
from foreshape.language.operator.require import fail, require_at_most, require_divides, require_equal
from foreshape.language.operator.samples import f32, i64, reject, sample


class SizeDemand(Operator):
    """A demand on sizes of X: left relation right. Nothing is computed.

    The two are sizes as they are written in messages; ``x0.1`` is axis 1 of the first of X.
    """

    type = "size_demand"
    since = OWN
    X = operand(ANY_OR_COMPLEX, many=True, doc="any shapes")
    left = attribute(AttrType.STRING, doc="a size")
    relation = attribute(AttrType.STRING, choices=("==", "<=", "divides"))
    right = attribute(AttrType.STRING, doc="a size")
    requirement = attribute(AttrType.STRING, "the sizes must be as the network asks", doc="the words of the error")
    gradient = ZERO_GRADIENT
    side_effects = True

    def _sizes(self, dims: Sequence[Sequence[Size]]) -> tuple[Size, Size]:
        values = {f"x{index}.{axis}": size for index, operand_dims in enumerate(dims) for axis, size in enumerate(operand_dims)}
        left, right = parse(self.left), parse(self.right)
        unknown = sorted((symbols_of(left) | symbols_of(right)) - values.keys())
        if unknown:
            fail(f"left and right must be of sizes of X, such as x0.1; seen {unknown[0]}", SchemaError, X=None)
        return substitute(left, values), substitute(right, values)

    def infer_shape(self, X: tuple[Spec, ...]) -> tuple[Spec, ...]:
        left, right = self._sizes([x.known_dims for x in X])
        demand = {"==": require_equal, "<=": require_at_most, "divides": require_divides}[self.relation]
        demand(left, right, self.requirement, X=None)
        return ()

    def kernel(self, X: list[Tensor]) -> tuple[Tensor, ...]:
        left, right = self._sizes([tuple(x.shape) for x in X])
        a, b = evaluate(left, {}), evaluate(right, {})
        holds = {"==": equal(a, b), "<=": less_equal(a, b), "divides": a != 0 and b % a == 0}[self.relation]
        if not holds:
            raise ExecutionError(f"{self.requirement}\n    required: {self.left} {self.relation} {self.right}\n    seen: {a} and {b}")
        return ()

    samples = [
        sample(X=[f32(2, 6)], left="x0.0 + 1", relation="<=", right="x0.1"),
        sample(X=[f32(2, 6), i64(2)], left="x0.0", relation="==", right="x1.0"),
        sample(X=[f32(2, 6)], left="3", relation="divides", right="x0.1"),
    ]
    rejects = [
        reject(X=[f32(2, 6)], left="4", relation="divides", right="x0.1", says="the sizes must be as the network asks"),
        reject(X=[f32(2, 6)], left="x1.0", relation="==", right="2", says="left and right must be of sizes of X", error=SchemaError),
    ]
