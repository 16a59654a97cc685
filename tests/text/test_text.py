"""The text form: read back to an equal program, bounded on hostile text, and explained dims."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counted import TracedMemory, assert_time_grows_with_size
from support.harness import build, of_each_operator, sampled
from support.some import each, examples, one_in

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.core.spec import DTYPES, KINDS, LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, TENSOR_KINDS, Lod, Spec, other_kind
from foreshape.language.operator.attributes import AttrType, Raw
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Op, Program
from foreshape.language.program.structure import link_makers
from foreshape.language.text.literal import escape, float_text, quoted
from foreshape.language.text.reader import read
from foreshape.language.text.writer import program_text, spec_text

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*/*.pdmodel"))


def plain_bytes(program: Program) -> bytes:
    """The program's bytes without call sites, and with variables written afresh instead of as they were read."""
    copy = program.clone()
    for op in copy.all_ops():
        op.site = None
    for variable in copy.all_variables():
        assert variable.spec is not None
        variable.declared = None
        variable.site = None
    return copy.to_bytes()


def agrees(program: Program) -> Program:
    text = str(program)
    parsed = Program.parse(text)
    assert plain_bytes(parsed) == plain_bytes(program)
    assert str(parsed) == text
    assert all(c.isprintable() or c == "\n" for c in text)
    for mine, theirs in zip(program.all_ops(), parsed.all_ops(), strict=True):
        assert mine.call_site is None or (theirs.call_site is not None and theirs.call_site.short() == mine.call_site.short())
        assert (mine.role, mine.role_variables, mine.is_target) == (theirs.role, theirs.role_variables, theirs.is_target)
    assert [v.known for v in parsed.all_variables()] == [v.known for v in program.all_variables()]
    return parsed


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("path", each(2, CORPUS), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_programs_of_others_read_back(path: Path) -> None:
    agrees(fs.load_program(path))


@pytest.mark.quick_cases(one_in=3, turn=1)
@of_each_operator(list(sampled())[::7], quick=3)
def test_samples_read_back_to_equal_bytes(name: str, cls: Any, sample: Any) -> None:
    agrees(build(cls, sample.arguments).program)


def trained() -> Program:
    x, label = layer.data("x", ["batch", 12]), layer.data("label", ["batch", 1], "int64")
    out = layer.fc(layer.fc(x, 7, "relu"), 4)
    fs.optimizer.SGD(0.1).minimize(layer.mean(layer.softmax_with_cross_entropy(out, label)))
    return fs.default_main_program()


def test_a_training_program_reads_back_and_says_what_matters() -> None:
    program = trained()
    program.random_seed = 5
    program.op_versions = b"\x0a\x00\xff"
    program.unknown_fields = b"\xf2\x3f\x01\x00"
    parsed = agrees(program)
    assert (parsed.random_seed, parsed.op_versions) == (5, b"\x0a\x00\xff")
    assert "fc_0.tmp_0: f32[batch, 7] = mul(X=x, Y=fc_0.w_0)  # test_text.py:" in str(program)
    agrees(fs.default_startup_program())


def test_sub_blocks_read_back() -> None:
    program = trained()
    inner = program.create_block()
    inner.create_variable("inner", Spec(LOD_TENSOR, DTYPES[-1], (symbol("n"),)))
    deeper = program.create_block(inner)
    deeper.forward_idx = 1
    deeper.unknown_fields = b"\xf2\x3f\x01\x00"
    entries = (("sub_block", AttrType.BLOCK, 1), ("more", AttrType.BLOCKS, (1, 2)))
    program.global_block.ops.append(Op(program.global_block, Attributes.of("no_such_loop", entries), {"X": ["x"]}, {}))
    parsed = agrees(program)
    assert [b.parent_idx for b in parsed.blocks] == [-1, 0, 1] and parsed.blocks[2].forward_idx == 1
    assert parsed.global_block.ops[-1].sub_block_indices() == [1, 1, 2]


NAMES = st.text(min_size=1, max_size=12).filter(lambda s: not any("\ud800" <= c <= "\udfff" for c in s))
FLOATS32 = st.floats(width=32)
VALUES = {
    AttrType.INT: st.integers(-(2**31), 2**31 - 1),
    AttrType.LONG: st.integers(-(2**63), 2**63 - 1),
    AttrType.FLOAT: FLOATS32,
    AttrType.FLOAT64: st.floats(),
    AttrType.STRING: st.text(max_size=20).filter(lambda s: not any("\ud800" <= c <= "\udfff" for c in s)),
    AttrType.BOOLEAN: st.booleans(),
    AttrType.VAR: NAMES,
    AttrType.SCALAR: st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)),
}
LISTS = {AttrType.INTS: AttrType.INT, AttrType.LONGS: AttrType.LONG, AttrType.FLOATS: AttrType.FLOAT, AttrType.FLOAT64S: AttrType.FLOAT64,
         AttrType.STRINGS: AttrType.STRING, AttrType.BOOLEANS: AttrType.BOOLEAN, AttrType.VARS: AttrType.VAR}  # fmt: skip


