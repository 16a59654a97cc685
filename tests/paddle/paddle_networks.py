"""Networks of packages that stand on PaddlePaddle, built and saved by ``paddle.jit``, with what they compute: ``paddle_networks.py FOLDER KIND [NAMES]``.

KIND is "classification" (of paddleclas), "generators" (of PaddleGAN), "language" (of paddlenlp), "ocr" (of PP-OCR), "segmentation" (of
PaddleSeg) or "training" (of the third and fourth, with optimizers: files as in `paddle_programs`). Of each network NAME there are NAME.pdmodel and
NAME.pdiparams, and for each size K that it was run with NAME.K.in.npz and NAME.K.out.npz, and a line in ``built.jsonl``. A package that is not
there is said in that line.
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

KINDS = ("classification", "generators", "language", "ocr", "segmentation", "training")


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


def save(name: str, layer: Any, specs: list[Any], feeds: list[list[np.ndarray]], folder: Path) -> dict[str, Any]:
    """Write the pair, and what it computes of each size, from the file."""
    layer.eval()
    draw_parameters(layer)
    paddle.jit.save(paddle.jit.to_static(layer, input_spec=specs), str(folder / name))
    paddle.enable_static()
    try:
        scope, executor = paddle.base.core.Scope(), paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(scope):
            program, names, fetches = paddle.static.load_inference_model(str(folder / name), executor)
            for at, arrays in enumerate(feeds):
                feed = {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
                values = executor.run(program, feed={n: feed[n] for n in names}, fetch_list=fetches)
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
