"""Runs ops that are refused by the other side in PaddlePaddle: ``python paddle_rejects.py FOLDER``, with a Python that has PaddlePaddle 2.6.2 or 3.

FOLDER has ``rejects.jsonl``, a case on each line: ``name``, ``type``, ``attributes`` with ``defaults`` for those that have none there, ``inputs`` and
``outputs`` (slot -> names), ``given`` (name -> ``{"array": key in the .npz file, "lengths": of its sequences}``, or a list of these for an array of tensors)
and ``tables`` (rank tables -> what they are made of). What came of each is added to ``results.jsonl``, as `paddle_side` does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("FLAGS_enable_pir_api", "0")

import numpy as np
import paddle
from paddle.base import core
from paddle_side import array_of, words_of

KINDS = core.VarDesc.VarType
DENSE = getattr(KINDS, "LOD_TENSOR", None) or KINDS.DENSE_TENSOR
ARRAY = getattr(KINDS, "LOD_TENSOR_ARRAY", None) or KINDS.DENSE_TENSOR_ARRAY


def tensor_of(file: Any, given: dict[str, Any]) -> Any:
    tensor = getattr(core, "LoDTensor", None) or core.DenseTensor
    tensor = tensor()
    tensor.set(file[given["array"]], paddle.CPUPlace())
    if given["lengths"]:
        tensor.set_recursive_sequence_lengths(given["lengths"])
    return tensor


def told(value: np.ndarray) -> dict[str, Any]:
    """Element type, dims, some numbers, and what tells whether another run made the same."""
    numbers = (value.real if value.dtype.kind == "c" else value).ravel()[:24].astype(float)
    return {"dtype": str(value.dtype), "dims": list(value.shape), "numbers": numbers.tolist(), "hash": hash(value.tobytes())}


def one(case: dict[str, Any], file: Any) -> dict[str, Any]:
    """Describe the op, then run it twice from the same numbers."""
    runs: list[dict[str, Any]] = []
    for _ in range(2):
        program, scope = paddle.static.Program(), core.Scope()
        with paddle.static.program_guard(program), paddle.static.scope_guard(scope):
            block = program.global_block()
            try:
                for name, given in case["given"].items():
                    if isinstance(given, list):
                        block.create_var(name=name, type=ARRAY, dtype=str(file[given[0]["array"]].dtype) if given else "float32", persistable=True)
                        array = scope.var(name).get_lod_tensor_array()
                        for element in given:
                            array.append(tensor_of(file, element))
                        continue
                    numbers = file[given["array"]]
                    block.create_var(name=name, dtype=str(numbers.dtype), shape=numbers.shape, lod_level=len(given["lengths"]), persistable=True)
                    tensor = scope.var(name).get_tensor()
                    tensor.set(numbers, paddle.CPUPlace())
                    if given["lengths"]:
                        tensor.set_recursive_sequence_lengths(given["lengths"])
                for name, of in case["tables"].items():
                    block.create_var(name=name, type=KINDS.LOD_RANK_TABLE, persistable=True)
                    block.append_op(type="lod_rank_table", inputs={"X": [of]}, outputs={"Out": [name]}, attrs={"level": 0})
                for names in case["outputs"].values():
                    for name in names:
                        if not block.has_var(name):
                            block.create_var(name=name, persistable=True)
                try:
                    block.append_op(type=case["type"], inputs=case["inputs"], outputs=case["outputs"], attrs=case["attributes"])
                except Exception as error:
                    if "is not set correctly" not in str(error):
                        raise
                    while block.ops:
                        block._remove_op(0)
                    attributes = case["defaults"] | case["attributes"]
                    block.append_op(type=case["type"], inputs=case["inputs"], outputs=case["outputs"], attrs=attributes)
            except Exception as error:
                return {"describe": words_of(error)}
            try:
                paddle.static.Executor(paddle.CPUPlace()).run(program)
            except Exception as error:
                return {"run": words_of(error)}
            found: dict[str, Any] = {}
            for names in case["outputs"].values():
                for name in names:
                    kind, variable = block.var(name).desc.type(), scope.find_var(name)
                    if variable is None:
                        continue
                    if kind == ARRAY:
                        elements = [array_of(e) for e in variable.get_lod_tensor_array()]
                        found[name] = {"elements": [None if e is None else told(e) for e in elements]}
                        continue
                    if kind != DENSE:
                        found[name] = {"kind": str(kind)}
                        continue
                    tensor = variable.get_tensor()
                    value = array_of(tensor)
                    if value is not None:
                        found[name] = told(value) | {"lengths": getattr(tensor, "recursive_sequence_lengths", list)()}
            runs.append(found)
    return {"accepted": runs[0], "same": repr(runs[0]) == repr(runs[1])}


def main(folder: Path) -> None:
    cases = [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]
    results = folder / "results.jsonl"
    begun = {json.loads(line)["name"] for line in results.read_text().splitlines()} if results.exists() else set()
    known = set(core.get_all_op_names())
    with results.open("a") as out, np.load(folder / "arrays.npz", allow_pickle=False) as file:
        for case in cases:
            if case["name"] in begun:
                continue
            print(json.dumps({"name": case["name"], "begun": True}), file=out, flush=True)
            try:
                result = one(case, file) if case["type"] in known else {"missing": True}
            except Exception as error:
                result = {"failed": words_of(error)}
            print(json.dumps({"name": case["name"], "result": result}), file=out, flush=True)


if __name__ == "__main__":
    paddle.enable_static()
    main(Path(sys.argv[1]))
