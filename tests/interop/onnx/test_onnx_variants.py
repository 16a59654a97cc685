"""Single operators of ONNX in forms that its own tests lack, beside numpy: open sizes, whole numbers, operands fed or held in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs

RNG = np.random.default_rng(35)


class Variant(NamedTuple):
    """A node, its operands, and its results by numpy; ``held`` operands are tensors of the file, ``sizes`` the dims that the file says;
    an operand ``_`` is left out."""

    operator: str
    operands: dict[str, Any]
    wanted: Callable[..., Any]
    held: str = ""
    sizes: dict[str, list[int | str]] = {}
    opset: int = 18
    attributes: dict[str, Any] = {}


def floats(*dims: int) -> Any:
    return RNG.standard_normal(dims).astype("float32")


def whole(*dims: int, low: int = -9, high: int = 9, of: str = "int64") -> Any:
    return RNG.integers(low, high, dims).astype(of)


def einsum(equation: str, *operands: Any, sizes: Any = None) -> Variant:
    names = dict(zip("abcd", operands, strict=False))
    return Variant("Einsum", names, lambda *x: np.einsum(equation, *x), sizes=sizes or {}, attributes={"equation": equation})


def scattered(x: Any, index: Any, updates: Any, with_: Any) -> Any:
    out = x.copy()
    for at in np.ndindex(index.shape[:-1]):
        out[tuple(index[at])] = with_(out[tuple(index[at])], updates[at])
    return out


def scatter_nd(kind: str, by: Any, sizes: Any) -> Variant:
    operands = {"x": floats(3, 4, 2), "i": PLACES, "u": floats(4, 2)}
    return Variant("ScatterND", operands, lambda x, i, u: scattered(x, i, u, by), attributes={"reduction": kind}, sizes=sizes)


def scatter_elements(kind: str, by: Any, open_: bool) -> Variant:
    x, updates = floats(4, 5, 3), floats(2, 3, 2)
    index = np.int64([[[0, -1], [1, 3], [2, 2]], [[4, 0], [0, 1], [-3, 4]]])

    def wanted(x: Any, i: Any, u: Any) -> Any:
        out = x.copy()
        for at in np.ndindex(i.shape):
            place = (at[0], i[at], at[2])
            out[place] = by(out[place], u[at])
        return out

    return Variant(
        "ScatterElements", {"x": x, "i": index, "u": updates}, wanted, attributes={"axis": 1, "reduction": kind}, sizes={"x": ["n", 5, "m"]} if open_ else {}
    )


def attended(q: Any, k: Any, v: Any) -> Any:
    heads = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, heads, 1).swapaxes(2, 3) / np.sqrt(np.float32(q.shape[3]))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ np.repeat(v, heads, 1)


def normalized(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5))


def depth_to_space(x: Any) -> Any:
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


PLACES = np.int64([[0, 1], [-1, 2], [0, 1], [2, -4]])


def unsigned(operator: str, by: Any, held: str = "", of: Any = np.uint64) -> Variant:
    top = int(np.iinfo(of).max)
    x, y = np.array([top // 2 + 5, 3, top, 7, 0], of), np.array([3, top // 2 + 2, 10, 2, 9], of)
    return Variant(operator, {"x": x, "y": y}, by, held=held)


ARITHMETIC = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.floor_divide,
    "Mod": np.mod,
    "Max": np.maximum,
    "Min": np.minimum,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "BitwiseXor": np.bitwise_xor,
}
REDUCTIONS = [("mul", np.multiply), ("max", np.maximum), ("min", np.minimum)]
LARGE = np.array([[2**63 + 5, 3], [2**64 - 1, 7]], "uint64")
IMAGE, GROUPED = floats(2, 8, 3, 5), floats(2, 6, 5)
VARIANTS = [
    *(unsigned(operator, by, held) for operator, by in ARITHMETIC.items() for held in ("", "y")),
    *(unsigned(operator, ARITHMETIC[operator], of=of) for operator in ("Sub", "Div", "Greater") for of in (np.uint16, np.uint32)),
    Variant("TopK", {"x": LARGE, "k": np.int64([1])}, lambda x, k: (x.max(1, keepdims=True), x.argmax(1)[:, None]), held="k"),
    Variant("Clip", {"x": LARGE, "a": LARGE[0, 1], "b": LARGE[0, 0]}, lambda x, a, b: x.clip(a, b), held="a b"),
    Variant("ReduceMax", {"x": LARGE}, lambda x: x.max(keepdims=True)),
    Variant("Transpose", {"x": LARGE}, lambda x: x.T),
    Variant("Shape", {"x": LARGE}, lambda x: np.int64(x.shape)),
    Variant("Cast", {"x": LARGE}, lambda x: x.astype("float64"), attributes={"to": 11}),
    Variant("Cast", {"x": np.float32([1.5, 3e9])}, lambda x: x.astype("uint32"), attributes={"to": 12}),
    einsum("ij,jk,kl->il", floats(2, 3), floats(3, 4), floats(4, 5)),
    einsum("...ij, ...jk, ...k", floats(6, 2, 3), floats(3, 4), floats(6, 4)),
    einsum("bij,bjk,bkl->bl", floats(2, 3, 4), floats(2, 4, 5), floats(2, 5, 3), sizes={"a": ["n", 3, 4], "b": ["n", 4, 5], "c": ["n", 5, 3]}),
    einsum("iij->ji", floats(3, 3, 4)),
    einsum("i...i,i->...", floats(3, 2, 3), floats(3)),
    einsum("ij,jk", whole(2, 3), whole(3, 4)),
    einsum(",ij->ji", np.float32(3), floats(2, 3)),
    *(scatter_nd(kind, by, sizes) for kind, by in REDUCTIONS for sizes in ({}, {"x": ["n", 4, "m"], "u": [4, "m"]})),
    Variant("Unique", {"x": whole(3, 4, 2, high=-6, of="int8")}, lambda x: np.unique(x, axis=1), attributes={"axis": -2}),
    Variant("Range", {"a": np.int16(9), "b": np.int16(-3), "c": np.int16(-4)}, lambda a, b, c: np.arange(a, b, c, "int16")),
    Variant("Reshape", {"x": floats(2, 6), "s": np.int64([3, -1])}, lambda x, s: x.reshape(s), opset=14, attributes={"allowzero": 1}),
    Variant("Reshape", {"x": floats(0, 6), "s": np.int64([3, 0, 2])}, lambda x, s: x.reshape(s), opset=14, attributes={"allowzero": 1}, sizes={"x": ["n", 6]}),
    Variant("ReduceMin", {"x": whole(2, 0, 3, of="int32"), "a": np.int64([1])}, lambda x, a: np.full((2, 1, 3), 2**31 - 1, "int32"), held="a"),
    Variant("ReduceSum", {"x": whole(3, 4, of="int32")}, lambda x: x.sum(1, keepdims=True, dtype="int32"), opset=11, attributes={"axes": [1]}),
    *(scatter_elements(kind, by, open_) for kind, by in [("none", lambda _, new: new), ("mul", np.multiply)] for open_ in (False, True)),
    Variant(
        "Gather", {"x": floats(2, 5, 3), "i": np.zeros((4, 0), "int64")}, lambda x, i: np.take(x, i, 1), sizes={"x": ["n", 5, "m"]}, attributes={"axis": 1}
    ),
    Variant("Gather", {"x": floats(2, 5, 0), "i": whole(4, 1, low=0, high=2)}, lambda x, i: np.take(x, i, 0)),
    Variant(
        "GatherND",
        {"x": floats(2, 3, 4, 5), "i": whole(2, 3, 6, 1, low=-4, high=4)},
        sizes={"x": ["a", "b", 4, 5], "i": ["a", "b", 6, 1]},
        wanted=lambda x, i: np.take_along_axis(x, i + 4 * (i < 0), 2),
        attributes={"batch_dims": 2},
    ),
    Variant("Tile", {"x": floats(2, 3), "n": np.int64([2, 0])}, lambda x, n: np.tile(x, n), held="n", sizes={"x": ["n", 3]}),
    *(Variant("Split", {"x": floats(size, 2)}, lambda x: (x[:3], x[3:6], x[6:]), sizes={"x": ["n", 2]}, attributes={"num_outputs": 3}) for size in (7, 8, 9)),
    Variant("Squeeze", {"x": floats(1, 0, 1, 2), "a": np.int64([-2])}, lambda x, a: x[:, :, 0]),
    Variant("Unsqueeze", {"x": floats(3, 0, 2), "a": np.int64([1])}, lambda x, a: x[:, None]),
    Variant("Pad", {"x": floats(2, 3), "p": np.int64([1, 2]), "_": None, "a": np.int64([-1])}, lambda x, p, a: np.pad(x, ((0, 0), (1, 2))), held="p"),
    Variant("Shrink", {"x": np.int32([-3, 0, 2])}, lambda x: np.int32([-2, 0, 1]), attributes={"bias": 0.75, "lambd": 0.5}),
    Variant("DepthToSpace", {"x": floats(2, 8, 3, 5)}, depth_to_space, sizes={"x": ["n", "c", "h", "w"]}, attributes={"blocksize": 2}),
    Variant("SpaceToDepth", {"x": depth_to_space(IMAGE)}, lambda _: IMAGE, sizes={"x": ["n", "c", "h", "w"]}, attributes={"blocksize": 2}),
    Variant("Attention", {"q": floats(2, 6, 3, 4), "k": floats(2, 2, 5, 4), "v": floats(2, 2, 5, 3)}, attended, opset=23, sizes={"q": [2, "h", 3, "d"]}),
    Variant("DFT", {"x": floats(2, 5, 1)}, lambda x: np.fft.fft(x[..., 0]).astype("c8")[..., None].view("f4"), opset=20, sizes={"x": ["n", "m", "parts"]}),
    Variant("ReduceMax", {"x": whole(2, 3, low=0, high=2, of="bool"), "a": np.int64([])}, lambda x, a: x, opset=20, attributes={"noop_with_empty_axes": 1}),
    Variant("Squeeze", {"x": floats(5), "a": np.int64([])}, lambda x, a: x),
    Variant("Hardmax", {"x": np.float32([[[1, 3], [3, 0]]])}, lambda x: np.float32([[[0, 1], [0, 0]]]), opset=11),
    Variant("Softmax", {"x": floats(0, 2, 0, 4)}, lambda x: x, opset=11),
    Variant(
        "GroupNormalization",
        {"x": GROUPED, "s": np.float32([2, 3]), "b": np.float32([1, -1])},
        sizes={"x": ["n", "c", "m"]},
        attributes={"num_groups": 2},
        wanted=lambda x, s, b: (normalized(x.reshape(2, 2, -1)) * s[:, None] + b[:, None]).reshape(x.shape),
    ),
    Variant("BitCast", {"x": floats(2, 3)}, lambda x: x.view("int32"), opset=26, attributes={"to": 6}),
    Variant(
        "STFT",
        {"x": floats(2, 16, 2), "s": np.int64(3), "_": None, "l": np.int64(5)},
        opset=17,
        attributes={"onesided": 0},
        sizes={"x": ["n", "m", 2]},
        wanted=lambda x, s, l: np.stack([np.fft.fft(x.view("c8")[:, at : at + l, 0]) for at in range(0, 12, s)], 1).astype("c8")[..., None].view("f4"),
    ),
]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("variant", [pytest.param(v, id=f"{at}-{v.operator}") for at, v in enumerate(VARIANTS)])
def test_an_operator_gives_what_numpy_does(variant: Variant, tmp_path: Path) -> None:
    given, held = {name: np.asarray(array) for name, array in variant.operands.items() if name[0] != "_"}, variant.held.split()
    wanted = variant.wanted(*given.values())
    wanted = [np.asarray(one) for one in (wanted if isinstance(wanted, tuple) else (wanted,))]
    results = [f"y{at}" for at in range(len(wanted))]
    fed = {name: array for name, array in given.items() if name not in held}
    inputs = [value(name, str(array.dtype), variant.sizes.get(name, array.shape)) for name, array in fed.items()]
    outputs = [value(name, str(one.dtype), None) for name, one in zip(results, wanted, strict=True)]
    operands = " ".join(n[:1] if n[0] == "_" else n for n in variant.operands)
    graph = Graph([node(variant.operator, operands, " ".join(results), **variant.attributes)], inputs, outputs, [tensor(name, given[name]) for name in held])
    got = opened(model(graph, variant.opset), tmp_path).run(fed)
    for name, want in zip(results, wanted, strict=True):
        assert got[name].dtype == want.dtype and got[name].shape == want.shape
        assert np.allclose(got[name], want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_numbers_without_a_sign_are_in_no_file_of_paddlepaddle(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "h", to=1), node("Relu", "h", "y")]
    net = opened(model(Graph(nodes, [value("x", "uint32", ["n"])], [value("y", "float32", None)])), tmp_path)
    assert net.run({"x": np.uint32([4_000_000_000])})["y"].tolist() == [4e9] and net.run({"x": np.int64([3])})["y"].tolist() == [3]
    with pytest.raises(fs.FeedError, match="int64 with -1, which uint32 does not have"):
        net.run({"x": np.int64([-1])})
    text = str(net.program)
    assert "x: u32[n]" in text and str(fs.Program.parse(text)) == text
    with pytest.raises(fs.ForeshapeError, match="uint32 cannot be saved: the file format has no such elements"):
        fs.save_inference_model(tmp_path / "again", net.feeds, net.fetches, program=net.program, scope=net.scope)
