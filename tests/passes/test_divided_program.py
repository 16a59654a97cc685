"""`split_layers` as a pass: the program of a rank as text, what is divided, and what it refuses; no processes."""

from itertools import pairwise

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.program import Role
from foreshape.transforms.passes import for_test


def divided(cost, ranks=2, **settings):
    fs.optimizer.Momentum(0.1, 0.9).minimize(cost)
    return fs.split_layers(**settings).apply(cost.block.program, cost, ranks, fs.default_startup_program())


def lines(program, role=0):
    """The ops of the forward (0) or backward (1) pass, without the user's lines and what belongs to dividing the data."""
    later = Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE
    ops = [op for op in program.global_block.ops if op.role & later == role and op.attrs.get("ring_id") != 2 and "examples" not in op.type]
    return [repr(op).split("  #")[0].split(" {op_role")[0].split(", op_role")[0] for op in ops if "coalesce" not in op.type]


def perceptron():
    x, y = layer.data("x", input_size=6), layer.data("y", input_size=4)
    hidden = layer.fc(layer.fc(x, 8, "relu", split="columns"), 10, split="rows")
    return layer.mean(layer.square(layer.fc(hidden, 4, split="columns", bias=False) - y))


FORWARD = [
    "fc_0.tmp_0: f32[batch, 4] = mul(X=x, Y=fc_0.w_0@SPLIT_0)",
    "fc_0.tmp_1: f32[batch, 4] = elementwise_add(X=fc_0.tmp_0, Y=fc_0.b_0@SPLIT_0) {axis=1}",
    "fc_0.tmp_2: f32[batch, 4] = relu(X=fc_0.tmp_1)",
    "fc_1.tmp_0@RANK_0: f32[batch, 10] = mul(X=fc_0.tmp_2, Y=fc_1.w_0@SPLIT_0)",
    "fc_1.tmp_0 = c_allreduce_sum(X=fc_1.tmp_0@RANK_0) {ring_id=1, use_calc_stream=True, use_model_parallel=True}",
    "fc_1.tmp_1: f32[batch, 10] = elementwise_add(X=fc_1.tmp_0, Y=fc_1.b_0) {axis=1}",
    "fc_1.tmp_1@IDENTITY_0: f32[batch, 10] = c_identity(X=fc_1.tmp_1) {ring_id=1, use_calc_stream=True}",
    "fc_2.tmp_0: f32[batch, 2] = mul(X=fc_1.tmp_1@IDENTITY_0, Y=fc_2.w_0@SPLIT_0)",
    "fc_2.tmp_0@CONCAT_0: f32[batch, 4] = c_concat(X=fc_2.tmp_0) {axis=1, nranks=2, ring_id=1, use_calc_stream=True}",
]
BACKWARD = [
    "fc_2.tmp_0@GRAD@RANK_0: f32[batch, 4] = elementwise_sub_grad(X=fc_2.tmp_0@CONCAT_0, Y=y, Out@GRAD=elementwise_sub_0.tmp_0@GRAD)",
    "fc_2.tmp_0@GRAD = c_split(X=fc_2.tmp_0@GRAD@RANK_0) {axis=1, nranks=2, ring_id=1, use_calc_stream=True",
    "fc_1.tmp_1@GRAD@RANK_0: f32[batch, 10], fc_2.w_0@GRAD: f32[10, 2] = mul_grad(X=fc_1.tmp_1@IDENTITY_0, Y=fc_2.w_0@SPLIT_0, Out@GRAD=fc_2.tmp_0@GRAD)",
    "fc_1.tmp_1@GRAD = c_allreduce_sum(X=fc_1.tmp_1@GRAD@RANK_0) {ring_id=1, use_calc_stream=True",
    "fc_1.tmp_0@GRAD: f32[batch, 10], fc_1.b_0@GRAD: f32[10] = elementwise_add_grad(X=fc_1.tmp_0, Y=fc_1.b_0, Out@GRAD=fc_1.tmp_1@GRAD) {axis=1",
    "fc_0.tmp_2@GRAD: f32[batch, 4], fc_1.w_0@GRAD: f32[4, 10] = mul_grad(X=fc_0.tmp_2, Y=fc_1.w_0@SPLIT_0, Out@GRAD=fc_1.tmp_0@GRAD)",
    "fc_0.tmp_1@GRAD: f32[batch, 4] = relu_grad(Out=fc_0.tmp_2, Out@GRAD=fc_0.tmp_2@GRAD)",
    "fc_0.tmp_0@GRAD: f32[batch, 4], fc_0.b_0@GRAD: f32[4] = elementwise_add_grad(X=fc_0.tmp_0, Y=fc_0.b_0@SPLIT_0, Out@GRAD=fc_0.tmp_1@GRAD) {axis=1",
    "Y@GRAD=fc_0.w_0@GRAD: f32[6, 4] = mul_grad(X=x, Y=fc_0.w_0@SPLIT_0, Out@GRAD=fc_0.tmp_0@GRAD)",
]


