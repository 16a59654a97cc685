"""Make the programs of this folder again. Needs paddlepaddle==2.6.2; the tests do not: `python make.py [NAME ...]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import static
from paddle.base.proto import framework_pb2

HERE = Path(__file__).parent
STEPS = {"branch_in_loop": 1, "array_sum": 1, "lists": 1}
"""Two for all others."""
X = np.random.RandomState(0).randn(5, 3).astype("float32")
Describe = Callable[[], tuple[dict[str, np.ndarray], list[Any]]]
CASES: dict[str, Describe] = {}
"""By name: gives what is fed, and what is fetched."""


def case(describe: Describe) -> Describe:
    CASES[describe.__name__.rstrip("_")] = describe
    return describe


def save(name: str) -> None:
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        feed, fetches = CASES[name]()
    executor, scope = static.Executor(paddle.CPUPlace()), static.Scope()
    names = [f if isinstance(f, str) else f.name for f in fetches]
    arrays = {f"feed/{k}": v for k, v in feed.items()}
    with static.scope_guard(scope):
        executor.run(startup)
        kept = sorted(v.name for v in main.list_vars() if v.persistable)
        arrays |= {f"param/{n}": np.array(scope.find_var(n).get_tensor()) for n in kept}
        for step in range(STEPS.get(name, 2)):
            got = executor.run(main, feed=feed, fetch_list=fetches)
            arrays |= {f"step{step}/{n}": value for n, value in zip(names, got, strict=True)}
    message = framework_pb2.ProgramDesc.FromString(main.desc.serialize_to_string())
    for block in message.blocks:
        for op in block.ops:
            left = [a for a in op.attrs if a.name != "op_callstack"]  # the lines and paths of the machine that made it
            del op.attrs[:]
            op.attrs.extend(left)
    (HERE / f"{name}.pdmodel").write_bytes(message.SerializeToString(deterministic=True))
    np.savez_compressed(HERE / f"{name}.npz", **arrays)


def data() -> Any:
    x = static.data("x", [-1, 3], "float32")
    x.stop_gradient = False
    return x


def matrix(name: str) -> Any:
    return static.create_parameter([3, 3], "float32", name=name)


def whole(value: int) -> Any:
    return paddle.full([1], value, "int64")


def train(out: Any, optimizer: Any = None) -> Any:
    loss = paddle.mean(out * out)
    (optimizer or paddle.optimizer.SGD(0.1)).minimize(loss)
    return loss


@case
def loop() -> Any:
    x, n, w = data(), whole(3), matrix("w")
    _, h = static.nn.while_loop(lambda i, h: i < n, lambda i, h: [i + 1, paddle.tanh(paddle.matmul(h, w))], [whole(0), x * 1.0])
    return {"x": X}, [train(h), "w@GRAD"]


@case
def loop2() -> Any:
    """A loop in a loop."""
    x, n, w = data(), whole(2), matrix("w")

    def body(i: Any, h: Any) -> Any:
        _, g = static.nn.while_loop(lambda j, g: j < n, lambda j, g: [j + 1, paddle.tanh(paddle.matmul(g, w))], [whole(0), h * 1.0])
        return [i + 1, g + h]

    _, h = static.nn.while_loop(lambda i, h: i < n, body, [whole(0), x * 1.0])
    return {"x": X}, [train(h), "w@GRAD"]


@case
def never() -> Any:
    """A loop that runs no round: the gradient goes past it."""
    x, n, w = data(), whole(0), matrix("w")
    _, h = static.nn.while_loop(lambda i, h: i < n, lambda i, h: [i + 1, paddle.tanh(paddle.matmul(h, w))], [whole(0), paddle.matmul(x, w)])
    return {"x": X}, [train(h), "w@GRAD"]


@case
def growing() -> Any:
    """What the loop carries has more rows after each round."""
    x, n, w = data(), whole(3), matrix("w")

    def body(i: Any, h: Any) -> Any:
        return [i + 1, paddle.concat([h, paddle.tanh(paddle.matmul(x, w))], axis=0)]

    _, h = static.nn.while_loop(lambda i, h: i < n, body, [whole(0), paddle.matmul(x, w)])
    return {"x": X}, [train(h), "w@GRAD", h]


@case
def counter() -> Any:
    """The loop counts in a persistable variable."""
    x, n, w = data(), whole(3), matrix("w")
    count = static.create_global_var([1], 0.0, "float32", persistable=True, name="count")

    def body(i: Any, h: Any) -> Any:
        paddle.assign(count + 1.0, count)
        return [i + 1, paddle.tanh(paddle.matmul(h, w))]

    _, h = static.nn.while_loop(lambda i, h: i < n, body, [whole(0), x * 1.0])
    return {"x": X}, [train(h), "w@GRAD", count]


@case
def table() -> Any:
    """A branch that looks up rows, whose gradient is sparse. (In a loop PaddlePaddle 2.6.2 refuses that.)"""
    ids, w = static.data("ids", [-1, 1], "int64"), matrix("w")
    rows = static.nn.embedding(ids, [9, 3], is_sparse=True, param_attr=paddle.ParamAttr(name="table"))
    out = static.nn.cond(paddle.max(w) > -9.0, lambda: paddle.matmul(paddle.reshape(rows, [-1, 3]), w), lambda: paddle.reshape(rows, [-1, 3]))
    return {"ids": np.array([[0], [5], [5], [2]])}, [train(out), "w@GRAD"]


@case
def momentum() -> Any:
    x, n, w = data(), whole(3), matrix("w")
    _, h = static.nn.while_loop(lambda i, h: i < n, lambda i, h: [i + 1, paddle.tanh(paddle.matmul(h, w) + x)], [whole(0), x * 1.0])
    return {"x": X}, [train(h, paddle.optimizer.Momentum(0.1, 0.9, weight_decay=0.01)), "w@GRAD"]


@case
def adam() -> Any:
    x, n, w = data(), whole(3), matrix("w")
    _, h = static.nn.while_loop(lambda i, h: i < n, lambda i, h: [i + 1, paddle.tanh(paddle.matmul(h, w) + x)], [whole(0), x * 1.0])
    return {"x": X}, [train(h, paddle.optimizer.Adam(0.01, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.1))), "w@GRAD"]


@case
def branch_in_loop() -> Any:
    """PaddlePaddle 2.6.2 gives zeros for w@GRAD here, which is wrong: only the loss of the first step is kept, before that matters."""
    x, n, w, v = data(), whole(4), matrix("w"), matrix("v")

    def body(i: Any, h: Any) -> Any:
        even = paddle.equal(i % whole(2), whole(0))
        return [i + 1, static.nn.cond(even, lambda: paddle.tanh(paddle.matmul(h, w)), lambda: paddle.matmul(h, v) + x)]

    _, h = static.nn.while_loop(lambda i, h: i < n, body, [whole(0), x * 1.0])
    return {"x": X}, [train(h)]


@case
def branch() -> Any:
    x, w, v = data(), matrix("w"), matrix("v")
    out = static.nn.cond(paddle.mean(x) > 0, lambda: paddle.matmul(x, w), lambda: paddle.matmul(x, v) * 2)
    return {"x": X}, [train(out), "w@GRAD", "v@GRAD"]


@case
def nested() -> Any:
    """A branch in a branch; the inner one gives two values."""
    x, w, v = data(), matrix("w"), matrix("v")
    big, flag = paddle.max(x) > 1.0, static.data("flag", [1], "bool")

    def inner() -> Any:
        a, b = static.nn.cond(flag, lambda: (paddle.matmul(x, w), x * 2.0), lambda: (paddle.matmul(x, v), paddle.tanh(x)))
        return a * b + paddle.matmul(x, w)

    out = static.nn.cond(big, inner, lambda: x * 3.0)
    return {"x": X, "flag": np.array([False])}, [train(out), "w@GRAD", "v@GRAD"]


@case
def switch() -> Any:
    x, n, w = data(), static.data("n", [1], "int32"), matrix("w")
    branches = {0: lambda: paddle.matmul(x, w), 2: lambda: x * 3.0}
    out = static.nn.switch_case(n, branches, default=lambda: paddle.matmul(x, w) * x)
    return {"x": X, "n": np.array([5], "int32")}, [train(out), "w@GRAD"]


@case
def switch3() -> Any:
    x, n, w, v = data(), static.data("n", [1], "int64"), matrix("w"), matrix("v")
    branches = [lambda: paddle.matmul(x, w), lambda: paddle.matmul(x, v), lambda: paddle.matmul(paddle.matmul(x, v), w)]
    out = static.nn.switch_case(n, branches)
    return {"x": X, "n": np.array([2])}, [train(out), "w@GRAD", "v@GRAD"]


@case
def case_() -> Any:
    x, w = data(), matrix("w")
    pairs = [(paddle.min(x) > 0, lambda: paddle.matmul(x, w)), (paddle.max(x) > 1, lambda: paddle.matmul(x, w) * x)]
    out = static.nn.case(pairs, default=lambda: x * paddle.sum(w))
    return {"x": X}, [train(out), "w@GRAD"]


@case
def loop_in_branch() -> Any:
    x, n, w = data(), whole(3), matrix("w")

    def looped() -> Any:
        return static.nn.while_loop(lambda i, h: i < n, lambda i, h: [i + 1, paddle.tanh(paddle.matmul(h, w))], [whole(0), x * 1.0])[1]

    out = static.nn.cond(paddle.max(x) > 1.0, looped, lambda: paddle.matmul(x, w))
    return {"x": X}, [train(out), "w@GRAD"]


@case
def arrays() -> Any:
    x, n, w = data(), whole(3), matrix("w")
    i = paddle.zeros([1], "int64")
    array = paddle.tensor.array_write(x * 1.0, i)
    within = paddle.less_than(i, n)
    with static.nn.control_flow.While(within).block():
        h = paddle.tanh(paddle.matmul(paddle.tensor.array_read(array, i), w))
        i = paddle.increment(i)
        paddle.tensor.array_write(h, i, array)
        paddle.assign(paddle.less_than(i, n), within)
    return {"x": X}, [train(paddle.tensor.array_read(array, n)), "w@GRAD"]


@case
def array_sum() -> Any:
    """Every element of an array that a loop wrote is used after it; PaddlePaddle 2.6.2 sums gradients of arrays with memory that nothing set."""
    x, n, w = data(), whole(3), matrix("w")
    i = paddle.zeros([1], "int64")
    array = paddle.tensor.create_array("float32")
    within = paddle.less_than(i, n)
    with static.nn.control_flow.While(within).block():
        paddle.tensor.array_write(paddle.tanh(paddle.matmul(x, w)) * paddle.cast(i + 1, "float32"), i, array)
        paddle.increment(i)
        paddle.assign(paddle.less_than(i, n), within)
    out = paddle.tensor.array_read(array, whole(0)) + paddle.tensor.array_read(array, whole(1)) * paddle.tensor.array_read(array, whole(2))
    return {"x": X}, [train(out)]


@case
def growing_columns() -> Any:
    """What the loop carries has three more columns after each round."""
    x, n, w = data(), whole(3), matrix("w")
    _, h = static.nn.while_loop(lambda i, h: i < n, lambda i, h: [i + 1, paddle.concat([paddle.tanh(h), x], axis=1)], [whole(0), paddle.matmul(x, w)])
    return {"x": X}, [train(h), "w@GRAD", h]


@case
def ranks() -> Any:
    """A number that has no dims before the first round, and one dim after it; and the condition of a loop that is as well."""
    x, w = data(), matrix("w")
    total, limit = paddle.sum(w), paddle.full([1], 4.0)
    going = paddle.logical_not(paddle.all(x > 9.0))
    with static.nn.control_flow.While(going).block():
        new = total * 0.5 + paddle.reshape(paddle.mean(paddle.matmul(x, w) + 4.0), [1])
        paddle.assign(paddle.logical_and(paddle.logical_not(paddle.all(x > 9.0)), new < limit), going)
        paddle.assign(new, total)
    return {"x": X}, [train(total), "w@GRAD"]


@case
def lists() -> Any:
    """An array that both branches in a loop write to, as lists become. PaddlePaddle 2.6.2 cannot run the gradient of that."""
    x, n, w, two = data(), whole(3), matrix("w"), whole(2)

    def body(i: Any, array: Any) -> Any:
        def append(value: Any) -> Any:
            return paddle.tensor.array_write(value, paddle.tensor.array_length(array), array)

        even = paddle.equal(i % two, whole(0))
        return [i + 1, static.nn.cond(even, lambda: append(paddle.tanh(paddle.matmul(x, w))), lambda: append(x * 2.0 + paddle.sum(w)))]

    _, array = static.nn.while_loop(lambda i, array: i < n, body, [whole(0), paddle.tensor.create_array("float32")])
    out = paddle.tensor.array_read(array, whole(0)) + paddle.tensor.array_read(array, whole(1)) * paddle.tensor.array_read(array, whole(2))
    return {"x": X}, [paddle.mean(out * out), out]


@case
def beam() -> Any:
    """A decoder that searches for words until all beams have ended."""
    x = data()
    table, output = paddle.nn.Embedding(7, 4), paddle.nn.Linear(3, 7)
    decoder = paddle.nn.BeamSearchDecoder(paddle.nn.GRUCell(4, 3), start_token=0, end_token=1, beam_size=2, embedding_fn=table, output_fn=output)
    ids, _ = paddle.nn.dynamic_decode(decoder, x * 3.0, max_step_num=4)
    return {"x": X}, [ids]


if __name__ == "__main__":
    paddle.enable_static()
    for wanted in sys.argv[1:] or CASES:
        save(wanted)
        print(wanted)
