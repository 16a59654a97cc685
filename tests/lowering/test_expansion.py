"""Ops that stand for others: a step is made of the others, and the program stays as it was."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.planned_networks import machine

import foreshape as fs
from foreshape import layer
from foreshape.compiler.cost import device_of
from foreshape.compiler.lowering.expansion import expanded
from foreshape.compiler.lowering.kernel_calls import OpCall
from foreshape.core.spec import Spec
from foreshape.language.operator import FLOATING, ZERO_GRADIENT, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.wire import framework_pb2 as pb
from foreshape.machine.kernels.onednn_library import library
from foreshape.transforms.backward import append_backward

WIDTHS = (64, 96, 96, 48, 10)


def chain(whole: bool) -> tuple[fs.Program, Any]:
    """Four layers as fc ops, as a file has them that was saved for use, or as products, sums and rectifiers."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        h = layer.data("x", ["batch", WIDTHS[0]])
        for at, (k, n) in enumerate(pairwise(WIDTHS)):
            w, b = (layer.create_parameter(d, "float32", layer.ParamAttr(name=f"{at}.{name}")) for name, d in (("w", [k, n]), ("b", [n])))
            if whole:
                h = main.global_block.apply("fc", {"Input": h, "W": w, "Bias": b}, {"activation_type": "relu"})
            else:
                h = layer.relu(main.global_block.apply("mul", {"X": h, "Y": w}) + b)
    return main, h


def test_a_chain_of_fc_is_what_its_parts_are() -> None:
    x = np.random.default_rng(0).standard_normal((5, WIDTHS[0])).astype("float32")
    found: list[Any] = []
    for whole in (True, False):
        main, out = chain(whole)
        before = main.to_bytes()
        for executor in (fs.Executor(seed=1), fs.Executor(seed=1, check=True), fs.Executor(seed=1, frozen=True)):
            scope = fs.Scope()
            for name, dims in ((v.name, v.dims) for v in main.parameters()):
                scope.set(name, np.random.default_rng(len(name) + sum(dims)).standard_normal(dims).astype("float32") * 0.2)
            found.append(executor.run(main, {"x": x}, [out], scope)[0])
        calls = executor.step(main, [out]).emitted.lowered.calls  # pyright: ignore[reportPossiblyUnbound]
        assert len(calls) == (1 if library() is not None else len(WIDTHS) - 1)
        assert main.to_bytes() == before
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5, atol=1e-6)


def test_its_plan_is_that_of_its_parts() -> None:
    peaks = []
    for whole in (True, False):
        main, out = chain(whole)
        peaks.append(fs.plan(main, [out]).peak(batch=32))
    assert peaks[0] == peaks[1]


