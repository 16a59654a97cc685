"""Every operator that keeps rows keeps their sequences: the first operand of each sample is made ragged, and its rows are followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.harness import Case, answer, build, of_each_operator, sampled
from support.some import one_in

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import symbol
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, Lod, Spec
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.language.operator.fields import Gradient, NoGradient
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import RuleError
from foreshape.language.operator.samples import Sample, SampleTensor
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.backward import append_backward

ROWS, SEQUENCES = symbol("rows"), symbol("sequences")
LOD = Lod("ragged", (SEQUENCES,))

MOVED = {
    "argsort": "along axis 0 it moves rows from one sequence to another",
    "concat": "along axis 0 it puts rows of several tensors one after the other, though of one tensor they stay",
    "flip": "along axis 0 it moves rows from one sequence to another",
    "reverse": "along axis 0 it moves rows from one sequence to another",
    "diag": "the rows of a matrix are not those of its diagonal",
    "diag_v2": "the rows of a matrix are not those of its diagonal",
    "diag_embed": "the rows of a matrix are not those of its diagonal",
    "roll": "along axis 0 it moves rows from one sequence to another",
    "lod_reset": "it is there to group the rows otherwise",
    "coalesce_tensor": "it lays the elements of all its operands one after the other",
    "get_tensor_from_selected_rows": "it takes sparse rows, which have no sequences",
    "decay_selected_rows": "dim 0 is a parameter's",
    "cross_entropy_grad2": "XShape says whose sequences the rows are, as it says the dims",
    "einsum": "its letters say which axis is which",
    "with_gradient": "its results have the rows of Value, and only their gradient goes to X",
    "graph_send_recv": "the edges say to which rows the rows go",
    "warprnnt": "dim 0 is the padded sequences themselves",
    "uniform_random_batch_size_like": "it takes a number of rows alone",
    "gru_unit": "a row is one step of a sequence, and those of a batch",
    "lstm_unit": "a row is one step of a sequence, and those of a batch",
    "warpctc": "with LogitsLength, dim 0 of Logits is time",
    "crf_decoding": "with Length, dim 0 of its operands is the padded sequences themselves",
    "linear_chain_crf": "with Length, dim 0 of its operands is the padded sequences themselves",
    "ctc_align": "with InputLength, dim 0 of its operands is the padded sequences themselves",
    "edit_distance": "with HypsLength, dim 0 of its operands is the padded sequences themselves",
    "rnn": "its first axis is time",
    "viterbi_decode": "dim 0 of its operands is the padded sequences themselves",
    "merge_lod_tensor": "Mask says where the rows of two other operands go; of X the levels above are read alone",
    "split_lod_tensor": "Mask has a row for each row of a dense X, and for each sequence of a ragged one",
    "data_norm": "its first operands have a number for each column",
    "im2sequence": "the rows of an image's sequence are its patches",
    "rank_loss": "its result has the sequences of Left, which are not those of the first operand",
    "gather": "Index says which rows there are; the rows of X are picked",
    "box_coder": "decoded along axis 1, priors go with the rows of TargetBox, whose sequences the result has",
    "distribute_fpn_proposals": "with RoisNum, the images of the regions are told by numbers beside them",
    "generate_proposals": "dim 0 of its operands is the images, and of each there is a number of boxes",
    "generate_proposals_v2": "dim 0 of its operands is the images, and of each there is a number of boxes",
    "matrix_nms": "dim 0 of its operands is the images, and of each there is a number of boxes",
    "mine_hard_examples": "dim 0 of its operands is the images, and the matches are those of another operand",
    "multiclass_nms3": "dim 0 of its operands is the images, and of each there is a number of boxes",
}
"""Operators with a result that has as many rows as the operand, which are not its rows."""
READ_BY_THE_GRADIENT_ONLY = {
    ("cos_sim", "YNorm"),
    ("group_norm", "Mean"),
    ("group_norm", "Variance"),
    ("hierarchical_sigmoid", "PreOut"),
    ("nce", "SampleLabels"),
    ("nce", "SampleLogits"),
    ("shuffle_batch", "ShuffleIdx"),
}
"""Results beside the one that users see."""
TAKEN_APART = {
    "data_norm": "its first operands have a number for each column",
    "split": "along axis 0 the parts are other rows, and their gradients are put one after the other",
    "stack": "at axis 0 the rows are one axis further in",
    "unstack": "along axis 0 each row is a result of its own",
    "unbind": "along axis 0 each row is a result of its own",
    "lookup_table": "the rows of a table are no sequences; its gradient is a table",
    "lookup_table_v2": "the rows of a table are no sequences; its gradient is a table",
}
"""Operators along whose first axis the gradient is dense, as the result is."""


def first_rows(cls: type[Operator], sample: Sample) -> str | None:
    """The first operand that has rows; None where the sample is ragged: what operators over sequences give, their own tests say."""
    values = [(o.name, v) for o in cls.schema.operands for v in _listed(sample.arguments.get(o.name)) if isinstance(v, SampleTensor)]
    if any(v.lengths for _, v in values):
        return None
    slot, first = next(((n, v) for n, v in values if v.dims), (None, None))
    return slot if first is not None and first.dims[0] >= 2 else None


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def cases() -> list[tuple[str, type[Operator], Sample, str]]:
    out: list[tuple[str, type[Operator], Sample, str]] = []
    for name, cls, sample in sampled():
        slot = first_rows(cls, sample)
        arrays = any(LOD_TENSOR_ARRAY in o.kinds for o in cls.schema.operands)  # each element has its own
        if slot is not None and not arrays and not any(r.updates for r in cls.schema.results):  # of an update, dim 0 is a parameter's
            out.append((name, cls, sample, slot))
    return out


CASES = cases()


def ragged_first(sample: Sample, slot: str) -> dict[str, Any]:
    """The sample's arguments, with that operand ragged: a row, an empty sequence, the other rows."""
    given = sample.arguments[slot]
    one: SampleTensor = given[0] if isinstance(given, (list, tuple)) else given
    grouped = one.ragged((1, 0, one.dims[0] - 1))
    return {**sample.arguments, slot: [grouped, *given[1:]] if isinstance(given, (list, tuple)) else grouped}


