"""Networks of packages that stand on PaddlePaddle, built and saved by ``paddle.jit``, with what they compute: ``paddle_networks.py FOLDER KIND [NAMES]``.

KIND is "classification" (of paddleclas), "detection" (of PaddleDetection), "generators" (of PaddleGAN), "language" (of paddlenlp), "ocr" (of
PP-OCR), "segmentation" (of PaddleSeg) or "training" (of paddlenlp and PP-OCR, with optimizers: files as in `paddle_programs`). Of each network
NAME there are NAME.pdmodel and NAME.pdiparams, and for each size K that it was run with NAME.K.in.npz and NAME.K.out.npz, and a line in
``built.jsonl``. A package that is not there is said in that line.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import paddle
from paddle_programs import of_training
from paddle_side import words_of

KINDS = ("classification", "detection", "generators", "language", "ocr", "segmentation", "training")


def draw_parameters(layer: Any) -> None:
    """Other numbers than the first ones, drawn by name: products of about unit variance, and everything else near what it was, so that no
    term is nothing."""
    for name, value in layer.state_dict().items():
        if "float" not in str(value.dtype):
            continue
        dims = list(value.shape)
        drawn = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).standard_normal(dims, dtype=np.float32)
        if len(dims) > 1 and not value.stop_gradient:
            fan = dims[0] if len(dims) == 2 else int(np.prod(dims[1:]))
            made = drawn * ((1.4 if len(dims) == 2 else getattr(layer, "gain", 1.0)) / np.sqrt(fan))
        elif value.stop_gradient and len(dims) != 1:
            continue  # tables, such as those of positions
        else:
            made = value.numpy() + 0.1 * np.abs(drawn)
        value.set_value(made.astype(value.numpy().dtype))


def saved(layer: Any, specs: Any, path: str) -> None:
    """Save a network of inputs in their order, or of one dict of inputs, of which those that nothing reads are left out as PaddleDetection does."""
    if not isinstance(specs, dict):
        paddle.jit.save(paddle.jit.to_static(layer, input_spec=specs), path)
        return
    static = paddle.jit.to_static(layer, input_spec=[specs], full_graph=True)
    program, targets = static.forward.main_program, static.forward.outputs
    paddle.enable_static()
    needed = program.clone()._prune(targets=targets).global_block().vars
    paddle.disable_static()
    paddle.jit.save(static, path, input_spec=[{n: spec for n, spec in specs.items() if n in needed}])


def by_name(specs: Any, arrays: Any) -> dict[str, np.ndarray]:
    """Arrays by the names of their specs, both in the same order, in lists within lists too; or by name as they are."""
    if isinstance(arrays, dict):
        return arrays
    feed: dict[str, np.ndarray] = {}
    for spec, array in zip(specs, arrays, strict=True):
        feed |= by_name(spec, array) if isinstance(spec, list) else {spec.name: array}
    return feed


def save(name: str, layer: Any, specs: Any, feeds: list[Any], folder: Path) -> dict[str, Any]:
    """Write the pair, and what it computes of each size (arrays as ``specs``: in their order, or by name), from the file."""
    layer.eval()
    draw_parameters(layer)
    saved(layer, specs, str(folder / name))
    paddle.enable_static()
    try:
        for at, arrays in enumerate(feeds):
            with paddle.static.scope_guard(paddle.base.core.Scope()):  # one of its own: a second run appends to the arrays that the first left there
                executor = paddle.static.Executor(paddle.CPUPlace())
                program, names, fetches = paddle.static.load_inference_model(str(folder / name), executor)
                feed = by_name(specs, arrays)
                values = executor.run(program, feed={n: feed[n] for n in names}, fetch_list=fetches, return_numpy=False)
                np.savez(folder / f"{name}.{at}.in.npz", **{n: feed[n] for n in names})
                np.savez(folder / f"{name}.{at}.out.npz", **{str(k): np.asarray(v) for k, v in enumerate(values)})
    finally:
        paddle.disable_static()
    return {"types": sorted({op.type for b in program.blocks for op in b.ops} - {"feed", "fetch"}), "sizes": len(feeds)}


def of_network(kind: str, name: str, folder: Path) -> dict[str, Any]:
    with paddle.utils.unique_name.guard():
        paddle.seed(11)
        if kind != "training":
            return save(name, *importlib.import_module(f"paddle_{kind}").NETWORKS[name](), folder)
        paddle.enable_static()
        return of_training(name, folder, trained()[name]) | {"exact": not name.endswith("dropout")}


def trained() -> dict[str, Any]:
    return importlib.import_module("paddle_language").TRAINING | importlib.import_module("paddle_ocr").TRAINING


def names_of(kind: str) -> list[str]:
    return list(trained() if kind == "training" else importlib.import_module(f"paddle_{kind}").NETWORKS)


def main(folder: Path, kind: str, names: list[str]) -> None:
    built = folder / "built.jsonl"
    done = {json.loads(line)["name"] for line in built.read_text().splitlines()} if built.exists() else set()
    with built.open("a") as out:
        for name in names or names_of(kind):
            if name in done:
                continue
            print(json.dumps({"name": name, "begun": True}), file=out, flush=True)
            try:
                result = of_network(kind, name, folder)
            except ModuleNotFoundError as error:
                result = {"absent": str(error)}
            except Exception as error:
                traceback.print_exc()
                result = {"refused": words_of(error)}
            print(json.dumps({"name": name, "result": result}), file=out, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] == "names":
        print(json.dumps({kind: names_of(kind) for kind in KINDS}))
    else:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
