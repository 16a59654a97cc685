"""Runs programs in PaddlePaddle: ``python paddle_side.py FOLDER``, with a Python that has PaddlePaddle 2.6.2.

FOLDER has ``cases.jsonl``, a case on each line: ``name``; ``models`` (the files of its programs); ``feeds`` (name -> ``{"array": key in the
.npz file, "lengths": of its sequences, "kept": whether it is a parameter or state}``) and ``arrays`` (that file); ``way`` (see `WAYS`); ``specs``
and ``wanted`` (the variables whose specs and whose numbers are compared). What came of each is added to ``results.jsonl``: the specs that
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
UNRULED = ("feed", "fetch", "while", "while_grad")
"""Operators for which PaddlePaddle has no rule: their results keep the dims that the file has."""
UNTOUCHED = [-77, -77, -77]
"""Dims that no rule gives: what still has them was not inferred."""


def words_of(error: BaseException) -> str:
    """What a PaddlePaddle error says, without the frames of its own code."""
    text = re.sub(r"(?s).*Error Message Summary:\s*-+\s*", "", str(error)) if "Error Message Summary" in str(error) else str(error)
    text = re.sub(r"\(at /paddle/[^)]*\)", "", re.sub(r"\s+", " ", text)).strip()
    if text.startswith("In user code"):  # a call stack, and then what is wrong
        at = max(text.rfind(f"({kind})") for kind in ("InvalidArgument", "NotFound", "Unimplemented", "OutOfRange", "PreconditionNotMet"))
        text = text[at:] if at >= 0 else text[-200:]
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
            made |= set(op.desc.output_arg_names()) - set(op.desc.input_arg_names()) if op.type not in UNRULED else set()
        for name in made:
            variable = block.desc.find_var(name.encode())
            if variable is not None and variable.type() in (DENSE, ROWS):
                variable.set_shape(UNTOUCHED)
        for op in block.ops:
            if op.type in UNRULED:
                continue
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
    return fetched(name, variable.get_tensor(), arrays)


def one(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Open the programs of a case, infer and run them."""
    programs = [paddle.static.deserialize_program((folder / m).read_bytes()) for m in case["models"]]
    missing = sorted({op.type for p in programs for b in p.blocks for op in b.ops} - KNOWN)
    if missing:
        return {"missing": missing}
    result: dict[str, Any] = {}
    try:
        ragged = [n for n, given in case["feeds"].items() if given["lengths"]]
        result["inferred"] = inferred((folder / case["models"][0]).read_bytes(), case["specs"], ragged)
    except Exception as error:
        result["inference_error"] = words_of(error)
    with np.load(folder / case["arrays"], allow_pickle=False) as file:
        fed = {name: lod_tensor(file[given["array"]], given["lengths"]) for name, given in case["feeds"].items()}
    arrays: dict[str, np.ndarray] = {}
    try:
        with paddle.static.scope_guard(core.Scope()):
            result["seen"] = WAYS[case["way"]](case, programs, fed, arrays, folder)
    except Exception as error:
        return result | {"run_error": words_of(error)}
    np.savez(folder / f"{case['name']}.out.npz", **arrays)
    return result


def of_ops(case: dict[str, Any], programs: list[Any], fed: dict[str, Any], arrays: dict[str, np.ndarray], folder: Path) -> dict[str, Any]:
    """A program whose results are looked at in the scope, of whatever kind they are, or fetched. What is kept is in the scope before."""
    block, scope = programs[0].global_block(), paddle.static.global_scope()
    for name in case["wanted"]:
        block.var(name).persistable = True
    for name in [n for n, given in case["feeds"].items() if given["kept"]]:
        scope.var(name).get_tensor().set(np.array(fed.pop(name)), paddle.CPUPlace())
    values = paddle.static.Executor(paddle.CPUPlace()).run(programs[0], feed=fed, fetch_list=case.get("fetched", []), return_numpy=False)
    if values:
        return {name: fetched(name, value, arrays) for name, value in zip(case["fetched"], values, strict=True)}
    return {name: seen(scope, name, block.var(name).desc.type(), arrays) for name in case["wanted"]}


def of_pair(case: dict[str, Any], programs: list[Any], fed: dict[str, Any], arrays: dict[str, np.ndarray], folder: Path) -> dict[str, Any]:
    """A saved pair of program and parameters, opened by PaddlePaddle's own function."""
    executor = paddle.static.Executor(paddle.CPUPlace())
    program, names, fetches = paddle.static.load_inference_model(str(folder / case["name"]), executor)
    if sorted(names) != sorted(fed):
        raise ValueError(f"the model takes {names}, and is fed {list(fed)}")
    values = executor.run(program, feed=fed, fetch_list=fetches, return_numpy=False)
    return {name: fetched(name, value, arrays) for name, value in zip(case["wanted"], values, strict=True)}


def of_steps(case: dict[str, Any], programs: list[Any], fed: dict[str, Any], arrays: dict[str, np.ndarray], folder: Path) -> dict[str, Any]:
    """Some steps of training, from the numbers that the case gives after the startup program; what is fetched in each, and then the state."""
    main, startup = programs
    executor, scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.global_scope()
    executor.run(startup)
    out: dict[str, Any] = {}
    state = [n for n, given in case["feeds"].items() if given["kept"]]
    for name in state:
        variable = scope.find_var(name)
        if variable is None or not variable.get_tensor()._is_initialized():
            raise ValueError(f"the startup program has not made {name}")
        out[f"{name}:begun"] = fetched(f"{name}:begun", variable.get_tensor(), arrays)
        variable.get_tensor().set(np.array(fed.pop(name)), paddle.CPUPlace())
    for step in range(case["steps"]):
        values = executor.run(main, feed=fed, fetch_list=case["fetched"], return_numpy=False)
        for name, value in zip(case["fetched"], values, strict=True):
            out[f"{name}:{step}"] = fetched(f"{name}:{step}", value, arrays)
    return out | {name: fetched(name, scope.find_var(name).get_tensor(), arrays) for name in state}


def fetched(name: str, tensor: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    value = array_of(tensor)
    if value is None:
        return {"kind": "LOD_TENSOR", "written": False, "dims": list(tensor.shape())}
    arrays[name] = value
    return {"kind": "LOD_TENSOR", "lengths": tensor.recursive_sequence_lengths(), "written": True}


WAYS = {"ops": of_ops, "pair": of_pair, "steps": of_steps}


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
