"""Files of PaddlePaddle 3 that are wrong: each is refused with its place, in time and memory bounded by its size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.counted import TracedMemory, calls
from support.paddle3 import cases
from support.pir_files import Json, attribute, document, dtype, ending, feed, fetch, file, full, op, parameter, region, several, tensor
from support.survival import checked_words, survive

import foreshape as fs
from foreshape.interop import write_parameters

X = tensor([-1, 3])
ONE = tensor([1], "bool")
WIDE = 10**4000


def relu(number: int, operand: int, type: Json = X) -> Json:
    return op("relu", [operand], [(number, type)])


def small(*more: Json) -> list[Json]:
    return [feed(1, "x", X), relu(2, 1), *more]


def nested(depth: int) -> Json:
    """Branches in branches."""
    inner = [ending()]
    for _ in range(depth):
        inner = [op("if", [2], [], [region(*inner), region(ending())]), ending()]
    return inner[0]


def deep_list(depth: int) -> Json:
    out: Json = {"#": "0.a_array", "D": []}
    for _ in range(depth):
        out = {"#": "0.a_array", "D": [out]}
    return out


WRONG: dict[str, tuple[list[Json], str]] = {
    "an operand that is not made": (small(relu(3, 9)), r"ops\[2\].I\[0\]: the value 9 is not made before it is used"),
    "an operand that is made later": ([relu(2, 1), feed(1, "x", X)], r"ops\[0\].I\[0\]: the value 1 is not made before"),
    "an operand of its own op": (small(relu(3, 3)), r"ops\[2\].I\[0\]: the value 3 is not made before"),
    "a value that is made twice": (small(relu(2, 1)), r"ops\[2\].O\[0\]: the value 2 is made twice"),
    "a parameter that is made twice": ([parameter(1, "a", X), parameter(1, "b", X)], r"ops\[1\].O: the value 1 is made twice"),
    "a value of a region that has ended": (
        [full(2, True, of="bool"), op("if", [2], [], [region(full(5, 1.0), ending()), region(ending())]), relu(6, 5)],
        r"ops\[2\].I\[0\]: the value 5 is made in a region that has ended",
    ),
    "a value of the op in its own region": (
        [full(2, True, of="bool"), op("if", [2], [(3, X)], [region(relu(4, 3), ending(4)), region(ending(2))])],
        r"ops\[1\].regions\[0\].blocks\[0\].ops\[0\].I\[0\]: the value 3 is not made before",
    ),
    "an operand that is a truth": ([feed(1, "x", X), {**relu(2, 1), "I": [{"%": True}]}], r"ops\[1\].I\[0\] must be the number of a value"),
    "an operand of thousands of digits": ([{**relu(2, 1), "I": [{"%": WIDE}]}], r"ops\[0\].I\[0\]: the value 1000"),
    "a result below 0": (small({**relu(3, 2), "O": [{"%": -3, "TT": X}]}), r"ops\[2\].O\[0\] must be the number of a value"),
    "a result without type": (small({**relu(3, 2), "O": [{"%": 3}]}), r"ops\[2\].O\[0\].TT must be a type"),
    "operands that are no list": (small({**relu(3, 2), "I": {"%": 1}}), r"ops\[2\].I must be a list; seen an object"),
    "an op that is none": ([*small(), 7], r"ops\[2\] must be an object; seen 7"),  # type: ignore[list-item]
    "an op without dialect": (small(op("2.yield") | {"#": "relu"}), r"ops\[2\].# must be the name of an operator, with its dialect"),
    "dims beyond 64 bits": ([feed(1, "x", tensor([2**63]))], r"ops\[0\].O\[0\].TT.D\[1\] must be at most 64 dims of 64 bits"),
    "dims of more bytes than 64 bits count": ([feed(1, "x", tensor([2**62, 8]))], r"ops\[0\].O\[0\].TT.D\[1\]: the byte count"),
    "dims of thousands of digits": ([feed(1, "x", tensor([WIDE]))], r"ops\[0\].O\[0\].TT.D\[1\] must be at most 64 dims"),
    "dims that are truths": ([feed(1, "x", tensor([True, 3]))], r"TT.D must be an element type and dims, whole numbers"),
    "dims with a point, after whole ones": ([feed(1, "x", tensor([2, 3])), feed(2, "y", tensor([2.0, 3]))], r"ops\[1\].O\[0\].TT.D must be"),
    "too many dims": ([feed(1, "x", tensor([1] * 65))], r"at most 64 dims"),
    "elements that are not known": ([feed(1, "x", tensor([2], "f8e4m3fn"))], r"elements of the type '0.t_f8e4m3fn' are not known"),
    "a type that is not known": (small({**relu(3, 2), "O": [{"%": 3, "TT": {"#": "4.t_dist_dtensor", "D": []}}]}), r"values of the type '4.t_dist_dtensor'"),
    "lists of lists of lists": (small({**relu(3, 2), "O": [{"%": 3, "TT": json.loads('{"#":"0.t_vec","D":[' * 20 + "]}" * 20)}]}), "more than 8 deep"),
    "a list within a list": (small(op("0.combine", [1], [(3, several(X))]), op("0.combine", [3], [(4, several(X))])), r"ops\[3\].I\[0\]: a list stands in"),
    "nothing within a list": (small(op("0.combine", [0], [(3, several(X))])), r"ops\[2\].I\[0\]: nothing stands in a list"),
    "an element beyond a list": (small(op("0.combine", [1], [(3, several(X))]), op("0.slice", [3], [(4, X)], index=1)), "element 1 is taken of 1 values"),
    "an element of a tensor": (small(op("0.slice", [2], [(4, X)], index=0)), "a list is taken apart"),
    "a list with another count": (small(op("0.combine", [1], [(3, several(X))]), op("0.split", [3], [(4, X), (5, X)])), "into 2 values, and has 1"),
    "a list where a tensor is wanted": (
        small(op("0.combine", [1], [(3, several(X))]), op("shape64", [3], [(4, tensor([2], "i64"))])),
        "is a list, and one tensor",
    ),
    "a tensor where a list is the result": (
        small(op("full_int_array", (), [(3, tensor([2], "i64"))], value=(1, 2)), full(4, 0, of="int32"), op("split", [1, 3, 4], [(5, X)])),
        r"ops\[4\].O\[0\]: one tensor, and the result of pd_op.split is a list",
    ),
    "a list where a tensor is the result": (small(op("shape64", [1], [(3, several(X))])), r"ops\[2\].O\[0\]: a list, and the result of pd_op.shape64 is one"),
    "no result": (small(op("shape64", [1])), "has a result 0 in PaddlePaddle, and 0 results here"),
    "a result that its op does not make": (small(op("2.yield", [1], [(3, X)]), relu(4, 3)), "the value 3 is no result of its op"),
    "an operand left out": (small(op("shape64", [0], [(3, X)])), "operand 0 of pd_op.shape64 is left out"),
    "too many operands": (small(op("relu", [1, 1], [(3, X)])), "has 2 operands; PaddlePaddle's has 1"),
    "a feed of a list": ([op("data", (), [(1, several(X))], name="x")], "a feed is a tensor"),
    "a feed within a region": (
        [full(2, True, of="bool"), op("if", [2], [], [region(feed(4, "y", X), ending()), region(ending())])],
        "a data within a region",
    ),
    "a fetch within a region": (
        small(full(3, True, of="bool"), op("if", [3], [], [region(fetch(4, 2, "y", X), ending()), region(ending())])),
        "a fetch within",
    ),
    "a parameter within a region": ([full(2, True, of="bool"), op("if", [2], [], [region(parameter(4, "w", X)), region()])], "a parameter within a region"),
    "a name that is none": ([op("data", (), [(1, X)], name="")], "must be a name; seen ''"),
    "a name that is a number": ([op("data", (), [(1, X)], name=3)], "must be a name; seen 3"),
    "two feeds of a name": ([feed(1, "x", X), feed(2, "x", X)], "the name 'x' is taken"),
    "two parameters of a name": ([parameter(1, "w", X), parameter(2, "w", X)], r"ops\[1\].A\[3\]: the name 'w' is taken"),
    "a feed with a parameter's name": ([parameter(1, "w", X), feed(2, "w", X)], "the name 'w' is taken"),
    "a parameter that is a list": ([parameter(1, "w", several(X))], "a parameter is a tensor"),
    "a parameter without element type": ([parameter(1, "w", tensor([1], "undefined"))], "a parameter is a tensor of a known element type"),
    "a parameter with a text for a flag": ([{**parameter(1, "w", X), "OA": ["no", 0, 0]}], r"ops\[0\].OA must be three numbers"),
    "a parameter without a name": ([{**parameter(1, "w", X), "A": [0, 0, 0]}], r"ops\[0\].A\[3\] must be the parameter's name"),
    "a constant of open dims": ([full(1, 1.0, (-1,))], "the shape of a constant must be known"),
    "a constant of too many elements": ([full(1, 1.0, (2**20, 2**20))], "at most 2\\^31 elements"),
    "a constant of too many dims": ([{**full(1, 1.0, ()), "A": [{"N": "shape", "AT": attribute((2**62,) * 5000)}]}], "the shape of a constant"),
    "a constant with fewer values": ([op("assign_value_", [0], [(1, X)], shape=(3,), values=[1.0], dtype=dtype("float32"))], "must be 3 numbers; seen 1"),
    "a number of another kind": (small(op("leaky_relu", [1], [(3, X)], negative_slope={"#": "0.a_f64", "D": "1"})), r"A\['negative_slope'\] must be a number"),
    "a real number of thousands of digits": (small(op("leaky_relu", [1], [(3, X)], negative_slope={"#": "0.a_f64", "D": WIDE})), "must be a number"),
    "a whole number of thousands of digits": (small(op("softmax", [1], [(3, X)], axis=WIDE)), r"A\['axis'\] must be a whole number of 64 bits"),
    "an attribute that is none": (small({**relu(3, 1), "A": [{"N": "axis", "AT": 3}]}), r"A\['axis'\] must be an attribute; seen 3"),
    "an attribute without a name": (small({**relu(3, 1), "A": [{"AT": attribute(1)}]}), r"A\[0\].N must be a name"),
    "lists of lists of numbers": (small(op("transpose", [1], [(3, X)], perm=deep_list(400))), "a list at most 8 deep"),
    "a branch of one region": ([full(2, True, of="bool"), op("if", [2], [], [region(ending())])], "a branch has a condition and two regions"),
    "a branch without an end": ([full(2, True, of="bool"), op("if", [2], [], [region(), region()])], "does not end with a yield"),
    "a branch with other results": ([full(2, True, of="bool"), op("if", [2], [], [region(ending(2)), region(ending())])], "gives 1 values; pd_op.if takes 0"),
    "a branch that gives nothing": ([full(2, True, of="bool"), op("if", [2], [(3, X)], [region(ending(0)), region(ending(0))])], "the value 0 is left out"),
    "a loop without first values": ([full(2, True, of="bool"), op("while", [2], [(3, X)], [region(ending(2))])], "a loop has a condition, its first values"),
    "a loop with other arguments": ([full(2, True, of="bool"), op("while", [2], [], [region(ending(2), args=[(-1, X)])])], "takes 1 values, and 0 are given"),
    "an argument that is a result": ([full(2, True, of="bool"), op("while", [2], [], [region(ending(2), args=[(7, X)])])], "must be a negative number; seen 7"),
    "regions that are nested deeply": ([full(2, True, of="bool"), nested(100)], r"regions are nested more than 64 deep"),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_with_its_place(name: str) -> None:
    ops, words = WRONG[name]
    with pytest.raises(fs.FormatError, match=words) as caught:
        fs.load_program(file(*ops))
    checked_words(caught.value)
    assert "ops[" in str(caught.value)


HEADS: dict[str, tuple[Callable[[Json], Any], str]] = {
    "no magic": (lambda d: {**d, "base_code": {"magic": "x", "version": 4}}, "base_code.magic must be 'pir'"),
    "no version": (lambda d: {**d, "base_code": {"magic": "pir"}}, "base_code.version must be a whole number"),
    "a version that is a truth": (lambda d: {**d, "base_code": {"magic": "pir", "version": True}}, "base_code.version must be a whole number"),
    "a version below 0": (lambda d: {**d, "base_code": {"magic": "pir", "version": -1}}, "base_code.version must be at least 0"),
    "no program": (lambda d: {"base_code": d["base_code"]}, "program must be an object"),
    "two regions": (lambda d: {**d, "program": {"regions": d["program"]["regions"] * 2}}, "program.regions must be one region; seen 2"),
    "no block": (lambda d: {**d, "program": {"regions": [{"blocks": []}]}}, r"regions\[0\].blocks must be one block; seen 0"),
    "arguments of the main block": (lambda d: {**d, "program": {"regions": [region(args=[(-1, X)])]}}, "the main block takes no arguments"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_wrong_head_is_refused(name: str) -> None:
    change, words = HEADS[name]
    given = json.dumps(change(document(*small())))
    with pytest.raises(fs.FormatError, match=words):
        fs.load_program(given.encode())


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"a":' * 100_000, "[" + "9" * 5000 + "]", '"\\ud800"', "\xff", "[1]", "null"])
def test_json_that_is_none_is_refused(text: str) -> None:
    whole = '{"base_code":{"magic":"pir","version":4},"program":{"regions":[' + text + "]}}"
    with pytest.raises(fs.FormatError, match=r"a program of PaddlePaddle 3 that cannot be read: (no JSON|program\.regions)"):
        fs.load_program(whole.encode("latin-1"))


KEPT: dict[str, tuple[list[Json], str]] = {
    "an element type that is not known": (small(op("cast", [1], [(3, X)], dtype=dtype("int3"))), "elements of the type 'int3' are not known"),
    "a number that is endless": (
        small(full(3, float("inf"), (), "float64"), op("argmax", [1, 3], [(4, X)], keepdims=False)),
        "whole number of 64 bits is wanted",
    ),
    "many numbers for one": (small(full(3, 1.0, (4,)), op("argmax", [1, 3], [(4, X)], keepdims=False)), "one number is wanted; seen 4"),
    "billions of numbers for some": (small(full(3, 0, (2**31,), "int64"), op("sum", [1, 3], [(4, X)])), "of 2147483648 elements stands where at most"),
    "texts for numbers": (small(op("transpose", [1], [(3, X)], perm=["0", "1"])), "attribute axis must be a 32-bit integer"),
    "an attribute that a rule does not read": (small(op("shape64", [1], [(3, X)], unheard_of=1)), "its attribute unheard_of has no counterpart"),
    "an attribute that no operator has": (small(op("relu", [1], [(3, X)], unheard_of=1)), "its attribute unheard_of = 1 has no counterpart"),
    "a region that means nothing": (small(op("relu", [1], [(3, X)], [region(ending())])), "it has regions"),
}


@pytest.mark.parametrize("name", KEPT)
def test_an_op_that_cannot_be_written_is_kept_with_its_reason_and_not_run(name: str) -> None:
    ops, words = KEPT[name]
    program = fs.load_program(file(*ops))
    _, errors = program.diagnose()
    assert len(errors) == 1 and words in str(errors[0]) and "ops[" in str(errors[0])
    out = next(reversed(list(list(program.all_ops())[-1].all_writes())))
    with pytest.raises(fs.ForeshapeError, match="cannot"):
        fs.Executor().run(program, {"x": np.zeros((2, 3), "f4")}, [out], fs.Scope())


LYING: dict[str, list[Json]] = {
    "elements": small(relu(3, 1, tensor([-1, 3], "i64"))),
    "rank": small(relu(3, 1, tensor([5]))),
    "sizes": small(relu(3, 1, tensor([7, 9]))),
    "nothing": small({**relu(3, 1), "O": [{"%": 3, "TT": tensor([], "undefined")}]}),
}


@pytest.mark.parametrize("name", LYING)
def test_types_that_lie_are_inferred_anew(name: str) -> None:
    data = file(*LYING[name], fetch(4, 3, "y", X))
    outcome = survive(data)
    assert outcome.program is not None and not outcome.errors
    assert str(outcome.program.global_block.vars["y"]) == "y: f32[x.0, 3]"
    given = np.array([[1, -2, 3]], "f4")
    (found,) = fs.Executor().run(fs.load_program(data), {"x": given}, ["y"], fs.Scope())
    np.testing.assert_array_equal(found, [[1, 0, 3]])


# --- bounds


def wide_operands(n: int) -> bytes:
    """One list of many values, taken by many ops."""
    return file(feed(1, "x", X), op("0.combine", [1] * n, [(2, several(X))]), *(op("add_n", [2], [(3 + at, X)]) for at in range(n)))


def wide_constants(n: int) -> bytes:
    """The same of constants, which ops make."""
    return file(full(1, 1.0), op("0.combine", [1] * n, [(2, several(X))]), *(op("add_n", [2], [(3 + at, X)]) for at in range(n)))


def many_feeds(n: int) -> bytes:
    return file(*(feed(at, f"x{at}", X) for at in range(1, n)))


def taken_names(n: int) -> bytes:
    """Parameters with the names that results would have."""
    return file(feed(1, "x", X), *(parameter(2 + at, f"relu_{at}.tmp_0", X) for at in range(n)), *(relu(2 + n + at, 1) for at in range(n)))


def deep_regions(n: int) -> bytes:
    return file(full(2, True, of="bool"), *(nested(30) for _ in range(n // 10)))


def long_list(n: int) -> bytes:
    return file(op("assign_value_", [0], [(1, tensor([n]))], shape=(n,), values=[1.5] * n, dtype=dtype("float32")), fetch(2, 1, "y", tensor([n])))


def many_types(n: int) -> bytes:
    return file(*(feed(at, f"x{at}", tensor([at, at + 1, 3])) for at in range(1, n)))


def large_constants(n: int) -> bytes:
    """Constants of billions of elements, which become tensors."""
    return file(*(one for at in range(1, n) for one in (full(2 * at, 1.0, (2**31,)), relu(2 * at + 1, 2 * at))))


GROWING = (many_feeds, taken_names, deep_regions, long_list, many_types, large_constants)


@pytest.mark.quick_cases("long_list", "many_types")
@pytest.mark.parametrize("make", [pytest.param(m, marks=pytest.mark.long) if m in (deep_regions, large_constants) else m for m in GROWING])
def test_time_and_memory_grow_as_the_file(make: Callable[[int], bytes]) -> None:
    def read(data: bytes) -> tuple[float, float]:
        with TracedMemory() as memory:
            took = calls(lambda: fs.load_program(data))
        return took / len(data), memory.peak / len(data)

    read(make(20))
    few, many = read(make(50)), read(make(300))
    assert many[0] < 2 * few[0] + 1 and many[1] < 150, (few, many)


@pytest.mark.quick_cases("wide_operands")
@pytest.mark.parametrize("make", [wide_operands, wide_constants])
def test_lists_that_are_taken_again_and_again_are_refused(make: Callable[[int], bytes]) -> None:
    data = make(1100)
    with pytest.raises(fs.FormatError, match="ops take more than 1000000 tensors in lists"):
        fs.load_program(data)


# --- parameter files


def saved(folder: Path, values: dict[str, Any]) -> Path:
    case = cases("networks")["text_cnn"]
    (folder / "inference.json").write_bytes(case.data)
    write_parameters(folder / "inference.pdiparams", values)
    return folder / "inference.pdiparams"


def test_a_parameter_file_that_disagrees_is_refused(tmp_path: Path) -> None:
    right = cases("networks")["text_cnn"].saved()
    path = saved(tmp_path, right)
    whole = path.read_bytes()
    fs.load_inference_model(tmp_path, scope=fs.Scope())
    first, last = min(right), max(right)
    for wrong, words in (
        ({n: v for n, v in right.items() if n != last}, r"ends|end of|truncated|beyond"),
        ({**right, "zzz": np.zeros(3, "f4")}, r"more|left|after"),
        ({**right, first: np.zeros((2, 2), "f4")}, first),
        ({**right, first: right[first].astype("i8")}, first),
    ):
        write_parameters(path, wrong)
        with pytest.raises(fs.FormatError, match=words):
            fs.load_inference_model(tmp_path, scope=fs.Scope())
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:size])
        scope = fs.Scope()
        with pytest.raises(fs.FormatError):
            fs.load_inference_model(tmp_path, scope=scope)
        assert not scope.names()
    path.unlink()
    with pytest.raises(fs.FormatError, match=r"inference\.pdiparams"):
        fs.load_inference_model(tmp_path, scope=fs.Scope())