def symbolic(spec: Spec, rows: int, lod: Lod | None) -> Spec:
    if spec.kind is LOD_TENSOR and spec.lod is None and spec.known_dims[:1] == (rows,):
        return Spec(spec.kind, spec.dtype, (ROWS, *spec.known_dims[1:]), lod, spec.value)
    return spec


@pytest.mark.quick_cases(one_in=2, turn=1)
@of_each_operator(CASES, quick=4)
def test_what_keeps_rows_keeps_the_sequences(name: str, cls: type[Operator], sample: Sample, slot: str) -> None:
    operator, key = build(cls, sample.arguments).key()
    at = next(k for k, o in enumerate(cls.schema.operands) if o.name == slot)
    first = key[at]
    rows = (first[0] if isinstance(first, tuple) else first).known_dims[0]  # pyright: ignore[reportOptionalMemberAccess]
    assert isinstance(rows, int)
    given: list[Any] = []
    for k, specs in enumerate(key):
        many = specs if isinstance(specs, tuple) else (specs,)
        made = tuple(s and symbolic(s, rows, LOD if k == at and not position else None) for position, s in enumerate(many))
        given.append(made if isinstance(specs, tuple) else made[0])
    try:
        found = answer(operator, tuple(given)).results
    except RuleError as error:
        assert "must be known" in str(error)  # of the dim that is taken apart
        return
    for field, result in zip(cls.schema.results, found, strict=True):
        for spec in result if isinstance(result, tuple) else (result,):
            if spec is None or spec.kind is not LOD_TENSOR or not spec.dims:
                continue
            if spec.dims[0] is ROWS and cls.type not in MOVED and (cls.type, field.name) not in READ_BY_THE_GRADIENT_ONLY:
                assert spec.lod is LOD, f"{field.name} loses the sequences of {slot}"
            if spec.lod is LOD and not field.name.startswith("XShape"):
                assert spec.dims[0] is ROWS, f"{field.name} has the sequences of {slot}, and other rows"


def ran(case: Case) -> list[Any]:
    names = [n for names in case.outputs.values() for n in names]
    return Executor().run(case.program, case.feed, names, Scope())


COMPARED = [c for c in CASES if c[2].exact and not c[1].kernel_offsets and c[1].type != "fetch"]
"""What a kernel that sees the offsets computes depends on them."""


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("case", one_in(8, COMPARED, lambda c: c[0]))
def test_ragged_rows_give_the_same_numbers(case: tuple[str, type[Operator], Sample, str]) -> None:
    _, cls, sample, slot = case
    case = build(cls, ragged_first(sample, slot))
    grouped_anew = {v for r in cls.schema.results if r.new_offsets for v in case.outputs.get(r.name, ())}
    for variable, got, want in zip((v for vs in case.outputs.values() for v in vs), ran(case), ran(build(cls, sample.arguments)), strict=True):
        spec = case.block.vars[variable].spec
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6, atol=1e-7)  # LAPACK's depend on where numbers lie
        assert isinstance(got, LoDTensor) is (spec.lod is not None)
        if isinstance(got, LoDTensor) and variable not in grouped_anew:
            lengths = next(v.sequence_lengths for v in case.feed.values() if isinstance(v, LoDTensor))
            assert got.sequence_lengths == lengths


