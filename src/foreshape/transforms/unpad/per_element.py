"""The contents of a result computed element by element, from the contents of its operands at the same places."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foreshape.core.spec import FP32, DType
from foreshape.language.program import Op
from foreshape.transforms.unpad.contents import ANYTHING, FAR, INFINITY, TRUTH, Content, NormBound, constant, either, index_content, stepped
from foreshape.transforms.unpad.index_forms import IndexForm, Place, Side

Contents = Sequence[Content]


class PlaceFacts:
    """The facts of a region of elements: needed to compare whole numbers."""

    def __init__(
        self,
        op: Op,
        names: Sequence[str],
        side: Side,
        time_places: Collection[Place],
        masked: Collection[Place],
        are_truths: bool = True,
        dtype: DType = FP32,
    ) -> None:
        self.op, self.names, self.time_places, self.masked = op, names, time_places, masked
        self.side: Side = side
        self.are_truths, self.dtype = are_truths, dtype

    def least(self, form: IndexForm) -> int | None:
        return form.least(self.side, self.time_places, self.masked)

    def least_with_rows(self, form: IndexForm) -> int | None:
        """Return a lower bound for texts with rows."""
        return form.least(self.side, self.time_places, self.masked, has_rows=True)

    def attribute(self, name: str, default: Any) -> Any:
        return self.op.attributes.values.get(name, default)


# --- arithmetic


def _add(x: Content, y: Content, facts: PlaceFacts) -> Content:
    for a, b in ((x, y), (y, x)):
        if a.constant is not None and not a.finite:
            return a if b.finite or b.constant == a.constant else ANYTHING
    if x.index is not None and y.index is not None:
        return index_content(x.index + y.index)
    extent = NormBound(lambda: x.extent.value + y.extent.value)
    return Content(x.low + y.low, x.high + y.high, x.finite and y.finite, x.masks or y.masks, offset=x.offset + y.offset, extent=extent)


def _negative(x: Content) -> Content:
    return replace(x, low=-x.high, high=-x.low, form=x.form and x.form.times(-1), parts=(), offset=-x.offset, never=None, nan_source="")


def _subtract(x: Content, y: Content, facts: PlaceFacts) -> Content:
    return _add(x, _negative(y), facts)


def _multiplied_by(x: Content, number: float) -> Content:
    if number == 1.0:
        return x
    if number == 0.0:
        return constant(0.0) if x.finite else ANYTHING
    low, high = sorted((x.low * number, x.high * number))
    form = x.form.times(int(number)) if x.form is not None and number == int(number) else None
    extent = NormBound(lambda: x.extent.value * abs(number))
    return Content(low, high, x.finite, x.masks, form=form, offset=x.offset * number, extent=extent)


def _multiply(x: Content, y: Content, facts: PlaceFacts) -> Content:
    if x.constant is not None and y.constant is not None:
        return constant(x.constant * y.constant)
    for a, b in ((x, y), (y, x)):
        if a.constant is not None and a.finite:
            return _multiplied_by(b, a.constant)
    if x.form is not None and y.form is not None:
        return index_content(x.form * y.form)
    if facts.names[0] == facts.names[1]:
        return _square(x, facts)
    size = [max(abs(c.low), abs(c.high)) for c in (x, y)]
    corners = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    low, high = (min(corners), max(corners)) if all(c == c for c in corners) else (-INFINITY, INFINITY)
    if min(x.low, y.low) >= 0:
        low = 0.0

    def extent() -> float:
        bounds = [b.extent.value * s for b, s in ((y, size[0]), (x, size[1])) if s < INFINITY and not b.offset]
        return min(bounds) if bounds else INFINITY if x.offset or y.offset else x.extent.value * y.extent.value

    return Content(low, high, x.finite and y.finite, extent=NormBound(extent))


def _divide(x: Content, y: Content, facts: PlaceFacts) -> Content:
    divisor = y.constant
    if facts.dtype.is_integer and divisor != 1.0:
        return Content()  # operators differ in how they round
    if x.constant is not None and divisor is not None:
        return constant(x.constant / divisor) if divisor else ANYTHING
    if divisor is not None and divisor and math.isfinite(divisor):
        return replace(_multiplied_by(x, 1.0 / divisor), form=None)
    nonzero = y.low > 0 or y.high < 0
    if x.constant == 0.0 and nonzero:
        return constant(0.0)
    low = 0.0 if x.low >= 0 and y.low >= 0 else -INFINITY
    smallest = min(abs(y.low), abs(y.high)) if nonzero else 0.0
    return Content(low, INFINITY, x.finite and nonzero, extent=NormBound(lambda: x.extent.value / smallest if smallest and not x.offset else INFINITY))


def _largest(x: Content, y: Content, facts: PlaceFacts) -> Content:
    if x.index is not None and y.index is not None:
        for a, b in ((x, y), (y, x)):
            if a.index is not None and b.index is not None and (least := facts.least(a.index - b.index)) is not None and least >= 0:
                return a
    return Content(max(x.low, y.low), max(x.high, y.high), x.finite and y.finite)


def _smallest(x: Content, y: Content, facts: PlaceFacts) -> Content:
    return _negative(_largest(_negative(x), _negative(y), facts))


def _power(x: Content, y: Content, facts: PlaceFacts) -> Content:
    if y.constant == 2.0:
        return _square(x, facts)
    if x.constant is not None and y.constant is not None:
        return constant(_evaluated(lambda number: number**y.low, x.constant)) if x.constant >= 0 else ANYTHING
    power = y.constant
    whole_power = power is not None and power >= 0 and power == int(power)
    low = 0.0 if x.low >= 0 or (power is not None and whole_power and power % 2 == 0) else -INFINITY
    return Content(low, finite=x.finite and y.finite and (whole_power or x.low > 0))


def _constant_power(x: Content, facts: PlaceFacts) -> Content:
    return _power(x, constant(float(facts.attribute("factor", 1.0))), facts)


def _evaluated(function: Callable[[float], float], number: float) -> float:
    """Return a function of a number; NaN outside of its domain or range."""
    try:
        return function(number)
    except (ValueError, OverflowError, ZeroDivisionError):
        return math.nan


# --- comparisons and truth values


def _positive(x: Content, y: Content, facts: PlaceFacts) -> Content:
    """Return the truth of ``x > y``."""
    if x.index is not None and y.index is not None:
        difference = x.index - y.index
        least, greatest = facts.least(difference), facts.least(difference.times(-1))
        if least is not None and least > 0:
            return constant(1.0)
        if greatest is not None and greatest >= 0:
            return constant(0.0)
        above, below = facts.least_with_rows(difference), facts.least_with_rows(difference.times(-1))
        answer = 1.0 if above is not None and above > 0 else 0.0 if below is not None and below >= 0 else None
        return replace(stepped(difference - IndexForm.number(1), 1.0, 0.0), with_rows=answer)
    if x.low > y.high:
        return constant(1.0)
    return constant(0.0) if x.high <= y.low else TRUTH


def _less(x: Content, y: Content, facts: PlaceFacts) -> Content:
    return _positive(y, x, facts)


def _at_least(x: Content, y: Content, facts: PlaceFacts) -> Content:
    return _not(_less(x, y, facts))


def _at_most(x: Content, y: Content, facts: PlaceFacts) -> Content:
    return _not(_positive(x, y, facts))


def _equal(x: Content, y: Content, facts: PlaceFacts) -> Content:
    for a, b in ((x, y), (y, x)):
        if a.never is not None and a.never == b.constant:
            return constant(0.0)
    if x.constant is not None and x.constant == y.constant:
        return constant(1.0)
    if x.index is not None and x.index == y.index:
        return constant(1.0)
    if _positive(x, y, facts).constant == 1.0 or _positive(y, x, facts).constant == 1.0:
        return constant(0.0)
    return TRUTH


def _differs(x: Content, y: Content, facts: PlaceFacts) -> Content:
    return _not(_equal(x, y, facts))


def _not(x: Content, facts: PlaceFacts | None = None) -> Content:
    if x.constant is not None:
        return constant(float(not x.constant))
    answer = None if x.with_rows is None else float(not x.with_rows)
    return replace(TRUTH, with_rows=answer, step=x.step and (x.step[0], float(not x.step[1]), float(not x.step[2])))


def _and(x: Content, y: Content, facts: PlaceFacts) -> Content:
    for a, b in ((x, y), (y, x)):
        if a.constant is not None:
            if not a.constant:
                return constant(0.0)
            return b if facts.are_truths else TRUTH if b.constant is None else constant(float(bool(b.constant)))
    return TRUTH


def _bits(rule: Callable[..., Content]) -> Callable[..., Content]:
    """Return the rule of logic for truth values; whole numbers have other bits."""

    def truth_rule(*operands: Any) -> Content:
        facts = operands[-1]
        return rule(*operands) if facts.are_truths else Content()

    return truth_rule


def _or(x: Content, y: Content, facts: PlaceFacts) -> Content:
    return _not(_and(_not(x), _not(y), facts))


def _chosen(condition: Content, x: Content, y: Content, facts: PlaceFacts) -> Content:
    if condition.constant is not None:
        return x if condition.constant else y
    if condition.with_rows is not None and x.index is not None and y.index is not None:
        return x if condition.with_rows else y  # a place counted from the end: a text without rows has none
    picked = either([x, y])
    if condition.nan_source and condition.nan_source == facts.names[2] and x.finite and math.isfinite(y.low) and math.isfinite(y.high):
        return replace(picked, finite=True, shares=y.shares and x.constant == 0.0)  # numbers between bounds: of all that is not finite they can be NaN alone
    return picked


def _is_nan(x: Content, facts: PlaceFacts) -> Content:
    return constant(0.0) if x.finite or x.constant is not None else Content(0.0, 1.0, nan_source=facts.names[0])


# --- functions of one number


def _square(x: Content, facts: PlaceFacts) -> Content:
    if x.constant is not None:
        return constant(x.constant**2)
    far = max(abs(x.low), abs(x.high))
    return Content(0.0, far * far, x.finite)


def _absolute(x: Content, facts: PlaceFacts) -> Content:
    if x.constant is not None:
        return constant(abs(x.constant))
    return Content(max(0.0, x.low, -x.high), max(abs(x.low), abs(x.high)), x.finite, extent=x.extent if not x.offset else NormBound.number(INFINITY))


def _rising(function: Callable[[float], float], low: float, high: float, shrinks: bool = False) -> Callable[[Content, PlaceFacts], Content]:
    """Return the rule of a function without falls; ``shrinks``: its results are no farther from zero than its operands."""

    def rule(x: Content, facts: PlaceFacts) -> Content:
        if x.constant is not None:
            return constant(_evaluated(function, x.constant) if math.isfinite(x.constant) else low if x.constant < 0 else high)
        ends = [_evaluated(function, e) if math.isfinite(e) else limit for e, limit in ((x.low, low), (x.high, high))]
        extent = x.extent if shrinks and not x.offset else NormBound.number(INFINITY)
        is_inside = not any(e != e for e in ends)
        return Content(ends[0] if is_inside else -INFINITY, ends[1] if is_inside else INFINITY, x.finite and is_inside, extent=extent)

    return rule


def _rounded(x: Content, facts: PlaceFacts) -> Content:
    """Return the content of rounded numbers: operators differ at halves."""
    low = math.ceil(x.low - 0.5) if math.isfinite(x.low) else x.low
    high = math.floor(x.high + 0.5) if math.isfinite(x.high) else x.high
    return constant(float(low)) if low == high and x.finite else Content(low, high, x.finite)


def _gate(function: Callable[[float], float]) -> Callable[[Content, PlaceFacts], Content]:
    """Return the rule of a function like gelu: between zero and its operand, but for a dip below zero."""

    def rule(x: Content, facts: PlaceFacts) -> Content:
        if facts.attribute("beta", 1.0) != 1.0:
            return constant(0.0) if x.constant == 0.0 else Content(finite=x.finite)
        exact = x.constant == 0.0 or not facts.attribute("approximate", False)
        if x.constant is not None and math.isfinite(x.constant) and exact:
            return constant(function(x.constant))
        return Content(0.0 if x.low >= 0 else -0.3, max(x.high, 0.0), x.finite, extent=x.extent if not x.offset else NormBound.number(INFINITY))

    return rule


def _positive_part(x: Content, facts: PlaceFacts) -> Content:
    """Return the content of softplus, log(1 + exp(beta x)) / beta."""
    return Content(0.0, finite=x.finite)


def _wave(x: Content, facts: PlaceFacts) -> Content:
    return Content(-1.0, 1.0, x.finite)


def _root(x: Content, facts: PlaceFacts) -> Content:
    return Content(math.sqrt(max(x.low, 0.0)), math.sqrt(x.high) if x.high >= 0 else 0.0, x.finite and x.low >= 0)


def _reciprocal_root(x: Content, facts: PlaceFacts) -> Content:
    return Content(0.0, 1.0 / math.sqrt(x.low) if x.low > 0 else INFINITY, x.finite and x.low > 0)


def _reciprocal(x: Content, facts: PlaceFacts) -> Content:
    return _divide(constant(1.0), x, facts)


def _logarithm(x: Content, facts: PlaceFacts) -> Content:
    if x.constant is not None:
        return constant(math.log(x.constant) if x.constant > 0 else -INFINITY if x.constant == 0 else math.nan)
    return Content(math.log(x.low) if x.low > 0 else -INFINITY, math.log(x.high) if 0 < x.high < INFINITY else INFINITY, x.finite and x.low > 0)


def _exponential(x: Content, facts: PlaceFacts) -> Content:
    def power(number: float) -> float:
        return 0.0 if number == -INFINITY else math.exp(number) if number < 88 else INFINITY

    return constant(power(x.constant)) if x.constant is not None else Content(power(x.low), power(x.high), x.finite and x.high < 88)


def _scale(x: Content, *operands: Any) -> Content:
    facts: PlaceFacts = operands[-1]
    factor, bias = float(facts.attribute("scale", 1.0)), float(facts.attribute("bias", 0.0))
    if len(operands) > 1:
        if operands[0].constant is None:
            return Content(finite=x.finite and operands[0].finite)
        factor = operands[0].constant
    if not facts.attribute("bias_after_scale", True):
        bias *= factor
    return _add(_multiplied_by(x, factor), constant(bias), facts)


def _clip(x: Content, *operands: Any) -> Content:
    facts: PlaceFacts = operands[-1]
    tensors = dict(zip((s for s in ("Min", "Max") if facts.op.input(s)), operands[:-1], strict=True))
    low, high = (tensors.get(s) or constant(float(facts.attribute(s.lower(), default))) for s, default in (("Min", -INFINITY), ("Max", INFINITY)))
    return _smallest(_largest(x, low, facts), high, facts)


def _cast(x: Content, facts: PlaceFacts) -> Content:
    from foreshape.core.spec import TYPE_OF_CODE

    target = TYPE_OF_CODE.get(int(facts.attribute("out_dtype", 5)))
    if target is None:
        return ANYTHING
    if target.family == "bool":
        return _differs(x, constant(0.0), facts)
    if x.constant is not None and math.isfinite(x.constant):
        return constant(float(int(x.constant)) if target.is_integer else x.constant)
    if target.is_integer and x.form is None:
        return Content(math.floor(x.low) if math.isfinite(x.low) else x.low, math.ceil(x.high) if math.isfinite(x.high) else x.high, never=x.never)
    return x


def _finite(*operands: Any) -> Content:
    """Return the content of a function whose results are finite where its operands are."""
    contents: Contents = operands[:-1]
    facts: PlaceFacts = operands[-1]
    return _linear_zero(facts.op, contents) or Content(finite=all(x.finite for x in contents))


def _linear_zero(op: Op, contents: Contents) -> Content | None:
    """Return zero for a linear operator of zeros."""
    return constant(0.0) if op.operator is not None and op.operator.linear and all(x.constant == 0.0 for x in contents) else None


def _gelu(x: float) -> float:
    return 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0)))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(max(x, -700.0), 700.0)))


def _silu(x: float) -> float:
    return x * _sigmoid(x)


def _relu(x: float) -> float:
    return max(x, 0.0)


_RULES: Final[Mapping[str, Any]] = {
    "elementwise_add": _add, "elementwise_sub": _subtract, "elementwise_mul": _multiply, "elementwise_div": _divide, "elementwise_max": _largest,
    "elementwise_min": _smallest, "elementwise_pow": _power, "pow": _constant_power, "less_than": _less, "less_equal": _at_most, "greater_than": _positive,
    "greater_equal": _at_least, "equal": _equal, "not_equal": _differs, "logical_not": _not, "logical_and": _and, "logical_or": _or,
    "bitwise_not": _bits(_not), "bitwise_and": _bits(_and), "bitwise_or": _bits(_or), "where": _chosen, "isnan_v2": _is_nan,
    "square": _square, "abs": _absolute,
    "tanh": _rising(math.tanh, -1.0, 1.0, True), "sigmoid": _rising(_sigmoid, 0.0, 1.0), "erf": _rising(math.erf, -1.0, 1.0),
    "relu": _rising(_relu, 0.0, INFINITY, True), "softplus": _positive_part, "log1p": _rising(math.log1p, -INFINITY, INFINITY),
    "floor": _rising(math.floor, -INFINITY, INFINITY), "ceil": _rising(math.ceil, -INFINITY, INFINITY), "round": _rounded,
    "gelu": _gate(_gelu), "silu": _gate(_silu), "swish": _gate(_silu), "cos": _wave, "sin": _wave, "sqrt": _root, "rsqrt": _reciprocal_root,
    "reciprocal": _reciprocal, "log": _logarithm, "exp": _exponential, "scale": _scale, "clip": _clip, "cast": _cast,
    **dict.fromkeys((
        "leaky_relu", "elu", "selu", "celu", "mish", "hard_sigmoid", "hard_swish", "hard_shrink", "softshrink", "softsign", "tanh_shrink",
        "thresholded_relu", "relu6", "brelu", "stanh", "logsigmoid", "sign", "dropout", "assign", "prelu", "elementwise_fmax", "elementwise_fmin",
        "atan", "asinh",
    ), _finite),
}  # fmt: skip
"""The rules of more than a mere function of each element. Another operator takes part by `Operator.per_element`: its numbers are any."""


def combined(op: Op, contents: Contents, facts: PlaceFacts) -> Content:
    """Return the content of the results of a per-element op."""
    return fitting(_combined_steps(op, contents, facts), facts.dtype)


_INTEGER_BITS: Final = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1)}


def fitting(content: Content, dtype: DType) -> Content:
    """Return the content of numbers in an element type: small integers wrap, and large numbers of fp16 are infinite."""
    number = content.constant
    if dtype.is_integer:
        low, high = _INTEGER_BITS.get(dtype.name, (-(1 << 31), (1 << 31) - 1))
        is_small = number is not None and low <= number <= high and number == int(number)
        keeps = is_small or (number is None and dtype.name not in _INTEGER_BITS)
        return content if keeps or (not math.isfinite(content.low) and number is None and content.form is None) else Content()
    if dtype.name == "fp16":
        if number is not None and math.isfinite(number) and abs(number) > 65504:
            return constant(math.copysign(INFINITY, number))
        if abs(content.offset) > 65504:
            return constant(math.copysign(INFINITY, content.offset)) if content.finite else ANYTHING
    return content


def _combined_steps(op: Op, contents: Contents, facts: PlaceFacts) -> Content:
    stepped_operand = [k for k, x in enumerate(contents) if x.step is not None]
    if len(stepped_operand) == 1 and all(x.constant is not None for k, x in enumerate(contents) if k != stepped_operand[0]):
        form, *numbers = contents[stepped_operand[0]].step or (IndexForm(()), 0.0, 0.0)
        results = [_combined(op, [constant(n) if k == stepped_operand[0] else x for k, x in enumerate(contents)], facts) for n in numbers]
        if results[0].constant is not None and results[1].constant is not None:
            return replace(stepped(form, results[0].constant, results[1].constant), with_rows=_with_rows(contents[stepped_operand[0]], results))
    return _combined(op, contents, facts)


def _with_rows(truth: Content, results: Contents) -> float | None:
    """Return the number for texts with rows, if the truth of it is known for them."""
    if truth.with_rows is None or truth.step is None:
        return None
    return results[0].constant if truth.with_rows == truth.step[1] else results[1].constant


def _combined(op: Op, contents: Contents, facts: PlaceFacts) -> Content:
    rule = _RULES.get(op.type)
    result: Content = rule(*contents, facts) if rule is not None else _linear_zero(op, contents) or ANYTHING
    may_mask = any(x.masks for x in contents) and not result.finite and result.low == -INFINITY and not any(result is x for x in contents)
    return replace(result, masks=True) if may_mask else result


def hides(masked: Content, visible: Content, underflow: float) -> bool:
    """Tell whether the exponentials of masked numbers vanish beside visible ones: exp(x - y) is zero where x - y is below ``-underflow``."""
    if masked.constant == -INFINITY:
        return True
    far = masked.high if masked.high < INFINITY else masked.offset
    if far - visible.offset <= -FAR and (masked.finite or masked.constant is not None):
        return True  # no scores are so large
    return visible.lower_bound() - masked.upper_bound() >= underflow
