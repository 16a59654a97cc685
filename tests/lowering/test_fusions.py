"""The rewrites of a step: their files, what they ask of operators, and that they change no number."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import fuse, fusion, lower
from foreshape.compiler.lowering.fusion import apply_all, rewrite_order, rewrites
from foreshape.compiler.lowering.fusion.rewrite_order import Rewrite, RewriteStage, in_order
from foreshape.core.spec import tensor
from foreshape.errors import DescriptionError, SchemaError
from foreshape.language.operator import FLOATING, NOT_DIFFERENTIABLE, Operator, all_operators, computations, gradient, operand, result
from foreshape.language.operator.computations import Computation
from foreshape.language.operator.traits import is_usual_gradient

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import make_fusion_reference as reference

ROOT = Path(__file__).parents[2]
FOLDER = Path(fusion.__file__).parent
LOWERING = sorted([*FOLDER.glob("*.py"), *FOLDER.parent.glob("*.py")])
SHARED = {
    "__init__",
    "attempts",
    "byte_weights",
    "frozen",
    "graph",
    "images",
    "plain_calls",
    "products",
    "rewrite_order",
    "series_memory",
    "series_values",
    "soundness",
}
KINDS = tuple(c for c in vars(computations).values() if isinstance(c, type) and issubclass(c, Computation) and c not in (Computation, computations.ForwardOnly))


def rewritten(describe: Callable[[], Any]) -> dict[str, int]:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        out = describe()
    return apply_all(lower(program.global_block, [out.name]))


# --- files


def test_every_file_is_one_rewrite_or_shared():
    assert {p.stem for p in FOLDER.glob("*.py")} == {r.name for r in rewrites()} | SHARED


@pytest.mark.parametrize("rewrite", rewrites(), ids=lambda r: r.name)
def test_a_rewrite_is_declared_as_its_source_says(rewrite: Rewrite) -> None:
    """A step imports the modules of the rewrites that may match, and knows the others by their sources."""
    assert rewrite.apply.__name__ == "apply"
    assert rewrite_order._registered[rewrite.name] == (rewrite, rewrite.apply)


@pytest.mark.parametrize("rewrite", rewrites(), ids=lambda r: r.name)
def test_a_rewrite_says_what_is_there_before_and_after(rewrite: Rewrite):
    what, parts = reference.sections(sys.modules[rewrite.apply.__module__])
    assert what.endswith(".") and all(parts.values())


@pytest.mark.parametrize("words", [
    "", "One line.", "What.\n\nBefore: a", "What.\n\nAfter: b\nBefore: a", "What.\n\nBefore: a\nmore\nAfter: b", "What.\nBefore: a\n\nAfter: b",
])  # fmt: skip
def test_another_form_is_refused(words: str):
    with pytest.raises(ValueError, match="the docstring"):
        reference.sections(ModuleType("other", words))


# --- order


def of_names(*after: tuple[str, RewriteStage, tuple[str, ...]]) -> list[Rewrite]:
    return [Rewrite(name, stage, dict.fromkeys(names, "is a reason"), (), (), ()) for name, stage, names in after]


def test_rewrites_come_by_stages_behind_the_ones_that_they_name_and_by_name() -> None:
    members = of_names(
        ("b", RewriteStage.FUSE, ()),
        ("a", RewriteStage.FUSE, ("d",)),
        ("d", RewriteStage.FUSE, ("c",)),
        ("c", RewriteStage.FUSE, ()),
        ("z", RewriteStage.SIMPLIFY, ()),
    )
    assert [r.name for r in in_order(members)] == ["z", "b", "c", "d", "a"] == [r.name for r in in_order(members[::-1])]


FUSE, SIMPLIFY = RewriteStage.FUSE, RewriteStage.SIMPLIFY


@pytest.mark.parametrize(("members", "says"), [
    ([("a", FUSE, ("c",)), ("b", FUSE, ("a",)), ("c", FUSE, ("b",)), ("d", FUSE, ("a",))], "in a circle: a after c after b after a"),
    ([("linear", FUSE, ("atention",)), ("attention", FUSE, ())], "linear comes after 'atention', which is no rewrite: did you mean attention"),
    ([("linear", FUSE, ("views",)), ("views", SIMPLIFY, ())], "linear comes after views, which is of the stage SIMPLIFY, not FUSE"),
])  # fmt: skip
def test_an_order_that_cannot_be_is_refused(members: list[Any], says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        in_order(of_names(*members))


def test_the_order_is_computed_once() -> None:
    assert rewrites() is rewrites()


def literals(source: str) -> Iterator[str]:
    """The strings in a text of Python, those between the braces of formatted ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("file", LOWERING, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_no_operator_is_known_by_its_type(file: Path):
    # `while` and `recurrent` are forms in which operators run blocks (`Operator.region`), which each of them declares
    # and `reverse` is an attribute of one of them, too; a value that two names have is assigned to the second
    forms = {cls.region for cls in all_operators().values() if cls.region} | {"reverse", "assign"}
    assert {s for s in literals(file.read_text()) if s in all_operators()} <= (forms if file.parent != FOLDER else set())


def test_the_search_for_types_finds_them():
    assert {"relu", "mean"} <= set(literals('x = ("relu", f"{y}_grad")\ny = {"mean": 1}'))


# --- what operators say


def test_a_gradient_operator_says_what_it_undoes():
    said = {t: cls.computes for t, cls in all_operators().items() if cls.computes is not Operator.computes}
    assert {"relu", "mul", "matmul_v2", "conv2d", "softmax", "sgd", "fill_constant"} <= said.keys()
    for type_, rule in said.items():
        cls = all_operators()[type_]
        if cls.grad_class is not None:
            assert cls.grad_class.backward_of is rule and cls.grad_class.computes is Operator.computes, type_


NOTHING = ("conv3d", "conv3d_transpose", "fused_bn_add_activation")
"""Those of which no sample computes what their bases do."""


IN_TESTS = ("c_dropout", "dropout")
"""Those that only multiply by a number in a test, where nothing asks for the gradient."""


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("type_", sorted(t for t, cls in all_operators().items() if cls.computes is not Operator.computes and cls.grad_class is not None))
def test_the_gradients_here_are_the_usual_ones(type_: str):
    cls = all_operators()[type_]
    later = {n: one.default for n, one in cls.schema.later.items()}
    given = [{n: v for n, v in s.arguments.items() if n in cls.schema.attributes} for s in cls.samples]
    made = [cls.with_values(later | dict(cls.describe(values).values)) for values in given]
    found = {type(c) for operator in made if (c := operator.computes()) is not None}
    found -= {computations.Scaling} if type_ in IN_TESTS else set()
    assert (found and sum(not kind.forward_only for kind in found) <= 1) or type_ in NOTHING
    assert cls.grad_class is not None and all(kind.forward_only or is_usual_gradient(cls.grad_class, kind) for kind in found)


def test_a_gradient_that_takes_other_slots_is_not_the_usual_one():
    relu, softmax_loss = all_operators()["relu_grad"], all_operators()["softmax_with_cross_entropy_grad"]
    assert is_usual_gradient(relu, computations.Relu) and not is_usual_gradient(relu, computations.Reduction)
    assert [k for k in KINDS if is_usual_gradient(softmax_loss, k)] == [computations.SoftmaxCrossEntropy]


def test_a_class_with_a_kernel_of_its_own_does_not_inherit_what_it_computes():
    class Ramp(Operator):
        type = "ramp_for_a_test"
        X = operand(FLOATING)
        Out = result()
        gradient = NOT_DIFFERENTIABLE

        def infer_shape(self, X: Any) -> Any:
            return X.like()

        def computes(self) -> computations.Relu:
            return computations.Relu()

        def kernel(self, X: Any) -> Any:
            return X.clamp(min=0)

    class Same(Ramp):
        type = "same_ramp_for_a_test"

    assert Same.with_values({}).computes() == computations.Relu()
    with pytest.raises(SchemaError, match="say what it computes"):

        class Steeper(Ramp):  # pyright: ignore[reportUnusedClass]
            type = "steeper_ramp_for_a_test"

            def kernel(self, X: Any) -> Any:
                return X.clamp(min=0) * 2


class Ramp(Operator):
    """A rectifier of one's own, whose gradient takes what a rectifier's does not."""

    type = "own_ramp_for_a_test"
    X = operand(FLOATING)
    Out = result()

    def infer_shape(self, X: Any) -> Any:
        return X.like()

    def computes(self) -> computations.Relu:
        return computations.Relu()

    def kernel(self, X: Any) -> Any:
        return X.clamp(min=0)

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Any, d_out: Any) -> Any:
        return d_out * (X > 0)


