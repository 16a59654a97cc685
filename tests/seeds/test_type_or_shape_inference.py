"""The document "Type (or Shape) Inference": its examples, with the shapes that it states."""

import inspect

import numpy as np
import pytest

import foreshape as fs
from foreshape import UNK, layer
from foreshape.layer import softmax


def line_of(text):
    """The place of the first line of this file that begins with ``text``, as an error message writes it."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return f"{__name__.rsplit('.', 1)[-1]}.py:{next(i for i, line in enumerate(lines, 1) if line.strip().startswith(text))}"


def test_as_written_the_label_has_10_classes_and_the_input_100():
    with pytest.raises(fs.ShapeError) as error:
        x = layer.data("images", input_size=64 * 64)
        y = layer.fc(x, output_size=100, activation=softmax)
        l = layer.data("label", dims=10)
        cost = layer.cross_entropy(y, l)
        del cost
    said = str(error.value)
    assert line_of("y = layer.fc(x, output_size=100") in said and line_of('l = layer.data("label", dims=10)') in said
    assert line_of("cost = layer.cross_entropy(y, l)") in said
    assert "cross_entropy" in said and "100" in said and "10" in said


def test_the_shapes_of_the_other_variables_are_inferred():
    x = layer.data("images", input_size=64 * 64)
    y = layer.fc(x, output_size=100, activation=softmax)
    l = layer.data("label", dims=10)
    program = fs.default_main_program()
    ops = program.global_block.ops
    assert [op.type for op in ops] == ["mul", "elementwise_add", "softmax"]
    product, total = (program.var(op.output("Out")) for op in ops[:2])
    assert x.shape == [UNK, 64 * 64]
    assert program.var("fc_0.w_0").shape == [64 * 64, 100]
    assert program.var("fc_0.b_0").shape == [100]
    assert product.shape == [UNK, 100]
    assert total.shape == [UNK, 100]
    assert y.shape == [UNK, 100] and y.dtype is fs.FP32
    assert l.shape == [UNK, 10]
    assert x.dims == [-1, 4096] and str(x.shape[0]) == "batch" and y.shape[0] is x.shape[0] is l.shape[0]


def test_with_10_classes_the_cost_is_one_number_for_each_example():
    x = layer.data("images", input_size=64 * 64)
    y = layer.fc(x, output_size=10, activation=softmax)
    l = layer.data("label", dims=10)
    cost = layer.cross_entropy(y, l)
    assert y.shape == [UNK, 10]
    assert cost.shape == [UNK, 1] and cost.dims == [-1, 1]
    assert not fs.default_main_program().guards  # one minibatch: proved, not assumed


def test_variable_length_input():
    x = layer.data("paragraph", lod_level=2, input_size=6000)
    assert x.kind is fs.LOD_TENSOR and x.lod_level == 2
    assert x.shape == [UNK, UNK, 6000]
    assert x.dims == [-1, -1, 6000]
    assert x.packed_shape == [UNK, 6000]
    x = layer.data("video", lod_level=1, input_size=640 * 480)
    assert x.shape == [UNK, UNK, 640 * 480] and x.lod_level == 1


def test_the_messages_hold_what_the_document_puts_in_them():
    """VarDesc: kind, lod level, dims with -1, element type; OperatorDesc: type, inputs, outputs, attributes; a block has both."""
    layer.data("paragraph", lod_level=2, input_size=6000)
    layer.fc(layer.data("images", input_size=64 * 64), output_size=100, activation=softmax)
    loaded = fs.Program.from_bytes(fs.default_main_program().to_bytes())
    block = loaded.global_block
    paragraph = block.vars["paragraph"]
    assert (paragraph.kind.name, paragraph.dims, paragraph.packed_dims, paragraph.lod_level, paragraph.dtype.name) == (
        "LOD_TENSOR", [-1, -1, 6000], [-1, 6000], 2, "fp32")  # fmt: skip
    mul = block.ops[0]
    assert (mul.type, dict(mul.inputs), list(mul.outputs)) == ("mul", {"X": ("images",), "Y": ("fc_0.w_0",)}, ["Out"])
    assert mul.attrs["x_num_col_dims"] == 1


@pytest.mark.parametrize("name", ["INT8", "INT16", "INT32", "INT64", "FP16", "FP32"])
def test_the_element_types_of_the_document(name):
    x = layer.data("x", dims=3, dtype=getattr(fs, name))
    loaded = fs.load_program(fs.default_main_program().to_bytes())
    assert x.dtype.name == loaded.var("x").dtype.name == name.lower()


def test_the_recurrent_example_completed():
    """The document ends with ``a = Var(); b = Var(); c = layer.rnn(step_net={``: here ``a`` has the steps and ``b`` is the first memory."""
    Var = layer.data
    a = Var("a", shape=["batch", 7, 4])
    b = Var("b", shape=["batch", 3])
    c, last = layer.rnn(
        step_net={
            "inputs": a,
            "memories": b,
            "step": lambda x, h: (h, layer.fc(x, 3, weight="w", bias="b_w") + layer.fc(h, 3, weight="u", bias=False)),
        }
    )
    assert c.shape == [UNK, 7, 3] and str(c.shape[0]) == "batch"
    assert last.shape == [UNK, 3]
    run = next(op for op in c.block.ops if op.type == "recurrent")
    block = c.block.program.blocks[run.sub_block_indices()[0]]
    assert block.vars[run.inputs["inputs"][0]].packed_shape == [UNK, 4], "in the block it is what it is at one step"

    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    rng = np.random.RandomState(0)
    fed = {"a": rng.randn(5, 7, 4).astype("float32"), "b": rng.randn(5, 3).astype("float32")}
    w, b_w, u = (scope.get(n) for n in ("w", "b_w", "u"))
    h, steps = fed["b"], []
    for t in range(7):
        steps.append(h)
        h = fed["a"][:, t] @ w + b_w + h @ u
    outs = executor.run(fs.default_main_program(), fed, [c, last], scope)
    np.testing.assert_allclose(outs[0], np.stack(steps, 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outs[1], h, rtol=1e-4, atol=1e-5)


def test_the_recurrent_example_with_variables_of_ones_own():
    """With `Variable` for ``Var``; ragged input: the sequences end one by one."""
    a = fs.Variable("a", shape=[6, 5, 4], data_type=fs.FP32)
    b = fs.Variable("b", shape=[5, 4], data_type=fs.FP32)
    c, last = layer.rnn(step_net={"step": lambda x, h: (x * h, x + h), "inputs": a, "memories": b}, time_major=True)
    assert c.shape == [6, 5, 4] and last.shape == [5, 4]
    paragraph = layer.data("paragraph", lod_level=1, input_size=4)
    start = layer.data("start", shape=[UNK, 4])
    c, last = layer.rnn(step_net={"step": lambda x, h: (x * h, x + h), "inputs": paragraph, "memories": start})
    assert c.lod_level == 1 and c.shape == [UNK, UNK, 4] and last.shape == [UNK, 4]
