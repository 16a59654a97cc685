"""One drawn network: how it is drawn, described and compared. As a script it reads cases, and says of each what came of it: a line each."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

import foreshape as fs
from foreshape import layer
from foreshape.errors import ForeshapeError
from foreshape.language.program.current import current_block

Case = dict[str, Any]
Attributes = dict[str, Any]
LARGE = 60_000
"""No value of a drawn network has more elements."""
WORK = 3e7
"""No step makes more multiplications."""
FAR = 2**31 - 1
"""The longest step that a file can ask for."""
BEYOND = 1e30
"""Numbers this large stand for none at all: the maximum of an empty window."""


# --- what is drawn: of each kind the attributes, of the dims of what it is of; None where it does not fit


def _pair(rng: random.Random, *choices: int) -> list[int]:
    one = rng.choice(choices)
    return [one, one] if rng.random() < 0.5 else [one, rng.choice(choices)]


def _padding(rng: random.Random, window: Sequence[int]) -> Any:
    if rng.random() < 0.12:
        return rng.choice(("SAME", "VALID"))
    one = lambda k: rng.choice((0, 0, 1, k // 2, k - 1, rng.randrange(k + 1), rng.randrange(12)))  # noqa: E731
    return [one(window[0]), one(window[1])] if rng.random() < 0.6 else [one(window[0]), one(window[0]), one(window[1]), one(window[1])]


def _windows(rng: random.Random) -> Attributes:
    window = _pair(rng, 1, 1, 2, 3, 3, 4, 5, 7)
    far = FAR if rng.random() < 0.05 else 64
    return {
        "kernel_size": window, "stride": _pair(rng, 1, 1, 1, 2, 2, 3, 5, far), "dilation": _pair(rng, 1, 1, 1, 2, 3, 7, far),
        "padding": _padding(rng, window), "bias": rng.random() < 0.6,
    }  # fmt: skip


def _groups(rng: random.Random, channels: int) -> int:
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    return rng.choice((1, 1, channels, rng.choice(divisors)))


def _conv(rng: random.Random, dims: Sequence[int]) -> Attributes:
    groups = _groups(rng, dims[1])
    filters = groups * rng.choice((1, 1, 2, 3)) if groups > 1 else rng.choice((1, 2, 3, 5, 8, 12, 16, 17, 24, 34, 48, 64))
    return {"num_filters": filters, "groups": groups, **_windows(rng)}


def _conv_transpose(rng: random.Random, dims: Sequence[int]) -> Attributes:
    out = {**_conv(rng, dims)}
    out["groups"] = out["groups"] if rng.random() < 0.4 else 1
    if isinstance(out["padding"], str) or len(out["padding"]) == 4:
        out["padding"] = _pair(rng, 0, 0, 1, 2)
    if rng.random() < 0.5:
        out["output_padding"] = [rng.randrange(min(64, max(s, d))) for s, d in zip(out["stride"], out["dilation"], strict=True)]
    return out


def _pool(rng: random.Random, dims: Sequence[int]) -> Attributes:
    if rng.random() < 0.1:
        return {"pool_type": rng.choice(("max", "avg")), "global_pooling": True}
    window = _pair(rng, 1, 2, 2, 3, 3, 4, 5, 8)
    far = FAR if rng.random() < 0.05 else 7
    return {
        "kernel_size": window, "pool_type": rng.choice(("max", "avg", "avg")), "stride": _pair(rng, 1, 2, 2, 3, 5, far), "padding": _padding(rng, window),
        "ceil_mode": rng.random() < 0.3, "exclusive": rng.random() < 0.5,
    }  # fmt: skip


def _slice(rng: random.Random, dims: Sequence[int]) -> Attributes:
    axes = rng.sample(range(1, len(dims)), rng.randint(1, min(2, len(dims) - 1)))
    starts = [rng.choice((0, 1, -1, -3, rng.randrange(max(1, dims[a])))) for a in axes]
    return {"axes": axes, "starts": starts, "ends": [rng.choice((-1, 2**31 - 1, 2, rng.randrange(1, dims[a] + 1))) for a in axes]}


def _number(rng: random.Random) -> float:
    return rng.choice((0.5, -1.5, 1.0, 2.0, 0.0, rng.uniform(-2, 2)))


def _nothing(rng: random.Random, dims: Sequence[int]) -> Attributes:
    return {}


def _activation(rng: random.Random, dims: Sequence[int]) -> Attributes:
    name = rng.choice(tuple(ACTIVATIONS))
    return {"name": name, "numbers": [draw(rng) for draw in ACTIVATIONS[name]]}


_SMALL = (lambda rng: rng.choice((0.1, 0.5, 1 / 6, 0.2, 1.0, 0.02)),)
ACTIVATIONS: dict[str, tuple[Callable[[random.Random], float], ...]] = {
    "relu": (), "sigmoid": (), "tanh": (), "exp": (), "softplus": (), "abs": (), "square": (), "relu6": (lambda rng: rng.choice((6.0, 1.0, 0.3)),),
    "leaky_relu": (lambda rng: rng.choice((0.02, 0.2, 0.0, 1.5, -0.5)),), "swish": (lambda rng: rng.choice((1.0, 1.0, 2.0)),),
    "hard_swish": (), "gelu": (lambda rng: rng.choice((True, False)),), "hard_sigmoid": (*_SMALL, lambda rng: rng.choice((0.5, 0.0, 1.0))),
    "clip": (lambda rng: rng.choice((-0.5, 0.0, -2.0)), lambda rng: rng.choice((0.75, 3.0))),
}  # fmt: skip


def _by(rng: random.Random, dims: Sequence[int]) -> Attributes:
    """A sum or product with a parameter: one number, or one for each channel."""
    ones = [1] * (len(dims) - 2)
    shapes = [[1], [dims[1], *ones], [1, dims[1], *ones], [1] * len(dims), [dims[-1]], [dims[1]], [1] * (len(dims) + 1)]
    at = rng.randrange(len(shapes))
    return {"shape": shapes[at], "how": rng.choice(("add", "multiply")), "axis": 1 if at == 5 else -1, "first": rng.random() < 0.3}


def _of_fc(rng: random.Random, dims: Sequence[int]) -> Attributes:
    return {"output_size": rng.choice((1, 2, 5, 16, 33, 64, 300)), "flatten_last": rng.randrange(1, len(dims)), "bias": rng.random() < 0.6}


KINDS: dict[str, tuple[float, tuple[int, ...], Callable[[random.Random, Sequence[int]], Attributes]]] = {
    "conv": (20, (4,), _conv),
    "conv_transpose": (10, (4,), _conv_transpose),
    "pool": (8, (4,), _pool),
    "adaptive": (1, (4,), lambda rng, dims: {"output_size": _pair(rng, 1, 1, 2, 3), "pool_type": rng.choice(("max", "avg"))}),
    "batch_norm": (6, (2, 3, 4, 5), lambda rng, dims: {"epsilon": rng.choice((1e-5, 1e-3)), "how": rng.choice(("is_test", "use_global_stats"))}),
    "channels_last_norm": (0.5, (3, 4), _nothing),
    "activation": (10, (), _activation),
    "scale": (2, (), lambda rng, dims: {"scale": _number(rng), "bias": rng.choice((0.0, 0.0, _number(rng)))}),
    "dropout": (1, (), lambda rng, dims: {"p": 0.25, "mode": rng.choice(("upscale_in_train", "downgrade_in_infer")), "mask": rng.random() < 0.3}),
    "by": (6, (2, 3, 4), _by),
    "add": (5, (), _nothing),
    "multiply": (2, (), _nothing),
    "excite": (2, (4,), _nothing),
    "concat": (3, (2, 3, 4), lambda rng, dims: {"axis": rng.choice((1, -1, len(dims) - 1))}),
    "split": (2, (2, 3, 4), lambda rng, dims: {"axis": rng.choice((1, len(dims) - 1)), "parts": rng.choice((2, 3, [1, -1])), "back": rng.random() < 0.5}),
    "slice": (2, (2, 3, 4), _slice),
    "nearest": (1.5, (4,), lambda rng, dims: {"scale": rng.choice((2, 3, [1, 2], 1, 1.5))}),
    "shuffle": (1, (4,), lambda rng, dims: {"groups": rng.choice((1, 2, 3, 4))}),
    "shuffle_by_dims": (1, (4,), lambda rng, dims: {"groups": rng.choice((1, 2, 3, 4)), "axes": rng.choice(([0, 2, 1, 3, 4], [0, 1, 2, 3, 4]))}),
    "softmax": (2, (2, 3, 4), lambda rng, dims: {"axis": rng.randrange(-len(dims), len(dims))}),
    "layer_norm": (3, (2, 3, 4), lambda rng, dims: {"begin_norm_axis": rng.randrange(1, len(dims)), "weight": rng.random() < 0.7, "bias": rng.random() < 0.7}),
    "instance_norm": (0.7, (4,), _nothing),
    "group_norm": (0.7, (4,), lambda rng, dims: {"groups": _groups(rng, dims[1])}),
    "mean": (1, (4,), lambda rng, dims: {"keepdim": rng.random() < 0.5}),
    "flatten": (1, (3, 4), lambda rng, dims: {"start_axis": rng.choice((1, len(dims) - 2))}),
    "wider": (0.7, (), lambda rng, dims: {"dims": [0, *[1] * rng.choice((1, 2, 10, 11, 12, 13)), *dims[1:]]}),
    "narrower": (0.7, (), lambda rng, dims: {"dims": [0, int(np.prod(dims[1:])), *[1] * rng.choice((0, 1, 2))]}),
    "turned": (1, (3, 4), lambda rng, dims: {"axes": [0, *rng.sample(range(1, len(dims)), len(dims) - 1)]}),
    "fc": (6, (2, 3, 4), _of_fc),
    "matmul": (2, (2, 3, 4), lambda rng, dims: {"columns": rng.choice((0, 1, 7, 40)), "turned": rng.random() < 0.2, "rows": rng.choice((None, None, 0))}),
}  # fmt: skip
"""Of each kind how often it is drawn, which ranks it is of, and its attributes."""


def draw(rng: random.Random) -> Case:
    """A network of one to ten layers."""
    batch, channels = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48))
    image = lambda: [rng.choice((1, 1, 2, 3, 4, 5, 7, 8, 11, 16, 23, 31, 43, 64)) for _ in range(2)]  # noqa: E731
    first = [batch, channels, *image()]
    several = rng.random() < 0.3
    sizes = [first, *([rng.choice((0, 1, 2, 3)), channels, *image()] for _ in range(2) if several)]
    unknown, threads = several or rng.random() < 0.2, rng.choice((1, 1, 2))
    case: Case = {"sizes": sizes, "open": unknown, "threads": threads, "steps": [], "out": [], "seed": rng.randrange(1 << 16)}
    dims: list[tuple[int, ...]] = [tuple(first)]
    wanted = rng.choice((1, 1, 1, 2, 2, 3, 4, 5, 7))
    for _ in range(4 * wanted):
        if len(case["steps"]) == wanted:
            break
        try:
            step = _step(rng, dims)
            values = describe({**case, "open": False, "steps": [*case["steps"], step]}, "float32")[1]
        except (ForeshapeError, IndexError, ValueError, ZeroDivisionError):  # of tensors without elements there is less to draw
            continue
        made = tuple(values[-1].dims)
        if not all(isinstance(n, int) and n >= 0 for n in made) or np.prod(made) > LARGE or _work(step, dims[step[1][0]], made) > WORK:
            continue
        case["steps"].append(step)
        dims.append(made)
    case["out"] = sorted({len(dims) - 1, *(at for at in range(1, len(dims)) if rng.random() < 0.12)})
    if case["open"]:
        try:
            describe(case, "float32")
        except ForeshapeError:  # it needs to know the sizes
            case.update(open=False, sizes=[first])
    return case


def _step(rng: random.Random, dims: Sequence[tuple[int, ...]]) -> list[Any]:
    of = rng.choice(range(max(0, len(dims) - 2), len(dims))) if rng.random() < 0.8 else rng.randrange(len(dims))
    fitting = [k for k, (_, ranks, _) in KINDS.items() if not ranks or len(dims[of]) in ranks]
    (kind,) = rng.choices(fitting, [KINDS[k][0] for k in fitting])
    sources = [of]
    if kind in ("add", "multiply"):
        sources.append(rng.choice([at for at, d in enumerate(dims) if d == dims[of]]))
    elif kind == "concat":
        sources.append(rng.choice([at for at, d in enumerate(dims) if len(d) == len(dims[of])]))
    return [kind, sources, KINDS[kind][2](rng, dims[of])]


def _work(step: list[Any], x: Sequence[int], y: Sequence[int]) -> float:
    kind, _, of = step
    if kind not in ("conv", "conv_transpose"):
        return 0.0
    return float(np.prod(of["kernel_size"])) * x[1] / of["groups"] * np.prod(y if kind == "conv" else [*x[:1], y[1], *x[2:]])


# --- what is described


def describe(case: Case, dtype: str) -> tuple[fs.Program, list[Any], Any]:
    """The program of a case with all its values, and the program that begins it."""
    with fs.program() as program:
        given = case["sizes"][0]
        values: list[Any] = [layer.data("x", shape=["batch", given[1], "height", "width"] if case["open"] else given, dtype=dtype)]
        for kind, sources, attributes in case["steps"]:
            values.append(getattr(Layers, kind)(*(values[s] for s in sources), **attributes))
    return program, values, program.startup


def _parameter(x: Any, shape: Sequence[int]) -> Any:
    return layer.create_parameter(list(shape), x.dtype)


class Layers:
    """The layers, by their kinds."""

    conv = staticmethod(lambda x, bias, **of: layer.conv2d(x, bias=None if bias else False, **of))
    conv_transpose = staticmethod(lambda x, bias, **of: layer.conv2d_transpose(x, bias=None if bias else False, **of))
    pool = staticmethod(layer.pool2d)
    adaptive = staticmethod(layer.adaptive_pool2d)
    group_norm = staticmethod(layer.group_norm)
    instance_norm = staticmethod(layer.instance_norm)
    softmax = staticmethod(layer.softmax)
    slice = staticmethod(layer.slice)
    flatten = staticmethod(layer.flatten)
    shuffle = staticmethod(layer.channel_shuffle)
    add = staticmethod(lambda x, y: x + y)
    multiply = staticmethod(lambda x, y: x * y)
    concat = staticmethod(lambda x, y, axis: layer.concat([x, y], axis))
    mean = staticmethod(lambda x, keepdim: layer.reduce_mean(x, [2, 3], keepdim=keepdim))
    turned = staticmethod(lambda x, axes: layer.transpose(x, axes))
    scale = staticmethod(layer.scale)
    nearest = staticmethod(lambda x, scale: layer.interpolate(x, scale=scale, mode="nearest"))

    @staticmethod
    def batch_norm(x: Any, epsilon: float, how: str) -> Any:
        return layer.batch_norm(x, epsilon=epsilon, **{how: True})

    @staticmethod
    def channels_last_norm(x: Any) -> Any:
        return layer.batch_norm(x, data_format="NHWC", is_test=True)

    @staticmethod
    def activation(x: Any, name: str, numbers: Sequence[float]) -> Any:
        return layer.exp(layer.clip(x, -9.0, 3.0)) if name == "exp" else getattr(layer, name)(x, *numbers)

    @staticmethod
    def dropout(x: Any, p: float, mode: str, mask: bool) -> Any:
        y, kept = current_block().apply("dropout", {"X": x}, {"dropout_prob": p, "dropout_implementation": mode, "is_test": True})
        return y + layer.cast(kept, x.dtype) if mask else y

    @staticmethod
    def by(x: Any, shape: Sequence[int], how: str, axis: int, first: bool) -> Any:
        numbers = _parameter(x, shape)
        if axis == 1:
            return current_block().apply(f"elementwise_{how[:3]}", {"X": x, "Y": numbers}, {"axis": 1})
        a, b = (numbers, x) if first else (x, numbers)
        return a + b if how == "add" else a * b

    @staticmethod
    def excite(x: Any) -> Any:
        return x * layer.sigmoid(layer.conv2d(layer.pool2d(x, 1, "avg", global_pooling=True), x.dims[1], 1))

    @staticmethod
    def split(x: Any, axis: int, parts: Any, back: bool) -> Any:
        made = layer.split(x, parts, axis)
        return layer.concat(made[::-1], axis) if back else made[-1]

    @staticmethod
    def shuffle_by_dims(x: Any, groups: int, axes: Sequence[int]) -> Any:
        _, channels, height, width = x.dims
        sizes = layer.shape(x)
        if isinstance(height, int) and height > 0 and isinstance(width, int) and width > 0:
            apart = layer.reshape(x, [0, groups, channels // groups, height, width])
            return layer.reshape(layer.transpose(apart, axes), [0, channels, height, width])
        apart = layer.reshape(x, [sizes[0], groups, channels // groups, sizes[2], sizes[3]])
        return layer.reshape(layer.transpose(apart, axes), [sizes[0], channels, sizes[2], sizes[3]])

    @staticmethod
    def layer_norm(x: Any, begin_norm_axis: int, weight: bool, bias: bool) -> Any:
        return layer.layer_norm(x, begin_norm_axis, weight=None if weight else False, bias=None if bias else False)

    @staticmethod
    def wider(x: Any, dims: Sequence[int]) -> Any:
        return layer.reshape(x, list(dims))

    narrower = wider

    @staticmethod
    def fc(x: Any, output_size: int, flatten_last: int, bias: bool) -> Any:
        return layer.fc(x, output_size, flatten_last=flatten_last, bias=None if bias else False)

    @staticmethod
    def matmul(x: Any, columns: int, turned: bool, rows: int | None) -> Any:
        if rows == 0:
            x = layer.slice(x, [len(x.dims) - 1], [0], [0])
        inner = 0 if rows == 0 else x.dims[-1]
        w = _parameter(x, [columns, inner] if turned else [inner, columns])
        return layer.matmul(x, w, transpose_y=turned)


# --- what is compared


def compare(case: Case) -> str:
    """What came of a case: "compared", "refused", "wild", or "FAULT" and words."""
    torch.set_num_threads(case["threads"])
    try:
        (plain, values, startup), (double, doubles, doubled) = describe(case, "float32"), describe(case, "float64")
    except ForeshapeError:
        return "refused"
    scope, wide = fs.Scope(), fs.Scope()
    ours, theirs, frozen = fs.Executor(seed=1), fs.Executor(seed=1), fs.Executor(seed=1, frozen=True)
    ours.run(startup, scope=scope)
    theirs.run(doubled, scope=wide)
    chance = np.random.default_rng(case["seed"])
    for name in sorted(scope.names()):
        like = scope.get(name)
        each = like.size / max(1, like.shape[0])
        drawn = chance.uniform(0.5, 1.5, like.shape) if like.ndim == 1 else chance.standard_normal(like.shape) / np.sqrt(max(1, each))
        scope.set(name, drawn.astype("float32"))
        wide.set(name, drawn.astype("float32").astype("float64"))
    fetch = [values[at].name for at in case["out"]]
    kinds: set[str] = set()
    for size in [*case["sizes"], *case["sizes"][:1]]:
        x = chance.standard_normal(size).astype("float32")
        x = np.asfortranarray(x) if chance.random() < 0.3 else x
        try:
            wanted = theirs.run(double, {"x": x.astype("float64")}, [v.name for v in doubles], wide)
            near = ours.run(plain, {"x": x}, [v.name for v in values], scope)
        except ForeshapeError:
            kinds.add("refused")
            try:
                frozen.run(plain, {"x": x}, fetch, scope)
            except ForeshapeError:
                continue
            continue
        if any(not np.isfinite(w).all() or np.abs(w).max(initial=0.0) > BEYOND for w in (*wanted, *near)):
            kinds.add("wild")
            continue
        for turn in range(2):
            try:
                found = frozen.run(plain, {"x": x}, fetch, scope)
            except Exception as error:
                return f"FAULT {size}: {type(error).__name__}: {error}".replace("\n", " ")
            for at, seen in zip(case["out"], found, strict=True):
                said = _apart(wanted[at], near[at], seen)
                if said:
                    return f"FAULT {size}, value {at}, run {turn}: {said}"
        kinds.add("compared")
    return "compared" if "compared" in kinds else kinds.pop()


def _apart(wanted: Any, plain: Any, seen: Any) -> str:
    """How far numbers are from those that are wanted, where that is further than roundings and what the plain kernels are off take them."""
    if seen.shape != wanted.shape:
        return f"dims {seen.shape} instead of {wanted.shape}"
    if not wanted.size:
        return ""
    most = float(np.abs(wanted).max())
    slip = float(np.abs(plain - wanted).max())
    if slip > 1e-3 * most + 1e-6:
        return f"the plain kernels are off by {slip} of {most}"
    off = np.abs(seen - wanted)
    if not np.isfinite(seen).all() or (off > 1e-4 * np.abs(wanted) + 2e-5 * most + 10 * slip + 1e-7).any():
        at = np.unravel_index(np.nanargmax(off), off.shape)
        return f"{seen[at]} instead of {wanted[at]} at {[int(n) for n in at]}, of at most {most}; the plain kernels are off by {slip}"
    return ""


def main() -> None:
    for line in sys.stdin:
        print(compare(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