class Product(Operator):
    """A product of one's own."""

    type = "own_product_for_a_test"
    X = operand(FLOATING)
    Y = operand(FLOATING, same_type_as="X")
    Out = result()

    def infer_shape(self, X: Any, Y: Any) -> Any:
        return X.with_dims([X.dims[0], Y.dims[1]])

    def computes(self) -> computations.MatrixProduct:
        return computations.MatrixProduct()

    def kernel(self, X: Any, Y: Any) -> Any:
        return X @ Y

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"))
    def backward(self, X: Any, Y: Any, d_out: Any) -> Any:
        return d_out @ Y.T, X.T @ d_out


def own() -> Any:
    x = layer.data("x", shape=["batch", 5])
    block = fs.default_main_program().global_block
    h = block.apply("own_product_for_a_test", {"X": x, "Y": layer.create_parameter([5, 4], fs.FP32)})
    h = block.apply("own_ramp_for_a_test", {"X": layer.add(h, layer.create_parameter([4], fs.FP32, is_bias=True))})
    loss = layer.mean(layer.square(h))
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


def test_an_operator_of_ones_own_takes_part():
    found = rewritten(own)
    assert (found["linear"], found["linear_gradient"], found["rectifier"], found["descent"]) == (1, 1, 1, 2)
    assert found["rectifier_gradient"] == 0  # it takes X, not Out