def test_columns_then_rows_then_columns_put_together_as_text():
    made = divided(perceptron())
    assert lines(made.program)[:9] == FORWARD
    assert lines(made.program, 1)[3:] == BACKWARD


def test_parameters_and_what_the_optimizer_keeps_of_them_are_divided():
    made = divided(perceptron())
    found = {p.pieces[0].name: (p.dims, p.axis, p.begins_whole) for p in made.parts}
    assert found == {
        "fc_0.w_0": ((6, 4), 1, True), "fc_0.b_0": ((4,), 0, True), "fc_1.w_0": ((4, 10), 0, True), "fc_2.w_0": ((10, 2), 1, True),
        "fc_0.w_0_velocity_0": ((6, 4), 1, False), "fc_0.b_0_velocity_0": ((4,), 0, False), "fc_1.w_0_velocity_0": ((4, 10), 0, False),
        "fc_2.w_0_velocity_0": ((10, 2), 1, False),
    }  # fmt: skip
    for part in made.parts:
        assert part.pieces[0].name not in made.program.global_block.vars
        assert made.program.global_block.var(part.name).spec.dims == part.dims
        begun = made.startup.global_block.var(part.pieces[0].name if part.begins_whole else part.name)
        assert begun.spec.dims == (part.pieces[0].dims if part.begins_whole else part.dims)


def test_the_described_program_is_left_as_it_was():
    cost = perceptron()
    fs.optimizer.SGD(0.1).minimize(cost)
    before = str(cost.block.program), str(fs.default_startup_program())
    fs.split_layers().apply(cost.block.program, cost, 2, fs.default_startup_program())
    assert (str(cost.block.program), str(fs.default_startup_program())) == before


def test_an_evaluation_reads_the_parts():
    cost = perceptron()
    made = divided(cost)
    evaluated = fs.split_layers().evaluated(for_test(cost.block.program), made.parts, 2)
    expected = [line.replace("@IDENTITY_0", "") for line in FORWARD if "c_identity" not in line]
    assert lines(evaluated)[:8] == expected


def test_groups_of_ranks_and_what_goes_to_which():
    strategy = fs.split_layers(degree=2)
    assert strategy.mesh(4) == {1: [[0, 1], [2, 3]], 2: [[0, 2], [1, 3]]}
    made = divided(perceptron(), 4, degree=2)
    rings = {op.type: op.attrs["ring_id"] for op in made.program.global_block.ops if "ring_id" in op.attrs}
    assert rings["count_examples"] == rings["weigh_by_examples"] == 0
    assert rings["c_concat"] == rings["c_split"] == rings["c_identity"] == 1
    sums = [(op.attrs["ring_id"], op.inputs["X"][0]) for op in made.program.global_block.ops if op.type == "c_allreduce_sum"]
    assert sums == [(1, "fc_1.tmp_0@RANK_0"), (1, "fc_1.tmp_1@GRAD@RANK_0"), (2, "gradients@BUCKET_0")], "the loss is in the bucket"
    assert [op.attrs["alike"] for op in made.program.global_block.ops if op.type.startswith("weigh_by_examples")] == [2, 2]
    assert [[p.place(rank, 4) for rank in range(4)] for p in made.parts] == [[0, 1, 0, 1]] * len(made.parts)
    assert all(p.holders(4) == [0, 1] for p in made.parts)


