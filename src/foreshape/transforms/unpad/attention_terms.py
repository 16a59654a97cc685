"""The terms of attention in a padded program: from the product of weights and values back to queries, keys and the bias of their scores."""

from __future__ import annotations

import math
from collections.abc import Callable

from foreshape.core.data_class import data_class
from foreshape.language.operator import computations as c
from foreshape.language.operator.computation import Computation
from foreshape.language.program import Op
from foreshape.transforms.unpad.contents import FAR
from foreshape.transforms.unpad.index_forms import IndexForm
from foreshape.transforms.unpad.packing import Packer
from foreshape.transforms.unpad.padded_values import BATCH, ROWS, PaddedValue


@data_class(frozen=True)
class BiasTerm:
    """A summand of scores by the places of a row and of a key: the value ``name`` times ``factor``.

    Attributes:
        hides: the value is truth values: keys are hidden where they are not ``visible_if``, by adding ``hidden``.
    """

    name: str
    factor: float = 1.0
    hides: bool = False
    visible_if: bool = True
    hidden: float = 0.0


@data_class(frozen=True)
class AttentionTerms:
    """Attention of several heads within texts: softmax(query key' * scale + bias) value."""

    query: str
    key: str
    value: str
    heads: int
    size: int
    scale: float
    causal: bool
    bias: tuple[BiasTerm, ...]


class _Scores:
    """The summands of scores, collected on the way back from the softmax."""

    def __init__(self, packer: Packer) -> None:
        self.packer = packer
        self.product: tuple[Op, float] | None = None
        self.bias: list[BiasTerm] = []
        self.causal = False

    def collect(self, name: str, factor: float) -> bool:
        """Add the summands of a value; False for an unknown one."""
        packer = self.packer
        name = packer.plain(name)
        if packer.number(name) is not None:
            return True  # the same for all keys: the softmax does not see it
        value = packer.proof.value(name)
        if not value.per_text:
            if factor > 0 and _is_causal(value, lambda visible, hidden: visible == 0.0 and hidden <= -FAR):
                self.causal = True
                return True
            self.bias.append(BiasTerm(name, factor))
            return value.fault is None
        op = packer.writers.get(name)
        if op is None or op.operator is None:
            return False
        first, second = op.operand(0), op.operand(1) if len(op.operator.schema.operands) > 1 else ""
        match op.computes(Computation):
            case c.Sum():
                return self.collect(first, factor) and self.collect(second, factor)
            case c.Subtraction():
                return self.collect(first, factor) and self.collect(second, -factor)
            case c.Affine(by=by):  # the same number for all keys: the softmax does not see it
                return self.collect(first, factor * by)
            case c.ChosenElements():
                return self._chosen(op, factor)
            case c.Cast() if packer.old.var(first).spec.known_dtype.is_floating:
                return self.collect(first, factor)
            case c.MatrixProduct() if self.product is None and len(value.time_places) == 2:
                self.product = op, factor
                return True
            case _:
                scaled = _scaled(packer, op)
                return scaled is not None and self.collect(scaled[0], factor * scaled[1])

    def _chosen(self, op: Op, factor: float) -> bool:
        """Take a choice by place between scores and a number far below them."""
        packer = self.packer
        condition, x, y = (packer.plain(op.operand(k)) for k in range(3))
        truth = packer.proof.value(condition)
        if truth.per_text:
            return False
        for hidden, visible, visible_if in ((y, x, True), (x, y, False)):
            number = packer.number(hidden)
            if number is not None and number <= -FAR and factor > 0:
                if _is_causal(truth, lambda a, b, visible_if=visible_if: (a, b) == ((1.0, 0.0) if visible_if else (0.0, 1.0))):
                    self.causal = True
                    return self.collect(visible, factor)
                self.bias.append(BiasTerm(condition, 1.0, True, visible_if, max(number, -3.0e38)))
                return self.collect(visible, factor)
        return False


