"""Sizes that an op takes as tensors, and that PaddlePaddle's files have as names in an attribute: they are operands here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import foreshape as fs
from foreshape import layer
from foreshape.errors import GuardError
from foreshape.language.ops.nn.interpolation import exact_ratio
from foreshape.language.program import Program, program_guard
from foreshape.language.wire import framework_pb2 as pb
from foreshape.transforms.backward import append_backward

X = np.random.RandomState(4).standard_normal((2, 3, 5, 6)).astype("float32")
FILTER = np.random.RandomState(5).standard_normal((3, 4, 3, 3)).astype("float32")
POOL = {"pooling_type": "avg", "adaptive": True}
SPREAD = {"strides": [2, 2], "paddings": [1, 1]}
SLOT = {"pool2d": ("KernelSizes", "ksize"), "conv2d_transpose": ("OutputSizes", "output_size")}


def described(type: str, of_shape: bool) -> Program:
    """One op whose sizes are those of the images ``like``, or the largest of some numbers, which only the run tells."""
    program = Program()
    with program_guard(program, Program()):
        x = layer.data("x", shape=["batch", 3, "height", "width"])
        if of_shape:
            dims = layer.shape(layer.data("like", shape=["batch", 1, "rows", "columns"]))
            sizes = [layer.slice(dims, [0], [at], [at + 1]) for at in (2, 3)]
        else:
            sizes = [layer.cast(layer.reduce_max(layer.data(name, shape=["counts"])), "int32") for name in ("rows", "columns")]
        block = program.global_block
        if type == "pool2d":
            block.append_op(type, {"X": x, "KernelSizes": sizes}, {"Out": "out"}, POOL)
        else:
            block.append_op(type, {"Input": x, "Filter": layer.data("filter", shape=[3, 4, 3, 3]), "OutputSizes": sizes}, {"Output": "out"}, SPREAD)
    return program


def expected(type: str, rows: int, columns: int) -> np.ndarray:
    x, w = torch.from_numpy(X), torch.from_numpy(FILTER)
    if type == "pool2d":
        return F.adaptive_avg_pool2d(x, (rows, columns)).numpy()
    return F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=(rows - 9, columns - 11)).numpy()


def fed(type: str, rows: int, columns: int, of_shape: bool) -> dict[str, Any]:
    given = {"rows": np.array([0, rows], "float32"), "columns": np.array([0, columns], "float32")}
    sizes = {"like": np.zeros((2, 1, rows, columns), "float32")} if of_shape else given
    return {"x": X, **sizes} | ({"filter": FILTER} if type == "conv2d_transpose" else {})


EACH = pytest.mark.parametrize(("type", "sizes"), [("pool2d", [(3, 4), (1, 1), (2, 7)]), ("conv2d_transpose", [(9, 11), (10, 12), (9, 12)])])


@pytest.mark.parametrize("of_shape", [True, False])
@EACH
def test_the_sizes_that_tensors_hold_are_those_of_the_result(type: str, sizes: list[tuple[int, int]], of_shape: bool) -> None:
    program = described(type, of_shape)
    dims = program.global_block.var("out").spec.known_dims
    assert [str(d) for d in dims[2:]] == (["rows", "columns"] if of_shape else ["out.2", "out.3"]), dims
    for frozen in (False, True):
        executor = fs.Executor(frozen=frozen)
        for rows, columns in sizes:
            (seen,) = executor.run(program, fed(type, rows, columns, of_shape), ["out"])
            np.testing.assert_allclose(seen, expected(type, rows, columns), rtol=1e-4, atol=1e-5)


@EACH
def test_a_file_has_their_names_as_the_value_of_the_attribute(type: str, sizes: list[tuple[int, int]]) -> None:
    program = described(type, True)
    slot, attribute = SLOT[type]
    data = program.to_bytes()
    op = pb.ProgramDesc.FromString(data).blocks[0].ops[-1]
    assert op.type == type and slot not in [i.parameter for i in op.inputs]
    (named,) = [list(a.vars_name) for a in op.attrs if a.name == attribute]
    assert tuple(named) == program.global_block.ops[-1].inputs[slot]
    again = fs.load_program(data)
    assert again.global_block.ops[-1].inputs[slot] == tuple(named) and again.to_bytes() == data
    rows, columns = sizes[-1]
    (seen,) = fs.Executor().run(again, fed(type, rows, columns, True), ["out"])
    np.testing.assert_allclose(seen, expected(type, rows, columns), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("type", "rows", "words"), [("pool2d", 0, "ksize must be at least 1; seen 0"), ("conv2d_transpose", 11, "must be less than 9")])
def test_sizes_that_cannot_be_are_refused_where_only_the_run_tells_them(type: str, rows: int, words: str) -> None:
    with pytest.raises(GuardError, match=words):
        fs.Executor().run(described(type, False), fed(type, rows, 4 if type == "pool2d" else 11, False), ["out"])


@EACH
def test_the_gradient_is_that_of_the_sizes_that_were_given(type: str, sizes: list[tuple[int, int]]) -> None:
    rows, columns = sizes[-1]
    for of_shape in (True, False):
        program = described(type, of_shape)
        with program_guard(program, Program()):
            x, out = program.global_block.var("x"), program.global_block.var("out")
            x.stop_gradient = False
            ((_, found),) = append_backward(layer.reduce_sum(layer.square(out)), [x])
        (seen,) = fs.Executor().run(program, fed(type, rows, columns, of_shape), [found])
        leaf = torch.from_numpy(X).requires_grad_()
        w = torch.from_numpy(FILTER)
        made = (
            F.adaptive_avg_pool2d(leaf, (rows, columns))
            if type == "pool2d"
            else F.conv_transpose2d(leaf, w, stride=2, padding=1, output_padding=(rows - 9, columns - 11))
        )
        made.square().sum().backward()
        np.testing.assert_allclose(seen, leaf.grad.numpy(), rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]


def test_a_ratio_for_a_scale_gives_what_single_precision_gives() -> None:
    """The sizes of images times scales, by the fraction that stands for one and as PaddlePaddle multiplies them."""
    fractions = [a / b for b in range(1, 40) for a in range(1, 2 * b)] + [n / 1000 for n in range(1, 3000, 7)]
    scales = np.unique(np.array(fractions, "float32"))
    ratios = {scale: ratio for scale in scales if (ratio := exact_ratio(float(scale))) is not None}
    assert len(ratios) > 400 and exact_ratio(float(np.float32(1 / 3))) == (1, 3) and exact_ratio(float(np.float32(1.3))) is None
    sizes = np.arange(1, 4000)
    for scale, (over, under) in ratios.items():
        single = (sizes.astype("float32") * scale).astype("int64")
        np.testing.assert_array_equal(single, sizes * over // under, err_msg=f"{scale}")
