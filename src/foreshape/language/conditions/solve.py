"""Conditions over many symbols: the known symbols, the sizes of each symbol, and the conditions between symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from foreshape.core.data_class import data_class, field
from foreshape.core.dims import Dim, Size, substitute, symbol, symbols_of
from foreshape.core.dims.expression import of_terms
from foreshape.errors import ShapeError
from foreshape.language.conditions.sets import ALL, SizeSet
from foreshape.language.conditions.single import solutions
from foreshape.language.conditions.steps import OutOfSteps, WorkBudget
from foreshape.language.conditions.words import SizeSetText, describe
from foreshape.language.operator.require import Condition
from foreshape.language.program.guards import Known

MAX_STEPS = 100_000
"""The most steps to solve the conditions of a program."""

_ANY = SizeSetText("any", ALL)
_DEAR = 20
"""The steps counted for an operation over symbols."""


@data_class()
class Solution:
    """The demands of conditions on symbols.

    Attributes:
        names: the symbols, in their order.
        known: symbols made of others by equalities; sizes over the remaining, free symbols.
        sizes: of each free symbol the sizes that no condition over it alone refuses; all its sizes if it is neither in ``unsolved`` nor in a condition of
            ``joint``.
        described: the same in words.
        unsolved: conditions over one symbol without a whole set within the steps.
        joint: independent conditions over several free symbols.
        later: conditions over symbols other than the names, known only in a run.
        hard: unused conditions, which would have taken too many steps or too long sizes.
        possible: False if the conditions contradict each other, or are too many to be solved.
    """

    names: tuple[str, ...]
    known: dict[str, Size] = field(default_factory=dict[str, Size])
    sizes: dict[str, SizeSet] = field(default_factory=dict[str, SizeSet])
    described: dict[str, SizeSetText] = field(default_factory=dict[str, SizeSetText])
    unsolved: dict[str, list[Condition]] = field(default_factory=dict[str, list[Condition]])
    joint: list[Condition] = field(default_factory=list[Condition])
    later: list[Condition] = field(default_factory=list[Condition])
    hard: list[Condition] = field(default_factory=list[Condition])
    possible: bool = True


def solve(conditions: Iterable[Condition], names: Sequence[str], steps: WorkBudget | None = None) -> Solution:
    """Return the demands of conditions on the symbols ``names``.

    Equalities write symbols as others. Conditions over one symbol become its set of sizes (see `solutions`). Of the others, consequences of these sets are
    dropped.
    """
    steps = steps if steps is not None else WorkBudget(MAX_STEPS)
    out = Solution(tuple(names))
    among = set(names)
    usable: list[Condition] = []
    for condition in conditions:
        (usable if condition.symbols <= among else out.later).append(condition)
    open_ones = _eliminate(usable, out, steps)
    of_one: dict[str, dict[object, Condition]] = {}
    several: dict[object, Condition] = {}
    for condition in open_ones:
        used = condition.symbols
        if not used:
            out.possible = out.possible and condition.answer({}) is True
        elif len(used) == 1:
            _keep(of_one.setdefault(next(iter(used)), {}), condition)
        else:
            _keep(several, condition)
    for name in names:
        if name in out.known:
            continue
        if name not in of_one:
            out.sizes[name], out.described[name] = ALL, _ANY
            continue
        sizes, unsolved = solutions(list(of_one.get(name, {}).values()), name, steps)
        out.sizes[name], out.described[name] = sizes, describe(sizes, steps)
        if unsolved:
            out.unsolved[name] = unsolved
        out.possible = out.possible and sizes.low is not None
    if out.possible:
        _settle_joint(list(several.values()), out, steps)
    return out


def _eliminate(conditions: Sequence[Condition], out: Solution, steps: WorkBudget) -> list[Condition]:
    """Use equalities to write symbols as others; return the conditions over the remaining symbols."""
    order = {name: index for index, name in enumerate(out.names)}
    solved = Known()
    remaining: list[Condition] = []
    for condition in conditions:
        if condition.relation == "==":
            reduced = _substituted(condition, solved, order, steps)
            try:
                equality = _as_symbol(reduced, order) if reduced is not None else None
            except ShapeError:  # their difference passes 64 bits
                equality = None
            if equality is not None:
                name, size = equality
                solved = solved.with_size(name, size)
                remaining.append(Condition(0, "<=", size, "a size is at least 0"))
                continue
        remaining.append(condition)
    left: list[Condition] = []
    for condition in remaining:
        reduced = _substituted(condition, solved, order, steps)
        if reduced is None:
            out.hard.append(condition)
        elif (answer := _answer(reduced, {})) is not True:
            out.possible = out.possible and answer is None
            left.append(reduced)
    try:
        steps.take(len(solved))
        out.known = {name: solved[name] for name in solved}
    except (ShapeError, OutOfSteps):  # then nothing is said of sizes at all
        out.possible = False
    if any(not symbols_of(size) <= order.keys() for size in out.known.values()):
        out.possible = False
    return left


def _substituted(condition: Condition, solved: Known, names: Mapping[str, int], steps: WorkBudget) -> Condition | None:
    """Return a condition with known symbols put in; None if it has no value, is too long to keep, or would take too many steps."""
    if not steps.left:
        return None
    try:
        used = [n for n in condition.symbols if n in solved]
        steps.take(sum(_length(s) for s in (condition.left, condition.right, *(solved[n] for n in used))))
        substituted = Condition(substitute(condition.left, solved), condition.relation, substitute(condition.right, solved), condition.requirement)
    except ShapeError:
        steps.waste(_DEAR * (1 + len(solved)))
        return None
    except OutOfSteps:
        return None
    return substituted if substituted.symbols <= names.keys() else None


def _length(size: Size) -> int:
    return len(size.terms) if isinstance(size, Dim) else 1


def _answer(condition: Condition, values: Mapping[str, Size]) -> bool | None:
    try:
        return condition.answer(values)
    except ShapeError:  # for some values of the symbols it has none
        return None


def _as_symbol(condition: Condition, order: Mapping[str, int]) -> tuple[str, Size] | None:
    """Return the last symbol that an equality makes a size of the others, and this size."""
    difference = condition.left - condition.right
    if isinstance(difference, int) or not symbols_of(difference) <= order.keys():  # a size too long to keep is another symbol
        return None
    bare = sorted((m[0].name for m, c in difference.terms if len(m) == 1 and not m[0].op and abs(c) == 1), key=lambda n: -order[n])
    for name in bare:
        sign = next(c for m, c in difference.terms if len(m) == 1 and m[0].name == name and not m[0].op)
        remainder = difference - symbol(name) * sign
        if name not in symbols_of(remainder):
            return name, remainder * -sign
    return None


def _keep(among: dict[object, Condition], condition: Condition) -> None:
    """Add a condition to others of its symbols; the weaker of two gives way."""
    if condition.relation in ("==", "<="):
        try:
            difference = condition.right - condition.left
        except ShapeError:
            difference = 0
        if isinstance(difference, Dim):
            constant = difference.terms[-1][1] if not difference.terms[-1][0] else 0
            bare = difference - constant
            if condition.relation == "<=":
                previous = among.get(("<=", bare))
                if previous is None or constant < _constant(previous.right - previous.left):
                    among["<=", bare] = condition
                return
            if ("==", -difference) in among:
                return
            among.setdefault(("==", difference), condition)
            return
    among.setdefault((condition.left, condition.relation, condition.right), condition)


def _constant(size: Size) -> int:
    return size if isinstance(size, int) else size.terms[-1][1] if not size.terms[-1][0] else 0


def _settle_joint(several: Sequence[Condition], out: Solution, steps: WorkBudget) -> None:
    """Keep the conditions that do not follow from the sizes of the symbols, in short form."""
    facts: dict[str, Size] = {}
    shifts: dict[str, tuple[Size, Size]] = {}
    for name, sizes in out.sizes.items():
        low = sizes.low or 0
        piece = sizes.pieces[0] if len(sizes.pieces) == 1 else None
        uniform = piece is not None and len(piece.residues) == 1 and name not in out.unsolved
        facts[name] = symbol(name) * (piece.period if piece is not None and uniform else 1) + low
        if low:
            shifts[name] = symbol(name) + low, symbol(name) - low
    shifted = {n: a for n, (a, _) in shifts.items()}
    back = {n: b for n, (_, b) in shifts.items()}
    for condition in several:
        try:
            steps.take(_DEAR * (_length(condition.left) + _length(condition.right)))
            answer = _answer(condition, {n: facts[n] for n in condition.symbols})
        except OutOfSteps:
            answer = None
        if answer is True:
            continue
        out.possible = out.possible and answer is None
        out.joint.append(_shorter(condition, shifted, back))


def _shorter(condition: Condition, shifted: Mapping[str, Size], back: Mapping[str, Size]) -> Condition:
    """Return a condition simplified by the least sizes of symbols: ``min(x, 1)`` is 1 for x of at least 1."""
    sides = [condition.left, condition.right]
    for index, side in enumerate(sides):
        try:
            short = substitute(substitute(side, shifted), back)
        except ShapeError:
            continue
        if len(str(short)) < len(str(side)) and symbols_of(short) <= symbols_of(side):  # a size too long to keep is another symbol
            sides[index] = short
    return Condition(sides[0], condition.relation, sides[1], condition.requirement)


def text_of(condition: Condition, names: Mapping[str, str]) -> str:
    """Return a condition in short form, its symbols called as ``names`` says."""
    called: dict[str, Size] = {n: symbol(names[n]) for n in condition.symbols if n in names}
    try:
        left, right = substitute(condition.left, called), substitute(condition.right, called)
    except ShapeError:
        left, right = condition.left, condition.right
    if condition.relation == "==":
        left, right = _on_two_sides(left - right)
        if left == 0:
            left, right = right + _constant(-right), _constant(-right)
        return f"{left} = {right}"
    if condition.relation == "<=":
        left, right = _on_two_sides(right - left)
        return f"{left}: at least {right}" if left != 0 else f"{right + _constant(-right)}: at most {_constant(-right)}"
    if condition.relation == "divides":
        return f"{right}: a multiple of {left}"
    if condition.relation == "broadcasts with":
        left, right = sorted((left, right), key=str)
        return f"{left} and {right}: equal, or one of them 1"
    return f"{left}: 1, or {right}"


def _on_two_sides(size: Size) -> tuple[Size, Size]:
    """Return two sizes whose difference it is, without a minus if it has terms of both signs; a number is on the right."""
    if isinstance(size, int):
        return size, 0
    plus = of_terms({m: c for m, c in size.terms if c > 0 and m})
    minus = of_terms({m: -c for m, c in size.terms if c < 0 and m})
    constant = _constant(size)
    return plus, minus - constant