def attention(whole: bool) -> tuple[fs.Program, list[str]]:
    """Attention with the softmax of masked scores in one op or in two, and its gradients."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        q, k, v = (layer.data(n, ["batch", 2, 16, 8]) for n in "qkv")
        mask = layer.data("mask", ["batch", 1, 16, 16])
        q.stop_gradient = k.stop_gradient = v.stop_gradient = False
        scores = layer.scale(layer.matmul(q, k, transpose_y=True), 0.3)
        masked = main.global_block.apply("fused_softmax_mask", {"X": scores, "Mask": mask}) if whole else layer.softmax(scores + mask)
        out = layer.matmul(masked, v)
        append_backward(layer.mean(layer.square(out)), [q, k, v])
    return main, [out.name, "q@GRAD", "k@GRAD", "v@GRAD"]


def test_a_gradient_may_be_made_of_others_too() -> None:
    rng, found = np.random.default_rng(0), []
    fed = {n: rng.standard_normal((3, 2, 16, 8)).astype("float32") for n in "qkv"} | {"mask": rng.standard_normal((3, 1, 16, 16)).astype("float32")}
    for main, names in map(attention, (True, False)):
        executor = fs.Executor()
        found.append((executor.run(main, fed, names, fs.Scope()), len(executor.step(main, names).emitted.lowered.calls)))
    assert found[0][1] == found[1][1]
    for a, b in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


class TwiceAndSum(Operator):
    """Each of several tensors twice, and the sum of all; the last one is given back as it is."""

    type = "twice_and_sum_of_the_test"
    gradient = ZERO_GRADIENT
    X = operand(FLOATING, many=True, doc="of one shape")
    Twice = result(many=True, doc="as X")
    Sum = result(doc="as each of X")
    Last = result(doc="as each of X")
    by = attribute(AttrType.FLOAT, 2.0)

    def infer_shape(self, X: tuple[Spec, ...]) -> Any:
        return tuple(x.like() for x in X), X[0].like(), X[-1].like()

    def expand(self, of: Composition, X: Any) -> Any:
        twice = [of("scale", {"scale": self.by}, X=x) for x in X]
        return twice, of("sum", X=twice), X[-1]


def test_lists_and_operands_that_are_results() -> None:
    xs = [layer.data(f"x{n}", ["batch", 2]) for n in range(3)]
    main = fs.default_main_program()
    twice, total, last = main.global_block.apply("twice_and_sum_of_the_test", {"X": xs})
    out = layer.relu(total) + twice[0]
    fed = {f"x{n}": np.full((1, 2), n + 1.0, "float32") for n in range(3)}
    found = fs.Executor().run(main, fed, [*twice, total, last, out], fs.Scope())
    assert [f.tolist()[0][0] for f in found] == [2.0, 4.0, 6.0, 12.0, 3.0, 14.0]
    assert [op.type for op in expanded(main.global_block, [total.name, last.name, out.name]).ops] == ["scale"] * 3 + [
        "sum",
        "assign",
        "relu",
        "elementwise_add",
    ]
    without = chain(False)[0].global_block
    assert expanded(without, [without.ops[-1].output("Out")]) is without


@pytest.mark.parametrize("sparse", [False, True])
def test_a_lookup_whose_rows_are_summed_is_a_bag_in_both_directions(sparse: bool) -> None:
    main = fs.default_main_program()
    ids, table = layer.data("ids", ["n", 1], dtype="int64", lod_level=1), layer.create_parameter([20, 3], "float32")
    out = main.global_block.apply("fused_embedding_seq_pool", {"W": table, "Ids": ids}, {"is_sparse": sparse, "padding_idx": 3})
    append_backward(layer.reduce_sum(out))
    names, numbers = [out.name, f"{table.name}@GRAD"], np.array([[3], [1], [1], [19]])
    executor, scope = fs.Executor(), fs.Scope()
    scope.set(table.name, np.arange(60, dtype="float32").reshape(20, 3))
    summed, gradient = executor.run(main, {"ids": fs.LoDTensor(numbers, [[2, 0, 2]])}, names, scope)
    np.testing.assert_array_equal(summed, [[3, 4, 5], [0, 0, 0], [60, 62, 64]])
    dense = np.asarray(gradient.to_dense() if sparse else gradient)
    assert dense[:, 0].tolist() == [{1: 2.0, 19: 1.0}.get(n, 0.0) for n in range(20)]
    assert not any(isinstance(call, OpCall) and "lookup" in call.op.type for call in executor.step(main, names).emitted.lowered.calls)


def test_ops_in_blocks_are_written_as_others_too() -> None:
    x = layer.data("x", ["batch", 4])
    w = layer.data("w", [4, 4])
    block = fs.default_main_program().global_block

    def body(n: Any, h: Any) -> Any:
        inner = fs.default_main_program().blocks[-1]
        return n + 1, inner.apply("fc", {"Input": h, "W": w}, {"activation_type": "relu"})

    _, out = layer.while_loop(lambda n, h: n < 3, body, [layer.fill_constant([1], "int64", 0), x])
    given = {"x": np.ones((2, 4), "float32"), "w": np.eye(4, dtype="float32") * 2}
    found = fs.Executor().run(block.program, given, [out], fs.Scope())[0]
    np.testing.assert_array_equal(found, np.full((2, 4), 8.0))
    assert any(op.type == "fc" for op in block.program.all_ops()) and not any(op.type == "fc" for op in expanded(block, [out.name]).program.all_ops())


def test_what_a_run_does_not_need_is_not_looked_at_and_what_is_not_known_is_named_first() -> None:
    x, w, other = layer.data("x", ["batch", 4]), layer.data("w", [4, 4]), layer.data("other", [9, 4])
    early = layer.relu(x)
    out = fs.default_main_program().global_block.apply("fc", {"Input": layer.tanh(early), "W": w})
    message = pb.ProgramDesc.FromString(fs.default_main_program().to_bytes())
    for op in message.blocks[0].ops:
        op.type = "of_another_world" if op.type == "tanh" else op.type
        for given in op.inputs:
            if given.parameter == "W":
                given.arguments[:] = [other.name]  # which does not fit
    program = fs.load_program(message.SerializeToString())
    fed = {"x": np.ones((2, 4), "float32"), "other": np.ones((9, 4), "float32"), "w": np.ones((4, 4), "float32")}
    np.testing.assert_array_equal(fs.Executor().run(program, fed, [early.name], fs.Scope())[0], np.ones((2, 4)))
    assert fs.plan(program, [early.name]).peak(batch=2) == 64
    with pytest.raises(fs.ExecutionError, match="'of_another_world' is not known here"):
        fs.Executor().run(program, fed, [out.name], fs.Scope())


def test_who_says_what_an_operator_is_made_of_needs_no_kernel_and_says_all_operands() -> None:
    with pytest.raises(fs.SchemaError, match="expand"):

        class Wrong(Operator):  # pyright: ignore[reportUnusedClass]
            """It lacks its operand."""

            type = "made_of_others_wrongly"
            gradient = ZERO_GRADIENT
            X = operand(FLOATING)
            Out = result()

            def infer_shape(self, X: Spec) -> Spec:
                return X

            def expand(self, of: Composition) -> Any:  # type: ignore[override]
                return None


def old_products(type: str) -> fs.TrainingProgram:
    """A chain of products by the operator of PaddlePaddle 1, which is made of others, or by that of 2; to be trained."""
    with fs.program():
        x, y = layer.data("x", ["batch", 64]), layer.data("y", ["batch", 1], dtype="int64")
        for at in range(3):
            w = layer.create_parameter([64, 64], "float32", layer.ParamAttr(name=f"{at}.w"))
            x = layer.gelu(fs.default_main_program().global_block.apply(type, {"X": x, "Y": w}))
        return fs.training_program(layer.mean(layer.softmax_with_cross_entropy(layer.fc(x, 10), y)), fs.optimizer.Adam(0.01))


def test_who_looks_for_the_users_ops_finds_them() -> None:
    old, new = old_products("matmul"), old_products("matmul_v2")
    steps = [fs.plan(t, ranks=2, device=device_of(machine())).timeline(batch=64) for t in (old, new)]
    started = [[type(i).__name__ for i in t.items].count("Start") for t in steps]
    assert started[0] == started[1] > 0
    ops = {id(op) for op in old.program.all_ops()}
    lowered = fs.Executor().step(old.program, [old.loss]).plain
    assert all(id(i.op) not in ops and id(i.op.whole) in ops for i in lowered.calls)
