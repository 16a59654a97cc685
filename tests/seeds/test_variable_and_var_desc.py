"""The document that defines VarDesc and the Python Variable: layers take variables and return them; fc written by hand; train; print."""

import math

import numpy as np
import pytest

import foreshape as fs
from foreshape import FP32, UNK, Variable, infer_shape, layer, train


def test_layers_take_variables_and_return_them():
    image = Variable(dims=[-1, 640, 480])
    # fc1 and fc2 are both Variable
    fc1 = layer.fc(input=image, output_size=10)
    fc2 = layer.fc(input=fc1, output_size=20)
    assert isinstance(fc1, Variable) and isinstance(fc2, Variable)
    assert image.dims == [-1, 640, 480] and image.shape == [UNK, 640, 480] and image.dtype is FP32
    assert fc1.shape == [UNK, 10] and fc2.shape == [UNK, 20]
    program = fs.default_main_program()
    assert program.var("fc_0.w_0").dims == [640 * 480, 10] and program.var("fc_1.w_0").dims == [10, 20]


def flatten_size(X, num_flatten_dims):
    prod = 1  # of last num_flatten_dims
    for i in range(num_flatten_dims):
        prod = prod * X.dims[-i - 1]
    return prod


class operator:
    """The document's module of operators, as far as it uses it."""

    @staticmethod
    def fc(X, W, b, output):
        block = output.block
        product = block.apply("mul", {"X": X, "Y": W}, {"x_num_col_dims": len(X.dims) - 2 if len(X.dims) > 2 else 1})
        block.append_op("elementwise_add", {"X": product, "Y": b}, {"Out": output})
        return output


def fc(X, output_size, num_flatten_dims):
    W = Variable(type=FP32, dims=[flatten_size(X, num_flatten_dims), output_size])
    b = Variable(type=FP32, dims=[output_size])
    out = Variable(type=FP32)
    y = operator.fc(X, W, b, output=out)  # fc will put fc op input into out
    infer_shape(y)
    return out


def test_a_layer_of_the_users_own_is_written_as_the_document_writes_fc():
    x = Variable(dims=[-1, 640, 480])
    y = fc(x, output_size=100, num_flatten_dims=2)
    assert y.shape == [UNK, 100] and y.dims == [-1, 100]
    assert y.op is not None and y.op.type == "elementwise_add"
    z = fc(y, output_size=200, num_flatten_dims=1)
    assert z.shape == [UNK, 200]
    assert infer_shape(z) is z and z.shape == [UNK, 200]


def test_infer_shape_infers_again_what_a_variable_depends_on():
    x = Variable(dims=[-1, 640, 480])
    y = fc(x, output_size=100, num_flatten_dims=2)
    y.forget()
    assert y.dims == [] and not y.known
    infer_shape(y)
    assert y.shape == [UNK, 100] and y.known


def test_a_variable_without_dims_gets_them_from_the_op_that_writes_it():
    out = Variable(type=FP32)
    assert out.spec.dims is None
    x = layer.data("x", dims=3)
    fs.default_main_program().global_block.append_op("relu", {"X": x}, {"Out": out})
    assert out.shape == [UNK, 3]


def test_describe_train_and_print(capsys):
    x = Variable(dims=[-1, 640, 480])
    y = layer.fc(x, output_size=100)
    z = layer.fc(y, output_size=200)
    images = np.random.default_rng(0).standard_normal((2, 640, 480)).astype(np.float32)
    history = train(z, {x.name: images}, batch_size=2, optimizer=fs.optimizer.SGD(1e-6), scope=fs.Scope(), progress=False)
    print(y)
    assert capsys.readouterr().out.strip() == f"{y.name}: f32[batch, 100]"
    assert len(history.losses) == 1 and math.isfinite(history.losses[0])


def test_dims_and_data_type_are_asked_of_the_variable():
    x = Variable("x", dims=[-1, 640, 480], type=fs.FP64)
    assert x.dims == [-1, 640, 480] and x.data_type is x.dtype is fs.FP64
    assert x.op is None


@pytest.mark.parametrize("name", ["BOOL", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"])
def test_the_element_types_of_the_document_and_minus_one_on_disk(name):
    Variable("x", dims=[-1, 640, 480], type=getattr(fs, name))
    loaded = fs.load_program(fs.default_main_program().to_bytes()).var("x")
    assert loaded.dims == [-1, 640, 480] and loaded.data_type.name == name.lower()
