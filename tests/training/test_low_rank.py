"""Small matrices beside the weights of a network: the same at first, trained alone, merged, saved apart."""

from __future__ import annotations

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

RANDOM = np.random.RandomState(0)
EXAMPLES = {"x": RANDOM.standard_normal((32, 5, 6)).astype("float32"), "y": RANDOM.standard_normal((32, 5, 4)).astype("float32")}


def described():
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", ["batch", 5, 6]), layer.data("y", ["batch", 5, 4])
        h = layer.fc(x, 8, "relu", flatten_last=1, weight="first")
        h = layer.matmul(h, layer.create_parameter([8, 8], "fp32", "second"), transpose_y=True)
        h = layer.matmul(h, layer.create_parameter([8, 8], "fp32", "third"))
        out = layer.fc(h, 4, flatten_last=1, weight="head")
        cost = layer.mean(layer.square(out - y))
    scope = fs.Scope()
    return main, startup, out, cost, scope


@pytest.mark.quick_cases("first")
@pytest.mark.parametrize("targets", ["first", "second", ["first", "second", "third", "head"]])
def test_small_matrices_alone_are_trained_and_merge(targets, tmp_path):
    main, startup, out, cost, scope = described()
    with fs.program_guard(main, startup):
        before = main.clone()
        adapter = fs.lora(cost, 2, targets, alpha=3.0)
        assert adapter.scale == 1.5 and set(adapter.pairs) == {targets} if isinstance(targets, str) else set(targets)
        fs.Executor(seed=1).run(startup, scope=scope)
        kept = {n: scope.get(n) for n in scope.names()}
        whole = fs.Executor().run(before, EXAMPLES, [out.name], scope)[0]
        np.testing.assert_array_equal(fs.Executor().run(main, EXAMPLES, [out], scope)[0], whole)  # B is zero
        history = fs.train(cost, EXAMPLES, optimizer=fs.optimizer.Adam(0.05), epochs=20, batch_size=32, scope=scope, progress=False)
    assert history.steps == 20
    for name, value in kept.items():
        if name in adapter.parameters:
            assert np.abs(scope.get(name) - value).max() > 0
        else:
            np.testing.assert_array_equal(scope.get(name), value)
    trained = fs.Executor().run(main, EXAMPLES, [out], scope)[0]
    assert ((trained - EXAMPLES["y"]) ** 2).mean() < ((whole - EXAMPLES["y"]) ** 2).mean()

    fs.save_safetensors(tmp_path / "adapter.safetensors", scope, adapter.parameters)
    other = fs.Scope()
    fs.Executor(seed=1).run(startup, scope=other)
    assert sorted(fs.load_safetensors(tmp_path / "adapter.safetensors", other)) == sorted(adapter.parameters)
    np.testing.assert_array_equal(fs.Executor().run(main, EXAMPLES, [out], other)[0], trained)

    merged = adapter.merge(scope)
    assert [op.type for op in merged.all_ops()] == [op.type for op in before.all_ops()]
    assert not [v for v in merged.all_variables() if "lora" in v.name.lower()]
    for program in (merged, main):
        np.testing.assert_allclose(fs.Executor().run(program, EXAMPLES, [out.name], scope)[0], trained, atol=1e-5)


def test_state_of_the_optimizer_is_for_small_matrices():
    main, startup, _, cost, _ = described()
    with fs.program_guard(main, startup):
        adapter = fs.lora(main, 1, ["first", "third"], trained="head")
        fs.optimizer.Adam(0.1).minimize(cost)
    moments = {v.name.split("_moment")[0] for v in main.all_variables() if "_moment" in v.name}
    assert moments == {*adapter.parameters, "head"}


def test_what_is_refused():
    main, startup, _, cost, _ = described()
    with fs.program_guard(main, startup):
        for given, says in (
            ({"rank": 0}, "at least 1"),
            ({"rank": 2, "targets": "query*"}, "no weight of a product is called query\\*; there are first, second, third, head"),
        ):
            with pytest.raises(fs.SchemaError, match=says):
                fs.lora(main, **given)
        fs.append_backward(cost)
        with pytest.raises(fs.SchemaError, match="its gradients already"):
            fs.lora(main, 2)


