"""Programs of real PaddlePaddle: opened, printed, saved, inferred and run as PaddlePaddle has them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.corpus import CASES, FOLDER, LARGE, PROGRAMS, REPLAYED, SAVED, as_fine, assert_agrees, case, described

import foreshape as fs
from foreshape.interop import read_parameters, write_parameters
from foreshape.language.wire import framework_pb2 as pb

SMALL = tuple(c for c in REPLAYED if c not in LARGE)
INFERRED = tuple(p for p in PROGRAMS if p.split("/")[0] in REPLAYED)


def message(data: bytes) -> pb.ProgramDesc:
    return pb.ProgramDesc.FromString(data)


def pairs(seen: pb.ProgramDesc, theirs: pb.ProgramDesc) -> Iterator[tuple[pb.VarDesc, pb.VarDesc]]:
    assert len(seen.blocks) == len(theirs.blocks)
    for a, b in zip(seen.blocks, theirs.blocks, strict=True):
        assert [v.name for v in a.vars] == [v.name for v in b.vars]
        yield from zip(a.vars, b.vars, strict=True)


def test_the_corpus_is_here():
    assert set(REPLAYED) == set(CASES) and len(CASES) == 20
    assert set(SAVED) == {"lenet", "mlp_momentum", "lenet_bn_adam", "transformer_encoder"}


def test_the_comparisons_can_fail():
    theirs = np.array([[1.0, -2.0], [1e-7, 4.0]], np.float32)
    assert_agrees(theirs * (1 + 5e-5), theirs, "close")
    for wrong in (theirs * (1 + 3e-4), theirs.T, theirs[:1], theirs + np.float32(1e-3), np.where(theirs > 3, np.nan, theirs)):
        with pytest.raises(AssertionError):
            assert_agrees(wrong, theirs, "wrong")
    with pytest.raises(AssertionError):
        assert_agrees(np.array([1, 3]), np.array([1, 2]), "integers")
    assert as_fine([3, 4], [-1, 4]) and as_fine([12], [-6]) and as_fine([-1], [-1])
    assert not as_fine([-1, 4], [3, 4]) and not as_fine([4], [-1, 4]) and not as_fine([3, 5], [-1, 4])


# --- opened, printed and saved


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("file", PROGRAMS)
def test_a_program_is_saved_as_it_was_read(file):
    data = (FOLDER / file).read_bytes()
    program = fs.load_program(FOLDER / file)
    saved = program.to_bytes()
    assert message(saved) == message(data)
    assert fs.load_program(saved).to_bytes() == saved == data


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("file", PROGRAMS)
def test_a_program_is_printed_inferred_and_then_saved_with_nothing_lost(file):
    data = (FOLDER / file).read_bytes()
    program = fs.load_program(data)
    text = str(program)
    for op in program.all_ops():
        assert op.type in text
    unknown, errors = program.diagnose()
    assert errors == []
    assert {op.type for op in unknown} == {op.type for op in program.all_ops() if op.operator is None}
    after, before = message(program.to_bytes()), message(data)
    for seen, theirs in pairs(after, before):
        kind, dtype, dims, level = described(theirs)
        assert described(seen)[:2] == (kind, dtype) and described(seen)[3] == level, seen.name
        assert dims is None or as_fine(described(seen)[2] or [], dims), seen.name
        for flag in ("persistable", "need_check_feed", "is_parameter", "stop_gradient"):
            assert getattr(seen, flag) == getattr(theirs, flag), (seen.name, flag)
    for a, b in zip(after.blocks, before.blocks, strict=True):
        assert list(a.ops) == list(b.ops)
    assert fs.load_program(program.to_bytes()).to_bytes() == program.to_bytes()
    parsed = fs.Program.parse(text)
    assert str(parsed) == text
    for a, b in zip(message(parsed.to_bytes()).blocks, before.blocks, strict=True):
        assert list(a.ops) == list(b.ops)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_that_is_not_there_is_named_and_what_depends_on_it_is_unknown(name):
    changed = message((FOLDER / name / "main.pdmodel").read_bytes())
    ops = changed.blocks[0].ops
    at = next(i for i, op in enumerate(ops) if op.type not in ("feed", "fill_constant", "shape"))
    ops[at].type = "operator_of_tomorrow"
    data = changed.SerializeToString()
    program = fs.load_program(data)
    assert message(program.to_bytes()) == changed
    unknown = program.infer()
    assert "operator_of_tomorrow" in {op.type for op in unknown} and "operator_of_tomorrow" in str(program)
    block = program.global_block
    made = {n for n in block.ops[at].output_names() if not block.var(n).persistable}
    for op in block.ops[at + 1 :]:
        if made & set(op.input_names()):
            made |= {n for n in op.output_names() if not block.var(n).persistable}
    assert made and not any(block.var(n).known for n in made)
    assert len(unknown) > 1 or all(v.known for v in block.vars.values() if v.name not in made)
    assert message(program.to_bytes()).blocks[0].ops[at] == ops[at]


# --- inferred


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("file", INFERRED)
def test_inference_gives_what_paddlepaddle_says_of_every_variable(file):
    data = (FOLDER / file).read_bytes()
    program = fs.load_program(data)
    program.forget()
    assert program.infer() == []
    wrong: list[str] = []
    for block, theirs in zip(program.blocks, message(data).blocks, strict=True):
        for variable in theirs.vars:
            kind, dtype, dims, level = described(variable)
            seen = block.vars[variable.name]
            spec = (seen.kind.name, seen.dtype.name if seen.dtype is not None and dims is not None else None, seen.lod_level)
            if spec != (kind, dtype, level) or (dims is not None and not as_fine(seen.packed_dims, dims)) or not seen.known:
                maker = seen.op.type if seen.op is not None else "no op"
                wrong.append(f"{variable.name} of {maker}: {seen.spec.text()}, and PaddlePaddle says {kind} {dtype}{dims} level {level}")
    assert not wrong, "\n".join(wrong)


def test_the_initial_state_of_an_lstm_has_the_batch_of_its_input():
    """shape -> slice -> fill_constant: PaddlePaddle says [4, -1, 64], and here the -1 is the batch."""
    program = fs.load_program(FOLDER / "lstm_bidirectional/main.pdmodel")
    program.forget()
    assert program.infer() == []
    batch = program.var("x").spec.dims[0]
    assert not isinstance(batch, int)
    for name in ("fill_constant_1.tmp_0", "fill_constant_7.tmp_0", "lstm_0.tmp_1", "lstm_0.tmp_2"):
        assert program.var(name).spec.dims == (4, batch, 64) and program.var(name).spec.dims[1] is batch, name
    assert program.var("lstm_0.tmp_0").spec.dims == (20, batch, 128) and not list(program.guards)
    assert program.var("lstm_0.tmp_3").spec.dims == () and program.var("lstm_0.tmp_3").dtype is fs.UINT8


# --- run


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in ("vgg11", "resnet50", "googlenet") else n for n in REPLAYED])
def test_every_fetch_of_every_step_and_the_last_parameters_agree(name):
    of = case(name)
    executor = fs.Executor()
    scope = of.start(executor)
    program = fs.load_program(of.path("main.pdmodel"))
    for step in range(of.about["steps"]):
        values = executor.run(program, feed=of.feed, fetch=of.about["fetches"], scope=scope)
        for fetched, value in zip(of.about["fetches"], values, strict=True):
            of.assert_ragged_as(value, fetched)
            assert_agrees(value, of.arrays[f"step{step}/{fetched}"], f"{fetched} of step {step}")
    finals = [k for k in of.arrays if k.startswith("final/")]
    assert bool(finals) == (of.about["steps"] > 1)
    for key in finals:
        name = key.removeprefix("final/")
        assert_agrees(scope.get(name), of.arrays[key], f"{name} after the last step")


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", SMALL)
def test_a_checked_run_finds_every_value_as_inferred(name):
    """Op by op, every value has the dims that were inferred: what is finer than PaddlePaddle's -1 is right."""
    of = case(name)
    executor = fs.Executor(check=True)
    program = fs.load_program(of.path("main.pdmodel"))
    ops = program.global_block.ops
    without = ("XShape", "ReserveSpace", "StepScopes", "Scope")  # no data; of a branch that did not run there is none either
    ops = [op for op in ops if op.type != "conditional_block"]
    everything = {n for op in ops for slot, names in op.outputs.items() if slot not in without for n in names if n != "@EMPTY@"}
    values = executor.run(program, feed=of.feed, fetch=sorted(everything), scope=of.start(executor))
    for name, value in zip(sorted(everything), values, strict=True):
        dims = program.var(name).packed_dims
        shape = (value.height, *value.values.shape[1:]) if isinstance(value, fs.SelectedRows) else np.shape(value)
        assert all(d in (-1, size) for d, size in zip(dims, shape, strict=True)), name


