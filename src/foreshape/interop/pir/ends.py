"""Rules for the feeds and fetches of a program."""

from __future__ import annotations

from foreshape.core.spec import FEED_MINIBATCH, FETCH_LIST, Spec
from foreshape.errors import FormatError
from foreshape.interop.pir.constants import integer
from foreshape.interop.pir.pir_graph import GraphOp
from foreshape.interop.pir.rule_registry import rule
from foreshape.interop.pir.translation import Translation
from foreshape.language.program.declared import Declared
from foreshape.language.program.variable import Variable


@rule("data", without=("shape", "dtype"))
def data(t: Translation, op: GraphOp) -> None:
    _feed(t, op, t.feeds)


@rule("feed")
def feed(t: Translation, op: GraphOp) -> None:
    _feed(t, op, integer(op.attributes.get("col", 0)))


def _feed(t: Translation, op: GraphOp, column: int) -> None:
    """Write the feed of an input."""
    _outermost(t, op)
    name, type = t.name_of_end(op), op.types[0] if op.types else None
    if not isinstance(type, Declared) or type.dtype is None:
        raise FormatError(f"{op.place}: a feed is a tensor of a known element type")
    variable = t.declare(name, type)
    variable.need_check_feed = variable.stop_gradient = True
    t.give(op, 0, name)
    t.feeds += 1
    _holder(t, "feed")
    t.write("feed", {"X": ("feed",)}, {"Out": (name,)}, {"col": column})


@rule("fetch")
def fetch(t: Translation, op: GraphOp) -> None:
    """Write the fetch of a result, of a copy if its name is not the value's own."""
    _outermost(t, op)
    column = integer(op.attributes.get("col", 0))
    name, target = t.tensor(op, 0), t.name_of_end(op)
    if name != target:
        if target in t.names and t.wanted.get(op.operands[0]) != target:
            target = t.fresh(target)
        t.declare(target, op.types[0] if op.types else None)
        t.write("assign", {"X": (name,)}, {"Out": (target,)})
    if op.results:
        t.give(op, 0, target)
    _holder(t, "fetch")
    t.write("fetch", {"X": (target,)}, {"Out": ("fetch",)}, {"col": column})


def _outermost(t: Translation, op: GraphOp) -> None:
    if t.block.idx:
        raise FormatError(f"{op.place}: a {op.name} within a region")


def _holder(t: Translation, name: str) -> None:
    """Make the variable of all feeds, or of all fetches."""
    block = t.program.global_block
    if name not in block.vars:
        variable = Variable.make(name, block, Spec(FEED_MINIBATCH if name == "feed" else FETCH_LIST, None, None), None)
        variable.persistable = True
        block.vars[name] = variable