def test_parts_of_the_rest_are_of_the_groups():
    words = layer.data("words", dims=3, dtype="int64")
    hidden = layer.reshape(layer.embedding(words, size=[9, 4], is_sparse=True), [-1, 12])
    cost = layer.mean(layer.fc(layer.fc(hidden, 9, split="columns"), 1, split="rows"))
    made = divided(cost, 6, rest=fs.split_tables(), degree=3)
    table = next(p for p in made.parts if p.dealt)
    assert (table.dims, [table.place(rank, 6) for rank in range(6)], table.holders(6)) == ((5, 4), [0, 0, 0, 1, 1, 1], [0, 3])
    assert {op.attrs["ring_id"] for op in made.program.global_block.ops if op.type.startswith("split_lookup")} == {2}


def heads(count, size):
    x = layer.data("x", shape=["batch", "time", 12])
    dense = layer.fc(x, count * size, flatten_last=1, split="columns", bias=False)
    turned = layer.transpose(layer.reshape(dense, [0, 0, count, size]), [0, 2, 1, 3])
    mixed = layer.matmul(layer.softmax(layer.matmul(turned, turned, transpose_y=True)), turned)
    back = layer.reshape(layer.transpose(mixed, [0, 2, 1, 3]), [0, 0, count * size])
    return layer.mean(layer.fc(layer.dropout(back, 0.3), 4, flatten_last=1, split="rows"))


DROPPED = (
    "dropout_0.tmp_0: f32[batch, time, 6], dropout_0.tmp_1: u8[batch, time, 6] {stop_gradient=True} = "
    'c_dropout(X=reshape2_1.tmp_0) {dropout_implementation="upscale_in_train", dropout_prob=0.3, ring_id=1}'
)


def test_heads_of_an_attention_are_divided():
    made = divided(heads(4, 3))
    assert lines(made.program)[:11] == [
        "fc_0.tmp_0: f32[batch, time, 6] = mul(X=x, Y=fc_0.w_0@SPLIT_0) {x_num_col_dims=2}",
        "reshape2_0.tmp_0: f32[batch, time, 2, 3], reshape2_0.tmp_1: f32[0, batch, time, 6] = reshape2(X=fc_0.tmp_0) {shape=[0, 0, 2, 3]}",
        "transpose2_0.tmp_0: f32[batch, 2, time, 3], transpose2_0.tmp_1: f32[0, batch, time, 2, 3] = transpose2(X=reshape2_0.tmp_0) {axis=[0, 2, 1, 3]}",
        "matmul_v2_0.tmp_0: f32[batch, 2, time, time] = matmul_v2(X=transpose2_0.tmp_0, Y=transpose2_0.tmp_0) {trans_y=True}",
        "softmax_0.tmp_0: f32[batch, 2, time, time] = softmax(X=matmul_v2_0.tmp_0)",
        "matmul_v2_1.tmp_0: f32[batch, 2, time, 3] = matmul_v2(X=softmax_0.tmp_0, Y=transpose2_0.tmp_0)",
        "transpose2_1.tmp_0: f32[batch, time, 2, 3], transpose2_1.tmp_1: f32[0, batch, 2, time, 3] = transpose2(X=matmul_v2_1.tmp_0) {axis=[0, 2, 1, 3]}",
        "reshape2_1.tmp_0: f32[batch, time, 6], reshape2_1.tmp_1: f32[0, batch, time, 2, 3] = reshape2(X=transpose2_1.tmp_0) {shape=[0, 0, 6]}",
        DROPPED,
        "fc_1.tmp_0@RANK_0: f32[batch, time, 4] = mul(X=dropout_0.tmp_0, Y=fc_1.w_0@SPLIT_0) {x_num_col_dims=2}",
        "fc_1.tmp_0 = c_allreduce_sum(X=fc_1.tmp_0@RANK_0) {ring_id=1, use_calc_stream=True, use_model_parallel=True}",
    ]