# --- numbers


def images() -> Any:
    x = layer.data("x", shape=["batch", 2, 6, 6])
    loss = layer.mean(layer.fc(layer.conv2d(layer.conv2d(x, 4, 3, activation="relu"), 4, 3, groups=2), 2))
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


def classes(**settings: Any) -> Any:
    x, label = layer.data("x", shape=["batch", 5]), layer.data("label", shape=["batch", 1], dtype="int64")
    each = layer.softmax_with_cross_entropy(layer.fc(layer.fc(x, 4, "relu"), 3), label)
    loss = fs.default_main_program().global_block.apply("reduce_mean", {"X": each}, {"dim": [], "reduce_all": True, **settings})
    fs.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return loss


def bags() -> Any:
    ids = layer.data("ids", shape=["batch", 7], dtype="int64")
    rows = layer.embedding(ids, size=(9, 3), is_sparse=True, padding_idx=2)
    loss = layer.mean(layer.square(layer.fc(layer.reduce_mean(rows, 1), 2)))
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


def kept() -> Any:
    return classes(keep_dim=True)


def wider() -> Any:
    x, label = layer.data("x", shape=["batch", 5]), layer.data("label", shape=["batch", 1], dtype="int64")
    each = layer.softmax_with_cross_entropy(layer.fc(x, 3), label)
    return fs.default_main_program().global_block.apply("reduce_mean", {"X": each}, {"dim": [], "reduce_all": True, "out_dtype": fs.FP64.code})


def turned() -> Any:
    x = layer.data("x", shape=["batch", 5])
    rows = layer.layer_norm(layer.reshape(layer.matmul(x, layer.create_parameter([4, 5], fs.FP32), transpose_y=True), [-1, 1, 4]), begin_norm_axis=2)
    shifted = layer.add(layer.matmul(rows, layer.create_parameter([3, 4], fs.FP32), transpose_y=True), layer.create_parameter([3], fs.FP32, is_bias=True))
    normal = layer.layer_norm(shifted, begin_norm_axis=2, weight=False)
    loss = layer.mean(layer.square(layer.matmul(normal, layer.create_parameter([2, 3], fs.FP32), transpose_y=True)))
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


