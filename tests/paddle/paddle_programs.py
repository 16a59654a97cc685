"""Programs built in PaddlePaddle, saved as pairs with what they compute: ``python paddle_programs.py FOLDER KIND [NAMES]``.

KIND is "functions" (calls of public functions), "models" (those of ``paddle.vision.models``), "layers" (of ``paddle.nn``) or "training" (programs
with optimizers). Of each program NAME there are NAME.pdmodel and NAME.pdiparams (of one for training NAME.pdmodel and NAME.startup.pdmodel, and
NAME.state.npz), NAME.in.npz, NAME.out.npz, and a line in ``built.jsonl``. Parameters are made by formula, from their names.
"""

from __future__ import annotations

import json
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import paddle
from paddle.base import core
from paddle_side import words_of

DRAWS = 4


def parameter(name: str, dims: list[int], dtype: str) -> np.ndarray:
    """Normal numbers seeded by the name and scaled by the fan; of what may be a variance (a name that ends in ``w_2``), near one."""
    random = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    value = random.standard_normal(dims, dtype=np.float32)
    if name.endswith("w_2"):
        return (1.0 + 0.1 * np.abs(value)).astype(dtype)
    fan = max(1, int(np.prod(dims[1:]))) if len(dims) != 2 else dims[0]
    return (value * (1.4 / np.sqrt(fan) if len(dims) > 1 else 0.1)).astype(dtype)


def set_parameters(program: Any, scope: Any) -> None:
    for variable in program.list_vars():
        if variable.persistable and variable.desc.type() == core.VarDesc.VarType.LOD_TENSOR:
            value = parameter(variable.name, list(variable.shape), str(variable.dtype).split(".")[-1])
            scope.var(variable.name).get_tensor().set(value, paddle.CPUPlace())


def flat(made: Any) -> list[Any]:
    if isinstance(made, (list, tuple)):
        return [v for m in made for v in flat(m)]
    return [made] if isinstance(made, paddle.static.Variable) else []


def save(name: str, folder: Path, main: Any, variables: list[Any], made: Any, feed: dict[str, np.ndarray]) -> dict[str, Any]:
    """Write the pair, and what it computes."""
    outputs = flat(made)
    scope, executor = core.Scope(), paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope):
        set_parameters(main, scope)
        pruned = main.clone(for_test=True)._prune([v.name for v in outputs])
        used = {n for op in pruned.global_block().ops for n in op.input_arg_names}
        variables = [v for v in variables if v.name in used]
        paddle.static.save_inference_model(str(folder / name), variables, outputs, executor, program=main)
        program, names, fetches = paddle.static.load_inference_model(str(folder / name), executor)
        values = executor.run(program, feed={n: feed[n] for n in names}, fetch_list=fetches, return_numpy=False)
    np.savez(folder / f"{name}.in.npz", **{n: feed[n] for n in names})
    np.savez(folder / f"{name}.out.npz", **{str(at): np.array(v) for at, v in enumerate(values)})
    return {"types": sorted({op.type for b in program.blocks for op in b.ops} - {"feed", "fetch"})}


def of_function(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """A call with drawn attributes: with an open first dim where PaddlePaddle describes it so, otherwise with numbers."""
    from paddle_functions import FUNCTIONS, Draw

    said = ""
    for opened in (True, False) if seed % 2 else (False,):
        main = paddle.static.Program()
        try:
            with paddle.static.program_guard(main, paddle.static.Program()), paddle.utils.unique_name.guard():
                draw = Draw(seed, opened)
                made = FUNCTIONS[name](draw)
                if not draw.variables:  # a model takes something
                    made = [made, draw.f(2, 3) * 1.0]
                return save(f"{name}.{seed}", folder, main, draw.variables, made, draw.feed)
        except Exception as error:
            said = words_of(error)
    return {"refused": said}


def of_model(name: str, folder: Path) -> dict[str, Any]:
    """A network of paddle.vision.models for small images."""
    size = {"inception_v3": 96, "alexnet": 224, "googlenet": 224, "LeNet": 28}.get(name, 64)
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()), paddle.utils.unique_name.guard():
        network = getattr(paddle.vision.models, name)(num_classes=10)
        network.eval()
        channels = 1 if name == "LeNet" else 3
        x = paddle.static.data("image", [-1, channels, size, size])
        made = network(x)
        feed = {"image": np.random.RandomState(3).uniform(-1, 1, (2, channels, size, size)).astype("float32")}
        return save(name, folder, main.clone(for_test=True), [x], made, feed)


