"""Every kind of mistake in describing, at lines that stay where they are: the golden error texts name them. Add new ones at the end."""

import foreshape as fs
from foreshape import layer


def mismatched_dims():
    images = layer.data("images", shape=["batch", 4096])
    weight = fs.Variable("weight", shape=[1000, 10], data_type=fs.FP32, persistable=True)
    return images.block.apply("mul", {"X": images, "Y": weight})


def mismatched_dims_after_a_chain():
    images = layer.data("images", shape=["batch", 64])
    hidden = layer.fc(images, 100, "relu")
    label = layer.data("label", shape=["batch", 10])
    return hidden + label


def wrong_rank():
    words = layer.data("words", shape=["batch", 5, 6])
    label = layer.data("label", shape=["batch", 1], dtype="int64")
    return layer.softmax_with_cross_entropy(words, label)


def label_of_another_minibatch():
    images = layer.data("images", shape=[32, 10])
    label = layer.data("label", shape=[16, 1], dtype="int64")
    return layer.softmax_with_cross_entropy(images, label)


def wrong_element_type():
    ids = layer.data("ids", shape=["batch", 3], dtype="int64")
    return layer.relu(ids)


def two_element_types():
    a = layer.data("a", shape=["batch", 3])
    b = layer.data("b", shape=["batch", 3], dtype="fp64")
    return a + b


def unknown_attribute():
    x = layer.data("x", shape=["batch", 3])
    return x.block.apply("softmax", {"X": x}, {"axes": -1})


def attribute_of_another_type():
    x = layer.data("x", shape=["batch", 3])
    return x.block.apply("softmax", {"X": x}, {"axis": "last"})


def attribute_out_of_range():
    x = layer.data("x", shape=["batch", 3])
    return x.block.apply("softmax", {"X": x}, {"axis": 2})


def missing_input():
    x = layer.data("x", shape=["batch", 3])
    return x.block.apply("mul", {"X": x})


def unknown_input():
    x = layer.data("x", shape=["batch", 3])
    return x.block.apply("relu", {"X": x, "Bias": x})


def input_that_is_not_described():
    x = layer.data("x", shape=["batch", 3])
    return x.block.apply("mul", {"X": x, "Y": "nowhere"})


def unknown_operator():
    x = layer.data("x", shape=["batch", 3])
    return x.block.apply("sofmax", {"X": x})


def duplicate_name():
    layer.data("x", shape=["batch", 3])
    return layer.data("x", shape=["batch", 4])


def variable_of_another_program():
    x = layer.data("x", shape=["batch", 3])
    with fs.program_guard(fs.Program(), fs.Program()):
        return layer.relu(x)


def negative_dim():
    return layer.data("x", shape=["batch", -5])


def no_element_type():
    return layer.data("x", shape=["batch", 3], dtype="float31")


def parameter_shared_with_another_shape():
    x = layer.data("x", shape=["batch", 3])
    layer.fc(x, 4, weight="shared")
    return layer.fc(x, 5, weight="shared")


def layer_argument_out_of_range():
    x = layer.data("x", shape=["batch", 3])
    return layer.fc(x, 4, flatten_last=2)


def loss_that_is_not_one_number():
    x = layer.data("x", shape=["batch", 3])
    return fs.append_backward(layer.fc(x, 2))


def branch_on_a_variable():
    x = layer.data("x", shape=["batch", 3])
    return 1 if x else 0


def index_past_the_dims():
    x = layer.data("x", shape=["batch", 3])
    return x[0, 0, 0]


def contradicting_guards():
    a, b = layer.data("a", shape=["n", 3]), layer.data("b", shape=["m", 3])
    c, d = layer.data("c", shape=[4, 3]), layer.data("d", shape=[5, 3])
    return ((a + b) + c) + d