@pytest.mark.quick_cases(one_in=2, turn=1)
@of_each_operator(CASES, quick=4)
def test_the_gradient_of_ragged_rows_has_their_sequences(name: str, cls: type[Operator], sample: Sample, slot: str) -> None:
    if isinstance(cls.gradient, NoGradient) or cls.type in MOVED or cls.type in TAKEN_APART:
        return
    arguments = ragged_first(sample, slot)
    name_of_first = f"{slot}.0" if isinstance(arguments[slot], list) else slot
    for result in cls.schema.results:
        if isinstance(cls.gradient, Gradient) and f"{result.name}@GRAD" not in cls.gradient.inputs:
            continue
        case = build(cls, arguments)
        x = case.block.vars[name_of_first]
        out = case.block.vars[case.outputs[result.name][0]] if case.outputs.get(result.name) else None
        if out is None or out.spec.kind is not LOD_TENSOR or not all(v.dtype is not None and v.dtype.is_floating for v in (x, out)):
            continue
        x.stop_gradient = False
        weight = case.block.create_variable("weight", out.spec.like(), need_check_feed=True)
        try:
            ((_, gradient),) = append_backward(out, [x], loss_gradient=weight)
        except fs.SchemaError as error:
            assert "nothing is to be trained" in str(error) or "no gradient" in str(error) or "not described" in str(error)
            continue
        if gradient.kind is SELECTED_ROWS:
            continue
        assert gradient.spec.lod is x.spec.lod, f"the gradient of {slot} through {result.name} is {gradient.spec}"


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("type", sorted({*MOVED, *TAKEN_APART, *(t for t, _ in READ_BY_THE_GRADIENT_ONLY)}))
def test_each_exception_is_of_an_operator_that_is_tested(type: str) -> None:
    assert any(cls.type == type for _, cls, _, _ in CASES)


def words(width: int | str, name: str = "x") -> Any:
    return layer.data(name, dims=["words", width], lod_level=1)


def test_rows_that_come_to_stand_at_another_axis_are_no_sequences() -> None:
    x = words(3)
    wider = layer.data("wider", dims=[7, "words", 3])
    widened = [layer.add(x, wider), layer.less_than(x, wider), layer.expand(x, [5, -1, -1]), layer.tile(x, [2, 1, 1])]
    for out in (*widened, layer.matmul(wider, x, transpose_y=True)):
        assert out.spec.lod is None
    square = layer.data("square", dims=[4], lod_level=1)  # sizes that are equal by chance
    assert layer.add(square, layer.data("table", dims=[4, 4])).spec.lod is None
    assert layer.expand(square, [4, 4]).spec.lod is None
    assert layer.tile(square, [4, 1]).spec.lod is None
    assert layer.matmul(square, layer.data("weights", dims=[4, 4])).spec.lod is None
    assert layer.reduce_sum(layer.data("cube", dims=[4, 4], lod_level=1), 0).spec.lod is None
    assert layer.transpose(layer.data("turned", dims=[4, 4], lod_level=1)).spec.lod is None


def test_an_index_brings_its_sequences() -> None:
    ids = layer.data("ids", dims=["words"], dtype="int64", lod_level=1)
    table = layer.data("table", dims=[9, 4])
    assert layer.gather(table, ids).spec.lod is ids.spec.lod
    assert layer.gather_nd(table, layer.unsqueeze(ids, 1)).spec.lod is ids.spec.lod
    assert layer.gather(words(9), ids, 1).spec.lod is not ids.spec.lod


def test_a_gradient_finds_its_sequences_again_through_reshapes() -> None:
    x = words(4)
    x.stop_gradient = False
    flat = layer.reshape(layer.transpose(layer.reshape(layer.scale(x, 2.0), [-1, 2, 2]), [0, 2, 1]), [-1])
    assert flat.spec.lod is None
    ((_, gradient),) = append_backward(layer.reduce_sum(flat), [x])
    assert gradient.spec.lod is x.spec.lod
    value = LoDTensor(np.ones((5, 4), "float32"), [[2, 0, 3]])
    (got,) = fs.Executor().run(fs.default_main_program(), {"x": value}, [gradient])
    assert got.sequence_lengths == [[2, 0, 3]]
    np.testing.assert_array_equal(np.asarray(got), np.full((5, 4), 2.0, "float32"))


def test_a_network_of_ragged_rows_is_ragged_to_its_end() -> None:
    ids = layer.data("ids", dims=["words"], dtype="int64", lod_level=2)
    x = layer.embedding(ids, [9, 6])
    x = layer.layer_norm(layer.dropout(layer.fc(x, 8, "relu"), 0.1), begin_norm_axis=1)
    x = layer.concat([x, layer.softmax(x)], 1)
    x = layer.cast(layer.reshape(x, [-1, 4, 4]), "fp64")
    assert x.spec.lod is ids.spec.lod
    assert x.spec.lod_level == 2
