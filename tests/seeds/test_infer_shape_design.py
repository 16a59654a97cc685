"""The document "InferShape Design": what the rules of add and mul ask for and give, and an operator defined as the document's AddOp is."""

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import FP32, tensor
from foreshape.language.operator import require
from foreshape.language.operator.registry import _registry as registry
from foreshape.language.operator.registry import find
from foreshape.language.ops import FLOATING, NOT_WRITTEN, Operator, f32, operand, reject, require_equal, result, sample


@pytest.fixture
def add_op():
    """The document's AddOp, in this project's words: operands, a result, documentation and the shape rule in one place."""

    class AddOp(Operator):
        """Two Element Add Operator.

        The equation is: Out = X + Y
        """

        type = "add"
        X = operand(FLOATING, doc="The first input of add op")
        Y = operand(FLOATING, doc="The second input of add op")
        Out = result(doc="The output of add op")
        gradient = NOT_WRITTEN

        def infer_shape(self, X, Y):
            require(X.rank == Y.rank, "Two input of Add Op's dimension must be same.", X=None, Y=None)
            for axis, (x, y) in enumerate(zip(X.known_dims, Y.known_dims, strict=True)):
                require_equal(x, y, "Two input of Add Op's dimension must be same.", X=axis, Y=axis)
            return X

        def kernel(self, X, Y):
            return X + Y

        samples = [sample(X=f32(2, 3), Y=f32(2, 3))]
        rejects = [reject(X=f32(2, 3), Y=f32(2, 4), says="must be same")]

    yield AddOp
    del registry["add"]


def test_add_gives_the_shape_of_its_inputs(add_op):
    x, y = layer.data("x", ["rows", 3]), layer.data("y", ["rows", 3])
    out = fs.default_main_program().global_block.apply("add", {"X": x, "Y": y})
    assert out.shape == x.shape == y.shape
    assert find("add").__doc__.startswith("Two Element Add Operator")


def test_add_refuses_other_shapes(add_op):
    x, y = layer.data("x", [2, 3]), layer.data("y", [2, 4])
    with pytest.raises(fs.ShapeError, match="Two input of Add Op's dimension must be same"):
        fs.default_main_program().global_block.apply("add", {"X": x, "Y": y})


def test_the_rule_is_one_function_for_compile_time_and_run_time(add_op):
    rule = add_op.with_values({})
    batch = layer.data("x", [-1, 3]).spec
    assert rule.infer_shape(batch, batch) is batch
    numbers = tensor(FP32, 5, 3)
    assert rule.infer_shape(numbers, numbers) is numbers


def test_the_shipped_operators_add_with_equal_shapes():
    x, y = layer.data("x", [4, 3]), layer.data("y", [4, 3])
    assert (x + y).dims == [4, 3]
    z = layer.data("z", [4, 5])
    with pytest.raises(fs.ShapeError):
        x + z


def test_mul_gives_rows_of_x_and_columns_of_y():
    block = fs.default_main_program().global_block
    x, y = layer.data("x", ["x1", 7]), layer.data("y", [7, "y2"])
    out = block.apply("mul", {"X": x, "Y": y})
    assert [str(d) for d in out.shape] == ["x1", "y2"]
    assert block.apply("mul", {"X": layer.data("a", [2, 7]), "Y": layer.data("b", [7, 5])}).dims == [2, 5]


def test_mul_refuses_x2_that_is_not_y1():
    x, y = layer.data("x", [2, 7]), layer.data("y", [6, 5])
    with pytest.raises(fs.ShapeError, match="the columns of X must equal the rows of Y"):
        fs.default_main_program().global_block.apply("mul", {"X": x, "Y": y})


def test_mul_has_two_inputs_and_takes_matrices():
    block = fs.default_main_program().global_block
    with pytest.raises(fs.SchemaError):
        block.apply("mul", {"X": layer.data("x", [2, 7])})
    with pytest.raises(fs.ShapeError):
        block.apply("mul", {"X": layer.data("v", [7]), "Y": layer.data("w", [7, 5])})
