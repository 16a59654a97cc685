"""Runs programs in PaddlePaddle: ``python paddle_side.py FOLDER``, with a Python that has PaddlePaddle 2.6.2.

FOLDER has ``cases.jsonl``, a case on each line: ``name``, ``model`` (the program's file), ``feeds`` (name -> ``{"array": key, "lengths": ...}``
in ``arrays``, an .npz file) and ``wanted`` (the names of variables). What came of each is added to ``results.jsonl``: the specs that
PaddlePaddle infers, and those of what it computed, whose numbers are in ``NAME.out.npz``. A case may end the process, as a wrong one does in
some kernels: whoever started it sees from ``results.jsonl`` which was begun last.

Nothing of Foreshape is imported here, so that the two sides share files only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("FLAGS_eager_delete_tensor_gb", "-1")  # what is not fetched is looked at too

import numpy as np
import paddle
from paddle.base import core

DENSE, ROWS, ARRAY = core.VarDesc.VarType.LOD_TENSOR, core.VarDesc.VarType.SELECTED_ROWS, core.VarDesc.VarType.LOD_TENSOR_ARRAY
NUMBERED = {"BOOL": 0, "INT16": 1, "INT32": 2, "INT64": 3, "FP16": 4, "FP32": 5, "FP64": 6, "UINT8": 20, "INT8": 21, "BF16": 22, "COMPLEX64": 23,
            "COMPLEX128": 24}  # fmt: skip
NAME_OF = {getattr(core.VarDesc.VarType, n): n.lower() for n in NUMBERED if hasattr(core.VarDesc.VarType, n)}
UNTOUCHED = [-77, -77, -77]
"""Dims that no rule gives: what still has them was not inferred."""


def words_of(error: BaseException) -> str:
    """What a PaddlePaddle error says, without the frames of its own code."""
    text = re.sub(r"(?s).*Error Message Summary:\s*-+\s*", "", str(error)) if "Error Message Summary" in str(error) else str(error)
    text = re.sub(r"\(at /paddle/[^)]*\)", "", re.sub(r"\s+", " ", text)).strip()
    return f"{type(error).__name__}: {text}"[:400]


def lod_tensor(array: np.ndarray, lengths: list[list[int]]) -> Any:
    tensor = core.LoDTensor()
    tensor.set(array, paddle.CPUPlace())
    if lengths:
        tensor.set_recursive_sequence_lengths(lengths)
    return tensor


def inferred(model: bytes, names: list[str], ragged: list[str]) -> dict[str, Any]:
    """The specs that PaddlePaddle's own rules give for the results of the ops, from those of the inputs; of the ragged ones without the
    number of rows, since its rules take that for the number of sequences too."""
    program = paddle.static.deserialize_program(model)
    out: dict[str, Any] = {}
    for name in ragged:
        variable = program.global_block().desc.find_var(name.encode())
        variable.set_shape([-1, *variable.shape()[1:]])
    for block in program.blocks[:1]:
        made: set[str] = set()
        for op in block.ops:
            made |= set(op.desc.output_arg_names()) - set(op.desc.input_arg_names())
        for name in made:
            variable = block.desc.find_var(name.encode())
            if variable is not None and variable.type() in (DENSE, ROWS):
                variable.set_shape(UNTOUCHED)
        for op in block.ops:
            op.desc.check_attrs()
            op.desc.infer_var_type(block.desc)
            op.desc.infer_shape(block.desc)
    for name in names:
        variable = program.global_block().desc.find_var(name.encode())
        if variable is None or variable.type() not in (DENSE, ROWS, ARRAY):
            continue
        dims, of = list(variable.shape()), variable.dtype()
        levels = variable.lod_level() if variable.type() in (DENSE, ARRAY) else 0
        kind, known = str(variable.type()).split(".")[-1], dims != UNTOUCHED
        out[name] = {"kind": kind, "dtype": NAME_OF.get(of, str(of)), "dims": dims if known else None, "lod_level": levels}
    return out


def array_of(tensor: Any) -> np.ndarray | None:
    """The numbers of a tensor; None where nothing was written into it."""
    dims = list(tensor.shape())
    if 0 in dims:
        kind = NAME_OF.get(tensor._dtype(), "fp32") if tensor._is_initialized() else "fp32"
        names = {"fp32": "float32", "fp64": "float64", "fp16": "float16"}
        return np.zeros(dims, names.get(kind, kind)) if tensor._is_initialized() or dims != [0] else None
    return np.array(tensor) if tensor._is_initialized() else None


def seen(scope: Any, name: str, kind: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """What a variable holds after the run; its numbers go into ``arrays``."""
    variable = scope.find_var(name)
    if variable is None:
        return None
    if kind == ROWS:
        rows = variable.get_selected_rows()
        value = array_of(rows.get_tensor())
        arrays[f"{name}:rows"] = np.array(list(rows.rows()), np.int64)
        if value is None:
            return None
        arrays[name] = value
        return {"kind": "SELECTED_ROWS", "height": rows.height()}
    if kind == ARRAY:
        elements = variable.get_lod_tensor_array()
        lengths = []
        for at in range(len(elements)):
            value = array_of(elements[at])
            lengths.append(elements[at].recursive_sequence_lengths())
            if value is not None:
                arrays[f"{name}:{at}"] = value
        return {"kind": "LOD_TENSOR_ARRAY", "count": len(elements), "lengths": lengths}
    if kind != DENSE:
        return None
    tensor = variable.get_tensor()
    value = array_of(tensor)
    if value is None:
        return {"kind": "LOD_TENSOR", "written": False, "dims": list(tensor.shape())}
    arrays[name] = value
    return {"kind": "LOD_TENSOR", "lengths": tensor.recursive_sequence_lengths(), "written": True}


def one(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    model = (folder / case["model"]).read_bytes()
    program = paddle.static.deserialize_program(model)
    block = program.global_block()
    missing = sorted({op.type for b in program.blocks for op in b.ops} - KNOWN)
    if missing:
        return {"missing": missing}
    result: dict[str, Any] = {}
    try:
        result["inferred"] = inferred(model, case["wanted"], [n for n, given in case["feeds"].items() if given["lengths"]])
    except Exception as error:
        result["inference_error"] = words_of(error)
    with np.load(folder / case["arrays"], allow_pickle=False) as file:
        fed = {name: lod_tensor(file[given["array"]], given["lengths"]) for name, given in case["feeds"].items()}
    for name in case["wanted"]:
        block.var(name).persistable = True  # so that it is in the scope afterwards, whatever its kind
    scope = core.Scope()
    for name, given in case["feeds"].items():
        if given["kept"]:
            scope.var(name).get_tensor().set(np.array(fed[name]), paddle.CPUPlace())
    feed = {name: tensor for name, tensor in fed.items() if not case["feeds"][name]["kept"]}
    try:
        with paddle.static.scope_guard(scope):
            paddle.static.Executor(paddle.CPUPlace()).run(program, feed=feed, fetch_list=[])
    except Exception as error:
        return result | {"run_error": words_of(error)}
    arrays: dict[str, np.ndarray] = {}
    result["seen"] = {name: seen(scope, name, block.var(name).desc.type(), arrays) for name in case["wanted"]}
    np.savez(folder / f"{case['name']}.out.npz", **arrays)
    return result


def main(folder: Path) -> None:
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    results = folder / "results.jsonl"
    begun = {json.loads(line)["name"] for line in results.read_text().splitlines()} if results.exists() else set()
    with results.open("a") as out:
        for case in cases:
            if case["name"] in begun:
                continue
            print(json.dumps({"name": case["name"], "begun": True}), file=out, flush=True)
            try:
                result = one(case, folder)
            except Exception as error:
                result = {"run_error": words_of(error)}
            print(json.dumps({"name": case["name"], "result": result}), file=out, flush=True)


if __name__ == "__main__":
    paddle.enable_static()
    KNOWN = set(core.get_all_op_names())
    main(Path(sys.argv[1]))
