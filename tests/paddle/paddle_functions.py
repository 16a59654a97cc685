"""Calls of PaddlePaddle's public functions with drawn attributes: ``FUNCTIONS[name](draw)`` describes one in the default program.

Runs in PaddlePaddle's own Python; see `paddle_programs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.vision import ops as vision

FUNCTIONS: dict[str, Callable[[Draw], Any]] = {}


class Draw:
    """Draws attributes and inputs; ``opened``: whether the first dim of an input may be left open in the program."""

    def __init__(self, seed: int, opened: bool) -> None:
        self.rng, self.opened = np.random.RandomState(seed), opened
        self.feed: dict[str, np.ndarray] = {}
        self.variables: list[Any] = []

    def pick(self, *among: Any) -> Any:
        return among[self.rng.randint(len(among))]

    def dims(self, low: int = 1, high: int = 4) -> list[int]:
        return [int(n) for n in self.rng.choice([2, 3, 4, 5, 6], self.rng.randint(low, high + 1), replace=False)]

    def given(self, array: np.ndarray, fixed: bool = False) -> Any:
        """An input with exactly these numbers."""
        name = f"x{len(self.feed)}"
        dims = list(array.shape)
        if self.opened and not fixed and dims:
            dims[0] = -1
        variable = paddle.static.data(name, dims, str(array.dtype))
        variable.stop_gradient = False
        self.feed[name] = array
        self.variables.append(variable)
        return variable

    def f(self, *dims: int, low: float = -2.0, high: float = 2.0, of: str = "float32", fixed: bool = False) -> Any:
        return self.given(self.rng.uniform(low, high, dims).astype(of), fixed)

    def i(self, *dims: int, low: int = 0, high: int = 5, of: str = "int64", fixed: bool = False) -> Any:
        return self.given(self.rng.randint(low, high + 1, dims).astype(of), fixed)

    def b(self, *dims: int) -> Any:
        return self.given(self.rng.randint(0, 2, dims).astype("bool"))

    def apart(self, *dims: int) -> Any:
        """Numbers that are all different."""
        count = int(np.prod(dims))
        return self.given((self.rng.permutation(count) / 7.0 - count / 14.0).reshape(dims).astype("float32"))

    def axis(self, rank: int) -> int:
        return int(self.rng.randint(-rank, rank))

    def axes(self, rank: int) -> list[int]:
        count = self.rng.randint(1, rank + 1)
        return [int(a) - (rank if self.rng.randint(2) else 0) for a in self.rng.choice(rank, count, replace=False)]


def of(where: Any, name: str, body: Callable[[Draw, Callable[..., Any]], Any]) -> Callable[[Draw], Any]:
    """A call of a function that is known by its name."""
    function = getattr(where, name)
    return lambda d: body(d, function)


def _unary() -> None:
    anywhere = [
        "abs",
        "ceil",
        "floor",
        "round",
        "sign",
        "sin",
        "cos",
        "tan",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "erf",
        "expm1",
        "exp",
        "square",
        "tanh",
        "neg",
        "trunc",
        "stanh",
        "rad2deg",
        "deg2rad",
        "isnan",
        "isinf",
        "isfinite",
        "frac",
    ]
    for name in anywhere:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(d.f(*d.dims(0, 4))))
    for name in ["asin", "acos", "atanh", "erfinv"]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(d.f(*d.dims(), low=-0.9, high=0.9)))
    for name in ["log", "log1p", "log2", "log10", "reciprocal", "rsqrt", "sqrt", "lgamma", "digamma"]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(d.f(*d.dims(), low=0.1, high=3.0)))
    FUNCTIONS["acosh"] = lambda d: paddle.acosh(d.f(*d.dims(), low=1.1, high=3.0))
    FUNCTIONS["logit"] = lambda d: paddle.logit(d.f(*d.dims(), low=0.0, high=1.0), eps=d.pick(1e-6, 0.1))
    for name in ["relu", "relu6", "sigmoid", "silu", "softsign", "mish", "tanhshrink", "log_sigmoid", "hardswish", "hardsigmoid", "selu"]:
        FUNCTIONS[name] = of(F, name, lambda d, f: f(d.f(*d.dims(), low=-6.0, high=6.0)))
    attributes: dict[str, Callable[[Draw], dict[str, Any]]] = {
        "elu": lambda d: {"alpha": d.pick(1.0, 0.3)}, "celu": lambda d: {"alpha": d.pick(1.0, 0.5)}, "gelu": lambda d: {"approximate": d.pick(False, True)},
        "hardshrink": lambda d: {"threshold": d.pick(0.5, 1.5)}, "softshrink": lambda d: {"threshold": d.pick(0.5, 1.5)},
        "hardtanh": lambda d: {"min": d.pick(-1.0, -2.0), "max": d.pick(1.0, 3.0)}, "leaky_relu": lambda d: {"negative_slope": d.pick(0.01, 0.3)},
        "softplus": lambda d: {"beta": d.pick(1, 2), "threshold": d.pick(20, 3)}, "thresholded_relu": lambda d: {"threshold": d.pick(1.0, 0.3)},
        "swish": lambda d: {},
    }  # fmt: skip
    for name, drawn in attributes.items():
        FUNCTIONS[name] = of(F, name, lambda d, f, drawn=drawn: f(d.f(*d.dims(), low=-6.0, high=6.0), **drawn(d)))


def _binary() -> None:
    def pair(d: Draw, **how: Any) -> tuple[Any, Any]:
        dims = d.dims(2, 3)
        other = d.pick(dims, dims[1:], [1, *dims[1:]], [dims[0], *[1] * (len(dims) - 1)])
        return d.f(*dims, **how, fixed=True), d.f(*other, **how, fixed=True)

    for name in [
        "add",
        "subtract",
        "multiply",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "less_than",
        "less_equal",
        "greater_than",
        "greater_equal",
        "equal",
        "not_equal",
    ]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(*pair(d)))
    for name in ["divide", "pow", "heaviside"]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(*pair(d, low=0.2, high=2.0)))
    for name in ["mod", "floor_divide", "remainder"]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(d.i(3, 4, low=-9, high=9), d.given(d.rng.choice([-3, 2, 5], (3, 4)).astype("int64"))))
    for name in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(d.i(3, 4, high=9, of="int32"), d.i(3, 4, high=9, of="int32")))
    FUNCTIONS["bitwise_not"] = lambda d: paddle.bitwise_not(d.pick(d.i, d.b)(3, 4))
    for name in ["logical_and", "logical_or", "logical_xor"]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(d.b(3, 4), d.b(3, 4)))
    FUNCTIONS["logical_not"] = lambda d: paddle.logical_not(d.b(3, 4))
    FUNCTIONS["allclose"] = lambda d: paddle.allclose(d.given(np.ones((2, 3), "float32")), d.given(np.full((2, 3), d.pick(1.0, 1.5, np.nan), "float32")))
    FUNCTIONS["atan2"] = lambda d: paddle.atan2(d.f(3, 4), d.f(3, 4))
    FUNCTIONS["isclose"] = lambda d: paddle.isclose(d.f(2, 3), d.f(2, 3), atol=1.0)
    FUNCTIONS["equal_all"] = lambda d: paddle.equal_all(d.i(3, high=1), d.i(3, high=1))
    FUNCTIONS["lerp"] = lambda d: paddle.lerp(d.f(2, 3), d.f(2, 3), d.pick(0.3, 0.7))


def _reductions() -> None:
    def reduce(d: Draw, f: Callable[..., Any]) -> Any:
        dims = d.dims(1, 4)
        return f(d.f(*dims), axis=d.pick(None, d.axis(len(dims)), d.axes(len(dims))), keepdim=d.pick(True, False))

    for name in ["sum", "mean", "max", "min", "prod", "amax", "amin", "logsumexp"]:
        FUNCTIONS[f"reduce_{name}"] = of(paddle, name, reduce)
    for name in ["all", "any"]:
        FUNCTIONS[f"reduce_{name}"] = of(paddle, name, lambda d, f: f(d.b(3, 4), axis=d.pick(None, 0, -1, [0, 1]), keepdim=d.pick(True, False)))
    for name in ["argmax", "argmin"]:
        FUNCTIONS[name] = of(
            paddle, name, lambda d, f: f(d.apart(3, 4, 5), axis=d.pick(None, 0, 1, -1), keepdim=d.pick(True, False), dtype=d.pick("int32", "int64"))
        )
    for name in ["median", "nanmean", "nansum", "std", "var"]:
        FUNCTIONS[name] = of(paddle, name, lambda d, f: f(d.apart(3, 4, 5), axis=d.pick(None, 0, 1, -1)))
    FUNCTIONS["norm_p"] = lambda d: paddle.norm(
        d.f(3, 4, 5), p=d.pick(1, 2, 3, 0.5, float("inf"), float("-inf"), 0), axis=d.pick(0, 1, -1), keepdim=d.pick(True, False)
    )
    FUNCTIONS["norm_fro"] = lambda d: paddle.norm(d.f(3, 4, 5), p="fro", axis=d.pick([0, 1], [1, 2], [-1, 0]), keepdim=d.pick(True, False))
    FUNCTIONS["dist"] = lambda d: paddle.dist(d.f(3, 4), d.f(*d.pick((3, 4), (4,))), p=d.pick(0, 1, 2, 2.5, float("inf"), float("-inf")))
    FUNCTIONS["cumsum"] = lambda d: paddle.cumsum(d.f(3, 4, 5), axis=d.pick(None, 0, 1, -1))
    FUNCTIONS["cumprod"] = lambda d: paddle.cumprod(d.f(3, 4, 5), dim=d.pick(0, 1, -1))
    FUNCTIONS["cummax"] = lambda d: paddle.cummax(d.apart(3, 4), axis=d.pick(0, -1))
    FUNCTIONS["logcumsumexp"] = lambda d: paddle.logcumsumexp(d.f(3, 4), axis=d.pick(None, 0, -1))
    FUNCTIONS["count_nonzero"] = lambda d: paddle.count_nonzero(d.i(3, 4, high=1), axis=d.pick(None, 0, -1))
    FUNCTIONS["trace"] = lambda d: paddle.trace(d.f(4, 3, 5), offset=d.pick(0, 1, -1), axis1=d.pick(0, -2), axis2=d.pick(2, -1))
    FUNCTIONS["numel"] = lambda d: paddle.numel(d.f(*d.dims(0, 3)))


def _products() -> None:
    table: dict[str, Callable[[Draw], Any]] = {
        "kron": lambda d: paddle.kron(d.f(2, 3), d.f(*d.pick((4, 2), (2,), (3, 4, 2)))),
        "dot": lambda d: d.pick(lambda: paddle.dot(d.f(4), d.f(4)), lambda: paddle.dot(d.f(3, 4), d.f(3, 4)))(),
        "bmm": lambda d: paddle.bmm(d.f(2, 3, 4), d.f(2, 4, 5)),
        "mv": lambda d: paddle.mv(d.f(3, 4), d.f(4)),
        "addmm": lambda d: paddle.addmm(d.f(*d.pick((3, 5), (1, 5), (3, 1))), d.f(3, 4), d.f(4, 5), beta=d.pick(1.0, 0.5), alpha=d.pick(1.0, 2.0)),
        "matmul": lambda d: d.pick(
            lambda: paddle.matmul(d.f(2, 3, 4), d.f(4, 5)), lambda: paddle.matmul(d.f(3, 2, 4), d.f(3, 5, 4), transpose_y=True),
            lambda: paddle.matmul(d.f(4, 3), d.f(4, 5), transpose_x=True), lambda: paddle.matmul(d.f(4), d.f(4)),
            lambda: paddle.matmul(d.f(2, 3, 4), d.f(4)))(),
        "cross": lambda d: d.pick(lambda: paddle.cross(d.f(3, 4), d.f(3, 4)), lambda: paddle.cross(d.f(2, 3, 4), d.f(2, 3, 4), axis=d.pick(1, -2)))(),
        "outer": lambda d: paddle.outer(d.f(3), d.f(4)),
        "inner": lambda d: paddle.inner(d.f(2, 4), d.f(3, 4)),
        "inverse": lambda d: paddle.inverse(d.given((np.eye(3) * 3 + d.rng.uniform(-1, 1, (2, 3, 3))).astype("float32"))),
        "cholesky": lambda d: paddle.linalg.cholesky(d.given((np.eye(3) * 3 + np.ones((3, 3))).astype("float32")), upper=d.pick(True, False)),
        "matrix_power": lambda d: paddle.linalg.matrix_power(d.f(3, 3), d.pick(0, 1, 3)),
        "det": lambda d: paddle.linalg.det(d.f(2, 3, 3)),
        "einsum": lambda d: paddle.einsum(*d.pick(("ij,jk->ik",), ("ij,jk->ki",)), d.f(2, 3), d.f(3, 4)),
        "bilinear": lambda d: F.bilinear(d.f(3, 4), d.f(3, 5), d.f(2, 4, 5, fixed=True)),
        "cosine_similarity": lambda d: F.cosine_similarity(d.f(3, 4), d.f(3, 4), axis=d.pick(0, 1, -1)),
        "normalize": lambda d: F.normalize(d.f(3, 4, 5), p=d.pick(1, 2, 3), axis=d.pick(0, 1, -1)),
        "histogram": lambda d: paddle.histogram(d.f(12), bins=d.pick(4, 10), min=-1, max=1),
        "bincount": lambda d: paddle.bincount(d.i(9), minlength=d.pick(0, 8)),
        "multiplex": lambda d: paddle.multiplex([d.f(3, 4), d.f(3, 4)], d.i(3, 1, high=1, of="int32")),
    }  # fmt: skip
    FUNCTIONS.update(table)


def _creation() -> None:
    table: dict[str, Callable[[Draw], Any]] = {
        "assign_value": lambda d: paddle.assign(d.rng.uniform(-1, 1, (2, 3)).astype(d.pick("float32", "float64", "int64", "int32"))),
        "assign": lambda d: paddle.assign(d.f(2, 3)),
        "full": lambda d: paddle.full(d.dims(), d.pick(1.5, 2, True), d.pick("float32", "int64", "float64", None)),
        "full_like": lambda d: paddle.full_like(d.f(2, 3), d.pick(1, 0.5), d.pick(None, "int64", "float64")),
        "zeros_like": lambda d: paddle.zeros_like(d.f(2, 3)),
        "ones_like": lambda d: paddle.ones_like(d.i(2, 3), d.pick(None, "float32")),
        "arange": lambda d: paddle.arange(*d.pick((5,), (1, 9, 2), (9, 1, -3), (0.5, 3.0, 0.4))),
        "linspace": lambda d: paddle.linspace(*d.pick((0, 5, 6), (3.0, -1.0, 4), (2.0, 9.0, 1)), dtype=d.pick("float32", "float64")),
        "logspace": lambda d: paddle.logspace(0, 3, 4, base=d.pick(2.0, 10.0)),
        "eye": lambda d: paddle.eye(*d.pick((3,), (3, 5)), dtype=d.pick("float32", "int64")),
        "meshgrid": lambda d: paddle.meshgrid(*[d.f(n) for n in d.pick((3, 4), (2, 3, 4))]),
        "diag": lambda d: paddle.diag(d.f(*d.pick((4,), (3, 5))), offset=d.pick(0, 1, -2), padding_value=0),
        "diagflat": lambda d: paddle.diagflat(d.f(*d.pick((3,), (2, 2))), offset=d.pick(0, 1)),
        "diagonal": lambda d: paddle.diagonal(d.f(3, 4, 5), offset=d.pick(0, 1, -1), axis1=d.pick(0, 1), axis2=2),
        "diag_embed": lambda d: F.diag_embed(d.f(2, 3), offset=d.pick(0, 1, -1)),
        "tril": lambda d: paddle.tril(d.f(3, 4, 5), diagonal=d.pick(0, 1, -2)),
        "triu": lambda d: paddle.triu(d.f(3, 4, 5), diagonal=d.pick(0, 1, -2)),
        "one_hot": lambda d: F.one_hot(d.i(*d.pick((4,), (2, 3))), 6),
        "cast": lambda d: paddle.cast(d.f(2, 3), d.pick("int32", "int64", "bool", "float64", "float16", "uint8", "int8")),
        "shape": lambda d: paddle.shape(d.f(*d.dims())),
        "clip": lambda d: paddle.clip(d.f(2, 3), *d.pick((-1.0, 1.0), (None, 0.5), (0.2, None))),
        "scale": lambda d: paddle.scale(d.f(2, 3), d.pick(2.0, -0.5), d.pick(0.0, 1.5), bias_after_scale=d.pick(True, False)),
        "increment": lambda d: paddle.increment(d.f(1, fixed=True) + 0.0, d.pick(1.0, 2.5)),
        "tril_indices": lambda d: paddle.tril_indices(3, 4, d.pick(0, 1, -1)),
    }
    FUNCTIONS.update(table)


def _moving() -> None:
    table: dict[str, Callable[[Draw], Any]] = {
        "concat": lambda d: paddle.concat([d.f(2, 3, 4), d.f(2, 3, 4)], axis=d.pick(0, 1, -1)),
        "stack": lambda d: paddle.stack([d.f(2, 3), d.f(2, 3)], axis=d.pick(0, 1, 2, -1)),
        "split": lambda d: paddle.split(d.f(4, 6, fixed=True), d.pick(2, [2, -1, 1], [1, 5]), axis=1),
        "chunk": lambda d: paddle.chunk(d.f(4, 6), 3, axis=-1),
        "unbind": lambda d: paddle.unbind(d.f(3, 4, fixed=True), axis=d.pick(0, 1)),
        "unstack": lambda d: paddle.unstack(d.f(3, 4, fixed=True), axis=d.pick(0, 1, -1)),
        "transpose": lambda d: paddle.transpose(d.f(2, 3, 4), d.pick([0, 2, 1], [2, 0, 1], [1, 2, 0])),
        "reshape": lambda d: paddle.reshape(d.f(2, 3, 4), d.pick([-1, 4], [0, 12], [0, -1, 2], [4, 6])),
        "squeeze": lambda d: paddle.squeeze(d.f(3, 1, 4, 1), axis=d.pick(None, 1, -1, [1, 3], 0)),
        "unsqueeze": lambda d: paddle.unsqueeze(d.f(3, 4), axis=d.pick(0, -1, [0, 2], [1, -1])),
        "flatten": lambda d: paddle.flatten(d.f(2, 3, 4, 5), start_axis=d.pick(0, 1, -3), stop_axis=d.pick(2, -1)),
        "expand": lambda d: paddle.expand(d.f(3, 1, fixed=True), d.pick([3, 4], [2, 3, 4], [-1, 4])),
        "expand_as": lambda d: paddle.expand_as(d.f(3, 1, fixed=True), d.f(2, 3, 4, fixed=True)),
        "broadcast_tensors": lambda d: paddle.broadcast_tensors([d.f(3, 1, fixed=True), d.f(1, 4, fixed=True)]),
        "tile": lambda d: paddle.tile(d.f(2, 3), d.pick([2], [2, 3], [2, 1, 2])),
        "flip": lambda d: paddle.flip(d.f(2, 3, 4), axis=d.pick(0, [1, 2], -1)),
        "roll": lambda d: paddle.roll(d.f(3, 4), *d.pick((1,), (-2, 0), ([1, 2], [0, 1]))),
        "rot90": lambda d: paddle.rot90(d.f(3, 4), d.pick(1, 2, -1)),
        "slice": lambda d: paddle.slice(d.f(4, 5, 6), [1, 2], d.pick([0, 1], [-3, 2]), d.pick([3, 4], [5, 100])),
        "strided_slice": lambda d: paddle.strided_slice(d.f(4, 5, 6), [1, 2], *d.pick(([0, 1], [5, 6], [2, 3]), ([4, 5], [0, 1], [-1, -2]))),
        "getitem": lambda d: d.pick(lambda x: x[:, 1:3], lambda x: x[..., -1], lambda x: x[:, ::2, None], lambda x: x[:, :, ::-1])(d.f(4, 5, 6)),
        "crop": lambda d: paddle.crop(d.f(4, 5, fixed=True), shape=[2, 3], offsets=d.pick([0, 1], [2, 2])),
        "gather": lambda d: paddle.gather(d.f(5, 4, 3), d.i(3, high=3), axis=d.pick(0, 1)),
        "gather_nd": lambda d: paddle.gather_nd(d.f(4, 5, 3), d.i(2, d.pick(1, 2), high=3)),
        "index_select": lambda d: paddle.index_select(d.f(4, 5), d.i(3, high=3), axis=d.pick(0, 1)),
        "index_sample": lambda d: paddle.index_sample(d.f(4, 5), d.i(4, 3, high=4)),
        "index_add": lambda d: paddle.index_add(d.f(4, 5), d.i(3, high=3), 0, d.f(3, 5)),
        "masked_select": lambda d: paddle.masked_select(d.f(3, 4), d.b(3, 4)),
        "masked_fill": lambda d: paddle.masked_fill(d.f(3, 4), d.b(3, 4), d.pick(0.5, -1.0)),
        "nonzero": lambda d: paddle.nonzero(d.b(3, 4), as_tuple=False),
        "where": lambda d: paddle.where(d.b(3, 4), d.f(3, 4), d.f(3, 4)),
        "scatter": lambda d: paddle.scatter(d.f(5, 3), d.given(np.array([3, 1, 0])), d.f(3, 3), overwrite=d.pick(True, False)),
        "scatter_nd": lambda d: paddle.scatter_nd(d.i(3, 1, high=4), d.f(3, 2), [5, 2]),
        "scatter_nd_add": lambda d: paddle.scatter_nd_add(d.f(5, 3), d.i(4, 1, high=4), d.f(4, 3)),
        "take_along_axis": lambda d: paddle.take_along_axis(d.f(4, 5), d.i(4, 5, high=3), axis=d.pick(0, 1)),
        "put_along_axis": lambda d: paddle.put_along_axis(
            d.f(4, 5), d.given(np.tile(np.array([[2, 0, 3]]), (4, 1)), True), d.f(4, 3, fixed=True), 1, reduce=d.pick("assign", "add", "multiply")),
        "argsort": lambda d: paddle.argsort(d.apart(3, 4, 5), axis=d.pick(0, 1, -1), descending=d.pick(True, False)),
        "sort": lambda d: paddle.sort(d.apart(3, 4, 5), axis=d.pick(0, 1, -1), descending=d.pick(True, False)),
        "topk": lambda d: paddle.topk(d.apart(3, 4, 5), d.pick(1, 3), axis=d.pick(1, -1), largest=d.pick(True, False)),
        "kthvalue": lambda d: paddle.kthvalue(d.apart(3, 4, 5), d.pick(1, 3), axis=d.pick(1, -1), keepdim=d.pick(True, False)),
        "mode": lambda d: paddle.mode(d.i(3, 4, high=2).astype("float32")),
        "searchsorted": lambda d: paddle.searchsorted(d.given(np.array([1.0, 3.0], "float32"), True), d.f(4, low=0.0, high=4.0), right=d.pick(True, False)),
        "unique": lambda d: paddle.unique(d.i(7, fixed=True), return_index=True, return_inverse=True, return_counts=True),
        "unique_consecutive": lambda d: paddle.unique_consecutive(d.i(9, high=2, fixed=True), return_inverse=True, return_counts=True),
        "repeat_interleave": lambda d: paddle.repeat_interleave(d.f(3, 4), d.pick(2, 3), axis=d.pick(0, 1, -1)),
        "set_value": lambda d: paddle.static.setitem(d.f(4, 5) * 1.0, (slice(0, 2), slice(1, 5, 2)), d.pick(3.5, -1.0)),
        "pad": lambda d: F.pad(d.f(2, 3, 4, 5), d.pick([1, 2, 0, 1], [0, 1, 2, 0]), mode=d.pick("constant", "reflect", "replicate", "circular"),
                               value=0.5, data_format=d.pick("NCHW", "NHWC")),
        "pad_all": lambda d: F.pad(d.f(2, 3), [1, 0, 2, 1], mode="constant", value=1.5),
        "pixel_shuffle": lambda d: F.pixel_shuffle(d.f(2, 8, 3, 4), 2),
        "pixel_unshuffle": lambda d: F.pixel_unshuffle(d.f(2, 3, 4, 6), 2),
        "channel_shuffle": lambda d: F.channel_shuffle(d.f(2, 6, 3, 4), d.pick(2, 3)),
        "temporal_shift": lambda d: F.temporal_shift(d.f(6, 4, 3, 2, fixed=True), 3, d.pick(0.25, 0.4)),
        "tensordot": lambda d: paddle.tensordot(d.f(2, 3, 4, fixed=True), d.f(3, 4, 5, fixed=True), 2),
        "embedding": lambda d: F.embedding(d.i(3, 4), d.f(6, 5, fixed=True), padding_idx=d.pick(None, 2, -1)),
        "as_strided_view": lambda d: paddle.moveaxis(d.f(2, 3, 4), 0, d.pick(1, -1)),
        "sequence_mask": lambda d: F.sequence_mask(d.i(4, low=1), maxlen=d.pick(5, 7), dtype=d.pick("int64", "float32")),
    }  # fmt: skip
    FUNCTIONS.update(table)


def _nets() -> None:
    def conv(d: Draw, rank: int, transposed: bool, depthwise: bool = False) -> Any:
        groups = 4 if depthwise else d.pick(1, 2)
        form = {1: "NCL", 2: "NCHW", 3: "NCDHW"}[rank]
        filters = (4, 1) if depthwise else (4, 3) if transposed else (6, 4 // groups)
        weight = d.f(*filters, *[3] * rank, fixed=True)
        how = {"stride": d.pick(1, 2), "padding": d.pick(0, 1, "SAME", "VALID"), "dilation": 1, "groups": groups, "data_format": form}
        f = getattr(F, f"conv{rank}d" + ("_transpose" if transposed else ""))
        return f(d.f(2, 4, *[7, 6, 5][:rank]), weight, **how)

    def pool(d: Draw, rank: int, kind: str) -> Any:
        how = {"exclusive": d.pick(True, False)} if kind == "avg" else {}
        f = getattr(F, f"{kind}_pool{rank}d")
        return f(d.f(2, 3, *[7, 6, 5][:rank]), d.pick(2, 3), d.pick(1, 2), d.pick(0, 1), ceil_mode=d.pick(True, False), **how)

    def resize(d: Draw, mode: str, rank: int) -> Any:
        sizes = [5, 6, 4][:rank]
        align = {} if mode in ("nearest", "area") else {"align_corners": d.pick(True, False)}
        align |= {"align_mode": d.pick(0, 1)} if mode in ("bilinear", "trilinear", "linear") and not align["align_corners"] else {}
        how = {"size": [s + 3 for s in sizes]} if mode == "area" else d.pick({"size": [s + 3 for s in sizes]}, {"scale_factor": d.pick(2.0, 0.5)})
        form = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[rank]
        return F.interpolate(d.f(2, 3, *sizes), mode=mode, data_format=form, **align, **how)

    for rank in (1, 2, 3):
        FUNCTIONS[f"conv{rank}d"] = lambda d, r=rank: conv(d, r, False)
        FUNCTIONS[f"conv{rank}d_transpose"] = lambda d, r=rank: conv(d, r, True)
        for kind in ("avg", "max"):
            FUNCTIONS[f"{kind}_pool{rank}d"] = lambda d, r=rank, k=kind: pool(d, r, k)
            FUNCTIONS[f"adaptive_{kind}_pool{rank}d"] = lambda d, r=rank, k=kind: getattr(F, f"adaptive_{k}_pool{r}d")(
                d.f(2, 3, *[7, 6, 5][:r]), d.pick(1, 2, 3)
            )
    for mode, rank in (("nearest", 2), ("bilinear", 2), ("bicubic", 2), ("linear", 1), ("trilinear", 3), ("area", 2)):
        FUNCTIONS[f"interpolate_{mode}"] = lambda d, m=mode, r=rank: resize(d, m, r)
    table: dict[str, Callable[[Draw], Any]] = {
        "depthwise_conv2d": lambda d: conv(d, 2, False, True),
        "depthwise_conv2d_transpose": lambda d: conv(d, 2, True, True),
        "max_pool2d_with_index": lambda d: F.max_pool2d(d.apart(2, 3, 6, 8), 2, 2, return_mask=True),
        "max_unpool2d": lambda d: F.max_unpool2d(*F.max_pool2d(d.apart(2, 3, 6, 8), 2, 2, return_mask=True), 2, 2),
        "softmax": lambda d: F.softmax(d.f(3, 4, 5), axis=d.pick(0, 1, -1)),
        "log_softmax": lambda d: F.log_softmax(d.f(3, 4, 5), axis=d.pick(0, 1, -1)),
        "maxout": lambda d: F.maxout(d.f(2, 6, 3, 4), d.pick(2, 3), axis=1),
        "prelu": lambda d: F.prelu(d.f(2, 3, 4, 5), d.f(d.pick(1, 3), fixed=True)),
        "glu": lambda d: F.glu(d.f(3, 4, 6), axis=d.pick(1, -1)),
        "layer_norm": lambda d: F.layer_norm(d.f(2, 3, 4), [3, 4], d.f(12, fixed=True), d.f(12, fixed=True), d.pick(1e-5, 1e-3)),
        "instance_norm": lambda d: F.instance_norm(d.f(2, 3, 4, 5), weight=d.f(3, fixed=True), bias=d.f(3, fixed=True)),
        "local_response_norm": lambda d: F.local_response_norm(d.f(2, 7, 4, 5), d.pick(3, 5)),
        "grid_sample": lambda d: F.grid_sample(d.f(2, 3, 5, 6), d.f(2, 4, 3, 2, low=-1.2, high=1.2), mode=d.pick("bilinear", "nearest"),
                                               padding_mode=d.pick("zeros", "border", "reflection"), align_corners=d.pick(True, False)),
        "affine_grid": lambda d: F.affine_grid(d.f(2, 2, 3, fixed=True), [2, 3, 4, 5], align_corners=d.pick(True, False)),
        "unfold": lambda d: F.unfold(d.f(2, 3, 6, 7), d.pick(2, (2, 3)), d.pick(1, 2), d.pick(0, 1), d.pick(1, 2)),
        "fold": lambda d: F.fold(d.f(2, 12, 12, fixed=True), [4, 5], 2),
        "zeropad2d": lambda d: F.zeropad2d(d.f(2, 3, 4, 5), [1, 0, 2, 1]),
        "deform_conv2d": lambda d: vision.deform_conv2d(d.f(2, 4, 6, 5), d.f(2, 18, 4, 3), d.f(3, 4, 3, 3, fixed=True),
                                                        mask=d.f(2, 9, 4, 3, low=0.0, high=1.0) if d.pick(True, False) else None),
        "cross_entropy": lambda d: F.cross_entropy(d.f(4, 5), d.i(4, 1, high=4), ignore_index=d.pick(-100, 2), reduction=d.pick("mean", "sum", "none")),
        "cross_entropy_soft": lambda d: F.cross_entropy(d.f(4, 5), d.f(4, 5, low=0.0, high=0.4), soft_label=True, axis=-1),
        "label_smooth": lambda d: F.label_smooth(d.f(4, 5, low=0.0, high=1.0), epsilon=d.pick(0.1, 0.3)),
        "mse_loss": lambda d: F.mse_loss(d.f(4, 5), d.f(4, 5), reduction=d.pick("mean", "sum", "none")),
        "l1_loss": lambda d: F.l1_loss(d.f(4, 5), d.f(4, 5), reduction=d.pick("mean", "sum", "none")),
        "smooth_l1_loss": lambda d: F.smooth_l1_loss(d.f(4, 5), d.f(4, 5), reduction=d.pick("mean", "sum", "none"), delta=d.pick(1.0, 0.5)),
        "binary_cross_entropy": lambda d: F.binary_cross_entropy(d.f(4, 5, low=0.1, high=0.9), d.f(4, 5, low=0.0, high=1.0)),
        "binary_cross_entropy_with_logits": lambda d: F.binary_cross_entropy_with_logits(
            d.f(4, 5), d.f(4, 5, low=0.0, high=1.0), pos_weight=d.f(5, low=1.0, fixed=True)),
        "kl_div": lambda d: F.kl_div(d.f(4, 5), d.f(4, 5, low=0.1, high=1.0), reduction=d.pick("mean", "sum", "none", "batchmean")),
        "log_loss": lambda d: F.log_loss(d.f(4, 1, low=0.1, high=0.9), d.f(4, 1, low=0.0, high=1.0)),
        "nll_loss": lambda d: F.nll_loss(d.f(4, 5), d.i(4, high=4), weight=d.f(5, low=0.1, fixed=True) if d.pick(True, False) else None,
                                         ignore_index=d.pick(-100, 2),
                                         reduction=d.pick("mean", "sum", "none")),
        "sigmoid_focal_loss": lambda d: F.sigmoid_focal_loss(d.f(4, 5), d.b(4, 5).astype("float32"), reduction=d.pick("mean", "sum", "none")),
        "margin_ranking_loss": lambda d: F.margin_ranking_loss(d.f(4), d.f(4), d.f(4), margin=d.pick(0.0, 0.5)),
        "hinge_embedding_loss": lambda d: F.hinge_embedding_loss(d.f(4, 5), d.given(d.rng.choice([-1.0, 1.0], (4, 5)).astype("float32"))),
        "cosine_embedding_loss": lambda d: F.cosine_embedding_loss(d.f(4, 5), d.f(4, 5), d.given(d.rng.choice([-1, 1], 4)), margin=0.1),
        "triplet_margin_loss": lambda d: F.triplet_margin_loss(d.f(4, 5), d.f(4, 5), d.f(4, 5)),
        "square_error_cost": lambda d: F.square_error_cost(d.f(4, 5), d.f(4, 5)),
        "dice_loss": lambda d: F.dice_loss(F.softmax(d.f(4, 5)), d.i(4, 1, high=4)),
        "npair_loss": lambda d: F.npair_loss(d.f(4, 5, fixed=True), d.f(4, 5, fixed=True), d.given(np.array([1.0, 2.0, 1.0, 3.0], "float32"), True)),
        "ctc_loss": lambda d: F.ctc_loss(d.f(7, 2, 5, fixed=True), d.i(2, 3, low=1, high=4, of="int32", fixed=True), d.given(np.array([7, 6]), True),
                                         d.given(np.array([3, 2]), True), reduction=d.pick("mean", "sum", "none")),
        "dropout_in_use": lambda d: F.dropout(d.f(3, 4), d.pick(0.3, 0.8), training=False, mode=d.pick("upscale_in_train", "downscale_in_infer")),
        "scaled_dot_product_attention": lambda d: F.scaled_dot_product_attention(d.f(2, 4, 2, 8), d.f(2, 4, 2, 8), d.f(2, 4, 2, 8)),
    }  # fmt: skip
    FUNCTIONS.update(table)


def _boxes() -> None:
    def boxes(d: Draw, *dims: int, most: float = 20.0) -> np.ndarray:
        begin = d.rng.uniform(0, most / 2, (*dims, 2))
        return np.concatenate([begin, begin + d.rng.uniform(1.0, most / 2, (*dims, 2))], -1).astype("float32")

    def count(n: int) -> np.ndarray:
        return np.array([n], "int32")

    def size(d: Draw) -> Any:
        return d.given(np.array([[20.0, 20.0]], "float32"), True)

    table: dict[str, Callable[[Draw], Any]] = {
        "roi_align": lambda d: vision.roi_align(d.f(1, 4, 20, 20, fixed=True), d.given(boxes(d, 3), True), d.given(count(3), True), d.pick(2, (2, 3)),
                                                d.pick(1.0, 0.5), d.pick(-1, 2), d.pick(True, False)),
        "roi_pool": lambda d: vision.roi_pool(d.apart(1, 4, 20, 20), d.given(boxes(d, 3), True), d.given(count(3), True), d.pick(2, (2, 3)), d.pick(1.0, 0.5)),
        "psroi_pool": lambda d: vision.psroi_pool(d.f(1, 8, 20, 20, fixed=True), d.given(boxes(d, 3), True), d.given(count(3), True), 2, d.pick(1.0, 0.5)),
        "yolo_box": lambda d: vision.yolo_box(d.f(2, 14, 3, 4), d.given(np.array([[96, 128], [90, 100]], "int32")), [10, 13, 16, 30], 2, d.pick(0.01, 0.4), 32,
                                              clip_bbox=d.pick(True, False), scale_x_y=d.pick(1.0, 1.2)),
        "prior_box": lambda d: vision.prior_box(d.f(1, 4, 3, 5, fixed=True), d.f(1, 3, 30, 50, fixed=True), [8.0, 12.0], d.pick([], [14.0, 20.0]), [1.0, 2.0],
                                                flip=d.pick(True, False), clip=d.pick(True, False), min_max_aspect_ratios_order=d.pick(True, False)),
        "box_coder": lambda d: vision.box_coder(d.given(boxes(d, 4), True), [0.1, 0.1, 0.2, 0.2], d.given(boxes(d, 3), True),
                                                "encode_center_size", d.pick(True, False)),
        "box_decoder": lambda d: vision.box_coder(d.given(boxes(d, 4), True), [0.1, 0.1, 0.2, 0.2], d.f(3, 4, 4, low=-0.5, high=0.5, fixed=True),
                                                  "decode_center_size", d.pick(True, False), axis=0),
        "nms": lambda d: vision.nms(d.given(boxes(d, 8), True), d.pick(0.3, 0.6)),
        "matrix_nms": lambda d: vision.matrix_nms(d.given(boxes(d, 1, 6), True), d.f(1, 3, 6, low=0.0, high=1.0, fixed=True), 0.1, 0.2, 5, 4,
                                                  use_gaussian=d.pick(True, False), background_label=d.pick(0, -1), return_index=True),
        "generate_proposals": lambda d: vision.generate_proposals(
            d.f(1, 2, 3, 4, low=0.0, high=1.0, fixed=True), d.f(1, 8, 3, 4, low=-0.3, high=0.3, fixed=True), size(d), d.given(boxes(d, 3, 4, 2), True),
            d.given(np.ones((3, 4, 2, 4), "float32"), True), 12, 6, d.pick(0.5, 0.8), 1.0, return_rois_num=True),
        "distribute_fpn_proposals": lambda d: vision.distribute_fpn_proposals(d.given(boxes(d, 6, most=400.0), True), 2, 5, 4, 224,
                                                                              rois_num=d.given(count(6), True)),
    }  # fmt: skip
    FUNCTIONS.update(table)


def _spectra() -> None:
    def norm(d: Draw) -> str:
        return d.pick("backward", "ortho", "forward")

    table: dict[str, Callable[[Draw], Any]] = {
        "fft": lambda d: paddle.as_real(paddle.fft.fft(d.f(3, 4, 6), d.pick(None, 5, 8), d.pick(-1, 1), norm(d))),
        "ifft": lambda d: paddle.imag(paddle.fft.ifft(paddle.complex(d.f(3, 4, 6), d.f(3, 4, 6)), None, d.pick(-1, 1), norm(d))),
        "rfft": lambda d: paddle.abs(paddle.fft.rfft(d.f(3, 4, 6), d.pick(None, 5), d.pick(-1, 1), norm(d))),
        "ihfft": lambda d: paddle.as_real(paddle.fft.ihfft(d.f(3, 6), None, -1, norm(d))),
        "irfft": lambda d: paddle.fft.irfft(paddle.as_complex(d.f(3, 5, 2)), d.pick(None, 8, 9), -1, norm(d)),
        "hfft": lambda d: paddle.fft.hfft(paddle.complex(d.f(3, 5), d.f(3, 5)), None, -1, norm(d)),
        "fft2": lambda d: paddle.real(paddle.fft.fft2(d.f(3, 4, 6), None, (-2, -1), norm(d))),
        "rfftn": lambda d: paddle.angle(paddle.fft.rfftn(d.f(3, 4, 6), None, (1, 2), norm(d))),
        "conj": lambda d: paddle.imag(paddle.conj(paddle.complex(d.f(3, 4), d.f(3, 4)))),
        "stft": lambda d: paddle.abs(paddle.signal.stft(d.f(2, 32, fixed=True), 8, d.pick(None, 3), center=d.pick(True, False),
                                                        normalized=d.pick(True, False), onesided=d.pick(True, False))),
        "istft": lambda d: paddle.signal.istft(paddle.signal.stft(d.f(2, 32, fixed=True), 8, 4), 8, 4),
    }  # fmt: skip
    FUNCTIONS.update(table)


for family in (_unary, _binary, _reductions, _products, _creation, _moving, _nets, _boxes, _spectra):
    family()
