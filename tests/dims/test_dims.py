"""Sizes against plain integers: whatever is built symbolically evaluates to what Python's own arithmetic gives."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.some import examples

from foreshape.core.dims import (
    INT64_MAX,
    INT64_MIN,
    MAX_TEXT,
    Dim,
    Size,
    bounds,
    broadcast,
    broadcasts,
    ceildiv,
    equal,
    evaluate,
    floordiv,
    is_symbol,
    less_equal,
    maximum,
    minimum,
    mod,
    no_less,
    parse,
    product,
    reaches,
    substitute,
    symbol,
    symbols_of,
)
from foreshape.errors import ShapeError

NAMES = ("batch", "words", "x y", "a;b", "min", "x // 2", "größe\x1b[2J\n", '"', "7up")
BINARY = ("+", "-", "*", "//", "%", "ceildiv", "min", "max", "broadcast")

Tree = Any
"""An int, a name, or (operation, left, right)."""

leaves = st.one_of(st.integers(-6, 9), st.sampled_from(NAMES[:4]), st.sampled_from(NAMES))
trees = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from(BINARY), inner, inner), max_leaves=9)
numbers = st.fixed_dictionaries({n: st.one_of(st.integers(0, 12), st.integers(0, 10**4)) for n in NAMES})
quick = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def built(tree: Tree) -> Size:
    """The size of a tree; every operation is asked of it as a user would."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return symbol(tree)
    op, left, right = tree[0], built(tree[1]), built(tree[2])
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    if op == "//":
        return floordiv(left, right)
    if op == "%":
        return mod(left, right)
    if op == "ceildiv":
        return ceildiv(left, right)
    if op == "broadcast":
        return broadcast(left, right)
    return minimum(left, right) if op == "min" else maximum(left, right)


