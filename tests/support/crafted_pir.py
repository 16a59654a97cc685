"""Programs of PaddlePaddle 3 that no exporter writes: changed in their values, types, attributes, ops and regions, so that most of them are read far."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from support.crafted_checkpoints import WRONG, places, replaced, with_more, without
from support.paddle3 import cases

Document = dict[str, Any]
SMALL = 40_000
"""Larger programs only make it slower."""
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**300, 1.5, True)
REALS = (0.0, -1.0, 0.5, 1e-300, 3e38, 1e39, 1e308, float("inf"), float("nan"), 2**63, 10**400)
ELEMENTS = ("0.t_f32", "0.t_f64", "0.t_i32", "0.t_i64", "0.t_bool", "0.t_f16", "0.t_bf16", "0.t_ui8", "0.t_c64", "0.t_undefined", "0.t_f8e4m3fn", "t_f32", "")
KINDS = (
    "0.a_bool", "0.a_i32", "0.a_i64", "0.a_f32", "0.a_f64", "0.a_str", "0.a_array", "1.a_intarray", "1.a_dtype", "1.a_place", "1.a_scalar", "0.a_c64",
    "0.a_tensorname", "NULL", "9.a_other",
)  # fmt: skip
DTYPES = ("float32", "float64", "int32", "int64", "bool", "float16", "bfloat16", "uint8", "complex64", "float8_e4m3fn", "Undefined(ALL_DTYPE)", "x", "")
NAMES = ("x", "feed", "fetch", "", "a\x00b", "a\nb", "é" * 30, "x" * 70_000, "/", "full_0.tmp_0", "$1", "\u202e")


@cache
def texts() -> tuple[bytes, ...]:
    """The small programs, of one op and of many."""
    return tuple(c.data for file in ("operators", "networks") for c in cases(file).values() if len(c.data) < SMALL)


def base(rng: random.Random) -> Document:
    """A program of one op, or in one case of three a network."""
    operators = len(cases("operators"))
    found = texts()
    return json.loads(found[rng.randrange(operators) if rng.random() < 0.66 else rng.randrange(operators, len(found))])


def blocks(document: Document) -> list[dict[str, Any]]:
    out = [document["program"]["regions"][0]["blocks"][0]]
    for block in out:
        out += [region["blocks"][0] for op in block["ops"] for region in op.get("regions", ())]
    return out


def _ops(document: Document) -> list[tuple[list[Any], int]]:
    """Every op: the list in which it is, and its place."""
    return [(block["ops"], at) for block in blocks(document) for at in range(len(block["ops"]))]


def _op(document: Document, rng: random.Random) -> dict[str, Any]:
    ops, at = rng.choice(_ops(document))
    return ops[at]


def _results(op: dict[str, Any]) -> list[dict[str, Any]]:
    return op["O"] if isinstance(op.get("O"), list) else [op["O"]] if isinstance(op.get("O"), dict) else []


def _ids(document: Document) -> list[int]:
    return [r["%"] for ops, at in _ops(document) for r in _results(ops[at])] + [a["#"] for b in blocks(document) for a in b["args"]] or [0]


def _fresh(document: Document) -> Iterator[int]:
    at = max(_ids(document))
    while True:
        at += 1
        yield at


def _renumbered(document: Document, op: dict[str, Any]) -> dict[str, Any]:
    """A copy of an op, whose results and those of its regions are new values."""
    out, numbers = copy.deepcopy(op), _fresh(document)
    new: dict[int, int] = {}
    waiting = [out]
    while waiting:
        one = waiting.pop()
        for value in _results(one):
            value["%"] = new.setdefault(value["%"], next(numbers)) if value["%"] else 0
        for region in one.get("regions", ()):
            for argument in region["blocks"][0]["args"]:
                new[argument["#"]] = argument["#"] = -next(numbers)
            waiting += region["blocks"][0]["ops"]
    waiting = [out]
    while waiting:
        one = waiting.pop()
        for value in one.get("I", ()):
            value["%"] = new.get(value["%"], value["%"])
        waiting += [o for region in one.get("regions", ()) for o in region["blocks"][0]["ops"]]
    return out


# --- the changes


def operands(document: Document, rng: random.Random) -> None:
    """Other operands: another value, none, twice, more, fewer, in another order."""
    given = _op(document, rng).setdefault("I", [])
    value = {"%": rng.choice((*_ids(document), 0, 10**6, -1))}
    kind = rng.randrange(5)
    if kind == 0 or not given:
        given.append(value)
    elif kind == 1:
        given[rng.randrange(len(given))] = value
    elif kind == 2:
        del given[rng.randrange(len(given))]
    elif kind == 3:
        rng.shuffle(given)
    else:
        given.append(rng.choice(given))


def types(document: Document, rng: random.Random) -> None:
    """Types that lie: of other elements, ranks and sizes, lists for tensors, or none."""
    found = _results(_op(document, rng))
    if not found:
        return
    result = rng.choice(found)
    kind = rng.randrange(7)
    data = result["TT"].get("D")
    tensor = isinstance(data, list) and len(data) > 1 and isinstance(data[1], list)
    if kind == 0:
        result["TT"] = {"#": "NULL"}
    elif kind == 1:
        result["TT"] = {"#": "0.t_vec", "D": [copy.deepcopy(result["TT"])] * rng.choice((0, 1, 2, 5))}
    elif kind == 2:
        result["%"] = rng.choice((*_ids(document), 0))
    elif not tensor:
        result["TT"] = {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, [2, 3], "NCHW", [], 0]}
    elif kind == 3:
        data[0] = {"#": rng.choice(ELEMENTS)}
    elif kind == 4:
        result["TT"]["#"] = rng.choice(("1.t_dense_tensor_array", "1.t_selected_rows", "0.t_dtensor", "1.t_sparse_coo_tensor"))
    else:
        dims = data[1]
        if dims and rng.random() < 0.6:
            dims[rng.randrange(len(dims))] = rng.choice(NUMBERS)
        else:
            data[1] = rng.choice(([], [*dims, 3], [-1, *dims], dims[1:], [1] * 65, [-1] * 3))


def attributes(document: Document, rng: random.Random) -> None:
    """Other attributes: another value or kind, none, or one of another op."""
    op = _op(document, rng)
    given = op.setdefault("A", [])
    if op.get("#") == "p":
        given[rng.randrange(len(given))] = rng.choice((*NUMBERS, *NAMES))
        return
    kind = rng.randrange(6)
    if kind == 0 or not given:
        given += [copy.deepcopy(a) for a in _op(document, rng).get("A", ()) if isinstance(a, dict)][:1]
    elif kind == 1:
        del given[rng.randrange(len(given))]
    elif kind == 2:
        rng.choice(given)["N"] = rng.choice([a["N"] for a in given] + ["unheard_of"])
    else:
        _other_value(rng.choice(given)["AT"], rng, kind == 3)


def _other_value(attribute: dict[str, Any], rng: random.Random, other_kind: bool) -> None:
    if other_kind:
        attribute["#"] = rng.choice(KINDS)
    kind, data = attribute["#"], attribute.get("D")
    if kind in ("0.a_i32", "0.a_i64"):
        attribute["D"] = rng.choice(NUMBERS)
    elif kind in ("0.a_f32", "0.a_f64"):
        attribute["D"] = rng.choice(REALS)
        if rng.random() < 0.2:
            del attribute["D"]
            attribute["VD"] = rng.choice(("INF", "-INF", "NaN", "x", 3))
    elif kind == "0.a_bool":
        attribute["D"] = not data
    elif kind == "1.a_dtype":
        attribute["D"] = rng.choice(DTYPES)
    elif kind == "1.a_intarray":
        attribute["D"] = rng.choice(([], [1], [2, 3], [-1, 2], [0], [2**31], [2**40, 2**40], [2**63], [1] * 70, [1.5], ["x"]))
    elif kind == "0.a_array" and isinstance(data, list) and data and rng.random() < 0.7:
        if rng.random() < 0.5:
            _other_value(rng.choice(data), rng, rng.random() < 0.2)
        else:
            attribute["D"] = rng.choice((data[1:], data * 2, data[:1], [attribute.copy()]))
    elif kind in ("0.a_str", "0.a_tensorname"):
        attribute["D"] = rng.choice(NAMES)
    else:
        attribute["D"] = rng.choice((*NUMBERS, *NAMES, [], [1, 2], ["float32", 1.0], {}, None))


def ops(document: Document, rng: random.Random) -> None:
    """Other ops: fewer, twice, elsewhere, under the name of another."""
    found, at = rng.choice(_ops(document))
    op = found[at]
    kind = rng.randrange(5)
    if kind == 0:
        del found[at]
    elif kind == 1:
        found.insert(rng.randrange(len(found) + 1), _renumbered(document, op))
    elif kind == 2:
        found.insert(rng.randrange(len(found)), found.pop(at))
    elif kind == 3:
        op["#"] = rng.choice((_op(document, rng)["#"], _op(base(rng), rng)["#"]))
    else:
        op["#"] = rng.choice(("0", "1", "2", "3", "4", "-1", "x", "", "onednn_op", "pd_op")) + "." + op["#"].partition(".")[2]


def spliced(document: Document, rng: random.Random) -> None:
    """An op of another program, on values of this one."""
    op = _renumbered(document, _op(base(rng), rng))
    for operand in op.get("I", ()):
        operand["%"] = rng.choice(_ids(document))
    found, at = rng.choice(_ops(document))
    found.insert(at, op)


def regions(document: Document, rng: random.Random) -> None:
    """Regions that are put around ops, taken away, doubled, exchanged, or nested."""
    found, at = rng.choice(_ops(document))
    op = found[at]
    kind = rng.randrange(4)
    if op.get("regions") and kind == 0:
        rng.shuffle(op["regions"])
        op["regions"] = op["regions"] * rng.choice((0, 1, 2))
    elif op.get("regions") and kind == 1:
        block = rng.choice(op["regions"])["blocks"][0]
        block["args"] = block["args"][1:] if rng.random() < 0.5 else [*block["args"], {"#": -next(_fresh(document)), "TT": {"#": "NULL"}}]
    else:
        inner = [found.pop(at)] if kind < 3 else [_renumbered(document, op)]
        given = [copy.deepcopy(r) for one in inner for r in _results(one)]
        last = {"#": "2.yield", "A": [], "I": [{"%": r["%"]} for r in given], "O": []}
        region = {"#": "region_9", "blocks": [{"#": "block_9", "args": [], "ops": [*inner, last]}]}
        numbers = _fresh(document)
        outs = [{"%": next(numbers), "TT": r.get("TT")} for r in given]
        other = {"#": "region_8", "blocks": [{"#": "block_8", "args": [], "ops": [{**last, "I": [{"%": rng.choice(_ids(document))} for _ in given]}]}]}
        name, inside = rng.choice((("1.if", [region, other]), ("1.while", [region]), ("1.relu", [region]), ("1.pylayer", [region])))
        found.insert(at, {"#": name, "A": [], "I": [{"%": rng.choice(_ids(document))}], "O": outs, "regions": inside})


def anything(document: Document, rng: random.Random) -> None:
    """One thing of any kind in any place, or one thing less."""
    at = rng.choice(list(places(document)))
    value = rng.choice((*(v for v in WRONG.values() if v != "\ud800"), *NUMBERS))
    change = rng.choice((replaced, with_more, without))
    document.update(change(document, at) if change is without else change(document, at, value))


CHANGES: tuple[Callable[[Document, random.Random], None], ...] = (operands, types, attributes, attributes, ops, spliced, regions, anything)


def crafted(rng: random.Random) -> bytes:
    """A program with one to four changes, all of its ids still made before they are used, or some not."""
    document = base(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        try:
            rng.choice(CHANGES)(document, rng)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):  # the change before has left nothing to be changed
            break
    return json.dumps(document).encode()