def test_a_softmax_over_what_is_divided_puts_it_together():
    x = layer.data("x", input_size=6)
    cost = layer.mean(layer.square(layer.softmax(layer.fc(x, 4, split="columns", bias=False))))
    types = [op.type for op in divided(cost).program.global_block.ops]
    for before, after in (("mul", "c_concat"), ("c_concat", "softmax"), ("softmax_grad", "c_split"), ("c_split", "mul_grad")):
        assert (before, after) in pairwise(types), (before, after)


def test_without_a_mark_a_weight_is_named():
    x = layer.data("x", input_size=6)
    cost = layer.mean(layer.fc(layer.fc(x, 4), 4))
    fs.optimizer.SGD(0.1).minimize(cost)
    program = fs.Program.from_bytes(cost.block.program.to_bytes())
    with pytest.raises(fs.SchemaError, match="no layer is to be divided"):
        fs.split_layers().apply(program, cost.name, 2)
    made = fs.split_layers(layers={"fc_0.w_0": "columns", "fc_1.w_0": "rows"}).apply(program, cost.name, 2)
    assert [(p.pieces[0].name, p.axis) for p in made.parts] == [("fc_0.w_0", 1), ("fc_1.w_0", 0), ("fc_0.b_0", 0)]
    with pytest.raises(fs.SchemaError, match=r"'fc_7\.w_0', and the program has no such weight"):
        fs.split_layers(layers={"fc_7.w_0": "columns"}).apply(program, cost.name, 2)


def test_a_mark_means_nothing_without_ranks():
    def text(split):
        with fs.program_guard(fs.Program(), fs.Program()):
            return str(layer.fc(layer.data("x", input_size=6), 4, split=split).block.program)

    assert text("columns").split("#")[0] == text(None).split("#")[0]


def test_what_is_said_of_one_weight_must_agree():
    x = layer.data("x", input_size=6)
    with pytest.raises(fs.SchemaError, match="split must be 'columns' or 'rows'; seen 'diagonal'"):
        layer.fc(x, 4, split="diagonal")
    layer.fc(x, 6, weight="shared", split="columns")
    layer.fc(x, 6, weight="shared", split="columns")
    with pytest.raises(fs.SchemaError, match="shared is shared, and is split by columns, not split by rows"):
        layer.fc(x, 6, weight="shared", split="rows")


def test_pairs_of_layers_are_chosen_where_one_sum_is_enough():
    x = layer.data("x", input_size=6)
    hidden = layer.fc(x, 8, "relu")  # the first of a pair
    hidden = layer.fc(hidden, 6)  # the second
    kept = layer.fc(hidden, 8)  # read twice
    turned = layer.fc(layer.softmax(kept), 8)  # behind what needs all columns
    odd = layer.fc(layer.fc(turned + kept, 7), 8, split="columns")  # 7 columns; a word of its own
    cost = layer.mean(layer.fc(layer.dropout(layer.fc(layer.softmax(odd), 4, "tanh"), 0.1), 3, bias=False))
    fs.optimizer.SGD(0.1).minimize(cost)
    strategy = fs.split_layers(choose=True)
    made = strategy.apply(cost.block.program, cost, 2)
    weights = {p.pieces[0].name: p.axis for p in made.parts if len(p.dims) == 2}
    assert weights == {"fc_0.w_0": 1, "fc_1.w_0": 0, "fc_5.w_0": 1, "fc_6.w_0": 1, "fc_7.w_0": 0}
    evaluated = strategy.evaluated(for_test(cost.block.program), made.parts, 2)
    assert {op.inputs["Y"][0] for op in evaluated.global_block.ops if op.type == "mul"} >= {f"{name}@SPLIT_0" for name in weights}