def attention_terms(packer: Packer, op: Op) -> AttentionTerms | None:
    """Return the terms of attention before a product of weights and values; None if it is none.

    The product must have its keys as columns on the left, and as rows on the right.
    """
    mixing = op.operator.computes() if op.operator is not None else None
    if not isinstance(mixing, c.MatrixProduct) or mixing.x_transposed:
        return None
    weights = packer.plain(op.operand(0))
    softmax = packer.writers.get(weights)
    computed = softmax.operator.computes() if softmax is not None and softmax.operator is not None else None
    value = op.operand(1)
    if softmax is None or not isinstance(computed, c.Softmax):
        return None
    axes = packer.proof.value(weights).axes
    if computed.axis % len(axes) != len(axes) - 1 or axes[-1] != (ROWS,) or axes[-2] != (ROWS,):
        return None
    scores = _Scores(packer)
    if not scores.collect(softmax.operand(0), 1.0) or scores.product is None:
        return None
    product, factor = scores.product
    terms = product.operator.computes() if product.operator is not None else None
    assert isinstance(terms, c.MatrixProduct)
    query, key = product.operand(0), product.operand(1)
    factors = [_unscaled(packer, n) for n in (query, key)]
    (query, query_factor), (key, key_factor) = factors
    factor *= query_factor * key_factor
    q, k, v = (packer.proof.value(n) for n in (query, key, value))
    row_axes = (
        q.axes[-1] if terms.x_transposed else q.axes[-2],
        k.axes[-2] if terms.y_transposed else k.axes[-1],
        v.axes[-1] if mixing.y_transposed else v.axes[-2],
    )
    if any(r != (ROWS,) for r in row_axes) or not (q.per_text and k.per_text and v.per_text):
        return None
    columns = [packer.columns(x.axes) for x in (q, k, v)]
    if columns[0] != columns[1] or columns[0] != columns[2] or not columns[0] or not all(isinstance(n, int) for n in columns[0]):
        return None
    sizes = [n for n in columns[0] if isinstance(n, int)]
    heads = 1
    for n in sizes[:-1]:
        heads *= n
    for term in scores.bias:
        dims = packer.proof.value(term.name).axes
        outer = [axis for axis in dims[:-2] if axis]
        if dims[-2:] != ((ROWS,), (ROWS,)):
            return None
        if BATCH in (a for axis in dims for a in axis) or len(outer) > 1 or (outer and outer[0] != (heads,)):
            return None
    return AttentionTerms(query, key, value, heads, sizes[-1], factor, scores.causal, tuple(scores.bias))


def _unscaled(packer: Packer, name: str) -> tuple[str, float]:
    """Return the value multiplied by a number, and the number: the kernel multiplies scores by it."""
    factor = 1.0
    while True:
        name = packer.plain(name)
        op = packer.writers.get(name)
        if op is None:
            return name, factor
        scaled = _scaled(packer, op)
        if scaled is None:
            return name, factor
        name, factor = scaled[0], factor * scaled[1]


def _scaled(packer: Packer, op: Op) -> tuple[str, float] | None:
    """Return the operand multiplied by one number other than 0, and the number; None for other ops."""
    first = op.operand(0)
    match op.computes(Computation):
        case c.Scaling(by=by) if by:
            return first, by
        case c.Product():
            second = op.operand(1)
            pairs = ((first, packer.number(second)), (second, packer.number(first)))
            return next(((name, number) for name, number in pairs if number), None)
        case c.Quotient() if number := packer.number(op.operand(1)):
            return first, 1.0 / number
        case _:
            return None


def _is_causal(value: PaddedValue, sees: Callable[[float, float], bool]) -> bool:
    """Tell whether a value by the places of a row and of a key lets a row see the keys up to its own place.

    Args:
        sees: tells this of its numbers for keys up to the row's place, and for later ones.
    """
    step, rank = value.real.step, len(value.axes)
    if step is None or value.fault is not None or rank < 2:
        return False
    behind = IndexForm.factor((rank - 2, 0)) - IndexForm.factor((rank - 1, 0))  # the row's place less the key's
    form, above, below = step
    if form == behind:
        return sees(above, below)
    return form == behind.times(-1) - IndexForm.number(1) and sees(below, above)


def gelu_operand(packer: Packer, name: str) -> str | None:
    """Return x where a value is ``0.5 x (1 + erf(x / sqrt(2)))`` in some order of its factors; None where it is not."""
    factors, number = _factors(packer, name, 1.0)
    if len(factors) != 2 or not math.isclose(number, 0.5, rel_tol=1e-5):
        return None
    for x, gate in (factors, factors[::-1]):
        op = packer.writers.get(gate)
        inner = None
        match op.computes(Computation) if op is not None else None:
            case c.Affine(by=1.0, shift=1.0) if op is not None:
                inner = op.operand(0)
            case c.Sum() if op is not None:
                inner = next((op.operand(k) for k in (0, 1) if packer.number(op.operand(1 - k)) == 1.0), None)
            case _:
                pass
        function = packer.writers.get(packer.plain(inner)) if inner else None
        if function is not None and function.computes(c.ErrorFunction) is not None:
            arguments, scale = _factors(packer, function.operand(0), 1.0)
            if arguments == [x] and math.isclose(scale, math.sqrt(0.5), rel_tol=1e-5):
                return x
    return None


def _factors(packer: Packer, name: str, number: float) -> tuple[list[str], float]:
    """Return the factors of a product, and their constant factor."""
    name = packer.plain(name)
    op = packer.writers.get(name)
    scaled = _scaled(packer, op) if op is not None else None
    if scaled is not None:
        return _factors(packer, scaled[0], number * scaled[1])
    if op is not None and op.computes(c.Product) is not None:
        left, right = _factors(packer, op.operand(0), number), _factors(packer, op.operand(1), 1.0)
        return [*left[0], *right[0]], left[1] * right[1]
    return [name], number
