"""A step of one's own over time: values and gradients, dense and ragged, of nothing, and steps that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.described import build, differentiable, run_all, started
from support.some import one_in

import foreshape as fs
from foreshape import layer


@pytest.mark.quick_cases("ragged-True")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", one_in(2, ["batch", "time", "ragged", "ragged2"]))
def test_a_step_over_time(form: str, reverse: bool) -> None:
    ragged = form.startswith("ragged")

    def describe() -> Any:
        if ragged:
            x = layer.data("x", shape=[-1, 3], lod_level=2 if form == "ragged2" else 1)
            count = x.spec.lod.counts[-1]
        else:
            x = layer.data("x", shape=["batch", 4, 3] if form == "batch" else [4, "batch", 3])
            count = "batch"
        first, fixed = layer.data("first", shape=[count, 2]), layer.data("fixed", shape=[count, 2])
        for v in (x, first, fixed):
            v.stop_gradient = False

        def step(x: Any, h: Any, z: Any) -> Any:
            h = layer.tanh(layer.fc(x, 2, weight="w", bias="b") + layer.fc(h, 2, weight="u", bias=False) + z)
            return h * 2.0, h

        out, last = layer.rnn(step, x, first, fixed, time_major=form == "time", reverse=reverse)
        assert out.lod_level == x.lod_level and (not ragged or out.spec.lod is x.spec.lod)
        assert last.packed_shape == first.packed_shape
        loss = layer.reduce_sum(layer.square(out)) + layer.reduce_sum(last * last * last)
        return [loss, out, *(g for _, g in fs.append_backward(loss, ["w", "b", "u", "first", "fixed", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    rng = np.random.RandomState(1)
    lengths = [3, 0, 5, 2] if ragged else [4] * 4
    w, b, u = (torch.tensor(scope.get(n), requires_grad=True) for n in "wbu")
    first, fixed = (torch.tensor(rng.randn(4, 2).astype("float32"), requires_grad=True) for _ in range(2))
    x = torch.tensor(rng.randn(sum(lengths), 3).astype("float32"), requires_grad=True)
    rows: list[Any] = []
    loss: Any = 0.0
    for s, (n, begin) in enumerate(zip(lengths, np.cumsum([0, *lengths]).tolist(), strict=False)):
        h, mine = first[s], [None] * n
        for t in reversed(range(n)) if reverse else range(n):
            h = torch.tanh(x[begin + t] @ w + b + h @ u + fixed[s])
            mine[t] = h * 2
        rows += mine
        loss = loss + ((h**3).sum() if n else 0.0)
    whole = torch.stack(rows)
    loss = loss + (whole**2).sum()
    loss.backward()
    data = x.detach().numpy()
    wanted = [loss.detach(), whole.detach(), *(v.grad for v in (w, b, u, first, fixed, x))]
    if form == "ragged":
        data = fs.LoDTensor(data, [lengths])
    elif form == "ragged2":
        data = fs.LoDTensor(data, [[3, 1], lengths])
    else:
        data = data.reshape(4, 4, 3)
        if form == "time":
            data = data.transpose(1, 0, 2).copy()
            wanted[1], wanted[-1] = (v.reshape(4, 4, -1).transpose(0, 1).contiguous() for v in (wanted[1], wanted[-1]))
    got = run_all(main, {"x": data, "first": first.detach().numpy(), "fixed": fixed.detach().numpy()}, fetch, scope)
    for seen, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(seen).reshape(-1), want.numpy().reshape(-1), rtol=2e-4, atol=2e-6)


def test_a_recurrence_over_nothing() -> None:
    def describe() -> Any:
        x, first = layer.data("x", shape=[-1, 3], lod_level=1), differentiable("first", ["batch", 2])
        out, last = layer.rnn(lambda x, h: ((new := layer.fc(x, 2, weight="w", bias=False) + h), new), x, first)
        loss = layer.reduce_sum(out) + layer.reduce_sum(last)
        return [loss, out, *(g for _, g in fs.append_backward(loss, ["w", "first"]))]

    main, startup, fetch = build(describe)
    for lengths in ([], [0, 0]):
        data = {"x": fs.LoDTensor(np.zeros((0, 3), "float32"), [lengths]), "first": np.ones((len(lengths), 2), "float32")}
        loss, out, dw, first = run_all(main, data, fetch, started(startup))
        assert loss == 0 and np.asarray(out).shape == (0, 2) and not dw.any() and first.shape == (len(lengths), 2) and not first.any()


def test_steps_that_do_not_fit() -> None:
    def of(step: Any, **more: Any) -> None:
        build(lambda: layer.rnn(step, layer.data("x", shape=["batch", 4, 3]), layer.data("h", shape=["batch", 2]), **more))

    for step, says in (
        (lambda x, h: h, "outputs, new_memories"),
        (lambda x, h: (h, []), "as many new memories"),
        (lambda x, h: (h, x), "must keep its shape"),
        (lambda x, h: (h, layer.cast(h, "fp64")), "must keep its element type"),
        (lambda x, h: (3.0, h), "must be variables"),
    ):
        with pytest.raises(fs.DescriptionError, match=says):
            of(step)
    with pytest.raises(fs.DescriptionError, match="as many steps"):
        build(lambda: layer.rnn(lambda x, y, h: (h, h), [layer.data(n, shape=[-1, t, 3]) for n, t in (("x", 4), ("y", 5))], layer.data("h", shape=[-1, 2])))
