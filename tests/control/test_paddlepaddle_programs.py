"""Training programs with loops, branches and arrays that PaddlePaddle built: every step gives what it gave there.

See paddlepaddle/README.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.some import each, each_of_product

import foreshape as fs
from foreshape import layer

CASES = sorted((Path(__file__).parent / "paddlepaddle").glob("*.pdmodel"))

ONE_STEP = ("branch_in_loop", "array_sum", "lists")
"""Whose gradients PaddlePaddle gets wrong, or that it cannot run twice."""


def by_name(path: Path, prefix: str) -> dict[str, Any]:
    with np.load(path.with_suffix(".npz")) as file:
        return {n.removeprefix(prefix): file[n] for n in file.files if n.startswith(prefix)}


def scope_of(path: Path) -> fs.Scope:
    scope = fs.Scope()
    for name, value in by_name(path, "param/").items():
        scope.set(name, value)
    return scope


def inferred(path: Path) -> fs.Program:
    """The program of a file, with nothing in it that the file says of shapes."""
    program = fs.load_program(path)
    program.forget()
    assert program.infer() == []
    return program


def test_all_cases_are_there() -> None:
    assert len(CASES) >= 21


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("way", "path"), each_of_product(2, ("compiled", "checked"), CASES), ids=lambda v: getattr(v, "stem", v))
def test_every_step_fetches_what_it_fetched_there(way: str, path: Path) -> None:
    program, scope, feed = inferred(path), scope_of(path), by_name(path, "feed/")
    executor = fs.Executor(check=way == "checked")
    steps = 0
    while wanted := by_name(path, f"step{steps}/"):
        got = executor.run(program, feed, list(wanted), scope)
        for (name, want), seen in zip(wanted.items(), got, strict=True):
            np.testing.assert_allclose(np.asarray(seen), want, rtol=1e-5, atol=1e-5, err_msg=f"{name} in step {steps}")
        steps += 1
    assert steps == (1 if path.stem in ONE_STEP else 2)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("path", each(3, CASES), ids=lambda p: p.stem)
def test_a_file_comes_back_byte_for_byte_and_as_text(path: Path) -> None:
    loaded = fs.load_program(path)
    assert loaded.to_bytes() == path.read_bytes()
    assert str(fs.Program.parse(str(loaded))) == str(loaded)
    program = inferred(path)
    assert fs.Program.from_bytes(program.to_bytes()).to_bytes() == program.to_bytes()
    for other in (fs.Program.from_bytes(program.to_bytes()), fs.Program.parse(str(program))):
        assert str(other) == str(program)
        wanted = by_name(path, "step0/")
        got = fs.Executor().run(other, by_name(path, "feed/"), list(wanted), scope_of(path))
        for want, seen in zip(wanted.values(), got, strict=True):
            np.testing.assert_allclose(np.asarray(seen), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_no_inferred_shape_contradicts_the_file(path: Path) -> None:
    said, program = fs.load_program(path), inferred(path)
    changing = {"growing_columns": "matmul_v2_0.tmp_0@GRAD", "ranks": "sum_0.tmp_0@GRAD"}  # of which the file says what it is in one of the rounds
    for name, variable in program.global_block.vars.items():
        if name == changing.get(path.stem):
            continue
        before = said.global_block.vars[name]
        if variable.kind is fs.LOD_TENSOR and before.spec.dims is not None and before.packed_dims:
            assert len(variable.packed_dims) == len(before.packed_dims), name
            for axis, (here, there) in enumerate(zip(variable.packed_dims, before.packed_dims, strict=True)):
                assert here == there or -1 in (here, there), f"{name}, dim {axis}: {here}, in the file {there}"


def branch_in_loop(x: Any, w: Any, v: Any) -> Any:
    h = x
    for at in range(4):
        h = torch.tanh(h @ w) if at % 2 == 0 else h @ v + x
    return h


def array_sum(x: Any, w: Any) -> Any:
    first = torch.tanh(x @ w)
    return first + (first * 2) * (first * 3)


@pytest.mark.parametrize("function", [branch_in_loop, array_sum], ids=lambda f: f.__name__)
def test_gradients_that_it_gets_wrong_are_torch_s(function: Any) -> None:
    path = next(p for p in CASES if p.stem == function.__name__)
    scope, feed = scope_of(path), by_name(path, "feed/")
    names = ["w", "v"][: function.__code__.co_argcount - 1]
    parameters = [torch.tensor(scope.get(n), requires_grad=True) for n in names]
    function(torch.tensor(feed["x"]), *parameters).square().mean().backward()
    got = fs.Executor().run(inferred(path), feed, [n + "@GRAD" for n in names], scope)
    for seen, want in zip(got, parameters, strict=True):
        assert want.grad is not None
        np.testing.assert_allclose(seen, want.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_what_is_written_here_has_what_paddlepaddle_looks_for() -> None:
    """It was run there: attributes that no default stands for, and no variable in a block that would hide the one around it."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x, flag = layer.data("x", shape=["batch", 3]), layer.data("flag", shape=[1], dtype="bool")
        start = layer.fill_constant([1], "int64", 0)

        def body(i: Any, h: Any) -> Any:
            return i + 1, layer.tanh(layer.fc(h, 3, weight="w", bias=False))

        _, h = layer.while_loop(lambda i, h: layer.less_than(i, layer.fill_constant([1], "int64", 3)), body, [start, x])
        h = layer.cond(flag, lambda: layer.fc(h, 3, weight="v", bias=False), lambda: h * 2.0)
        h, _ = layer.rnn(lambda h, m: (h + m, h + m), layer.reshape(h, [-1, 1, 3]), layer.fill_constant([5, 3], "fp32", 0.0))
        fs.optimizer.SGD(0.1).minimize(layer.mean(h * h))
    ops = {op.type: op for op in main.all_ops()}
    loop, undone = ops["while"], ops["while_grad"]
    assert undone.attrs["is_test"] is False and undone.attrs["original_output_grad"] == undone.inputs["Out@GRAD"]
    assert loop.inputs["X"] == undone.inputs["X"] and loop.outputs["Out"] == undone.inputs["Out"], "by these it finds the two that belong together"
    for branch in main.all_ops():
        if branch.type == "conditional_block_grad":
            inner = main.blocks[branch.sub_block_indices()[0]]
            assert not set(branch.inputs["Out@GRAD"]) & inner.vars.keys()
    assert {"inputs@GRAD", "initial_states@GRAD"} <= ops["recurrent_grad"].outputs.keys()
