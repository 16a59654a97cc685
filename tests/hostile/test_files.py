# ruff: noqa: E501  the tables are one case a line
"""Files that are wrong: the bytes, the graph, the attributes, the shapes. The number in each id is the kind of bad input."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.messages import attr, block, dense, fixed32, good, message, number, op, program, relu, slot, text, var, varint
from support.some import each_of_product, one_in
from support.survival import survive

from foreshape.errors import FormatError, SchemaError, ShapeError, TypeMismatchError
from foreshape.language.wire import Limits, load_program

GOOD = good()


def test_the_good_file_is_good() -> None:
    out = survive(GOOD)
    assert out.program is not None and not out.errors and out.program.var("y").dims == [-1, 3]
    assert load_program(GOOD).to_bytes() == GOOD


# --- 1: cut, flipped, joined, another format

OTHER_FORMATS = {
    "empty": b"",
    "a-zero": b"\x00",
    "one-byte": b"\x0a",
    "ff": b"\xff" * 64,
    "text": b"hello, this is no program\n" * 20,
    "zip": b"PK\x03\x04" + bytes(60),
    "onnx": b"\x08\x07\x12\x07pytorch\x1a\x052.0.0:\x10\n\x0e\n\x01x\x12\x01y\x1a\x04Relu",
    "json": b'{"blocks": []}',
    "pickle": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "numpy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}",
    "elf": b"\x7fELF\x02\x01\x01" + bytes(57),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "utf-16": "program".encode("utf-16"),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(40),
}


@pytest.mark.parametrize("name", OTHER_FORMATS, ids=lambda n: f"1-{n}")
def test_another_format_is_refused(name: str) -> None:
    assert survive(OTHER_FORMATS[name]).refused is not None


@pytest.mark.parametrize("part", range(10), ids=lambda n: f"1-cut-{n}")
def test_a_file_cut_anywhere_is_read_or_refused(part: int) -> None:
    for end in range(part, len(GOOD), 10):
        out = survive(GOOD[:end])
        assert out.refused is not None or end >= len(program(block())), end


@pytest.mark.quick_cases(one_in=4, turn=2)
@pytest.mark.parametrize("seed", one_in(3, range(30), lambda n: f"1-flipped-{n}"))
def test_flipped_bits_are_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        data = bytearray(GOOD)
        for _ in range(rng.choice((1, 1, 2, 5))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        survive(bytes(data))


@pytest.mark.parametrize("seed", range(10), ids=lambda n: f"1-random-{n}")
def test_random_bytes_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    for size in (2, 7, 30, 300):
        survive(rng.randbytes(size))
        survive(b"\x0a" + varint(size) + rng.randbytes(size))
        survive(program(block(message(4, rng.randbytes(size)))))
        survive(program(block(message(3, rng.randbytes(size)))))


def test_1_two_files_joined_are_refused() -> None:
    assert survive(GOOD + GOOD).refused is not None


# --- 2 to 7: the bytes

BYTES: dict[str, bytes] = {
    "2-varint-past-the-end": b"\x0a",
    "2-varint-of-11-bytes": b"\x0a" + b"\xff" * 10 + b"\x01",
    "2-varint-of-70-bits": b"\x08" + b"\xff" * 9 + b"\x7f",
    "2-length-past-the-end": b"\x0a\x7f\x08\x00",
    "2-length-2-31": b"\x0a" + varint(2**31),
    "2-length-2-63": b"\x0a" + varint(2**63),
    "2-length-2-64-less-1": b"\x0a" + varint(2**64 - 1),
    "2-slot-past-the-end": program(block(message(4, b"\x0a\x7f\x0a\x01X" + text(3, "relu")))),
    "2-name-past-the-end": program(block(message(3, b"\x0a\x7fab"))),
    "2-slot-name-past-the-end": program(block(message(4, message(1, b"\x0a\x7fX") + text(3, "relu")))),
    "2-slot-length-2-63": program(block(message(4, b"\x0a" + varint(2**63) + b"X"))),
    "3-idx-as-text": program(text(1, "0") + number(2, -1)),
    "3-block-as-number": number(1, 5),
    "3-ops-as-number": program(block(number(4, 7))),
    "3-vars-as-fixed": program(block(fixed32(3, b"abcd"))),
    "3-version-as-number": program(block(), tail=number(4, 3)),
    "3-op-versions-as-number": program(block(), tail=number(5, 3)),
    "3-group-at-the-top": varint(1 << 3 | 3) + varint(1 << 3 | 4),
    "3-group-in-a-block": program(block(varint(9 << 3 | 3) + varint(9 << 3 | 4))),
    "3-open-group-in-an-op": program(block(message(4, text(3, "a") + varint(9 << 3 | 3)))),
    "3-field-0": program(block(varint(0) + b"\x00")),
    "3-field-2-29": program(block(varint(2**29 << 3) + b"\x00")),
    "3-wire-type-6": program(block(varint(9 << 3 | 6))),
    "3-wire-type-7": program(block(varint(9 << 3 | 7))),
    "3-element-type-unknown": program(block(var("x", dense([2], 99)))),
    "3-element-type-2-31": program(block(var("x", dense([2], 2**31 - 1)))),
    "3-element-type-of-a-kind": program(block(var("x", dense([2], 7)))),
    "3-kind-unknown": program(block(var("x", number(1, 99)))),
    "3-attribute-type-unknown": program(block(op("a", [], [], attr("b", 77, number(3, 1))))),
    "4-groups-nested": program(block(message(4, text(3, "a") + varint(9 << 3 | 3) * 200 + varint(9 << 3 | 4) * 200))),
    "6-variable-name-not-utf-8": program(block(var(b"\xff\xfe"))),
    "6-slot-name-not-utf-8": program(block(op("relu", [(b"\xff", ["x"])]))),
    "6-argument-not-utf-8": program(block(op("relu", [("X", [b"\xc3("])]))),
    "6-op-type-not-utf-8": program(block(op(b"\xff"))),
    "6-attribute-name-not-utf-8": program(block(op("a", [], [], attr(b"\xff", 0, number(3, 1))))),
    "6-site-not-utf-8": program(block(message(4, text(3, "a") + message(1000, text(1, b"\xff") + number(2, 1))))),
    "6-named-dims-not-utf-8": program(block(message(3, text(1, "v") + message(2, dense([-1])) + message(1000, text(1, b"\xff"))))),
    "6-kind-not-utf-8": program(block(message(3, text(1, "v") + message(2, number(1, 17)) + message(1000, text(3, b"\xff"))))),
    "6-constant-text-not-utf-8": program(block(message(3, text(1, "v") + message(2, number(1, 25)) + message(1000, text(4, b"\xff"))))),
    "6-variable-name-empty": program(block(var(""))),
    "7-no-block": message(4, number(1, 0)),
    "7-no-idx": program(number(2, -1)),
    "7-no-parent": program(number(1, 0)),
    "7-no-variable-name": program(block(message(3, message(2, dense([2]))))),
    "7-no-variable-type": program(block(message(3, text(1, "x")))),
    "7-empty-variable-type": program(block(message(3, text(1, "x") + message(2, b"")))),
    "7-no-op-type": program(block(message(4, message(1, slot("X", ["x"]))))),
    "7-no-slot-name": program(block(message(4, message(1, text(2, "x")) + text(3, "a")))),
    "7-no-attribute-name": program(block(op("a", [], [], message(4, number(2, 0))))),
    "7-no-attribute-type": program(block(op("a", [], [], message(4, text(1, "b"))))),
    "7-no-attribute-value": program(block(op("a", [], [], attr("b", 0)))),
    "7-no-element-type": program(block(var("x", number(1, 7) + message(3, message(1, number(2, 4)))))),
    "8-idx-of-another": program(block(idx=1)),
    "8-idx-negative": program(block(idx=-1)),
    "8-global-with-a-parent": program(block(parent=0)),
    "8-parent-itself": program(block(), block(idx=1, parent=1)),
    "8-parent-later": program(block(), block(idx=1, parent=2), block(idx=2, parent=0)),
    "8-parents-in-a-cycle": program(block(), block(idx=1, parent=2), block(idx=2, parent=1)),
    "8-parent-negative": program(block(), block(idx=1, parent=-1)),
    "8-parent-int32-min": program(block(), block(idx=1, parent=-(2**31))),
    "8-parent-2-31": program(block(), block(idx=1, parent=2**31 - 1)),
    "8-sub-block-itself": program(block(), block(op("while", [], [], attr("sub_block", 8, number(12, 1))), idx=1, parent=0)),
    "8-sub-block-the-ancestor": program(block(), block(op("while", [], [], attr("sub_block", 8, number(12, 0))), idx=1, parent=0)),
    "8-sub-block-negative": program(block(op("while", [], [], attr("sub_block", 8, number(12, -1))))),
    "8-sub-block-absent": program(block(op("while", [], [], attr("sub_block", 8, number(12, 5))))),
    "8-sub-block-of-two-ops": program(block(*[op("while", [], [], attr("sub_block", 8, number(12, 1)))] * 2), block(idx=1, parent=0)),
    "8-sub-blocks-of-two-ops": program(block(*[op("while", [], [], attr("b", 10, number(14, 1)))] * 2), block(idx=1, parent=0)),
    "8-sub-block-with-unknown-fields": program(block(op("a", [], [], attr("b", 8, number(12, 0), number(99, 1))))),
    "8-undoes-what-is-not-there": program(block(number(5, 7))),
    "8-undoes-int32-min": program(block(number(5, -(2**31)))),
    "9-two-variables-of-one-name": program(block(var("x"), var("x"))),
    "10-slot-given-twice": program(block(message(4, message(1, slot("X", ["a"])) + message(1, slot("X", ["b"])) + text(3, "a")))),
    "10-slot-given-twice-around-the-type": program(block(message(4, message(1, slot("X", ["a"])) + text(3, "a") + message(1, slot("X", ["b"]))))),
    "14-attribute-given-twice": program(block(op("a", [], [], attr("b", 0, number(3, 1)), attr("b", 0, number(3, 2))))),
    "14-attribute-value-of-another-type": program(block(op("a", [], [], attr("b", 0, text(5, "one"))))),
    "17-dim-minus-5": program(block(var("x", dense([-5, 2])), op("relu", [("X", ["x"])], [("Out", ["y"])]))),
    "17-dim-int64-min": program(block(var("x", dense([-(2**63)])), op("relu", [("X", ["x"])], [("Out", ["y"])]))),
    "17-product-past-2-63": program(block(var("x", dense([2**62, 4])))),
    "17-dim-2-63-less-1": program(block(var("x", dense([2**63 - 1])))),
    "17-rank-65": program(block(var("x", dense([1] * 65)))),
    "17-rank-200000": program(block(var("x", dense([1] * 200_000)))),
    "17-lod-level-9": program(block(var("x", dense([-1, 2], 5, 9)))),
    "17-lod-level-minus-1": program(block(var("x", dense([-1, 2], 5, -1)))),
    "17-lod-level-2-31": program(block(var("x", dense([-1, 2], 5, 2**31 - 1)))),
    "17-named-dims-of-another-count": program(block(message(3, text(1, "v") + message(2, dense([-1])) + message(1000, text(1, "a;b"))))),
    "17-named-dims-of-another-size": program(block(message(3, text(1, "v") + message(2, dense([3])) + message(1000, text(1, "4"))))),
    "17-named-dims-no-sizes": program(block(message(3, text(1, "v") + message(2, dense([-1])) + message(1000, text(1, "((("))))),
    "17-named-dims-divided-by-zero": program(block(message(3, text(1, "v") + message(2, dense([-1])) + message(1000, text(1, "x // 0"))))),
    "17-named-dims-of-1-MiB": program(block(message(3, text(1, "v") + message(2, dense([-1])) + message(1000, text(1, "x+" * 2**19 + "x"))))),
    "17-named-counts-of-another-level": program(block(message(3, text(1, "v") + message(2, dense([-1], 5, 2)) + message(1000, text(7, "v;batch"))))),
    "25-constant-too-short": program(block(message(3, text(1, "v") + message(2, dense([3])) + message(1000, text(2, bytes(8)))))),
    "25-constant-too-long": program(block(message(3, text(1, "v") + message(2, dense([3])) + message(1000, text(2, bytes(16)))))),
    "25-constant-of-half-an-element": program(block(message(3, text(1, "v") + message(2, dense([3])) + message(1000, text(2, bytes(11)))))),
    "25-constant-without-dims": program(block(message(3, text(1, "v") + message(2, number(1, 7)) + message(1000, text(2, bytes(8)))))),
    "25-constant-of-unknown-dims": program(block(message(3, text(1, "v") + message(2, dense([-1, -1])) + message(1000, text(2, bytes(8)))))),
    "25-constant-of-negative-dims": program(
        block(op("a", [], [("Out", ["v"])]), message(3, text(1, "v") + message(2, dense([-2, -3])) + message(1000, text(2, bytes(24)))))
    ),
    "25-constant-of-no-kind": program(block(message(3, text(1, "v") + message(2, number(1, 17)) + message(1000, text(3, "NOTHING"))))),
}


@pytest.mark.parametrize("name", BYTES)
def test_is_refused_with_the_place(name: str) -> None:
    out = survive(BYTES[name])
    assert out.refused is not None, name
    assert any(w in str(out.refused) for w in ("blocks[", "program", "byte")), str(out.refused)


@pytest.mark.parametrize("depth", [101, 10_000], ids=lambda d: f"4-{d}-deep")
def test_messages_nested_deeply_are_kept_or_refused(depth: int) -> None:
    inner = b""
    for _ in range(depth):
        inner = message(9, inner)
    survive(program(block(inner)))
    survive(program(block(message(4, text(3, "a") + inner))))
    survive(program(block(message(3, text(1, "v") + message(2, dense([2])) + inner))))
    groups = varint(9 << 3 | 3) * depth + varint(9 << 3 | 4) * depth
    survive(program(block(message(4, text(3, "a") + groups))))
    survive(program(block(message(3, text(1, "v") + message(2, dense([2]) + groups)))))


NAMES = {
    "nul": "a\x00b",
    "newline": "a\nb",
    "path": "../../etc/passwd",
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "c1": "\x9b31m",
    "bidi": "abc\u202edef",
    "tab": "a\tb",
    "quote": "a\"b'c`d",
    "equals": "x = relu(X=y) # net.py:1",
    "semicolon": "a;b;c",
    "hash": "#comment",
    "brace": "{}[]()",
    "comma": "a, b",
    "space": " ",
    "long": "n" * 2**20,
    "wide": "\U0001f600" * 1000,
    "long-wide": "é" * 2**18,
    "keyword": "block 0",
    "number": "7",
    "unk": "UNK",
    "empty-marker": "@EMPTY@",
    "grad": "x@GRAD",
    "dunder": "__class__",
    "format": "{0.__class__}%s%n",
    "cr": "a\rb",
    "nel": "a\x85b",
    "line-separator": "a\u2028b",
    "backslash": "a\\nb",
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("name", "where"), each_of_product(3, NAMES, ("variable", "op", "attribute", "string", "slot", "site", "constant")))
def test_6_names_of_all_kinds_come_through(name: str, where: str) -> None:
    n = NAMES[name]
    files: dict[str, Callable[[], bytes]] = {
        "variable": lambda: program(block(var(n), var("out"), relu(n, "out"), op("mul", [("X", [n]), ("Y", [n])], [("Out", ["out2"])]))),
        "op": lambda: program(block(var("x"), op(n, [("X", ["x"])], [("Out", ["y"])]))),
        "attribute": lambda: program(block(op("a", [], [], attr(n, 0, number(3, 1))))),
        "string": lambda: program(block(op("a", [], [], attr("b", 2, text(5, n)), attr("c", 5, text(8, n), text(8, ""))))),
        "slot": lambda: program(block(var("x"), op("a", [(n, ["x"])], [("o" + n, ["y"])]))),
        "site": lambda: program(block(message(4, text(3, "a") + message(1000, text(1, n) + number(2, 3) + text(3, n))))),
        "constant": lambda: program(block(message(3, text(1, "v") + message(2, number(1, 25)) + message(1000, text(4, n))))),
    }
    out = survive(files[where]())
    assert out.program is not None, str(out.refused)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("kind", range(7, 32), ids=lambda k: f"7-kind-{k}")
def test_every_kind_of_variable_is_kept(kind: int) -> None:
    for type_ in (
        number(1, kind),
        number(1, kind) + message(2, number(1, 5) + number(2, 3)),
        number(1, kind) + message(3, message(1, number(1, 5) + number(2, 3))),
    ):
        out = survive(program(block(var("v", type_))))
        assert out.refused is not None or out.program is not None


UNKNOWN = number(99, 5) + text(98, "kept") + fixed32(97, b"abcd") + varint(96 << 3 | 1) + bytes(8)


@pytest.mark.parametrize(
    "make",
    [
        lambda u: program(block()) + u,
        lambda u: program(block(u)),
        lambda u: program(block(message(4, text(3, "relu") + u))),
        lambda u: program(block(op("relu", [], [], attr("b", 0, number(3, 1), u)))),
        lambda u: program(block(message(3, text(1, "v") + message(2, dense([2])) + u))),
        lambda u: program(block(message(3, text(1, "v") + message(2, dense([2]) + u)))),
        lambda u: program(block(message(3, text(1, "v") + message(2, number(1, 7) + message(3, message(1, number(1, 5) + number(2, 3) + u) + u))))),
        lambda u: program(block(message(3, text(1, "v") + message(2, dense([2])) + message(7, text(1, "a") + number(2, 0) + number(3, 1) + u)))),
        lambda u: program(block(), tail=message(5, message(1, text(1, "a") + message(2, number(1, 1) + u)))),
    ],
    ids=["7-program", "7-block", "7-op", "7-attribute", "7-variable", "7-type", "7-tensor", "7-variable-attribute", "7-versions"],
)
def test_unknown_fields_are_kept(make: Callable[[bytes], bytes]) -> None:
    out = survive(make(UNKNOWN))
    assert out.program is not None
    saved = out.program.to_bytes()
    for piece in (b"kept", b"abcd"):
        assert piece in saved, "an unknown field is gone"


@pytest.mark.parametrize("field", [(1, number(1, 0)), (2, number(2, -1))], ids=["7-idx", "7-parent"])
def test_a_singular_field_given_twice_counts_once(field: tuple[int, bytes]) -> None:
    assert survive(program(block(field[1]))).program is not None
    twice = message(3, text(1, "first") + text(1, "v") + message(2, dense([2])) + message(2, dense([2])))
    out = survive(program(block(twice)))
    assert out.refused is not None and "twice" in str(out.refused)


# --- 9 to 16: the graph and the attributes. These files are well-formed: what is wrong is said by inference, or is no error

GRAPHS: dict[str, bytes] = {
    "9-written-twice": program(block(var("x"), var("y"), relu("x", "y"), relu("x", "y"))),
    "9-read-before-written": program(block(var("x"), var("y"), var("z"), relu("y", "z"), relu("x", "y"))),
    "9-described-nowhere": program(block(relu("nothing", "y"), var("y"))),
    "9-output-described-nowhere": program(block(var("x"), relu("x", "y"))),
    "10-unknown-type": program(block(var("x"), op("no_such_op", [("X", ["x"])], [("Out", ["y"])]), relu("y", "z"))),
    "10-empty-type": program(block(op(""))),
    "10-no-inputs": program(block(op("relu", [], [("Out", ["y"])]))),
    "10-no-outputs": program(block(var("x"), op("relu", [("X", ["x"])]))),
    "10-nothing": program(block(op("relu"))),
    "10-unknown-input-slot": program(block(var("x"), op("relu", [("X", ["x"]), ("Q", ["x"])], [("Out", ["y"])]))),
    "10-unknown-output-slot": program(block(var("x"), op("relu", [("X", ["x"])], [("Out", ["y"]), ("Q", ["z"])]))),
    "10-too-many-names": program(block(var("x"), op("relu", [("X", ["x", "x"])], [("Out", ["y"])]))),
    "10-too-many-outputs": program(block(var("x"), op("relu", [("X", ["x"])], [("Out", ["y", "z"])]))),
    "10-empty-slot": program(block(op("relu", [("X", [])], [("Out", [])]))),
    "10-empty-names": program(block(op("relu", [("X", [""])], [("Out", [""])]))),
    "10-empty-names-in-a-list": program(block(var("x"), op("sum", [("X", ["x", "", "@EMPTY@"])], [("Out", ["y"])]))),
    "10-gradient-without-its-forward": program(block(var("x"), op("relu_grad", [("Out", ["x"])], [("X@GRAD", ["y"])]))),
    "11-fetch-of-nothing": program(block(op("fetch", [("X", ["nothing"])], [("Out", ["fetch"])], attr("col", 0, number(3, 0))))),
    "11-two-feeds-of-one-column": program(block(var("a"), var("b"), *(op("feed", [("X", ["feed"])], [("Out", [v])], attr("col", 0, number(3, 0))) for v in "ab"))),
    "11-two-fetches-of-one-column": program(block(var("a"), *[op("fetch", [("X", ["a"])], [("Out", ["fetch"])], attr("col", 0, number(3, 0)))] * 2)),
    "11-feed-of-a-persistable": program(block(var("a", persistable=True), op("feed", [("X", ["feed"])], [("Out", ["a"])], attr("col", 0, number(3, 0))))),
    "11-feed-column-negative": program(block(var("a"), op("feed", [("X", ["feed"])], [("Out", ["a"])], attr("col", 0, number(3, -1))))),
    "11-feed-of-a-number": program(block(var("a"), op("feed", [("X", ["a"])], [("Out", ["a"])], attr("col", 0, number(3, 0))))),
    "13-output-is-input": program(block(var("x"), relu("x", "x"))),
    "13-two-outputs-of-one-name": program(block(var("x"), op("relu", [("X", ["x"])], [("Out", ["y", "y"])]))),
    "13-writes-a-parameter-of-another-shape": program(block(var("x", dense([2, 3])), var("w", dense([3, 2]), persistable=True), relu("x", "w"))),
    "14-integer-as-float": program(block(var("x"), op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["y"])], attr("x_num_col_dims", 1, fixed32(4, b"\0\0\x80?"))))),
    "14-integer-as-string": program(block(var("x"), op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["y"])], attr("x_num_col_dims", 2, text(5, "1"))))),
    "14-integer-as-list": program(block(var("x"), op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["y"])], attr("x_num_col_dims", 3, number(6, 1))))),
    "14-integer-as-block": program(block(var("x"), op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["y"])], attr("x_num_col_dims", 8, number(12, 1)))), block(idx=1, parent=0)),
    "14-with-more-fields": program(block(var("x"), op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["y"])], attr("x_num_col_dims", 0, number(3, 1), text(5, "b"))))),
    "14-unknown": program(block(var("x"), op("relu", [("X", ["x"])], [("Out", ["y"])], attr("no_such_attribute", 0, number(3, 1))))),
    "14-missing": program(block(op("fill_constant", [], [("Out", ["y"])]))),
    "14-role-as-string": program(block(var("x"), op("relu", [("X", ["x"])], [("Out", ["y"])], attr("op_role", 2, text(5, "forward"))))),
    "14-role-with-more": program(block(var("x"), op("relu", [("X", ["x"])], [("Out", ["y"])], attr("op_role", 0, number(3, 0), number(99, 1))))),
    "14-string-not-utf-8": program(block(op("a", [], [], attr("b", 2, text(5, b"\xff")), attr("c", 5, text(8, b"\xff"), text(8, "x")), attr("d", 13, text(17, b"\xfe"))))),
    "16-py-func": program(block(var("x"), op("py_func", [("X", ["x"])], [("Out", ["y"])], attr("forward_callable_id", 0, number(3, 0)), attr("code", 2, text(5, "__import__('os').abort()"))))),
    "16-element-type-of-a-cast": program(block(var("x"), op("cast", [("X", ["x"])], [("Out", ["y"])], attr("in_dtype", 0, number(3, 5)), attr("out_dtype", 0, number(3, 77))))),
    "17-rank-0": program(block(var("x", dense([])), relu("x", "y"), op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["z"])]))),
    "17-zero": program(block(var("x", dense([0, 0])), relu("x", "y"), op("mul", [("X", ["x"]), ("Y", ["x"])], [("Out", ["z"])]))),
    "21-mul-mismatch": program(block(var("x", dense([2, 3])), var("w", dense([4, 5])), op("mul", [("X", ["x"]), ("Y", ["w"])], [("Out", ["y"])]))),
    "21-sum-mismatch": program(block(var("x", dense([2, 3])), var("w", dense([2, 4])), op("sum", [("X", ["x", "w"])], [("Out", ["y"])]))),
    "22-two-guards-contradict": program(block(var("a", dense([-1])), var("b", dense([3])), var("c", dense([4])), op("sum", [("X", ["a", "b"])], [("Out", ["y"])]),
                                              op("sum", [("X", ["a", "c"])], [("Out", ["z"])]))),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_wrong_is_answered(name: str) -> None:
    out = survive(GRAPHS[name])
    assert out.program is not None, str(out.refused)
    for error in out.errors:
        assert isinstance(error, (SchemaError, ShapeError, TypeMismatchError)), type(error)
    WRONG = (
        "10-no-inputs",
        "10-unknown-input",
        "10-too-many",
        "9-described-nowhere",
        "13-writes",
        "14-integer-as-s",
        "14-integer-as-l",
        "14-with-more",
        "21-",
        "22-",
        "11-feed-column",
    )
    if name.startswith(WRONG):
        assert out.errors, f"{name}: nothing was found wrong"


MANY = [("ints", 3, 6, b"\x01"), ("bools", 7, 11, b"\x01"), ("floats", 4, 7, b"\x00\x00\x80\x7f")]
ATTRIBUTES: dict[str, tuple[int, bytes]] = {
    "int32-min": (0, number(3, -(2**31))),
    "int32-max": (0, number(3, 2**31 - 1)),
    "past-int32": (0, number(3, 2**31)),
    "int64-min": (9, number(13, -(2**63))),
    "int64-max": (9, number(13, 2**63 - 1)),
    "nan": (1, fixed32(4, b"\x00\x00\xc0\x7f")),
    "another-nan": (1, fixed32(4, b"\x01\x00\x80\x7f")),
    "infinity": (1, fixed32(4, b"\x00\x00\x80\x7f")),
    "negative-infinity": (1, fixed32(4, b"\x00\x00\x80\xff")),
    "negative-zero": (1, fixed32(4, b"\x00\x00\x00\x80")),
    "denormal": (1, fixed32(4, b"\x01\x00\x00\x00")),
    "double-nan": (15, varint(19 << 3 | 1) + b"\x00" * 6 + b"\xf8\x7f"),
    "empty-ints": (3, b""),
    "empty-floats": (4, b""),
    "empty-strings": (5, b""),
    "empty-bools": (7, b""),
    "empty-blocks": (10, b""),
    "empty-longs": (11, b""),
    "empty-doubles": (12, b""),
    "empty-vars": (14, b""),
    "empty-scalars": (17, b""),
    **{f"{count}-{name}": (code, message(field, one * count)) for count in (3_000, 1_000_000) for name, code, field, one in MANY},
    "scalar": (16, message(20, number(1, 2) + number(3, -1))),
    "scalar-without-value": (16, message(20, number(1, 2))),
    "scalar-without-type": (16, message(20, number(3, 2))),
    "scalar-complex": (16, message(20, number(1, 4) + message(5, varint(1 << 3 | 1) + bytes(8) + varint(2 << 3 | 1) + bytes(8)))),
    "scalar-complex-empty": (16, message(20, number(1, 4) + message(5, b""))),
    "scalars": (17, message(21, number(1, 1) + number(2, 1)) * 3),
    "var": (13, text(17, "x")),
    "bool-2": (6, number(10, 2)),
}


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("type_", ["relu", *(pytest.param(t, marks=pytest.mark.long) for t in ("no_such_op", "mul", "fill_constant", "softmax"))])
@pytest.mark.parametrize("name", [pytest.param(n, id=f"15-{n}", marks=pytest.mark.longest if n.startswith("1000000-") else ()) for n in ATTRIBUTES])
def test_attribute_values_of_all_kinds_are_kept_or_named(name: str, type_: str) -> None:
    code, value = ATTRIBUTES[name]
    for attribute in ("any", "axis", "shape", "value", "x_num_col_dims"):
        data = program(block(var("x", dense([3, 3])), op(type_, [("X", ["x"]), ("Y", ["x"])], [("Out", ["y"])], attr(attribute, code, value))))
        out = survive(data)
        if out.program is None:
            assert "value is missing" in str(out.refused) or "not an op" in str(out.refused)


def test_15_negative_zero_and_nan_keep_their_bits() -> None:
    bits = [b"\x00\x00\x00\x80", b"\x00\x00\x00\x00", b"\x00\x00\xc0\x7f"]
    data = program(block(*(op("a", [], [], attr("b", 1, fixed32(4, b))) for b in bits), op("a", [], [], attr("c", 4, message(7, b"".join(bits))))))
    out = survive(data)
    assert out.program is not None and out.program.to_bytes().count(b"\x00\x00\x00\x80") == data.count(b"\x00\x00\x00\x80")


DIMS = [[0], [0, 4], [-1, 0], [2**31], [2**31 - 1, 2], [2**40], [2**59, 1], [1] * 9, [-1] * 64, [2**60], [1, 2**58, 0], [], [-1, -1, -1]]


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize(("dims", "level"), each_of_product(2, DIMS, (None, 1, 8)), ids=lambda d: f"17-{str(d)[:24]}")
def test_17_dims_of_all_sizes_go_through_inference(dims: list[int], level: int | None) -> None:
    ops = [op(t, [("X", ["x"]), *([("Y", ["x"])] if t in ("mul", "elementwise_add", "matmul_v2") else [])], [("Out", [t])])
           for t in ("relu", "mul", "elementwise_add", "softmax", "mean", "sum", "matmul_v2", "scale", "assign", "reduce_sum", "transpose2", "reshape2")]  # fmt: skip
    survive(program(block(var("x", dense(dims, 5, level)), *ops)))


@pytest.mark.parametrize("count", [1, 3, 60], ids=lambda c: f"8-{c}-deep")
def test_blocks_in_blocks_are_read(count: int) -> None:
    blocks = [block(*([op("while", [], [], attr("sub_block", 8, number(12, k + 1)))] if k < count else []), idx=k, parent=k - 1) for k in range(count + 1)]
    assert survive(program(*blocks)).program is not None


def test_8_deeper_blocks_are_for_a_caller_who_asks() -> None:
    data = program(*(block(idx=k, parent=k - 1) for k in range(1000)))
    assert "Limits.depth" in str(survive(data).refused)
    deep = load_program(data, Limits(depth=2000))
    assert len(deep.blocks) == 1000
    assert deep.blocks[-1].find("nothing") is None


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(bytes=10), "Limits.bytes"),
        (Limits(memory=100, memory_per_byte=0), "Limits.memory"),
        (Limits(blocks=0), "Limits.blocks"),
        (Limits(name=3), "Limits.name"),
    ],
    ids=["5-bytes", "5-memory", "5-blocks", "5-name"],
)
def test_every_limit_has_a_name_that_the_error_tells(limits: Limits, says: str) -> None:
    data = program(block(message(3, message(2, dense([2])) + text(1, "long name"))))
    with pytest.raises(FormatError, match=says):
        load_program(data, limits)
    assert load_program(data) is not None


def test_a_call_site_in_a_file_leads_nowhere(tmp_path: Path) -> None:
    """29: the path of a call site is not opened: it could be a device, or a secret."""
    secret = tmp_path / "secret.py"
    secret.write_text("the secret line\n")
    for path in (str(secret), "/dev/zero", "/dev/tty", "secret.py"):
        data = program(block(message(4, message(1, slot("X", ["nothing"])) + text(3, "relu") + message(1000, text(1, path) + number(2, 1)))))
        out = survive(data)
        assert out.errors and "secret line" not in str(out.errors[0])
