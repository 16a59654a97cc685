"""Functions with branches and loops, of whose statements PaddlePaddle 3 makes operators; see `paddle3_exports`."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F


def branch(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = x - 1
    return y


def nested_branch(x):
    if x.sum() > 100:
        y = x * 2
    elif x.max() > 0:
        y = x + 1 if x.min() > 0 else x - 3
    else:
        y = -x
    return y


def early_return(x):
    if x.mean() > 10:
        return x
    x = x + 1
    return x * 3


def counted_loop(x):
    i = paddle.zeros([1], "int64")
    while i < 5:
        x = x * 1.1 + i.astype("float32")
        i += 1
    return x, i


def range_loop(x):
    total = paddle.zeros([1])
    for i in range(x.shape[0]):
        total = total + x[i].sum() * i
    return total


def tensor_loop(x):
    total = paddle.zeros_like(x[0])
    for row in x:
        total = total * 0.5 + row
    return total


def breaking_loop(x):
    i = paddle.zeros([1], "int64")
    while i < 10:
        x = x + 1
        if x.sum() > 30:
            break
        i += 1
    return x, i


def continuing_loop(x):
    s = paddle.zeros([1])
    for i in range(x.shape[0]):
        if x[i].sum() < 0:
            continue
        s += x[i].sum()
    return s


def appending_loop(x):
    out = []
    for i in range(x.shape[0]):
        out.append(x[i] * (i + 1))
    return paddle.stack(out)


def concatenating_loop(x):
    i, out = paddle.zeros([1], "int64"), x
    while i < 3:
        out = paddle.concat([out, x * i.astype("float32")], 0)
        i += 1
    return out


def nested_loop(x):
    i, total = paddle.zeros([1], "int64"), paddle.zeros([1])
    while i < 3:
        j = paddle.zeros([1], "int64")
        while j < i:
            total = total + x[:, 0].sum() * (i * j + 1).astype("float32")
            j += 1
        i += 1
    return total


def branch_in_loop(x):
    i = paddle.zeros([1], "int64")
    while i < 4:
        if x.sum() > 2:
            x = x - 1
        else:
            x = x * 2 + 1
        i += 1
    return x


def swapping_loop(x):
    a, b, i = x, x * 2, paddle.zeros([1], "int64")
    while i < 3:
        a, b = b, a + b
        i += 1
    return a, b


def cond_api(x):
    return paddle.static.nn.cond(x.mean() > 0, lambda: (x + 1, x.sum()), lambda: (x - 1, x.max()))


def case_api(x):
    return paddle.static.nn.switch_case(paddle.full([1], 1, "int32") + (x.sum() > 0).astype("int32"), {1: lambda: x * 1, 2: lambda: x * 2}, lambda: x * 3)


def while_api(x):
    return paddle.static.nn.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v * 1.5), [paddle.zeros([1], "int64"), x])


def greedy(x):
    """A decoder's loop: the likeliest class is fed again until one comes that ends it."""
    token, i, said = paddle.argmax(x, 1), paddle.zeros([1], "int64"), paddle.zeros([x.shape[0], 6], "int64")
    while i < 6:
        said = paddle.where(paddle.arange(6) == i, token.unsqueeze(1), said)
        token = paddle.argmax(paddle.roll(x, 1, 1) + F.one_hot(token, 5), 1)
        if paddle.all(token == 0):
            break
        i += 1
    return said


FLOW = (
    branch,
    nested_branch,
    early_return,
    counted_loop,
    range_loop,
    tensor_loop,
    breaking_loop,
    continuing_loop,
    appending_loop,
    concatenating_loop,
    nested_loop,
    branch_in_loop,
    swapping_loop,
    cond_api,
    case_api,
    while_api,
    greedy,
)