def uneven():
    return layer.mean(layer.fc(layer.data("x", input_size=6), 5, split="columns"))


def uneven_heads():
    return heads(3, 4)


def tied():
    x = layer.data("x", input_size=6)
    hidden = layer.fc(x, 6, weight="tied", split="columns", bias=False)
    return layer.mean(hidden + layer.reduce_sum(x.block.var("tied")))


def flattened_rows():
    return layer.mean(layer.fc(layer.data("x", shape=[-1, 2, 6]), 4, split="rows"))


def in_a_loop():
    x = layer.data("x", input_size=6)
    hidden = layer.fc(x, 6, split="columns", bias=False)
    begin, rounds = layer.fill_constant([1], "int64", 0), layer.fill_constant([1], "int64", 3)
    _, out = layer.while_loop(lambda i, h: layer.less_than(i, rounds), lambda i, h: [i + 1, h + hidden], [begin, x])
    return layer.mean(out)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (uneven, r"fc_0\.w_0: 5 columns cannot be divided over 2 ranks"),
        (uneven_heads, r"reshape2 \(test_divided_program\.py:\d+\): 3 parts, such as heads, cannot be divided over 2 ranks"),
        (tied, r"tied is read by reduce_sum \(test_divided_program\.py:\d+\), so that it cannot be divided"),
        (flattened_rows, r'mul \(test_divided_program\.py:\d+\): a weight split by "rows" takes the last dim of its input alone'),
        (in_a_loop, r"fc_0\.tmp_0 is divided over ranks and read inside while \(test_divided_program\.py:\d+\)"),
    ],
)
def test_what_is_refused_is_named_with_its_line(network, says):
    with pytest.raises(fs.SchemaError, match=says):
        divided(network())


def test_what_needs_all_of_a_gradient_is_refused():
    cost = perceptron()
    fs.optimizer.SGD(0.1, clip=fs.optimizer.ClipByNorm(1.0)).minimize(cost)
    with pytest.raises(fs.SchemaError, match=r"fc_0\.w_0@GRAD is divided over ranks and read before the update by clip_by_norm"):
        fs.split_layers().apply(cost.block.program, cost, 2)


def test_the_norm_of_all_gradients_is_summed_over_the_parts():
    cost = perceptron()
    fs.optimizer.SGD(0.1, clip=fs.optimizer.ClipByGlobalNorm(1.0)).minimize(cost)
    ops = fs.split_layers().apply(cost.block.program, cost, 2).program.global_block.ops
    norms = {op.inputs["X"][0]: after.type for op, after in pairwise(ops) if op.type == "squared_l2_norm"}
    summed = {name for name, after in norms.items() if after == "c_allreduce_sum"}
    assert summed == {"fc_0.w_0@GRAD", "fc_0.b_0@GRAD", "fc_1.w_0@GRAD", "fc_2.w_0@GRAD"}
    assert norms["fc_1.b_0@GRAD"] == "squared_l2_norm"


def test_numbers_of_ranks_and_strategies_that_do_not_fit_are_refused():
    cost = perceptron()
    with pytest.raises(fs.SchemaError, match="6 ranks cannot be divided into groups of 4"):
        divided(cost, 6, degree=4)
    with pytest.raises(fs.SchemaError, match="either the number of ranks or the degree"):
        fs.split_layers().apply(cost.block.program, cost)
    with pytest.raises(fs.SchemaError, match="degree must be at least 1"):
        fs.split_layers(degree=0)
    with pytest.raises(fs.SchemaError, match="w: split must be 'columns' or 'rows'; seen 'both'"):
        fs.split_layers(layers={"w": "both"})


def test_groups_of_one_rank_are_the_rest_alone():
    cost = perceptron()
    fs.optimizer.SGD(0.1).minimize(cost)
    program = cost.block.program
    alone, rest = fs.split_layers(degree=1).apply(program, cost, 2), fs.data_parallel().apply(program, cost, 2)
    assert str(alone.program) == str(rest.program) and not alone.parts
    assert fs.split_layers(degree=1).mesh(2) == {}
