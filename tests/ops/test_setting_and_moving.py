"""What operators that set, cut, repeat and move elements compute, against numpy: those of older files too, which PaddlePaddle 2.6 no longer runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape.core.spec import tensor
from foreshape.language.program import Program

RNG = np.random.RandomState(3)


def computed(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None, slot: str = "") -> np.ndarray:
    """A result of one op; of a list of arrays each is an element of the slot."""
    program = Program()
    block = program.global_block
    feed: dict[str, np.ndarray] = {}

    def variable(name: str, a: np.ndarray) -> Any:
        feed[name] = a
        return block.create_variable(name, tensor(fs.core.spec.dtype(a.dtype), *a.shape), need_check_feed=True)

    given = {s: [variable(f"{s}.{k}", x) for k, x in enumerate(a)] if isinstance(a, list) else variable(s, a) for s, a in inputs.items()}
    op = block.append_op(type, given, {slot: "out"} if slot else None, attrs)
    return fs.Executor().run(program, feed, ["out" if slot else next(iter(op.output_names()))], fs.Scope())[0]


def numbers(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype("float32")


IMAGE, MATRIX = numbers(2, 3, 4, 5), numbers(4, 6)
PADS = ((0, 0), (0, 0), (1, 2), (0, 3))
CASES: list[tuple[str, dict[str, Any], dict[str, Any], np.ndarray]] = [
    ("pad2d", {"X": IMAGE}, {"paddings": [1, 2, 0, 3], "pad_value": 0.5}, np.pad(IMAGE, PADS, constant_values=0.5)),
    ("pad2d", {"X": IMAGE}, {"paddings": [1, 2, 0, 3], "mode": "reflect"}, np.pad(IMAGE, PADS, "reflect")),
    ("pad2d", {"X": IMAGE}, {"paddings": [1, 2, 0, 3], "mode": "edge"}, np.pad(IMAGE, PADS, "edge")),
    ("pad2d", {"X": IMAGE}, {"paddings": [1, 0, 2, 1], "mode": "edge", "data_format": "NHWC"}, np.pad(IMAGE, ((0, 0), (1, 0), (2, 1), (0, 0)), "edge")),
    ("pad_constant_like", {"X": MATRIX, "Y": MATRIX[:3, :2]}, {"pad_value": 2.0}, np.pad(MATRIX[:3, :2], ((0, 1), (0, 4)), constant_values=2.0)),
    ("crop", {"X": MATRIX, "Y": MATRIX[:2, :3]}, {"offsets": [1, 2]}, MATRIX[1:3, 2:5]),
    ("expand", {"X": MATRIX}, {"expand_times": [2, 3]}, np.tile(MATRIX, (2, 3))),
    ("expand_as", {"X": MATRIX, "target_tensor": np.zeros((8, 18), "int64")}, {}, np.tile(MATRIX, (2, 3))),
    ("reverse", {"X": MATRIX}, {"axis": [0, 1]}, MATRIX[::-1, ::-1]),
    ("reshape", {"X": MATRIX}, {"shape": [-1, 8]}, MATRIX.reshape(3, 8)),
    ("transpose", {"X": IMAGE}, {"axis": [2, 0, 3, 1]}, IMAGE.transpose(2, 0, 3, 1)),
    ("flatten", {"X": IMAGE}, {"axis": 2}, IMAGE.reshape(6, 20)),
    ("squeeze", {"X": MATRIX[None, :, None]}, {"axes": [0]}, MATRIX[:, None]),
    ("unsqueeze", {"X": MATRIX}, {"axes": [1, 0]}, MATRIX[None, :, None]),
    ("one_hot", {"X": np.array([[1], [3], [0]])}, {"depth": 4}, np.eye(4, dtype="float32")[[1, 3, 0]]),
    ("diag", {"Diagonal": MATRIX[0]}, {}, np.diag(MATRIX[0])),
    ("multiplex", {"X": [MATRIX, -MATRIX], "Ids": np.array([[1], [0], [0], [1]], "int32")}, {}, MATRIX * np.array([[-1], [1], [1], [-1]], "float32")),
    ("is_empty", {"X": MATRIX[:0]}, {}, np.array(True)),
]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("type", "inputs", "attrs", "want"), CASES, ids=[f"{c[0]}-{k}" for k, c in enumerate(CASES)])
def test_it_is_numpys(type: str, inputs: dict[str, Any], attrs: dict[str, Any], want: np.ndarray) -> None:
    got = computed(type, inputs, attrs)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_blocks_of_space_become_channels_in_yolos_order() -> None:
    x = np.arange(16, dtype="float32").reshape(1, 4, 2, 2)
    assert computed("space_to_depth", {"X": x}, {"blocksize": 2}).shape == (1, 16, 1, 1)
    x = numbers(2, 8, 4, 6)
    image = np.zeros((2, 2, 8, 12), "float32")
    for n, k, j, i in np.ndindex(x.shape):
        image[n, k % 2, j * 2 + k // 2 // 2, i * 2 + k // 2 % 2] = x[n, k, j, i]
    np.testing.assert_array_equal(computed("space_to_depth", {"X": x}, {"blocksize": 2}), image.reshape(2, 32, 2, 3))


def test_channels_are_taken_from_each_group_in_turn() -> None:
    x = numbers(2, 6, 2, 3)
    np.testing.assert_array_equal(computed("shuffle_channel", {"X": x}, {"group": 2}), x[:, [0, 3, 1, 4, 2, 5]])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_channels_come_from_the_image_before_and_the_next(layout: str) -> None:
    x = numbers(6, 5, 2, 3)
    want = x.copy()
    for at in range(6):
        want[at, :1] = x[at - 1, :1] if at % 3 else 0
        want[at, 1:3] = x[at + 1, 1:3] if at % 3 < 2 else 0
    given = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    got = computed("temporal_shift", {"X": given}, {"seg_num": 3, "shift_ratio": 0.3, "data_format": layout})
    np.testing.assert_array_equal(got if layout == "NCHW" else got.transpose(0, 3, 1, 2), want)


def test_of_several_values_for_one_place_the_last_is_kept_and_has_the_gradient() -> None:
    x, index, value = numbers(2, 4), np.array([[1, 1, 3], [0, 2, 0]]), numbers(2, 3)
    want = x.copy()
    want[0, 1], want[0, 3], want[1, 0], want[1, 2] = value[0, 1], value[0, 2], value[1, 2], value[1, 1]
    inputs = {"Input": x, "Index": index, "Value": value}
    np.testing.assert_array_equal(computed("put_along_axis", inputs, {"Axis": 1}), want)
    d = numbers(2, 4)
    got = computed("put_along_axis_grad", inputs | {"Result": want, "Result@GRAD": d}, {"Axis": 1}, "Value@GRAD")
    np.testing.assert_array_equal(got, [[0, d[0, 1], d[0, 3]], [0, d[1, 2], d[1, 0]]])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_the_gradient_of_a_product_needs_no_division(zeros: int) -> None:
    """Where one factor is 0 the others' gradients are 0, and its own is their product."""
    x, value = np.full((1, 2), 3.0, "float32"), np.array([[2.0, 5.0, 7.0]], "float32")
    value[0, :zeros] = 0
    inputs = {"Input": x, "Index": np.array([[0, 0, 0]]), "Value": value}
    d = np.array([[10.0, 1.0]], "float32")
    attrs = {"Axis": 1, "Reduce": "mul"}
    made = computed("put_along_axis", inputs, attrs)
    both = inputs | {"Result": made, "Result@GRAD": d}
    np.testing.assert_allclose(computed("put_along_axis_grad", both, attrs, "Input@GRAD"), [[10 * value.prod(), 1.0]], rtol=1e-6)
    others = [10 * 3 * np.prod(np.delete(value, k)) for k in range(3)]
    np.testing.assert_allclose(computed("put_along_axis_grad", both, attrs, "Value@GRAD")[0], others, rtol=1e-6)


def test_parts_of_numbers_are_told_by_their_shard() -> None:
    x = np.arange(20).reshape(-1, 1)
    for shard in range(3):
        got = computed("shard_index", {"X": x}, {"index_num": 20, "nshards": 3, "shard_id": shard})
        np.testing.assert_array_equal(got, np.where(x // 7 == shard, x % 7, -1))
    with pytest.raises(fs.ExecutionError, match="a number in X must be in"):
        computed("shard_index", {"X": x}, {"index_num": 19, "nshards": 3, "shard_id": 0})
