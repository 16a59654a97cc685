"""The feeds and fetches of a program."""

from __future__ import annotations

from foreshape.core.spec import FEED_MINIBATCH, FETCH_LIST, Spec
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import from_pir
from foreshape.interop.pir.call import PirCall
from foreshape.interop.pir.pir_graph import GraphOp
from foreshape.interop.pir.translation import Translation
from foreshape.language.program.declared import Declared
from foreshape.language.program.variable import Variable


@from_pir("data", without=("shape", "dtype"))
def data(p: PirCall) -> str:
    """Write the feed of an input."""
    return _feed(p.translation, p.op, p.translation.feeds)


@from_pir("feed")
def feed(p: PirCall) -> str:
    """Write the feed of an input of its column."""
    return _feed(p.translation, p.op, p.integer("col", 0))


def _feed(t: Translation, op: GraphOp, column: int) -> str:
    _outermost(t, op)
    name, type = t.name_of_end(op), op.types[0] if op.types else None
    if not isinstance(type, Declared) or type.dtype is None:
        raise FormatError(f"{op.place}: a feed is a tensor of a known element type")
    variable = t.declare(name, type)
    variable.need_check_feed = variable.stop_gradient = True
    t.feeds += 1
    _holder(t, "feed")
    t.write("feed", {"X": ("feed",)}, {"Out": (name,)}, {"col": column})
    return name


@from_pir("fetch")
def fetch(p: PirCall) -> str | None:
    """Write the fetch of a result, of a copy if its name is not the value's own."""
    t, op = p.translation, p.op
    _outermost(t, op)
    column = p.integer("col", 0)
    name, target = t.tensor(op, 0), t.name_of_end(op)
    if name != target:
        if target in t.names and t.wanted.get(op.operands[0]) != target:
            target = t.fresh(target)
        t.declare(target, op.types[0] if op.types else None)
        t.write("assign", {"X": (name,)}, {"Out": (target,)})
    _holder(t, "fetch")
    t.write("fetch", {"X": (target,)}, {"Out": ("fetch",)}, {"col": column})
    return target if op.results else None


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
