"""The document that gives VarDesc a value: variables with constants, what is saved of them, and the two stages."""

import numpy as np
import pytest

import foreshape as fs
from foreshape import INT32, STRING, Variable, layer


def test_a_variable_with_a_tensor_value():
    a = Variable("X", shape=[784, 10], data_type=INT32, value=0)
    assert (a.name, a.dims, a.shape, a.dtype, a.kind, a.value) == ("X", [784, 10], [784, 10], INT32, fs.LOD_TENSOR, 0)
    loaded = fs.load_program(fs.default_main_program().to_bytes()).var("X")
    assert (loaded.dims, loaded.dtype, loaded.value) == ([784, 10], INT32, 0)


def test_a_variable_with_a_string_value():
    a = Variable("X", data_type=STRING, value="aa")
    assert a.kind is STRING and a.value == "aa"
    loaded = fs.load_program(fs.default_main_program().to_bytes()).var("X")
    assert loaded.kind is STRING and loaded.value == "aa"


def test_a_value_is_there_when_the_network_runs():
    a = Variable("X", shape=[2, 3], data_type=INT32, value=4)
    b = layer.data("b", shape=[2, 3], dtype="int32")
    out = a + b
    (sum_,) = fs.Executor().run(feed={"b": np.ones((2, 3), np.int32)}, fetch=[out], scope=fs.Scope())
    assert sum_.tolist() == [[5, 5, 5], [5, 5, 5]]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("INT", 7), ("FLOAT", 0.5), ("STRING", "aa"), ("INTS", [1, -2, 3]), ("FLOATS", [0.5, 1.5]), ("STRINGS", ["a", "bb"])],
)
def test_each_kind_of_the_document_keeps_its_value_on_disk(kind, value):
    a = Variable("X", data_type=getattr(fs, kind), value=value)
    assert a.kind.name == kind
    loaded = fs.load_program(fs.default_main_program().to_bytes()).var("X")
    assert loaded.kind.name == kind and loaded.value == value


@pytest.mark.parametrize(
    ("name", "of"), [("INT16", "int16"), ("INT32", "int32"), ("INT64", "int64"), ("FP32", "float32"), ("FP64", "float64"), ("BOOL", "bool")]
)
def test_each_element_type_of_the_document_keeps_its_values_on_disk(name, of):
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(of)
    Variable("X", shape=[2, 3], data_type=getattr(fs, name), value=values)
    loaded = fs.load_program(fs.default_main_program().to_bytes()).var("X")
    assert loaded.dtype.name == name.lower() and loaded.value.dtype == values.dtype and np.array_equal(loaded.value, values)


def test_the_arguments_of_variable_are_those_of_the_document():
    a = Variable(name="w", data_type=fs.FP32, shape=[3, 4], value=None, trainable=False)
    assert a.name == "w" and not a.trainable and a.value is None
    assert not fs.load_program(fs.default_main_program().to_bytes()).var("w").trainable


def test_the_description_can_be_sent_to_another_machine():
    """Bytes are all that a worker gets; it infers for itself and comes to the same."""
    x = layer.data("images", input_size=64 * 64)
    y = layer.fc(x, output_size=10)
    program = fs.default_main_program()
    received = fs.Program.from_bytes(program.to_bytes())
    received.forget()
    received.infer()
    assert received.to_bytes() == program.to_bytes()
    assert received.var(y.name).shape == y.shape