@st.composite
def entries(draw: st.DrawFn) -> tuple[tuple[str, AttrType, Any], ...]:
    out: list[tuple[str, AttrType, Any]] = []
    for name in draw(st.lists(NAMES, max_size=5, unique=True)):
        type = draw(st.sampled_from([*VALUES, *LISTS]))
        value = draw(VALUES[type]) if type in VALUES else tuple(draw(st.lists(VALUES[LISTS[type]], max_size=4)))
        out.append((name, type, value))
    return tuple(out)


SIZES = st.one_of(st.integers(0, 2**20), NAMES.map(symbol), st.tuples(NAMES, st.integers(1, 9)).map(lambda p: (symbol(p[0]) + 1) // p[1] + p[1]))


@st.composite
def specs(draw: st.DrawFn, source: str) -> Spec:
    kind = draw(st.sampled_from([LOD_TENSOR, LOD_TENSOR, LOD_TENSOR, SELECTED_ROWS, LOD_TENSOR_ARRAY, *KINDS]))
    if kind not in TENSOR_KINDS:
        return Spec(kind, None, None)
    if draw(st.integers(0, 9)) == 0:
        return Spec(kind, None, None)
    dims = tuple(draw(st.lists(SIZES, max_size=3)))
    counts = tuple(draw(st.lists(SIZES, max_size=2))) if kind is not SELECTED_ROWS and dims else ()
    return Spec(kind, draw(st.sampled_from(DTYPES)), dims, Lod(draw(st.sampled_from([source, "else where"])), counts) if counts else None)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of any names, kinds, flags, attributes and roles, of operators that are known and that are not."""
    program = Program()
    block = program.global_block
    for name in draw(st.lists(NAMES, max_size=6, unique=True)):
        flags = {f: draw(st.booleans()) for f in ("persistable", "need_check_feed", "is_parameter", "stop_gradient", "trainable")}
        made = block.create_variable(name, draw(specs(name)), **flags)
        made.site = None
        if draw(st.integers(0, 5)) == 0:
            made.unknown_fields = b"\xf2\x3f\x01\x07"
    names = list(block.vars)
    for at in range(draw(st.integers(0, 4))):
        slots = st.dictionaries(NAMES, st.lists(st.sampled_from([*names, "@EMPTY@", ""]), max_size=3), max_size=3)
        type = draw(st.sampled_from(["relu", "mul", "unknown thing", "batch_norm_of_another_world"]))
        given = draw(entries())
        if draw(st.booleans()):
            given = (*(e for e in given if not e[0].startswith("op_role")), ("op_role", AttrType.INT, None), ("op_role_var", AttrType.STRINGS, None))
        op = Op(block, Attributes.of(type, given), draw(slots), draw(slots))
        if any(e[0] == "op_role" for e in given):
            op.role, op.role_variables = draw(st.integers(0, 600)), tuple(draw(st.lists(NAMES, max_size=2)))
        op.is_target = draw(st.booleans())
        result = f"result {at}"
        if draw(st.booleans()):
            op.output_slots["Result"] = [result]
            block.create_variable(result, draw(specs(result)), stop_gradient=draw(st.booleans())).site = None
        block.ops.append(op)
    link_makers(program)
    order = draw(st.permutations(list(block.vars)))
    block.vars = {n: block.vars[n] for n in order}
    return program


@settings(max_examples=examples(50))
@given(programs())
def test_any_program_reads_back(program: Program) -> None:
    _reads_back(program)


@pytest.mark.long
@settings(max_examples=examples(500))
@given(programs())
def test_many_a_program_reads_back(program: Program) -> None:
    _reads_back(program)


def _reads_back(program: Program) -> None:
    text = str(program)
    assert all(c.isprintable() or c == "\n" for c in text)
    parsed = Program.parse(text)
    assert plain_bytes(parsed) == plain_bytes(program)
    assert list(parsed.global_block.vars) == list(program.global_block.vars)
    parsed.inference.stale = False  # as it was written: nothing is inferred here
    assert program_text(parsed) == text


@given(st.text())
def test_what_is_shown_cannot_drive_a_terminal(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in escape(text))
    assert quoted(text).isprintable()


@given(FLOATS32)
def test_single_precision_numbers_are_short_and_exact(value: float) -> None:
    if not math.isnan(value):
        assert struct.pack("<f", float(float_text(value))) == struct.pack("<f", value)
    assert len(float_text(value)) <= 22 or math.isnan(value)


def test_numbers_are_written_as_a_person_would() -> None:
    texts = {0.1: "0.1", 1.0: "1.0", 1e-5: "1e-05", -0.0: "-0.0", 3e38: "3e+38", -3.4028212353202322e38: "-3.4028212e+38"}
    for value, text in texts.items():
        assert float_text(struct.unpack("<f", struct.pack("<f", value))[0]) == text


def test_a_nan_keeps_its_bits() -> None:
    program = Program()
    odd = struct.unpack("<f", struct.pack("<I", 0x7FC12345))[0]
    values = (("a", AttrType.FLOATS, (math.nan, odd, math.inf, -math.inf, -0.0)), ("b", AttrType.INT, Raw(b"\x0a\x01b\x10\x00\x18\x05")))
    program.global_block.ops.append(Op(program.global_block, Attributes.of("unknown_thing", values), {}, {}))
    agrees(program)


def test_kinds_that_only_files_have_read_back() -> None:
    program = Program()
    program.global_block.create_variable("v", Spec(other_kind("VOCAB", 27), None, None))
    assert "variable v: kind VOCAB=27" in str(program)
    agrees(program)


@pytest.mark.parametrize("value", [0.1, 7.0, math.nan, [[1.5, -0.0], [math.inf, 2.5]]])
def test_constants_read_back(value: Any) -> None:
    fs.Variable("c", shape=[2, 2], data_type=fs.FP32, value=value)
    fs.Variable("big", shape=[100], data_type=fs.INT64, value=list(range(100)))
    fs.Variable("flags", shape=[3], data_type=fs.BOOL, value=[True, False, True])
    fs.Variable("s", data_type=fs.STRING, value="aa\x00")
    agrees(fs.default_main_program())


def test_ragged_specs_are_plain() -> None:
    words = layer.data("words", shape=[-1, 6], lod_level=2)
    out = layer.fc(words, 3)
    assert spec_text(words.spec, "words") == "f32[words | words.level1 | batch, 6]"
    assert spec_text(out.spec, out.name) == "f32[words | words.level1 | batch, 3] by words"
    agrees(fs.default_main_program())


def test_values_known_while_describing_read_back() -> None:
    spec = Spec(LOD_TENSOR, fs.INT64, (2,)).with_value((symbol("batch") * 2 + 1, 5))
    fs.default_main_program().global_block.create_variable("shape", spec, need_check_feed=True)
    assert "known [2*batch + 1, 5]" in str(fs.default_main_program())
    agrees(fs.default_main_program())


WRONG = {
    "": "line 1, column 1: expected a block",
    "input x: f32[3]": "line 1, column 1: expected a line such as 'block 0'",
    "block 1": "line 1, column 8: expected block 0 here",
    "block 0\ninput x f32[3]": "line 2, column 9: expected ':' and what it is, seen f32",
    "block 0\ninput x: f33[3]": "line 2, column 10: expected an element type",
    "block 0\ninput x: f32": "expected '[' and the dims, seen the end of the line",
    "block 0\ninput x: f32[3": "expected ',' or ']', seen the end of the line",
    "block 0\ninput x: f32[-3]": "a dim must be at least 0",
    "block 0\ninput x: f32[3 +]": "is not a size",
    "block 0\ninput x: f32[99999999999999999999]": "does not fit",
    "block 0\ninput x: f32[3]\ninput x: f32[3]": "line 3, column 8: the name 'x' is taken",
    "block 0\ninput x: f32[3] {shiny=True}": "there is no flag 'shiny'",
    "block 0\ninput x: f32[3] {persistable=yes}": "expected True or False, seen yes",
    "block 0\nfrobnicate x: f32[3]": "line 2, column 1: expected a variable (input, parameter",
    "block 0\ny = relu(X=x": "expected ',' or ')', seen the end of the line",
    "block 0\ny = relu(X=x, X=z)": "the slot 'X' is given twice",
    "block 0\ny, z = relu(X=x)": "relu has 1 results, not 2",
    "block 0\ny = no_such_thing(X=x)": "its results need their slots",
    "block 0\nOut=y = relu(X=x) {alpha=3}": "relu has no attribute 'alpha' of its own",
    "block 0\ny = softmax(X=x) {axis=1.5}": "expected an integer",
    "block 0\ny = softmax(X=x) {axis=2147483648}": "from -2147483648 to 2147483647",
    "block 0\ny = softmax(X=x) {axis=1, axis=2}": "the attribute 'axis' is given twice",
    "block 0\ny = softmax(X=x) {axis: SHAPE=1}": "expected the type of an attribute",
    "block 0\ny = softmax(X=x) layout 2": "there is no layout 2 of softmax",
    'block 0\ny = relu(X="\\q")': "expected a string in JSON's form",
    "block 0\ny = relu(X=x) $": "line 2, column 15: expected a name, a number or a mark, seen $",
    "block 0\ninput x: f32[3]" + " " * 40 + "$": "line 2, column 56",
    "block 0\ny = relu(X=x) }": "expected the end of the line, seen }",
    "block 0\ninput x: f32[3]\norder 0 0": "a position comes twice",
    "block 0\ninput x: f32[3]\norder 0:9": "the positions go from 0 to 0",
    "block 0\ninput x: f32[3]\norder": "line 3",
    "block 0\nloop() {sub_block: BLOCK=0}": "its sub-block must be a later block",
    "block 0\nblock 1 (parent 1)": "its parent must be an earlier block",
    "block 0\nconstant x: f32[n] = 3.0": "needs an element type and numbers for dims",
    "block 0\nconstant x: f32[3] = [1.0, 2.0]": "2 values where f32[3] has 3",
    "block 0\nconstant x: i8[1] = 300": "does not fit int8",
    "block 0\nvariable x: kind FP8=99": "there is no other kind of number 99",
    "block 0\nlayout relu 2: op_role": "expected layout 1 of relu here",
    "block 0\nlayout no_such_thing 1: op_role": "is not known",
}


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("text", list(WRONG), ids=lambda t: t[-40:])
def test_what_is_not_the_text_form_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(fs.FormatError) as caught:
        Program.parse(text)
    assert WRONG[text] in str(caught.value)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 10**6), st.text(alphabet='[](){}:=,|?"\\# \n\x00\x1b-+*/%0123456789abxyz@', max_size=6), st.integers(0, 3))
def test_a_changed_text_is_read_or_refused(at: int, change: str, removed: int) -> None:
    text = TEXT
    place = at % len(text)
    try:
        program = Program.parse(text[:place] + change + text[place + removed :])
        str(program)
        program.to_bytes()
    except fs.ForeshapeError as error:
        assert str(error)


with fs.program_guard(Program(), Program()):
    TEXT = str(trained())

HOSTILE: dict[str, Callable[[int], str]] = {
    "one long line of names": lambda n: "block 0\nOut=y = thing(X=[" + "a," * (8_000 * n) + "a])",
    "many variables": lambda n: "block 0\n" + "\n".join(f"input a{i}: f32[]" for i in range(1_600 * n)),
    "brackets": lambda n: "block 0\ninput x: f32[" + "(" * (16_000 * n),
    "an open string": lambda n: 'block 0\ninput "' + "\\" * (16_000 * n + 1),
    "open braces": lambda n: "block 0\ny = softmax(X=x) {axis=1, " + "a: INTS=[1], " * (1_200 * n),
    "a list of many": lambda n: "block 0\nthing() {a: INTS=[" + "123456," * (2_800 * n) + "1]}",
    "layouts": lambda n: "block 0\n" + "".join(f"layout relu {i}: op_role\n" for i in range(1, 800 * n)),
    "minus signs": lambda n: "block 0\ninput x: f32[" + "-" * (16_000 * n) + "1]",
    "blocks": lambda n: "\n".join(f"block {i}" for i in range(1_200 * n)),
    "nested blocks": lambda n: "block 0\n" + "\n".join(f"block {i} (parent {i - 1})" for i in range(1, 400 * n)),
    "comments": lambda n: "block 0\n" + '# "' * (4_000 * n) + "\n" + "#" * (4_000 * n),
    "a long number": lambda n: "block 0\nthing() {a: INT=" + "9" * (16_000 * n) + "}",
    "a long float": lambda n: "block 0\nthing() {a: FLOAT64=" + "9" * (16_000 * n) + ".5}",
    "spaces": lambda n: "block 0" + " " * (16_000 * n) + "$",
    "long products": lambda n: "block 0\n" + "\n".join(f"input x{i}: f32[{'*'.join([f'a{i}'] * 1200)}]" for i in range(n)),
    "many sizes": lambda n: "block 0\ninput x: f32[" + ", ".join(f"n{i}" for i in range(800 * n)) + "]",
}
"""With n = 256 these are texts of some megabytes."""


@pytest.mark.long_cases("blocks-4")
@pytest.mark.parametrize("largest", [pytest.param(256, marks=pytest.mark.longest), 4])
@pytest.mark.parametrize("name", one_in(4, HOSTILE))
def test_hostile_text_takes_time_in_proportion_to_its_length(name: str, largest: int) -> None:
    def make(n: int) -> Callable[[], None]:
        text = HOSTILE[name](n)
        return lambda: decided(text)

    assert_time_grows_with_size(make, max(largest // 16, 1), largest // 2, largest)


def decided(text: str) -> None:
    try:
        str(Program.parse(text))
    except fs.ForeshapeError as error:
        assert len(str(error)) < 1000


def test_memory_is_bounded() -> None:
    text = HOSTILE["many variables"](16)
    with TracedMemory() as memory, pytest.raises(fs.FormatError, match="more memory than the limit"):
        read(Program(), text, memory=5 * 2**20)
    assert memory.peak < 16 * 2**20


# --- explain


def test_explain_follows_a_dim_to_where_it_came_in() -> None:
    x = layer.data("x", ["batch", 12])
    out = layer.fc(layer.fc(x, 7, "relu"), 4)
    lines = fs.default_main_program().explain(out).splitlines()
    assert lines[0] == f"{out.name}: f32[batch, 4]"
    told = [" ".join(line.split()).rsplit(" ", 1)[0] for line in lines[1:]]
    assert told == [
        "dim 0 is",
        "fc_1.tmp_1[0] = fc_1.tmp_0[0] add (elementwise_add)",
        "fc_1.tmp_0[0] = fc_0.tmp_2[0] fc (mul)",
        "fc_0.tmp_2[0] = fc_0.tmp_1[0] relu",
        "fc_0.tmp_1[0] = fc_0.tmp_0[0] add (elementwise_add)",
        "fc_0.tmp_0[0] = x[0] fc (mul)",
        'x[0] = batch data("x")',
        "dim 1 is",
        "fc_1.tmp_1[1] = fc_1.tmp_0[1] add (elementwise_add)",
        "fc_1.tmp_0[1] = fc_1.w_0[1] fc (mul)",
        "fc_1.w_0[1] = 4 parameter",
    ]
    assert all("test_text.py:" in line for line in lines if "=" in line)


def test_explain_gives_formulas_and_what_guards_unified() -> None:
    a, b = layer.data("a", ["n", 3]), layer.data("b", ["m", 3])
    block = fs.default_main_program().global_block
    both = block.apply("concat", {"X": [a, b]}, {"axis": 0})
    words = fs.default_main_program().explain(both)
    assert f"{both.name}[0] = a[0] + b[0]" in words
    words = fs.default_main_program().explain(layer.concat([a, b], axis=1))
    assert "is taken to be" in words and "because of concat" in words


def test_explain_of_a_deep_network_still_reaches_the_input() -> None:
    out = layer.data("x", ["batch", 12])
    for _ in range(300):
        out = layer.relu(out)
    lines = fs.default_main_program().explain(out).splitlines()
    assert any(" ".join(line.split()).startswith('x[0] = batch data("x")') for line in lines)
    assert any("steps between that are not told" in line for line in lines) and len(lines) < 220


def test_explain_says_what_a_replaced_size_stands_for() -> None:
    sizes = [layer.data(f"x{i}", [f"n{i}", 2]) for i in range(60)]
    out = fs.default_main_program().global_block.apply("concat", {"X": sizes}, {"axis": 0})
    assert "stands for a size that is too long to keep: " in fs.default_main_program().explain(out)


def test_explain_of_what_is_not_certain_says_so() -> None:
    program = Program.parse("block 0\ninput x: f32[n, 3]\nOut=y: f32[n, 4] = no_such_operator(X=x) {}")
    words = program.explain("y")
    assert "not certain: it depends on an operator that is not known, by way of no_such_operator" in words
    assert "y[1] = 4" in words
