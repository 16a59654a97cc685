"""Files of blocks in blocks, made by depth and by what their innermost block does: valid ones, and ones that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.messages import attr, block, dense, fixed32, number, op, program, text, var

BOOL, INT64, FP32 = 0, 3, 5
LOOP, BRANCH = "while", "conditional_block"


@dataclass(frozen=True)
class Family:
    """What a nest is made of.

    Args:
        inner: the ops of the innermost block.
        variables: of the global block, besides x (f32[2, 3]), n, i and the conditions.
        around: the ops of block k, before and after the op that runs the next one.
        form: how block k is run.
        refused: words of the error; empty where the file is valid.
    """

    inner: bytes
    variables: Callable[[int], bytes] = lambda depth: b""
    around: Callable[[int, int], tuple[bytes, bytes]] = lambda k, depth: (b"", b"")
    form: Callable[[int], str] = lambda k: LOOP
    refused: str = ""
    ends: bool = True
    """Whether the innermost loop writes its condition."""


def assign(source: str, target: str) -> bytes:
    return op("assign", [("X", [source])], [("Out", [target])])


def scaled(source: str, target: str) -> bytes:
    return op("scale", [("X", [source])], [("Out", [target])], attr("scale", 1, fixed32(4, b"\x00\x00\x00\x40")))


def doubled(name: str, made: str = "") -> bytes:
    """The rows of a variable twice, written back."""
    made = made or f"{name}_twice"
    return var(made, dense([-1, 3])) + op("concat", [("X", [name, name])], [("Out", [made])], attr("axis", 0, number(3, 0))) + assign(made, name)


def longer(name: str, made: str) -> bytes:
    """A variable with one row more."""
    return var(made, dense([-1, 3])) + op("concat", [("X", [name, "row"])], [("Out", [made])], attr("axis", 0, number(3, 0))) + assign(made, name)


def flat(source: str, target: str) -> bytes:
    """All elements in a row: another number of dims."""
    made = f"{source}_flat"
    return var(made, dense([6])) + op("reshape2", [("X", [source])], [("Out", [made])], attr("shape", 3, number(6, 6))) + assign(made, target)


def compared(target: str) -> bytes:
    return op("less_than", [("X", ["i"]), ("Y", ["n"])], [("Out", [target])])


def nest(family: Family, depth: int) -> bytes:
    """A file with so many blocks, each run by an op of the one before."""
    head = [var("x", dense([2, 3]), need_check_feed=True), var("n", dense([1], INT64), need_check_feed=True), var("i", dense([1], INT64), need_check_feed=True)]
    blocks: list[bytes] = []
    for k in range(depth + 1):
        before, after = family.around(k, depth)
        parts = [*head, family.variables(depth)] if k == 0 else []
        parts.append(before)
        if k < depth:
            run = number(12, k + 1)
            condition = f"c{k + 1}"
            parts += [var(condition, dense([1], BOOL)), compared(condition), var(f"s{k + 1}", number(1, 11))]
            if family.form(k + 1) == LOOP:
                parts.append(op(LOOP, [("X", ["x"]), ("Condition", [condition])], [("StepScopes", [f"s{k + 1}"])], attr("sub_block", 8, run)))
            else:
                holds = attr("is_scalar_condition", 6, number(10, 1))
                parts.append(op(BRANCH, [("Cond", [condition]), ("Input", ["x"])], [("Scope", [f"s{k + 1}"])], attr("sub_block", 8, run), holds))
        else:
            parts.append(family.inner)
        parts.append(after)
        if k and family.form(k) == LOOP and (k < depth or family.ends):
            parts.append(compared(f"c{k}"))
        blocks.append(block(*parts, idx=k, parent=k - 1))
    return program(*blocks)


def _own(k: int, depth: int) -> tuple[bytes, bytes]:
    return (doubled(f"y{k}") if k else b""), b""


def _handed_on(k: int, depth: int) -> tuple[bytes, bytes]:
    before = var(f"y{k + 1}", dense([-1, 3])) + assign(f"y{k}", f"y{k + 1}") if k < depth else b""
    return before, (assign(f"y{k + 1}", f"y{k}") if k < depth else doubled(f"y{k}"))


def _levels(depth: int) -> bytes:
    return b"".join(var(f"y{k}", dense([2, 3]), need_check_feed=True) for k in range(1, depth + 1))


PLACEHOLDER = var("u", dense([1]), need_check_feed=True)
ROW = var("row", dense([1, 3]), need_check_feed=True)
SHIFTED = b"".join(var(f"z{k}", dense([k + 2, 3]), need_check_feed=True) for k in range(5))
WRITTEN = var("t", dense([2, 3])) + scaled("x", "t") + assign("t", "x")

VALID = {
    "while-in-while": Family(WRITTEN),
    "a-variable-that-grows-in-the-innermost": Family(doubled("x")),
    "a-variable-that-grows-in-each": Family(WRITTEN, _levels, _own),
    "a-variable-that-is-handed-on": Family(b"", lambda depth: var("y0", dense([2, 3]), need_check_feed=True), _handed_on),
    "a-variable-that-grows-in-all": Family(longer("x", "t"), lambda depth: ROW, lambda k, depth: (longer("x", f"t{k}") if k else b"", b"")),
    "branch-in-while": Family(WRITTEN, form=lambda k: BRANCH if k % 2 else LOOP),
    "branch-in-while-that-grows": Family(doubled("x"), form=lambda k: LOOP if k % 2 else BRANCH),
    "a-placeholder-of-another-rank": Family(WRITTEN + assign("x", "u"), lambda depth: PLACEHOLDER),
    "a-placeholder-of-another-type": Family(WRITTEN + assign("i", "u"), lambda depth: PLACEHOLDER),
    "a-placeholder-that-grows": Family(doubled("x") + assign("x", "u"), lambda depth: PLACEHOLDER),
    "first-written-inside": Family(WRITTEN + assign("x", "w"), lambda depth: var("w", dense([-1, 3]))),
    "first-written-inside-and-read": Family(WRITTEN + assign("x", "w") + scaled("w", "w"), lambda depth: var("w", dense([-1, 3]))),
    "sizes-that-wander": Family(b"".join(assign(f"z{k + 1}", f"z{k}") for k in range(4)), lambda depth: SHIFTED),
    "an-unknown-operator": Family(var("t", dense([2, 3])) + op("mystery", [("X", ["x"])], [("Out", ["t"])]) + assign("t", "x")),
}  # fmt: skip

INVALID = {
    "a-rank-that-changes": Family(flat("x", "x"), refused="number of dims"),
    "a-rank-that-changes-after-it-is-read": Family(scaled("u", "u") + assign("x", "u"), lambda depth: PLACEHOLDER, refused="number of dims"),
    "a-rank-that-changes-in-a-branch": Family(assign("x", "u"), lambda depth: PLACEHOLDER, form=lambda k: BRANCH, refused="number of dims"),
    "a-type-that-changes": Family(
        var("t", dense([2, 3], INT64))
        + op("cast", [("X", ["x"])], [("Out", ["t"])], attr("in_dtype", 0, number(3, FP32)), attr("out_dtype", 0, number(3, INT64)))
        + assign("t", "x"),
        refused="element type",
    ),
    "no-end": Family(WRITTEN, ends=False, refused="never end"),
    "an-input-that-is-not-there": Family(scaled("nowhere", "x"), refused="nowhere"),
    "shapes-that-do-not-fit": Family(
        var("t", dense([2, 3])) + op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["t"])]) + assign("t", "x"), refused="columns of X"
    ),
    "an-attribute-that-is-wrong": Family(
        var("t", dense([2, 3])) + op("concat", [("X", ["x", "x"])], [("Out", ["t"])], attr("axis", 0, number(3, 7))), refused="axis"
    ),
    "a-string-for-a-number": Family(var("t", dense([2, 3])) + op("scale", [("X", ["x"])], [("Out", ["t"])], attr("scale", 2, text(5, "a"))), refused="scale"),
}  # fmt: skip
