"""The document "Design Doc: InferVarType": which kind of value an operator gives."""

import pytest

import foreshape as fs
from foreshape import LOD_TENSOR, SELECTED_ROWS, layer
from foreshape.core.spec import Spec
from foreshape.language.operator.registry import _registry as registry
from foreshape.language.operator.registry import all_operators
from foreshape.language.ops import FLOATING, NOT_WRITTEN, Operator, f32, operand, result, sample


def gradient_of(table):
    return fs.default_main_program().var(table + "@GRAD")


def test_the_gradient_of_a_lookup_table_is_selected_rows():
    """A lookup takes two LoDTensors: the embedding table and the word ids; its gradient op generates a SelectedRows."""
    ids = layer.data("ids", dims=1, dtype="int64")
    out = layer.embedding(ids, size=[5000, 64], is_sparse=True)
    table = fs.default_main_program().var("embedding_0.w_0")
    assert table.kind is LOD_TENSOR and ids.kind is LOD_TENSOR and out.kind is LOD_TENSOR
    assert table.dtype.is_floating and ids.dtype.is_integer
    fs.append_backward(layer.mean(out))
    assert gradient_of("embedding_0.w_0").kind is SELECTED_ROWS
    assert gradient_of("embedding_0.w_0").dims == table.dims


def test_without_is_sparse_it_is_a_lod_tensor():
    out = layer.embedding(layer.data("ids", dims=1, dtype="int64"), size=[5000, 64])
    fs.append_backward(layer.mean(out))
    assert gradient_of("embedding_0.w_0").kind is LOD_TENSOR


def sum_of(*kinds):
    block = fs.default_main_program().global_block
    specs = [Spec(k, fs.FP32, (50, 4)) for k in kinds]
    inputs = [block.create_variable(f"x{i}", s, need_check_feed=True) for i, s in enumerate(specs)]
    return block.apply("sum", {"X": inputs})


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((SELECTED_ROWS, SELECTED_ROWS), SELECTED_ROWS),
        ((SELECTED_ROWS,), SELECTED_ROWS),
        ((LOD_TENSOR, LOD_TENSOR), LOD_TENSOR),
        ((LOD_TENSOR, SELECTED_ROWS), LOD_TENSOR),
        ((SELECTED_ROWS, SELECTED_ROWS, LOD_TENSOR), LOD_TENSOR),
    ],
)
def test_sum_is_a_lod_tensor_if_any_of_its_inputs_is(kinds, expected):
    out = sum_of(*kinds)
    assert out.kind is expected and out.dims == [50, 4]


def test_a_table_that_is_looked_up_twice_has_one_sparse_gradient():
    ids, more = layer.data("ids", dims=1, dtype="int64"), layer.data("more", dims=1, dtype="int64")
    table = layer.ParamAttr(name="table")
    a, b = (layer.embedding(i, size=[5000, 64], is_sparse=True, weight=table) for i in (ids, more))
    fs.append_backward(layer.mean(a + b))
    gradient = gradient_of("table")
    assert gradient.kind is SELECTED_ROWS and gradient.op.type == "sum"


def test_a_table_that_is_also_used_whole_has_a_dense_gradient():
    out = layer.embedding(layer.data("ids", dims=1, dtype="int64"), size=[5000, 64], is_sparse=True)
    table = fs.default_main_program().var("embedding_0.w_0")
    fs.append_backward(layer.mean(out) + layer.mean(table * table))
    gradient = gradient_of("embedding_0.w_0")
    assert gradient.kind is LOD_TENSOR and gradient.op.type == "sum"


def test_the_default_says_lod_tensor():
    with_rule = {t for t, cls in all_operators().items() if cls.infer_var_type is not Operator.infer_var_type}
    assert {"sum", "lookup_table_grad", "lookup_table_v2_grad"} <= with_rule and "relu" not in with_rule
    relu = all_operators()["relu"].with_values({})
    assert relu.infer_var_type(None) is LOD_TENSOR


def test_a_special_rule_is_registered_with_its_operator():
    class SomeOp(Operator):
        """Rows of a table, all of them."""

        type = "some_op"
        X = operand(FLOATING)
        Out = result()
        gradient = NOT_WRITTEN

        def infer_var_type(self, X):
            return SELECTED_ROWS

        def infer_shape(self, X):
            return X

        def kernel(self, X):
            raise NotImplementedError("only described here")

        samples = [sample(X=f32(2, 3))]

    try:
        assert fs.default_main_program().global_block.apply("some_op", {"X": layer.data("x", [4, 3])}).kind is SELECTED_ROWS
    finally:
        del registry["some_op"]


def test_the_kind_is_saved_and_constant():
    out = sum_of(SELECTED_ROWS, SELECTED_ROWS)
    loaded = fs.load_program(fs.default_main_program().to_bytes())
    assert loaded.var(out.name).kind is SELECTED_ROWS
    with pytest.raises(AttributeError):
        out.kind = LOD_TENSOR