def of_layer(name: str, folder: Path) -> dict[str, Any]:
    from paddle_layers import LAYERS

    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()), paddle.utils.unique_name.guard():
        variables, made, feed = LAYERS[name]()
        return save(name, folder, main.clone(for_test=True), variables, made, feed)


def of_training(name: str, folder: Path, describe: Callable[[], tuple[Any, dict[str, np.ndarray]]] | None = None) -> dict[str, Any]:
    """Three steps of training, from a state by formula; of a network that is described elsewhere from the first values that it draws, and vectors
    near them, since many layers of numbers by formula make much of a rounding."""
    network = describe is not None
    if describe is None:
        from paddle_layers import TRAINING

        describe = TRAINING[name]
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 11
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        loss, feed = describe()
    (folder / f"{name}.pdmodel").write_bytes(main.desc.serialize_to_string())
    (folder / f"{name}.startup.pdmodel").write_bytes(startup.desc.serialize_to_string())
    scope, executor = core.Scope(), paddle.static.Executor(paddle.CPUPlace())
    out: dict[str, np.ndarray] = {}
    with paddle.static.scope_guard(scope):
        executor.run(startup)
        parameters = {p.name for p in main.all_parameters()}
        state = [v.name for v in startup.list_vars() if v.persistable]
        for variable in main.all_parameters():
            value = parameter(variable.name, list(variable.shape), str(variable.dtype).split(".")[-1])
            if network:
                first = np.array(scope.find_var(variable.name).get_tensor())
                value = first if first.ndim > 1 else first + np.abs(value)
            scope.var(variable.name).get_tensor().set(value, paddle.CPUPlace())
        begun = {n: np.array(scope.find_var(n).get_tensor()) for n in state}
        for step in range(3):
            out[f"loss.{step}"] = np.asarray(executor.run(main, feed=feed, fetch_list=[loss])[0])
        out |= {f"state.{n}": np.array(scope.find_var(n).get_tensor()) for n in state}
    np.savez(folder / f"{name}.in.npz", **feed)
    np.savez(folder / f"{name}.state.npz", **begun)
    np.savez(folder / f"{name}.out.npz", **out)
    types = sorted({op.type for p in (main, startup) for b in p.blocks for op in b.ops})
    return {"types": types, "loss": loss.name, "parameters": sorted(parameters), "network": network}


def names_of(kind: str) -> list[str]:
    if kind == "functions":
        from paddle_functions import FUNCTIONS

        return [f"{n}.{seed}" for n in FUNCTIONS for seed in range(DRAWS)]
    if kind == "models":
        return [n for n in paddle.vision.models.__all__ if n[0].islower() or n == "LeNet"]
    from paddle_layers import LAYERS, TRAINING

    return list(LAYERS if kind == "layers" else TRAINING)


def main(folder: Path, kind: str, names: list[str]) -> None:
    built = folder / "built.jsonl"
    done = {json.loads(line)["name"] for line in built.read_text().splitlines()} if built.exists() else set()
    make = {"models": of_model, "layers": of_layer, "training": of_training}
    with built.open("a") as out:
        for name in names or names_of(kind):
            if name in done:
                continue
            print(json.dumps({"name": name, "begun": True}), file=out, flush=True)
            try:
                if kind == "functions":
                    function, seed = name.rsplit(".", 1)
                    result = of_function(function, int(seed), folder)
                else:
                    result = make[kind](name, folder)
            except Exception as error:
                traceback.print_exc()
                result = {"refused": words_of(error)}
            print(json.dumps({"name": name, "result": result}), file=out, flush=True)


if __name__ == "__main__":
    paddle.enable_static()
    if len(sys.argv) == 3 and sys.argv[2] == "names":
        print(json.dumps({kind: names_of(kind) for kind in ("functions", "models", "layers", "training")}))
    else:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