# --- saved for inference


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_network_opens_and_computes(name):
    of = case(name)
    executor, scope = fs.Executor(), fs.Scope()
    program, feeds, fetches = fs.load_inference_model(of.path("inference"), executor, scope)
    assert feeds == of.about["inference"]["feeds"] and len(fetches) == 1
    (value,) = executor.run(program, feed={n: of.feed[n] for n in feeds}, fetch=fetches, scope=scope)
    assert_agrees(value, of.arrays["inference/" + of.about["inference"]["fetch"]], name)


@pytest.mark.parametrize("name", SAVED)
def test_parameters_are_written_as_paddlepaddle_writes_them(name, tmp_path):
    program = fs.load_program(FOLDER / name / "inference.pdmodel")
    specs = {v.name: v.spec for v in program.global_block.vars.values() if v.persistable and v.kind is fs.LOD_TENSOR}
    values = read_parameters(FOLDER / name / "inference.pdiparams", specs, specs)
    write_parameters(tmp_path / "again", values)
    assert (tmp_path / "again").read_bytes() == (FOLDER / name / "inference.pdiparams").read_bytes()


@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_here_is_what_paddlepaddle_saves(name, tmp_path):
    """After the last step: the same ops with the same slots and attributes, the same parameters, the same answer."""
    of = case(name)
    executor = fs.Executor()
    scope = of.start(executor)
    program = fs.load_program(of.path("main.pdmodel"))
    for _ in range(of.about["steps"]):
        executor.run(program, feed=of.feed, scope=scope)
    feeds, fetch = of.about["inference"]["feeds"], of.about["inference"]["fetch"]
    fs.save_inference_model(tmp_path / "net", feeds, fetch, executor, program, scope)
    seen, theirs = message((tmp_path / "net.pdmodel").read_bytes()), message(of.path("inference.pdmodel").read_bytes())
    renamed = {seen.blocks[0].ops[-1].inputs[0].arguments[0]: theirs.blocks[0].ops[-1].inputs[0].arguments[0]}
    assert [op.type for op in seen.blocks[0].ops] == [op.type for op in theirs.blocks[0].ops]
    for ours, op in zip(seen.blocks[0].ops, theirs.blocks[0].ops, strict=True):
        assert slots(ours, renamed) == slots(op, {})
        assert attributes(op).items() <= attributes(ours).items(), op.type
    assert {v.name for v in seen.blocks[0].vars if v.persistable} == {v.name for v in theirs.blocks[0].vars if v.persistable}
    opened = fs.Scope()
    loaded, names, fetches = fs.load_inference_model(tmp_path / "net.pdmodel", scope=opened)
    (value,) = executor.run(loaded, feed={n: of.feed[n] for n in names}, fetch=fetches, scope=opened)
    assert_agrees(value, of.arrays["inference/" + fetch], name)
    assert all(np.array_equal(opened.get(n), scope.get(n)) for n in opened.names())


def slots(op: pb.OpDesc, renamed: dict[str, str]) -> list[dict[str, list[str]]]:
    """Inputs and outputs, without the results that only a gradient reads."""
    sides = [{s.parameter: [renamed.get(n, n) for n in s.arguments] for s in side if s.arguments} for side in (op.inputs, op.outputs)]
    return [sides[0], {s: n for s, n in sides[1].items() if s not in ("XShape", "ReserveSpace", "Mask")}]


def attributes(op: pb.OpDesc) -> dict[str, str]:
    """Attributes without hints for backends. PaddlePaddle drops some when it saves for inference, where more are no harm."""
    hints = {"op_namescope", "op_device", "with_quant_attr", "use_mkldnn", "use_cudnn", "use_quantizer", "mkldnn_data_type"}
    return {a.name: str(a) for a in op.attrs if a.name not in hints}