def by_python(tree: Tree, values: dict[str, int]) -> int:
    """What the tree is in integers. Raises ZeroDivisionError; assumes that what is broadcast together fits, as a guard beside it demands."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return values[tree]
    op, a, b = tree[0], by_python(tree[1], values), by_python(tree[2], values)
    if op == "broadcast":
        assume(a == b or 1 in (a, b))
        return b if a == 1 else a
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "ceildiv": lambda: -(-a // b),
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
    }[op]()


def build(tree: Tree) -> Size:
    """As `built`, for trees that have a size: one that divides by zero or is past the limits has none to compare."""
    try:
        size = built(tree)
    except ShapeError as error:
        assert "division by zero" in str(error) or "64-bit" in str(error), error
        assume(False)
        raise
    assume(symbols_of(size) <= set(NAMES))
    return size


def expected(tree: Tree, values: dict[str, int]) -> int:
    try:
        out = by_python(tree, values)
    except ZeroDivisionError:
        assume(False)
        raise
    assume(INT64_MIN <= out <= INT64_MAX)
    return out


def value_of(size: Size, values: dict[str, int]) -> int:
    """As `evaluate`; asked where plain integers have an answer, so that only a size on the way may be too large."""
    try:
        return evaluate(size, values)
    except ShapeError as error:
        assert "64-bit" in str(error), error
        assume(False)
        raise


@quick
@given(trees, numbers)
def test_a_size_evaluates_to_what_integers_give(tree: Tree, values: dict[str, int]) -> None:
    size = build(tree)
    want = expected(tree, values)
    assert value_of(size, values) == want


@pytest.mark.long_cases("broadcast", "%", "-")
@pytest.mark.parametrize("op", BINARY)
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(left=trees, right=leaves, values=numbers)
def test_every_operation_evaluates(op: str, left: Tree, right: Tree, values: dict[str, int]) -> None:
    size = build((op, left, right))
    want = expected((op, left, right), values)
    assert value_of(size, values) == want


@quick
@given(st.lists(leaves, max_size=5), numbers)
def test_products_evaluate(factors: list[Tree], values: dict[str, int]) -> None:
    want = 1
    for f in factors:
        want *= by_python(f, values)
    assume(abs(want) <= INT64_MAX)
    assert evaluate(product([built(f) for f in factors]), values) == want


@quick
@given(st.lists(trees, min_size=1, max_size=4), numbers)
def test_minima_and_maxima_of_several_evaluate(several: list[Tree], values: dict[str, int]) -> None:
    sizes = [build(t) for t in several]
    plain = [expected(t, values) for t in several]
    assert value_of(minimum(*sizes), values) == min(plain)
    assert value_of(maximum(*sizes), values) == max(plain)


polynomials = st.lists(st.tuples(st.integers(-9, 9), st.lists(leaves, max_size=3)), min_size=1, max_size=4)


def polynomial(terms: list[tuple[int, list[Tree]]]) -> Any:
    return sum(((c * product([built(f) for f in factors])) for c, factors in terms), start=0)


@quick
@given(st.lists(polynomials, min_size=1, max_size=4), numbers)
def test_no_less_is_at_least_each(several: list[Any], values: dict[str, int]) -> None:
    values = {n: v % 50 for n, v in values.items()}
    sizes = [polynomial(terms) for terms in several]
    assert evaluate(no_less(*sizes), values) >= max(evaluate(s, values) for s in sizes)
    assert no_less(symbol("a") + 3, 2 * symbol("a")) is 2 * symbol("a") + 3


@quick
@given(polynomials, st.integers(1, 500), numbers)
def test_whether_a_size_reaches_another(terms: Any, least: int, values: dict[str, int]) -> None:
    values = {n: v % 50 + 1 for n, v in values.items()}
    size = polynomial([(abs(c), [abs(f) if isinstance(f, int) else f for f in factors]) for c, factors in terms])
    assert evaluate(reaches(size, least), values) == int(evaluate(size, values) >= least)


@quick
@given(trees, trees, numbers)
def test_the_three_valued_answers_are_never_wrong(left: Tree, right: Tree, values: dict[str, int]) -> None:
    a, b = build(left), build(right)
    x, y = expected(left, values), expected(right, values)
    same, at_most = equal(a, b), less_equal(a, b)
    assert same is None or same == (x == y)
    assert at_most is None or at_most == (x <= y)


@quick
@given(trees, numbers)
def test_bounds_hold_the_value(tree: Tree, values: dict[str, int]) -> None:
    low, high = bounds(build(tree))
    value = expected(tree, values)
    assert low is None or low <= value
    assert high is None or value <= high


@quick
@given(trees)
def test_the_text_reads_back_as_the_same_object(tree: Tree) -> None:
    size = build(tree)
    again = parse(str(size))
    assert again == size if isinstance(size, int) else again is size
    assert "\n" not in str(size) and "\x1b" not in str(size) and ";" not in str(size)


@quick
@given(st.text(min_size=1, max_size=512))
def test_any_name_makes_a_symbol_that_reads_back(name: str) -> None:
    size = symbol(name)
    assert is_symbol(size) and symbols_of(size) == {name}
    assert parse(str(size)) is size
    assert parse(str(size * 2 + 1)) is size * 2 + 1
    assert str(size).isprintable() and str(size).isascii()


@quick
@given(trees, numbers, st.sets(st.sampled_from(NAMES)))
def test_substituting_in_two_steps_is_evaluating(tree: Tree, values: dict[str, int], first: set[str]) -> None:
    size = build(tree)
    value = expected(tree, values)
    value_of(size, values)
    part = substitute(size, {n: values[n] for n in first})
    assert symbols_of(part) <= symbols_of(size) - first
    assert value_of(part, values) == value == value_of(size, values)


@quick
@given(trees, st.sampled_from(NAMES), trees, numbers)
def test_substituting_sizes_is_composing(tree: Tree, name: str, inner: Tree, values: dict[str, int]) -> None:
    outer, put = build(tree), build(inner)
    at = expected(inner, values)
    assume(at >= 0)  # symbols stand for sizes
    value = expected(tree, {**values, name: at})
    try:
        composed = substitute(outer, {name: put})
    except ShapeError:
        assume(False)
        raise
    assume(symbols_of(composed) <= set(NAMES))
    assert value_of(composed, values) == value


@quick
@given(st.lists(st.tuples(st.integers(-5, 5), st.lists(st.sampled_from(NAMES), max_size=3)), min_size=1, max_size=5), st.randoms())
def test_equal_polynomials_are_one_object(terms: list[tuple[int, list[str]]], random: Any) -> None:
    def total(order: list[tuple[int, list[str]]]) -> Size:
        out: Size = 0
        for factor, names in order:
            shuffled = list(names)
            random.shuffle(shuffled)
            out = out + product([symbol(n) for n in shuffled]) * factor
        return out

    mixed = list(terms)
    random.shuffle(mixed)
    one, two = total(terms), total(mixed)
    assert one == two if isinstance(one, int) else one is two
    assert equal(one, two) is True
    assert one - two == 0


@quick
@given(trees, trees, trees)
def test_the_laws_of_a_ring_are_identities(a: Tree, b: Tree, c: Tree) -> None:
    x, y, z = build(a), build(b), build(c)
    for left, right in ((x + y, y + x), (x * y, y * x), ((x + y) + z, x + (y + z)), (x * (y + z), x * y + x * z), (x - x, 0)):
        assume(symbols_of(left) | symbols_of(right) <= set(NAMES))
        assert left is right or (isinstance(left, int) and left == right), (left, right)


def test_factors_of_one_text_keep_one_order() -> None:
    x = symbol("x")
    odd = symbol("x // 2")
    assert odd * (x // 2) is (x // 2) * odd
    assert str(odd) != str(x // 2)
    assert parse(str(odd * (x // 2))) is odd * (x // 2)


def test_dims_print_as_a_person_writes_them() -> None:
    batch, words = symbol("batch"), symbol("words")
    assert str(2 * batch * words + 1) == "2*batch*words + 1"
    assert str(batch - words) == "batch - words"
    assert str((batch + 1) // 2) == "ceil(batch / 2)" and str((batch + 3) // 2) == "ceil(batch / 2) + 1"
    assert str((batch + 2) // 4) == "(batch + 2) // 4" and str(batch // 4) == "batch // 4"
    assert str(ceildiv(batch + words, 4) * words) == "ceil((batch + words) / 4)*words"
    assert str(ceildiv(ceildiv(batch, words), 3)) == "ceil(((batch + words - 1) // words) / 3)"
    assert str(symbol("ceil") + ceildiv(batch, 2)) == '"ceil" + ceil(batch / 2)'
    assert str(-batch) == "-batch"
    assert str(1 - batch) == "-batch + 1"
    assert str(maximum(batch, words - 3)) == "max(batch, words - 3)"
    assert str(symbol("x y")) == '"x y"'


def test_sizes_broadcast_to_the_one_that_is_not_1() -> None:
    n, m = symbol("n"), symbol("m")
    assert str(broadcast(n, m)) == "broadcast(m, n)" and broadcast(n, m) is broadcast(m, broadcast(m, n), 1)
    assert broadcast(n, 5) == 5 and broadcast(m, n + 2) is n + 2, "what cannot be 1 is the result"
    assert broadcast(n, minimum(n, 1)) is n and broadcast(n, 1) is n and broadcast(1, 1) == 1
    assert [evaluate(broadcast(n, m), {"n": a, "m": b}) for a, b in ((1, 4), (4, 1), (4, 4), (0, 1), (1, 0), (0, 0))] == [4, 4, 4, 0, 0, 0]
    assert broadcasts(n, m) is None and broadcasts(n, n) is True and broadcasts(n, 1) is True and broadcasts(2, 3) is False and broadcasts(n + 2, 1) is True
    assert broadcasts(n + 2, n + 3) is False and broadcasts(n, n + 1) is None, "1 and 2"


def test_divisions_reduce() -> None:
    n = symbol("n")
    assert (6 * n + 3) // 3 is 2 * n + 1
    assert (n // 2) // 3 is n // 6
    assert (4 * n) % 2 == 0
    assert (5 * n) % 3 is (2 * n) % 3
    assert n * symbol("m") // n is symbol("m")
    assert ((n % 4) + 4) // 8 == 0
    assert n // 1 is n and n % 1 == 0
    assert n // -2 is (-n) // 2


def test_divisions_of_divisions_are_one_division() -> None:
    n, m = symbol("n"), symbol("m")
    assert ceildiv(ceildiv(n, 2), 2) is ceildiv(n, 4) and str(ceildiv(ceildiv(n, 2), 2)) == "ceil(n / 4)"
    assert (n // 2 + 1) // 2 is (n + 2) // 4 and (n // m // 3 + 5) // 2 is ((n // m) + 15) // 6
    assert (4 * n + 3) // 6 is (2 * n + 1) // 3 and (2 * n + 2 * m + 3) // 4 is (n + m + 1) // 2
    halved: Size = n
    for _ in range(40):
        halved = (halved + 2 * 1 - 3) // 2 + 1
    assert halved is ceildiv(n, 2**40), "a chain of convolutions of stride 2 stays one division"
    for _ in range(40):
        halved = ceildiv(halved, 2)
    assert evaluate(halved, {"n": 5}) == 1, "a divisor past 64 bits is not made"


@quick
@given(st.lists(st.tuples(st.sampled_from(["+", "*", "//", "ceildiv"]), st.integers(1, 12)), max_size=8), st.integers(0, 10**5))
def test_chains_of_divisions_evaluate(chain: list[tuple[str, int]], value: int) -> None:
    tree: Tree = "batch"
    for op, number in chain:
        tree = (op, tree, number)
    size = build(tree)
    assert evaluate(size, {"batch": value}) == expected(tree, {"batch": value})
    assert isinstance(size, int) or parse(str(size)) is size


def test_what_rounds_up_is_read() -> None:
    n = symbol("n")
    assert parse("ceil(n / 32)") is ceildiv(n, 32) and parse("ceil((n + 1) / n)") is ceildiv(n + 1, n)
    assert parse("(n + 1) // 2") is parse("ceil(n / 2)"), "files that were written before this form read as they did"
    assert parse("ceil") is symbol("ceil")
    for text in ("ceil(n)", "ceil(n, 2)", "ceil(n / 2", "ceil(n / 0)", "n / 2", "ceil(n / 2 / 3)"):
        with pytest.raises(ShapeError):
            parse(text)


def test_a_modulo_of_at_most_one_is_zero() -> None:
    d = symbol("x") % minimum(symbol("y"), 1)
    assert equal(d, 0) is True
    assert minimum(d, d * 2) is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n // 0,
        lambda n: n % 0,
        lambda n: ceildiv(n, 0),
        lambda n: floordiv(1, 0),
        lambda n: mod(1, 0),
        lambda n: evaluate(8 // n, {"n": 0}),
        lambda n: evaluate(8 % n, {"n": 0}),
        lambda n: ceildiv(INT64_MIN, -1),
        lambda n: floordiv(INT64_MIN, -1),
        lambda n: product([2**32, 2**31]),
        lambda n: n * 2**64,
        lambda n: (n * 2**62) * 4,
        lambda n: n * -(2**63),
        lambda n: evaluate(n * n, {"n": 2**40}),
        lambda n: evaluate(n + 1, {"n": INT64_MAX}),
        lambda n: evaluate(product([n] * 1400), {"n": INT64_MAX}),
        lambda n: substitute(n * 2, {"n": symbol("m") * 2**62}),
        lambda n: n // 2**64,
        lambda n: maximum(n, 2**64),
        lambda n: evaluate(n, {}),
        lambda n: int(n),
        lambda n: [0][n],
        lambda n: bool(n),
        lambda n: symbol(""),
        lambda n: symbol("x" * 513),
        lambda n: (n + 2**62) + 2**62,
    ],
)
def test_what_is_no_size_is_an_error(make: Any) -> None:
    with pytest.raises(ShapeError):
        make(symbol("n"))


@pytest.mark.parametrize(
    "text",
    ["", " ", "x +", "(x", "x)", "min(", "min(x", "min()", "max(x,)", "1 2", "x y", "x ** 2", "x / 2", "$", "'x'", '"x', '"\\q"', '""', "9" * 30, "x // 0",
     "x % 0", "(" * 200 + "x" + ")" * 200, "-" * 200 + "x", "x" * (MAX_TEXT + 1), "9223372036854775808", "x\x00", "min x", "٣ // 2"],
)  # fmt: skip
def test_text_that_is_no_size_is_an_error(text: str) -> None:
    with pytest.raises(ShapeError):
        parse(text)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet='xy12+-*/%(), "minax\\', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        size = parse(text)
    except ShapeError:
        return
    assert parse(str(size)) == size


def test_whole_numbers_read_back() -> None:
    for number in (0, -1, 7, INT64_MAX, INT64_MIN):
        assert parse(str(number)) == number


def test_a_dim_cannot_be_made_or_changed_by_hand() -> None:
    with pytest.raises(TypeError):
        Dim()
    n = symbol("n")
    assert copy.deepcopy(n) is n and copy.copy(n) is n and pickle.loads(pickle.dumps(n * 2 + 1)) is n * 2 + 1


def test_unused_sizes_are_given_back() -> None:
    from foreshape.core.dims import expression

    gc.collect()
    before = len(expression._dims)
    kept = [symbol(f"temporary_{k}") * k + 1 for k in range(2, 500)]
    assert len(expression._dims) > before + 400
    del kept
    gc.collect()
    assert len(expression._dims) < before + 50


def test_sizes_of_at_least_a_number_are_divided_and_joined_as_one() -> None:
    n = symbol("n")
    for window, stride, padding in itertools.product((2, 3, 5), (2, 3), (0, 1)):
        size: Size = n
        for _ in range(4):
            size = maximum((size + 2 * padding - window) // stride + 1, 1)
        assert parse(str(size)) is size and str(size).count("max") <= 1
        for value in range(1, 100):
            expected = value
            for _ in range(4):
                expected = max((expected + 2 * padding - window) // stride + 1, 1)
            assert evaluate(size, {"n": value}) == substitute(size, {"n": value}) == expected


def test_a_quotient_of_sums_that_divide_each_other_is_their_ratio() -> None:
    b, w = symbol("batch"), symbol("words")
    over, under = 32 * b * w + 288 * b, 8 * b * w + 72 * b
    assert floordiv(over, under) == 4
    assert mod(over, under) == 0
    assert floordiv(over * (w + 1), under) is 4 * w + 4
    assert floordiv((b + w) * (b + w), b + w) is b + w
    assert str(floordiv(over + 1, under)).endswith("// (8*batch*words + 72*batch)")