def spread() -> Any:
    x = layer.data("x", shape=["batch", 5])
    left, right = layer.unsqueeze(layer.unsqueeze(x, [1]), [3]), layer.unsqueeze(layer.fc(x, 4), [2, 3])
    examples = layer.cast(layer.slice(layer.shape(x), [0], [0], [1]), "float32")
    ones = layer.fill_constant([layer.slice(layer.shape(x), [0], [0], [1]), 4, 5, 1], "float32", 1.0)
    six = layer.cast(layer.equal(layer.slice(layer.shape(x), [0], [0], [1]), layer.fill_constant([1], "int32", 6)), "float32")
    loss = layer.reduce_sum(layer.square(layer.multiply(left, right) + ones * six)) / examples
    fs.optimizer.SGD(0.1).minimize(loss)
    return loss


EXPECTED: dict[Callable[[], Any], dict[str, int]] = {
    own: {"constant": 1, "linear": 1, "descent": 2},
    images: {"convolution": 2, "convolution_gradient": 2, "rectifier": 1, "rectifier_gradient": 1, "descent": 6},
    classes: {"class_loss": 1, "linear": 2, "linear_gradient": 2, "rectifier": 1},
    bags: {"bags": 1, "linear": 1, "linear_gradient": 1},
    kept: {"class_loss": 0, "linear": 2},
    wider: {"class_loss": 0, "linear": 1},
    spread: {"views": 1, "read_sizes": 4},
    turned: {"linear": 3, "linear_gradient": 3, "descent": 7, "normalization": 2},
}


@pytest.mark.parametrize("describe", EXPECTED, ids=lambda f: f.__name__)
def test_the_rewrites_apply_and_change_no_number(describe: Callable[[], Any]):
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        loss = describe()
    found = apply_all(lower(main.global_block, [loss.name]))
    assert {name: found[name] for name in EXPECTED[describe]} == EXPECTED[describe]
    rng = np.random.RandomState(1)
    drawn = {"x": rng.standard_normal((6, 5) if describe is not images else (6, 2, 6, 6)).astype("f"), "label": rng.randint(0, 3, (6, 1)),
             "ids": rng.randint(0, 9, (6, 7))}  # fmt: skip
    feed = {n: v for n, v in drawn.items() if main.global_block.find(n) is not None}
    runs: list[list[np.ndarray]] = []
    for check in (False, True):
        executor, scope = fs.Executor(seed=2, check=check), fs.Scope()
        executor.run(startup, scope=scope)
        losses = [executor.run(main, feed, [loss], scope)[0] for _ in range(3)]
        runs.append([*losses, *(scope.get(v.name) for v in main.all_variables() if v.persistable)])
    for fused, plain in zip(*runs, strict=True):
        assert fused.shape == plain.shape and fused.dtype == plain.dtype
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-6)


def test_a_product_that_is_said_to_have_no_dims_gets_no_bias():
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        out = layer.fc(layer.data("x", shape=["batch", 5]), 4)
    made = program.global_block.ops[0].outputs["Out"][0]
    program.var(made).inferred_spec = tensor(fs.FP32)
    assert len(fuse(lower(program.global_block, [out.name])).calls) == 2


def test_gradient_ops_that_say_other_than_their_ops_are_left_alone():
    def disagreeing() -> Any:
        loss = classes()
        ops = fs.default_main_program().global_block.ops
        next(op for op in ops if op.type == "softmax_with_cross_entropy_grad").set_attribute("ignore_index", 1)
        return loss

    assert rewritten(classes)["class_loss"] == 1 and rewritten(disagreeing)["class_loss"] == 0


# --- the page


def test_the_page_of_fusions_is_up_to_date(update: bool):
    script = ROOT / "docs" / "make_fusion_reference.py"
    done = subprocess.run([sys.executable, str(script), *([] if update else ["--check"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["conv2d_0.b_0@GRAD", "conv2d_0.w_0@GRAD"])
def test_a_gradient_of_a_convolution_that_is_stored_is_there_afterwards(name: str) -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        y = layer.conv2d(layer.data("x", ["batch", 2, 5, 5]), 3, 3)
        loss = layer.mean(y * y)
        fs.optimizer.Momentum(0.1, 0.9).minimize(loss)
    main.global_block.var(name).persistable = True
    found: list[Any] = []
    for check in (False, True):
        executor, scope = fs.Executor(seed=1, check=check), fs.Scope()
        executor.run(startup, scope=scope)
        executor.run(main, {"x": np.ones((2, 2, 5, 5), "float32")}, [loss], scope)
        found.append(scope.get(name))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
