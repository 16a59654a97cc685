"""Programs with blocks where they are used: saved for inference, switched to testing, trained, over ragged and sparse values, misused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.described import X, build, count, differentiable, less, started

import foreshape as fs
from foreshape import layer
from foreshape.transforms.passes import for_test


@pytest.mark.parametrize("flag", [False, True])
def test_an_inference_model_with_a_loop_and_a_branch(tmp_path: Path, flag: bool) -> None:
    def describe() -> Any:
        x, f = layer.data("x", shape=["batch", 3]), layer.data("f", shape=[1], dtype="bool")
        _, h = layer.while_loop(
            lambda i, h: less(i, 3), lambda i, h: [i + 1, layer.dropout(layer.tanh(layer.fc(h, 3, weight="w", bias=False)), 0.5)], [count(0), x]
        )
        h = layer.cond(f, lambda: layer.fc(h, 2, weight="v", bias=False), lambda: layer.fc(h, 2, weight="u", bias=False) * 2.0)
        fs.optimizer.SGD(0.1).minimize(layer.mean(h * h))
        return x, f, h

    main, startup, (x, f, h) = build(describe)
    scope, feed = started(startup), {"x": X, "f": np.array([flag])}
    fs.Executor().run(main, feed, [], scope)
    fs.save_inference_model(tmp_path / "net", [x, f], [h], program=main, scope=scope)
    loaded_scope = fs.Scope()
    program, feeds, fetches = fs.load_inference_model(tmp_path / "net", scope=loaded_scope)
    assert not any(op.type.endswith("_grad") for op in program.all_ops()) and len(program.blocks) == 4
    assert all(op.attrs["is_test"] for op in program.all_ops() if op.type in ("while", "dropout"))
    got = fs.Executor().run(program, dict(zip(feeds, (X, feed["f"]), strict=True)), fetches, loaded_scope)[0]
    w, out = scope.get("w"), scope.get("v" if flag else "u") * (1 if flag else 2)
    want = X
    for _ in range(3):
        want = np.tanh(want @ w)
    np.testing.assert_allclose(got, want @ out, rtol=1e-4, atol=1e-6)


def test_what_a_branch_needs_is_missed_when_it_is_saved(tmp_path: Path) -> None:
    def describe() -> Any:
        x, y, f = layer.data("x", shape=["batch", 3]), layer.data("y", shape=["batch", 3]), layer.data("f", shape=[1], dtype="bool")
        return x, f, layer.cond(f, lambda: x, lambda: y)

    main, _, (x, f, h) = build(describe)
    with pytest.raises(fs.SchemaError, match=r"needs y .*not among the feeds"):
        fs.save_inference_model(tmp_path / "net", [x, f], [h], program=main, scope=fs.Scope())


def test_a_loop_is_trained() -> None:
    x, y = layer.data("x", shape=["batch", 3]), layer.data("y", shape=["batch", 1])
    _, h = layer.while_loop(lambda i, h: less(i, 2), lambda i, h: [i + 1, layer.fc(h, 3, activation="tanh", weight="w", bias=False)], [count(0), x])
    loss = layer.mean(layer.square(layer.fc(h, 1) - y))
    history = fs.train(loss, {"x": np.tile(X, (20, 1)), "y": np.tile(X[:, :1], (20, 1))}, epochs=30, batch_size=20, optimizer=fs.optimizer.Adam(0.02))
    losses = history.column("loss")
    assert losses[-1] < 0.3 * losses[0]


def test_dropout_in_a_loop_is_off_in_a_test() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        return layer.while_loop(lambda i, h: less(i, 3), lambda i, h: [i + 1, layer.dropout(h, 0.5, is_test=False)], [count(0), x])[1]

    main, _, h = build(describe)
    assert (fs.Executor(seed=1).run(main, {"x": np.ones((9, 3), "float32")}, [h], fs.Scope())[0] == 0).any()
    tested = fs.Executor(seed=1).run(for_test(main), {"x": np.ones((9, 3), "float32")}, [h.name], fs.Scope())[0]
    assert len(np.unique(tested)) == 1 and tested[0, 0] != 0


@pytest.mark.parametrize("check", [False, True])
def test_a_loop_over_sequences_that_grow(check: bool) -> None:
    """The offsets that a round makes are those of the next one, and of what reads the loop's result; gradients included."""

    def describe() -> Any:
        x = differentiable("x", [-1, 3], lod_level=1)
        _, h = layer.while_loop(lambda i, h: less(i, 2), lambda i, h: [i + 1, layer.sequence_concat([h * 2.0, x])], [count(0), x])
        pooled = layer.sequence_pool(h, "sum")
        loss = layer.reduce_sum(pooled * pooled)
        return [h, pooled, fs.append_backward(loss, ["x"])[0][1]]

    main, _, fetch = build(describe)
    for program in (main, fs.Program.from_bytes(main.to_bytes()), fs.Program.parse(str(main))):
        h, pooled, gradient = fs.Executor(check=check).run(program, {"x": fs.LoDTensor(X, [[2, 0, 3]])}, [f.name for f in fetch], fs.Scope())
        assert h.sequence_lengths == [[6, 0, 9]]
        x = torch.tensor(X, requires_grad=True)
        want = torch.stack([part.sum(0) * 7 for part in x.split([2, 0, 3])])
        (want * want).sum().backward()
        np.testing.assert_allclose(pooled, want.detach().numpy(), rtol=1e-5, atol=1e-5)
        assert x.grad is not None
        np.testing.assert_allclose(np.asarray(gradient), x.grad.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("check", [False, True])
def test_rows_that_nothing_looked_up_are_no_rows(check: bool) -> None:
    """A branch that did not run, or a loop without rounds: nothing of the table's height is made."""

    def describe() -> Any:
        ids, n = layer.data("ids", shape=["batch"], dtype="int64"), layer.data("n", shape=[1], dtype="int64")
        x = layer.data("x", shape=["batch", 2])
        h = layer.cond(less(n, 1), lambda: layer.fc(x, 2), lambda: layer.embedding(ids, [9, 2], weight="a", is_sparse=True))
        _, g = layer.while_loop(
            lambda i, g: layer.less_than(i, n), lambda i, g: [i + 1, g + layer.embedding(ids, [9, 2], weight="b", is_sparse=True)], [count(0), x]
        )
        loss = layer.mean(h * h + g * g)
        fs.optimizer.Momentum(0.1, 0.9).minimize(loss)
        return [loss, "a@GRAD", "b@GRAD"]

    main, startup, fetch = build(describe)
    feed = {"ids": np.array([1, 5]), "x": X[:2, :2].copy()}
    for n, rows in ((0, 0), (2, 2)):
        _, a, b = fs.Executor(check=check).run(main, {**feed, "n": np.array([n])}, fetch, started(startup))
        assert isinstance(a, fs.SelectedRows) and isinstance(b, fs.SelectedRows)
        assert (a.height, b.height) == (9, 9) and len(a.rows) == rows and (len(b.rows) > 0) == (rows > 0)


def test_what_a_loop_keeps_is_not_fetched() -> None:
    main, _, _ = build(lambda: layer.while_loop(lambda i: less(i, 3), lambda i: [i + 1], [count(0)]))
    kept = next(op.output("StepScopes") for op in main.all_ops() if op.type == "while")
    with pytest.raises(fs.ExecutionError, match="cannot be fetched"):
        fs.Executor().run(main, {}, [kept], fs.Scope())


@pytest.mark.parametrize(
    ("describe", "says"),
    [
        (lambda: layer.while_loop(3, lambda i: [i + 1], [count(0)]), "cond must be a function"),
        (lambda: layer.while_loop(lambda i: less(i, 3), None, [count(0)]), "body must be a function"),
        (lambda: layer.while_loop(lambda i: less(i, 3), lambda i: [i + 1], [count(0)], max_iterations=2.5), "a whole number"),
        (lambda: layer.while_loop(lambda i: less(i, 3), lambda i: [i + 1], [count(0)], max_iterations=-1), "at least 0"),
        (lambda: layer.cond(less(count(0), 3), 3, 4), "true_fn must be a function"),
        (lambda: layer.cond(True, lambda: count(0), lambda: count(0)), "pred must be a bool variable"),
        (lambda: layer.case([3]), "a list of pairs"),
        (lambda: layer.case(None), "a list of pairs"),
        (lambda: layer.case([(less(count(0), 3), 3)]), "must be a function"),
        (lambda: layer.switch_case(count(0), None), "functions, in a list or by their numbers"),
        (lambda: layer.switch_case(count(0), {}), "at least one branch"),
        (lambda: layer.switch_case(3, {0: lambda: count(0)}), "must give variables"),
        (lambda: layer.switch_case(count(0), {"a": lambda: count(0), 2: lambda: count(0)}), "chosen by a whole number"),
        (lambda: layer.switch_case(count(0), {0: 1}), "must be a function"),
        (lambda: layer.rnn(lambda x: (x, [])), "needs an input"),
    ],
)
def test_what_is_no_function_is_said_to_be_none(describe: Callable[[], Any], says: str) -> None:
    with pytest.raises(fs.DescriptionError, match=says) as caught:
        build(describe)
    assert "test_blocks_in_use.py" in str(caught.value)


@pytest.mark.parametrize("name", ["ex_states", "states", "reverse", "has_states", "is_train"])
def test_a_file_that_leaves_an_attribute_at_its_default(name: str) -> None:
    """A recurrence without states says nothing of them."""
    from foreshape.language.wire import framework_pb2

    def describe() -> Any:
        x = layer.data("x", shape=["batch", 4, 3])
        out, _ = layer.rnn(lambda x: (layer.fc(x, 2, weight="w", bias=False), []), x)
        fs.append_backward(layer.mean(out * out))
        return out

    main, startup, out = build(describe)
    message = framework_pb2.ProgramDesc.FromString(main.to_bytes())
    for block in message.blocks:
        for op in block.ops:
            left = [a for a in op.attrs if a.name != name]
            del op.attrs[:]
            op.attrs.extend(left)
    program, scope = fs.Program.from_bytes(message.SerializeToString()), started(startup)
    program.forget()
    assert program.infer() == []
    x = np.ones((2, 4, 3), "float32")
    got = fs.Executor().run(program, {"x": x}, [out.name, "w@GRAD"], scope)
    np.testing.assert_allclose(got[0], x @ scope.get("w"), rtol=1e-5)