def test_a_network_of_torch_takes_small_matrices():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
    model = fs.from_torch(module, (torch.zeros(2, 5, 6),))
    data = {model.feeds[0]: EXAMPLES["x"], "wanted": EXAMPLES["y"]}
    startup = fs.Program()
    with fs.program_guard(model.program, startup):
        out = model.fetches[0]
        cost = layer.mean(layer.square(out - layer.data("wanted", ["batch", 5, 4])))
        adapter = fs.lora(cost, 2, "*.weight", startup=startup)
        fs.Executor(seed=1).run(startup, scope=model.scope)
        before = fs.Executor().run(model.program, data, [out, cost], model.scope)
        fs.train(cost, data, optimizer=fs.optimizer.Adam(0.02), epochs=10, progress=False, scope=model.scope, seed=0)
    apart = fs.Executor().run(model.program, data, [out, cost], model.scope)
    np.testing.assert_allclose(before[0], module(torch.tensor(EXAMPLES["x"])).detach(), atol=1e-5)
    assert apart[1] < before[1] and set(adapter.pairs) == {"0.weight", "2.weight"}
    merged = adapter.merge(model.scope)
    np.testing.assert_allclose(fs.Executor().run(merged, data, [out.name], model.scope)[0], apart[0], atol=1e-5)


def _in_a_loop(x, w, after):
    last = layer.fill_constant([1], "int64", 3)
    _, h = layer.while_loop(
        lambda i, h: layer.less_than(i, last), lambda i, h: [i + 1, layer.tanh(layer.matmul(h, w))], [layer.fill_constant([1], "int64", 0), x]
    )
    return after(h, w)


OTHER_USES = {
    "a table of words and of scores": lambda x, w: layer.matmul(layer.embedding(layer.cast(x > 0, "int64"), [6, 6], weight="w"), w, transpose_y=True),
    "both operands": lambda x, w: layer.matmul(layer.matmul(x, w), layer.matmul(w, w)),
    "the first operand": lambda x, w: layer.matmul(layer.matmul(x, w), layer.matmul(w, x, transpose_y=True), transpose_y=True),
    "a sum": lambda x, w: layer.matmul(x, w) + layer.reduce_sum(w),
    "a sum behind a loop": lambda x, w: _in_a_loop(x, w, lambda h, w: h + layer.reduce_sum(w)),
    "a sum in a branch": lambda x, w: layer.cond(layer.reduce_sum(x) > 0.0, lambda: layer.matmul(x, w), lambda: x + layer.reduce_sum(w)),
}
PRODUCTS = {
    "two products": lambda x, w: layer.matmul(layer.tanh(layer.matmul(x, w)), w),
    "products in a loop and behind it": lambda x, w: _in_a_loop(x, w, layer.matmul),
    "products in branches": lambda x, w: layer.cond(layer.reduce_sum(x) > 0.0, lambda: layer.matmul(x, w), lambda: layer.matmul(x * 2.0, w)),
}


@pytest.mark.parametrize("use", OTHER_USES)
def test_a_weight_with_another_use_is_refused_by_name_and_left_out_of_a_pattern(use):
    with fs.program() as program:
        x = layer.data("x", ["batch", 6])
        out = layer.fc(OTHER_USES[use](x, layer.create_parameter([6, 6], "fp32", "w")), 3, flatten_last=1, weight="head")
        before = str(program)
        with pytest.raises(fs.SchemaError, match="w is the weight of a product, and has another use too"):
            fs.lora(out, 2, "w")
        assert str(program) == before
        with pytest.warns(fs.ForeshapeWarning, match="leaves out w, with another use"):
            assert [*fs.lora(out, 2).pairs] == ["head"]


@pytest.mark.parametrize("use", PRODUCTS)
def test_every_product_of_a_weight_merges(use):
    with fs.program() as program:
        out = PRODUCTS[use](layer.data("x", ["batch", 6]), layer.create_parameter([6, 6], "fp32", "w"))
        adapter, scope = fs.lora(out, 2, "w"), fs.Scope()
        fs.Executor(seed=1).run(program.startup, scope=scope)
    for name in adapter.parameters:
        scope[name] = RANDOM.standard_normal(np.shape(scope[name])).astype("float32") * 0.3
    feed = {"x": RANDOM.standard_normal((3, 6)).astype("float32")}
    small = fs.Executor().run(program, feed, [out.name], scope)[0]
    np.testing.assert_allclose(fs.Executor().run(adapter.merge(scope), feed, [out.name], scope)[0], small, atol=1e-5)
