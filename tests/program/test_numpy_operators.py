"""Operators, indices and methods of a variable give what numpy's give."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer

RNG = np.random.RandomState(3)
F = (RNG.rand(4, 5, 6) * 4 - 2).astype("float32")
G = (RNG.rand(4, 5, 6) * 2 + 0.5).astype("float32")
I = RNG.randint(-9, 10, (4, 5, 6))
J = RNG.randint(1, 5, (4, 5, 6))
B, C = F > 0, G > 1.5


def run(of: Callable[..., Any], *arrays: Any, batch: bool = True) -> Any:
    """What a function of variables gives for these arrays."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        xs = [layer.data(f"x{k}", shape=[-1 if batch else a.shape[0], *a.shape[1:]], dtype=a.dtype) for k, a in enumerate(arrays)]
        out = of(*xs)
    assert isinstance(out, fs.Variable)
    return fs.Executor().run(main, {f"x{k}": a for k, a in enumerate(arrays)}, [out], fs.Scope())[0]


def check(of: Callable[..., Any], *arrays: Any, batch: bool = True) -> None:
    want, got = np.asarray(of(*arrays)), run(of, *arrays, batch=batch)
    assert got.shape == want.shape and got.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


SIGNS = ["add", "sub", "mul", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", SIGNS)
def test_operators(name: str) -> None:
    sign = getattr(operator, name)
    check(lambda x, y: sign(x, y), F, G)
    check(lambda x, y: sign(x, y), I, J)
    row = np.array([1, 2, 3, 4, 5, 6])
    for number in (2, np.int64(3), row):
        check(lambda x, n=number: sign(x, n), I)
        check(lambda x, n=number: sign(n, x), J)
    for number in (1.5, np.float32(0.7), np.float64(0.7), row.astype("float32") - 2.5):
        check(lambda x, n=number: sign(x, n), F)
        check(lambda x, n=number: sign(n, x), G)


def test_division_powers_and_signs() -> None:
    for of in (lambda x, y: x / y, lambda x, y: 2 / y, lambda x, y: abs(x) ** y, lambda x, y: x**2, lambda x, y: 2**y, lambda x, y: 1.5**x,
               lambda x, y: -x, lambda x, y: +x, lambda x, y: abs(x), lambda x, y: np.float32(2) / y):  # fmt: skip
        check(of, F, G)
    for of in (lambda x, y: x / y, lambda x, y: x / 2, lambda x, y: 3 / y, lambda x, y: x**2, lambda x, y: 2**y, lambda x, y: abs(x), lambda x, y: -x,
               lambda x, y: x**y):  # fmt: skip
        check(of, I, J)


def test_products_and_bits() -> None:
    check(lambda x, y: x @ y.transpose(0, 2, 1), F, G)
    square = RNG.rand(6, 3).astype("float32")
    check(lambda x: x @ square, F)
    check(lambda x: square.T @ x.transpose(0, 2, 1), F)
    for of in (lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: ~x):
        check(of, B, C)
        check(of, I, J)
    check(lambda x: (x > 0) & (x < 1) | (x == 0), F)
    check(lambda x: x == True, B)  # noqa: E712


INDICES: list[Any] = [
    np.s_[0], np.s_[-1], np.s_[..., 1:], np.s_[:, None], np.s_[None], np.s_[..., None], np.s_[::2], np.s_[:, ::-1], np.s_[:, 3:0:-1], np.s_[:, -2::-2],
    np.s_[:, :-3:-1], np.s_[1:3, ..., -1], np.s_[:, 2, None, 1:4], np.s_[None, 0, ..., None], np.s_[:, 1:1], np.s_[:, -100:100], np.s_[:, 4:1:-2, ::3],
    np.s_[..., np.int64(2)], np.s_[:, None, None, 1], np.s_[:, 0:-1], np.s_[:, -1:0:-1], np.s_[:, ::-2, ::-1], np.s_[...],
]  # fmt: skip


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices(index: Any) -> None:
    check(lambda x: x[index], F, batch=False)
    check(lambda x: x[index], F)


@pytest.mark.long
def test_all_slices_of_a_dim() -> None:
    bounds = [None, *range(-7, 8)]
    x = np.arange(5)
    for step in (1, 2, 3, -1, -2, -3):
        cuts = [slice(a, b, step) for a in bounds for b in bounds]
        main = fs.Program()
        with fs.program_guard(main, fs.Program()):
            v = layer.data("x", shape=[5], dtype="int64")
            outs = [v[cut] for cut in cuts]
        for cut, got in zip(cuts, fs.Executor().run(main, {"x": x}, outs, fs.Scope()), strict=True):
            assert got.tolist() == x[cut].tolist(), cut


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("step", [pytest.param(s, marks=pytest.mark.long) if s in (1, 3, -3) else s for s in (1, 2, 3, -1, -2, -3)])
def test_all_slices_of_an_open_dim(step: int) -> None:
    bounds = [None, *range(-5, 6)]
    cuts = [slice(a, b, step) for a in bounds for b in bounds]
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        v = layer.data("x", shape=["batch"], dtype="int64")
        outs = [v[cut] for cut in cuts]
        sets = [layer.setitem(v, cut, -1) for cut in cuts] if step < 0 else []
    executor, scope = fs.Executor(), fs.Scope()
    for batch in (1, 2, 3, 4, 7):
        x = np.arange(batch)
        found = executor.run(main, {"x": x}, [*outs, *sets], scope)
        for cut, got in zip(cuts, found, strict=False):
            assert got.tolist() == x[cut].tolist(), (batch, cut)
        for cut, got in zip(cuts if sets else [], found[len(cuts) :], strict=True):
            want = x.copy()
            want[cut] = -1
            assert got.tolist() == want.tolist(), (batch, cut)


def test_reductions() -> None:
    for name in ("sum", "mean", "max", "min", "prod"):
        for axis in (None, 0, -1, (1, 2), (0, -1)):
            check(lambda x, n=name, a=axis: getattr(x, n)(axis=a), G)
        check(lambda x, n=name: getattr(x, n)(1, keepdims=True), G)
        check(lambda x, n=name: getattr(x, n)(axis=()), G)
    for name in ("std", "var"):
        for axis in (None, 1, (0, -1)):
            check(lambda x, n=name, a=axis: getattr(x, n)(axis=a), F)
        check(lambda x, n=name: getattr(x, n)(1, keepdims=True), I)
    for name in ("cumsum", "cumprod"):
        for axis in (None, 0, -1):
            check(lambda x, n=name, a=axis: getattr(x, n)(axis=a), G[:, :2, :2])
    check(lambda x: x.cumsum(1), B)
    for name in ("sum", "mean", "max", "min"):
        check(lambda x, n=name: getattr(x, n)(1), I)
    for name in ("all", "any", "sum", "mean"):
        check(lambda x, n=name: getattr(x, n)(2), B)
        check(lambda x, n=name: getattr(x, n)(), B)
    check(lambda x: x.any(1), I)
    check(lambda x: x.argmax(1), F)
    check(lambda x: x.argmin(-1), F)
    check(lambda x: x.argmax(), F)
    check(lambda x, y: (x.argmax(1) == y.argmax(1)).mean(), F, G)


def test_forms() -> None:
    n = len(F)
    for of in (lambda x: x.reshape(-1, 30), lambda x: x.reshape((-1, 5, 2, 3)), lambda x: x.reshape([-1]), lambda x: x.flatten(), lambda x: x.T,
               lambda x: x.transpose(), lambda x: x.transpose(0, -1, 1), lambda x: x.transpose((2, 0, 1)), lambda x: x.swapaxes(-1, 0),
               lambda x: x[:, None, :1].squeeze(), lambda x: x[:, :1].squeeze(1), lambda x: x.astype("int64"), lambda x: x.astype(int),
               lambda x: x.astype(bool), lambda x: (x > 0).astype("float32"),
               lambda x: x.clip(-1, 1), lambda x: x.clip(min=0), lambda x: x.clip(max=0.5), lambda x: x.reshape(x.shape[0], -1)):  # fmt: skip
        check(of, F)
    assert run(lambda x: x.reshape(x.size), F).shape == (n * 30,)
    assert run(lambda x: x.reshape(x.shape[0] * 5, 6), F).shape == (n * 5, 6)


def test_what_is_known_of_it() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x, y = layer.data("x", shape=[-1, 3]), layer.data("y", shape=[2, 3])
        assert (y.ndim, y.size, len(y)) == (2, 6, 2) and str(x.size) == "3*batch" and x.ndim == 2
        assert [v.shape for v in y] == [[3], [3]] and [str(v) for v in list(y)[0:0]] == []
        a, b = y
        assert isinstance(a, fs.Variable) and a is not b
        words = layer.data("words", shape=["w", 4], lod_level=1)
        assert words.ndim == 3 and str(words.size) == "4*w"


def test_a_variable_is_hashed_by_what_it_is() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x, y = layer.data("x", shape=[3]), layer.data("y", shape=[3])
        named = {x: "x", y: "y"}
        assert named[x] == "x" and named[y] == "y" and x in {x, y} and len({x, y, x}) == 2 and x in [x, y]
        before = len(x.block.ops)
        assert (x == None) is False and (x != "x") is True and (x == (1, 2)) is False  # noqa: E711
        assert x not in ("relu", None, "tanh")
        assert len(x.block.ops) == before, "what is no number is not compared in the program"
        assert isinstance(x == y, fs.Variable) and isinstance(x == 1, fs.Variable)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "branch": (
        lambda x: 1 if x else 0,
        r"x has no value while the network is described, so that Python cannot branch on it: layer.cond .*\n    at .*test_numpy",
    ),
    "in-list": (lambda x: x in [x + 1], r"whether two variables are the same one is asked with `is`, and `in` a list or tuple asks with =="),
    "iterate": (list, r"x: how long it is only the run tells \(f32\[batch, 3\]\), so that it cannot be iterated over; layer.rnn .*\n    at .*test_numpy"),
    "unpack": (lambda x: (lambda a, b: a)(*x), "it cannot be iterated over"),
    "len": (len, "so that it has no len: see its shape"),
    "no-dims": (lambda x: list(x.sum()), "it has no dims, so that it cannot be iterated over"),
    "contains": (lambda x: 1 in x, r"use \(x == value\).any\(\)"),
    "array": (np.asarray, "numpy cannot have it as an array"),
    "float-of-int": (lambda x: x.astype("int64") == 1.5, "1.5 needs a floating-point type: use layer.cast first\n    at .*test_numpy"),
    "array-of-int": (lambda x: x.astype("int64") * np.array([0.5, 1, 2]), "an array of float64 beside it is of another kind"),
    "array-past": (lambda x: x.astype("int8") * np.array([500]), "does not have the numbers of the array beside it: 500 to 500"),
    "list": (lambda x: x * [1, 2, 3], r"x: a list beside it may mean numbers or variables: give np.array\(...\)"),
    "numpy-function": (lambda x: np.sum(x), r"x has no value while the network is described, so that np.sum cannot compute with it: here it is x.sum\(\)"),
    "numpy-ufunc": (lambda x: np.exp(x), r"np.exp cannot compute with it: here it is layer.exp\(x\)\n    at .*test_numpy"),
    "numpy-maximum": (lambda x: np.maximum(x, 0), r"np.maximum cannot compute with it: here it is layer.maximum"),
    "numpy-other-name": (lambda x: np.isnan(x), r"np.isnan cannot compute with it: layer.is_nan\(x\)"),
    "numpy-reduction": (lambda x: np.add.reduce(x), "np.add cannot compute with it"),
    "torch-function": (torch.relu, r"torch.relu cannot compute with it: here it is layer.relu\(x\)\n    at .*test_numpy"),
    "torch-list": (lambda x: torch.cat([x, x]), "torch.cat cannot compute with it: here it is layer.concat"),
    "torch-module": (torch.nn.Linear(3, 2), r"torch.linear cannot compute with it: here it is layer.fc\(x, output_size\)\n    at .*test_numpy"),
    "torch-loss": (lambda x: torch.nn.functional.cross_entropy(x, x), r"here it is layer.softmax_with_cross_entropy\(scores, label\)\n    at .*test_numpy"),
    "torch-method": (lambda x: torch.ones(3).dot(x), "torch.dot cannot compute with it"),
    "float": (float, r"it is no number for float\(\): fetch it from a run, as fs.Executor\(\).run\(program, feed, \[x\]\)\n    at .*test_numpy"),
    "int": (int, r"it is no number for int\(\): fetch it"),
    "complex": (complex, r"it is no number for complex\(\)"),
    "square root": (math.sqrt, r"it is no number for float\(\)"),
    "round": (round, r"round\(\) has no number of it: layer.round\(x\)"),
    "format": (lambda x: f"{x:.3f}", "it cannot be written as '.3f': fetch it"),
    "set": (lambda x: x.__setitem__(0, 1.0), "its parts cannot be set in place: x = layer.setitem"),
    "equal-to-a-list": (lambda x: x == [1, 2, 3], r"x: a list beside it may mean numbers or variables: give np.array\(...\)"),
    "array-as-an-index": (lambda x: x[np.array([1, 0])], "an index is made of integers, .* and None; .*use layer.gather"),
    "list-at-the-left": (lambda x: (1, 2, 3) * x, "x: a tuple beside it may mean numbers or variables"),
    "texts": (lambda x: x + np.array(["a"]), "an array of str32 beside it"),
    "reshape-two": (lambda x: x.reshape(-1, -1), r"at most one size can be what is left; seen \[-1, -1\]"),
    "reshape-zero": (lambda x: x.reshape(0, 3), "a size of 0 is no elements in numpy"),
    "reshape-text": (lambda x: x.reshape("a", 3), "a size is an integer"),
    "swap": (lambda x: x.swapaxes(0, 2), r"the axes must be in \[-2, 2\)"),
    "squeeze": (lambda x: x.squeeze(1), r"dim 1 must be 1, of f32\[batch, 3\]"),
    "index": (lambda x: x["a"], "an index is made of integers, slices, an Ellipsis and None"),
    "bound": (lambda x: x[: x.argmax()], "the bounds of a slice are integers"),
    "too-many": (lambda x: x[0, 0, 0], "x has 2 dims; the index has 3"),
    "dots": (lambda x: x[..., ...], "at most one Ellipsis"),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_said_at_the_users_line(name: str) -> None:
    wrong, says = WRONG[name]
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", 3)
        with pytest.raises(fs.DescriptionError, match=says) as caught:
            wrong(x)
    assert Path(__file__).name in str(caught.value)


def test_operators_of_numpy_and_torch_leave_their_place_to_the_variable() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", shape=[3])
        for one in (np.ones(3, "float32"), torch.ones(3), np.float32(2)):
            for made in (one + x, one - x, one * x, one / x, one**x, one % x, one // x, one < x, one <= x, one > x, one >= x, one == x, one != x):
                assert isinstance(made, fs.Variable) and made.shape == [3]
        assert [op.type for op in x.block.ops if op.type in ("less_than", "greater_than")] == ["greater_than", "less_than"] * 3
        assert (np.ones((2, 3), "float32") @ x).shape == (torch.ones(2, 3) @ x).shape == [2]
        assert f"{x}" == str(x) and isinstance(np.add(np.ones(3), x), fs.Variable)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sigmoid", r": here it is layer.sigmoid\(x\)"),
        ("permute", ": here it is layer.transpose"),
        ("no_such", "'no_such'$"),
        ("_x", "'_x'$"),
        ("numpy", r": here it is fs.Executor\(\).run\(program, feed, \[x\]\)"),
        ("item", "fs.Executor"),
        ("backward", "fs.train"),
        ("detach", "x.stop_gradient"),
    ],
)
def test_a_method_that_is_a_function_here_is_named(name: str, says: str) -> None:
    with fs.program_guard(fs.Program(), fs.Program()), pytest.raises(AttributeError, match=says):
        getattr(layer.data("x", 3), name)


def test_what_python_refuses() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", 3)
        for wrong in (lambda: x + "a", lambda: "a" * x, lambda: x < None, lambda: x @ 2, lambda: np.exp(x)):
            with pytest.raises(TypeError):
                wrong()
