"""Programs of PaddlePaddle 3 written op by op, as their exporter would write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


def tensor(dims: Sequence[Any], element: str = "f32") -> Json:
    """The type of a tensor."""
    return {"#": "0.t_dtensor", "D": [{"#": f"0.t_{element}"}, list(dims), "NCHW", [], 0]}


def several(*types: Json) -> Json:
    """The type of a list."""
    return {"#": "0.t_vec", "D": list(types)}


def attribute(value: Any) -> Json:
    """An attribute by the type of its value; an object stands as it is."""
    if isinstance(value, dict):
        return value
    kind = {bool: "0.a_bool", int: "0.a_i64", float: "0.a_f64", str: "0.a_str", tuple: "1.a_intarray"}.get(type(value))
    if kind is None:
        return {"#": "0.a_array", "D": [attribute(one) for one in value]}
    return {"#": kind, "D": list(value) if isinstance(value, tuple) else value}


def dtype(name: str) -> Json:
    return {"#": "1.a_dtype", "D": name}


def op(name: str, operands: Sequence[int] = (), results: Sequence[tuple[int, Json]] = (), /, regions: Sequence[Json] = (), **attributes: Any) -> Json:
    """One op: the numbers of its operands; numbers and types of its results."""
    out: Json = {"#": name if "." in name else f"1.{name}", "I": [{"%": n} for n in operands], "O": [{"%": n, "TT": type} for n, type in results]}
    out["A"] = [{"N": n, "AT": attribute(v)} for n, v in attributes.items()]
    return {**out, "regions": list(regions)} if regions else out


def parameter(number: int, name: str, type: Json, saved: int = 1, trainable: int = 1) -> Json:
    return {"#": "p", "O": {"%": number, "TT": type}, "A": [0, 0, 0, name], "OA": [saved, 1 - trainable, trainable], "DA": [], "QA": []}


def feed(number: int, name: str, type: Json) -> Json:
    return op("data", (), [(number, type)], name=name, shape=tuple(type["D"][1]), dtype=dtype("float32"))


def fetch(number: int, operand: int, name: str, type: Json, column: int = 0) -> Json:
    return op("fetch", [operand], [(number, type)], name=name, col=column)


def full(number: int, value: Any, shape: tuple[Any, ...] = (1,), of: str = "float32") -> Json:
    elements = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32", "bool": "bool"}
    return op("full", (), [(number, tensor(shape, elements[of]))], shape=shape, value=value, dtype=dtype(of))


def region(*ops: Json, args: Sequence[tuple[int, Json]] = ()) -> Json:
    return {"#": "region", "blocks": [{"#": "block", "args": [{"#": n, "TT": type} for n, type in args], "ops": list(ops)}]}


def ending(*operands: int) -> Json:
    return op("2.yield", operands)


def document(*ops: Json, version: Any = 4) -> Json:
    return {"base_code": {"magic": "pir", "version": version, "trainable": True}, "program": {"regions": [region(*ops)]}}


def file(*ops: Json, version: Any = 4) -> bytes:
    """The bytes of a program."""
    return json.dumps(document(*ops, version=version), separators=(",", ":")).encode()
