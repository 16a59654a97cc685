"""Arrays of tensors and rank tables, alone and in loops: numbers by hand, from PaddlePaddle 2.6.2, and from the same in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.backward import append_backward
from foreshape.errors import ExecutionError, ShapeError, TypeMismatchError
from foreshape.program import Program
from foreshape.values.lod_tensor import LoDTensor

torch = pytest.importorskip("torch")


def program_of(describe: Callable[[], Any]) -> tuple[Program, Any]:
    """A program and what the function gave that described it."""
    program = Program()
    with fs.program_guard(program, Program()):
        return program, describe()


def read_back(program: Program) -> list[Program]:
    """The program, its text read again, and its bytes; each must be written as it was."""
    text, data = str(program), program.to_bytes()
    parsed, decoded = Program.parse(text), Program.from_bytes(data)
    assert str(parsed) == text
    assert decoded.to_bytes() == data and str(decoded) == text
    return [program, parsed, decoded]


def run(program: Program, feed: dict[str, Any], fetch: Sequence[Any], check: bool = False) -> list[Any]:
    names = [f if isinstance(f, str) else f.name for f in fetch]
    return fs.Executor(check=check).run(program, feed, names, fs.Scope())


def number(value: int) -> fs.Variable:
    return layer.fill_constant([1], "int64", value)


def wanted(name: str, shape: Sequence[Any], **kw: Any) -> fs.Variable:
    out = layer.data(name, shape=shape, **kw)
    out.stop_gradient = False
    return out


def same(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-6)


def rounds(steps: fs.Variable, body: Callable[..., Any], *carried: fs.Variable) -> list[fs.Variable]:
    """``body`` for each number below ``steps``; it gives the new values of what is carried, or of nothing None."""

    def one(i: fs.Variable, *values: fs.Variable) -> list[fs.Variable]:
        new = body(i, *values)
        return [i + 1, *(new if isinstance(new, (list, tuple)) else [new] if new is not None else [])]

    def more(i: fs.Variable, *_: fs.Variable) -> fs.Variable:
        return layer.less_than(i, steps)

    return layer.while_loop(more, one, [number(0), *carried])[1:]


# --- arrays


def test_elements_are_written_overwritten_and_left_out() -> None:
    def describe() -> Any:
        a, b = layer.data("a", shape=[2, 3]), layer.data("b", shape=[4, 3])
        array = layer.array_write(a, number(0))
        layer.array_write(b, number(3), array)
        layer.array_write(a + a, number(0), array)
        return array, layer.array_length(array), layer.array_read(array, number(3))

    program, (array, length, last) = program_of(describe)
    assert array.spec.text() == "array f32[array_0.each0, 3]"
    assert array.dims == [-1, 3] and last.dims == [-1, 3] and length.dims == [1]
    a, b = np.ones((2, 3), "float32"), np.full((4, 3), 2, "float32")
    for one in read_back(program):
        for check in (False, True):
            elements, count, read = run(one, {"a": a, "b": b}, [array, length, last], check)
            assert elements[1] is None and elements[2] is None and count.tolist() == [4]
            same(elements[0], a + a)
            same(elements[3], b)
            same(read, b)


def test_two_elements_are_never_taken_to_be_of_one_size() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=[2, 3]), number(0))
        layer.array_write(layer.data("b", shape=[4, 3]), number(1), array)
        return layer.array_read(array, number(0)) + layer.array_read(array, number(1))

    program, _ = program_of(describe)
    assert [str(g.condition) for g in program.guards] == ["read_from_array_0.tmp_0.size0 == read_from_array_1.tmp_0.size0, or one of them is 1"]


def test_elements_of_one_size_keep_it() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=["batch", 3]), number(0))
        layer.array_write(layer.data("b", shape=["batch", 3]), number(1), array)
        return layer.array_read(array, number(1)), *layer.tensor_array_to_tensor(array, axis=1), *layer.tensor_array_to_tensor(array, use_stack=True)

    _, (read, joined, sizes, stacked, _) = program_of(describe)
    assert read.spec.text() == "f32[batch, 3]"
    assert joined.spec.text().endswith("f32[batch, 3*tensor_array_to_tensor_0.tmp_0.elements]") and sizes.dims == [-1]
    assert stacked.spec.text() == "f32[tensor_array_to_tensor_1.tmp_0.elements, batch, 3]"


def test_elements_keep_their_sequences() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=[-1, 1], lod_level=2), number(0))
        layer.array_write(layer.data("b", shape=[-1, 1], lod_level=2), number(1), array)
        return array, layer.array_read(array, number(1))

    program, (array, read) = program_of(describe)
    assert array.lod_level == read.lod_level == 2
    a = LoDTensor(np.arange(3, dtype="float32").reshape(3, 1), [[1, 1], [3, 0]])
    b = LoDTensor(np.arange(4, dtype="float32").reshape(4, 1), [[0, 3], [1, 1, 2]])
    for one in read_back(program):
        elements, second = run(one, {"a": a, "b": b}, [array, read])
        assert [e.sequence_lengths for e in elements] == [a.sequence_lengths, b.sequence_lengths]
        assert second.sequence_lengths == b.sequence_lengths
        same(second, b)


def test_an_array_that_nothing_was_written_to_is_empty() -> None:
    def describe() -> Any:
        array = layer.create_array("float32")
        return array, layer.array_length(array), layer.array_length(layer.assign(array))

    program, (array, *lengths) = program_of(describe)
    for one in read_back(program):
        assert [np.asarray(x).tolist() for x in run(one, {}, [array, *lengths])] == [[], [0], [0]]


def test_what_cannot_be_read_or_written_is_refused() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=[2, 3]), number(1))
        at = layer.data("at", shape=[1], dtype="int64")
        other = layer.array_write(layer.data("a2", shape=[2, 3]), number(0))
        return layer.array_read(array, at), layer.array_write(layer.data("b", shape=[2, 3]), at, other)

    program, (read, written) = program_of(describe)
    a = np.zeros((2, 3), "float32")
    for at in (0, 2, -1):
        with pytest.raises(ExecutionError, match=f"nothing was written at position {at} of this array; it has 2 positions"):
            run(program, {"a": a, "at": np.array([at])}, [read])
    for at in (-1, 1 << 40):
        with pytest.raises(ExecutionError, match="a position in an array must be from 0"):
            run(program, {"a2": a, "b": a, "at": np.array([at])}, [written])


def test_elements_must_be_alike() -> None:
    def fill(first: Any, second: Any) -> Callable[[], Any]:
        return lambda: layer.array_write(second(), number(1), layer.array_write(first(), number(0)))

    plain = lambda: layer.data("a", shape=[2, 3])  # noqa: E731
    with pytest.raises(TypeMismatchError, match=r"the elements of array_0 are f32\[2, 3\], and this one is i64\[2, 3\]"):
        program_of(fill(plain, lambda: layer.data("b", shape=[2, 3], dtype="int64")))
    with pytest.raises(ShapeError, match="as many dims and levels"):
        program_of(fill(plain, lambda: layer.data("b", shape=[2])))
    with pytest.raises(ShapeError, match="as many dims and levels"):
        program_of(fill(plain, lambda: layer.data("b", shape=[-1, 3], lod_level=1)))
    with pytest.raises(TypeMismatchError, match="array must be an array of tensors"):
        program_of(lambda: layer.array_write(plain(), number(0), layer.data("b", shape=[2, 3])))


def test_gradients_are_gathered_element_by_element() -> None:
    def describe() -> Any:
        a, b = wanted("a", [2, 3]), wanted("b", [2, 3])
        array = layer.array_write(a, number(0))
        lost = layer.array_read(array, number(0))  # read before it is overwritten
        layer.array_write(a * b, number(0), array)
        layer.array_write(b, number(1), array)
        copy = layer.assign(array)
        layer.array_write(a, number(2), array)  # nobody reads it
        joined, _ = layer.tensor_array_to_tensor(copy, use_stack=True)
        first = layer.array_read(array, number(0))
        loss = layer.mean(layer.reduce_sum(lost * lost) + layer.reduce_sum(joined * joined) + layer.reduce_sum(first * a))
        append_backward(loss, [a, b])
        return loss

    program, loss = program_of(describe)
    rng = np.random.RandomState(0)
    feed = {n: rng.randn(2, 3).astype("float32") for n in "ab"}
    a, b = (torch.tensor(feed[n], requires_grad=True) for n in "ab")
    want = (a * a).sum() + (a * b * a * b).sum() + (b * b).sum() + (a * b * a).sum()
    want.backward()
    for one in read_back(program):
        for check in (False, True):
            got = run(one, feed, [loss, "a@GRAD", "b@GRAD"], check)
            for x, y in zip(got, [want.detach(), a.grad, b.grad], strict=True):
                same(x, y)


def test_what_is_overwritten_has_no_gradient() -> None:
    def describe() -> None:
        a, b = wanted("a", [2, 3]), wanted("b", [2, 3])
        array = layer.array_write(a, number(0))
        layer.array_write(b, number(1), array)
        layer.array_write(layer.fill_constant([2, 3], "fp32", 2.0), number(0), array)
        joined, _ = layer.tensor_array_to_tensor(array)
        append_backward(layer.mean(layer.reduce_sum(joined * joined)), [a, b])

    program, _ = program_of(describe)
    ones = np.ones((2, 3), "float32")
    for one in read_back(program):
        a, b = run(one, {"a": ones, "b": ones}, ["a@GRAD", "b@GRAD"])
        same(a, 0 * ones)
        same(b, 2 * ones)


# --- rank tables, as PaddlePaddle 2.6.2 gave them


def ranked() -> tuple[Program, dict[str, Any]]:
    def describe() -> dict[str, Any]:
        x, h = wanted("x", [-1, 2], lod_level=1), wanted("h", ["batch", 3])
        table = layer.lod_rank_table(x)
        array = layer.lod_tensor_to_array(x, table)
        out: dict[str, Any] = {"table": table, "longest": layer.max_sequence_len(table), "array": array, "length": layer.array_length(array)}
        out["reordered"] = layer.reorder_lod_tensor_by_rank(h, table)
        out["shrunk"] = layer.shrink_memory(out["reordered"], number(1), table)
        out["element"] = layer.array_read(array, number(1))
        out["sequences"] = layer.reorder_lod_tensor_by_rank(x, table)
        out["back"] = layer.array_to_lod_tensor(array, table)
        out["joined"], out["sizes"] = layer.tensor_array_to_tensor(array)
        parts = [out["shrunk"], out["element"], out["back"] * out["back"], out["sequences"] * out["sequences"], out["joined"]]
        means = [layer.mean(p) for p in parts]
        append_backward(means[0] + means[1] + means[2] + means[3] + means[4], [x, h])
        return out

    return program_of(describe)


def test_a_table_takes_sequences_apart_and_puts_them_together() -> None:
    program, out = ranked()
    assert out["back"].spec.text() == "f32[x | batch, 2]" and out["back"].spec.lod is program.var("x").spec.lod
    assert out["sequences"].spec.text() == "f32[x | batch, 2]"
    assert out["reordered"].spec.text() == "f32[batch, 3]"
    assert program.var("h@GRAD").spec.text() == "f32[batch, 3]"
    x = np.arange(20, dtype="float32").reshape(10, 2)
    feed = {"x": LoDTensor(x, [[2, 3, 4, 1]]), "h": np.arange(12, dtype="float32").reshape(4, 3)}
    for one in read_back(program):
        got = dict(zip([*out, "x@GRAD", "h@GRAD"], run(one, feed, [*out.values(), "x@GRAD", "h@GRAD"]), strict=True))
        assert got["table"] == [(2, 4), (1, 3), (0, 2), (3, 1)]
        assert got["longest"].tolist() == got["length"].tolist() == [4]
        same(got["reordered"], [[6, 7, 8], [3, 4, 5], [0, 1, 2], [9, 10, 11]])
        same(got["shrunk"], [[6, 7, 8], [3, 4, 5], [0, 1, 2]])
        for element, want in zip(got["array"], ([5, 2, 0, 9], [6, 3, 1], [7, 4], [8]), strict=True):
            same(element, x[want])
        same(got["element"], x[[6, 3, 1]])
        same(got["sequences"], x[[5, 6, 7, 8, 2, 3, 4, 0, 1, 9]])
        assert got["sequences"].sequence_lengths == [[4, 3, 2, 1]]
        same(got["back"], x)
        assert got["back"].sequence_lengths == got["x@GRAD"].sequence_lengths == [[2, 3, 4, 1]]
        same(got["joined"], x[[5, 2, 0, 9, 6, 3, 1, 7, 4, 8]])
        assert got["sizes"].tolist() == [4, 3, 2, 1]
        first = [0.05, 0.6166666746139526, 0.8500000238418579, 1.4166667461395264, 1.6500000953674316, 2.049999952316284, 2.616666793823242, 2.8499999046325684]
        same(np.asarray(got["x@GRAD"])[:, 0], [*first, 3.25, 3.6500000953674316])
        same(got["h@GRAD"], np.repeat([[1 / 9], [1 / 9], [1 / 9], [0]], 3, axis=1))


def test_a_table_of_the_outer_level_takes_sequences_of_sequences_apart() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=[-1, 1], lod_level=2)
        table = layer.lod_rank_table(x)
        array = layer.lod_tensor_to_array(x, table)
        shrunk = layer.shrink_memory(x, number(1), table)
        return array, layer.array_read(array, number(1)), layer.reorder_lod_tensor_by_rank(x, table), layer.array_to_lod_tensor(array, table), shrunk

    program, out = program_of(describe)
    x = LoDTensor(np.arange(10, dtype="float32").reshape(10, 1), [[2, 1, 3], [1, 2, 3, 1, 2, 1]])
    for one in read_back(program):
        array, element, reordered, back, shrunk = run(one, {"x": x}, out)
        for got, rows, lengths in zip(array, ([6, 0, 3, 4, 5], [7, 8, 1, 2], [9]), ([1, 1, 3], [2, 2], [1]), strict=True):
            assert np.asarray(got).reshape(-1).tolist() == rows and got.sequence_lengths == [lengths]
        assert element.sequence_lengths == [[2, 2]]
        assert np.asarray(reordered).reshape(-1).tolist() == [6, 7, 8, 9, 0, 1, 2, 3, 4, 5] and reordered.sequence_lengths == [[3, 2, 1], [1, 2, 1, 1, 2, 3]]
        assert back.sequence_lengths == x.sequence_lengths
        same(back, x)
        assert np.asarray(shrunk).reshape(-1).tolist() == [0, 1, 2, 3, 4, 5] and shrunk.sequence_lengths == [[2, 1], [1, 2, 3]]


def test_what_does_not_fit_a_table_is_refused_when_it_runs() -> None:
    def describe() -> Any:
        x, y, h = (layer.data(n, shape=["others" if n == "h" else -1, 2], lod_level=int(n != "h")) for n in "xyh")
        table = layer.lod_rank_table(x)
        array = layer.array_write(layer.data("e", shape=["rows", 2]), number(0))
        return layer.lod_tensor_to_array(y, table), layer.shrink_memory(h, number(0), table), layer.array_to_lod_tensor(array, table)

    program, (array, shrunk, back) = program_of(describe)
    rows = np.zeros((3, 2), "float32")
    x = LoDTensor(rows, [[2, 1]])
    with pytest.raises(ExecutionError, match=r"X must be grouped as what the table was made of; it has \[0, 1, 3\], the table \[0, 2, 3\]"):
        run(program, {"x": x, "y": LoDTensor(rows, [[1, 2]])}, [array])
    with pytest.raises(ExecutionError, match="2 sequences are longer than 0, and X is of 1"):
        run(program, {"x": x, "h": rows[:1]}, [shrunk])
    with pytest.raises(ExecutionError, match=r"the elements must have \[2, 1\] rows, as many as sequences are longer; seen \[3\]"):
        run(program, {"x": x, "e": rows}, [back])


# --- in loops

def weights() -> tuple[fs.Variable, fs.Variable]:
    return wanted("w", [2, 3]), wanted("u", [3, 3])


def numbers(rows: int, sequences: int) -> dict[str, Any]:
    rng = np.random.RandomState(0)
    shapes = {"x": (rows, 2), "h0": (sequences, 3), "w": (2, 3), "u": (3, 3)}
    return {n: rng.randn(*shape).astype("float32") for n, shape in shapes.items()}


def in_torch(feed: dict[str, Any], compute: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    tensors = {n: torch.tensor(np.asarray(v), requires_grad=True) for n, v in feed.items()}
    loss = compute(**tensors)
    loss.backward()
    return loss.item(), {n: t.grad if t.grad is not None else torch.zeros_like(t) for n, t in tensors.items()}


@pytest.mark.parametrize("lengths", [[2, 3, 0, 4, 1], [0, 0], [1]], ids=str)
def test_a_recurrence_over_ragged_data_is_that_over_each_sequence(lengths: list[int]) -> None:
    def describe() -> Any:
        x, h0 = wanted("x", [-1, 2], lod_level=1), wanted("h0", ["batch", 3])
        w, u = weights()
        table = layer.lod_rank_table(x)
        steps = layer.max_sequence_len(table)
        inputs, outputs = layer.lod_tensor_to_array(x, table), layer.create_array("float32")

        def step(i: fs.Variable, state: fs.Variable) -> fs.Variable:
            new = layer.tanh(layer.matmul(layer.array_read(inputs, i), w) + layer.matmul(layer.shrink_memory(state, i, table), u))
            layer.array_write(new, i, outputs)
            return new

        rounds(steps, step, layer.reorder_lod_tensor_by_rank(h0, table))
        out = layer.array_to_lod_tensor(outputs, table)
        loss = layer.mean(layer.reduce_sum(out * out) + layer.reduce_sum(layer.sequence_last_step(out)))
        append_backward(loss, [x, h0, w, u])
        return outputs, out, loss

    program, (outputs, out, loss) = program_of(describe)
    assert outputs.spec.text() == "array f32[array_0.each0, 3]"
    assert out.spec.text() == "f32[x | batch, 3]" and out.spec.lod is program.var("x").spec.lod
    feed = numbers(sum(lengths), len(lengths))

    def compute(x: Any, h0: Any, w: Any, u: Any) -> Any:
        total, at = (x.sum() + h0.sum() + w.sum() + u.sum()) * 0, 0
        for k, length in enumerate(lengths):
            h = h0[k]
            for _ in range(length):
                h, at = torch.tanh(x[at] @ w + h @ u), at + 1
                total = total + (h * h).sum()
            total = total + (h.sum() if length else 0)
        return total

    want, gradients = in_torch(feed, compute)
    given = feed | {"x": LoDTensor(feed["x"], [lengths])}
    for one in read_back(program):
        for check in (False, True):
            got = run(one, given, [loss, out, *(f"{n}@GRAD" for n in feed)], check)
            same(got[0], want)
            assert got[1].sequence_lengths == got[2].sequence_lengths == [lengths]
            assert np.asarray(got[1]).shape == (sum(lengths), 3)
            for name, gradient in zip(feed, got[2:], strict=True):
                same(gradient, gradients[name])


def test_a_loop_may_keep_its_state_in_an_array() -> None:
    """Element i + 1 is made of elements i and i - 1, each read twice; all gradients meet in one array."""

    def describe() -> Any:
        x, u = wanted("x", ["batch", 3]), wanted("u", [3, 3])
        steps = layer.data("steps", shape=[1], dtype="int64")
        states = layer.array_write(x, number(0))
        layer.array_write(layer.tanh(x), number(1), states)

        def step(i: fs.Variable) -> None:
            before, now = layer.array_read(states, i), layer.array_read(states, i + 1)
            layer.array_write(layer.tanh(layer.matmul(now, u)) + before * now, i + 2, states)

        rounds(steps, step)
        last = layer.array_read(states, layer.array_length(states) - 1)
        joined, _ = layer.tensor_array_to_tensor(states)
        loss = layer.mean(layer.reduce_sum(last * last) + layer.reduce_sum(joined))
        append_backward(loss, [x, u])
        return states, loss

    program, (states, loss) = program_of(describe)
    assert states.spec.text() == "array f32[batch, 3]"
    feed = {"x": np.random.RandomState(1).randn(4, 3).astype("float32"), "u": numbers(1, 1)["u"]}
    for steps in (0, 1, 4):

        def compute(x: Any, u: Any, steps: int = steps) -> Any:
            states = [x, torch.tanh(x)]
            for i in range(steps):
                states.append(torch.tanh(states[i + 1] @ u) + states[i] * states[i + 1])
            return (states[-1] * states[-1]).sum() + sum(s.sum() for s in states)

        want, gradients = in_torch(feed, compute)
        for one in read_back(program):
            got = run(one, feed | {"steps": np.array([steps])}, [loss, states, *(f"{n}@GRAD" for n in feed)])
            same(got[0], want)
            assert len(got[1]) == steps + 2
            for name, gradient in zip(feed, got[2:], strict=True):
                same(gradient, gradients[name])


def test_what_a_round_joins_is_what_the_array_held_then() -> None:
    def describe() -> fs.Variable:
        x, total = wanted("x", ["batch", 3]), layer.fill_constant([], "fp32", 0.0)
        array = layer.create_array("float32")

        def step(i: fs.Variable, total: fs.Variable) -> fs.Variable:
            layer.array_write(x * layer.cast(i + 1, "float32"), i, array)
            joined, _ = layer.tensor_array_to_tensor(array)
            return total + layer.reduce_sum(joined * joined)

        (total,) = rounds(number(3), step, total)
        loss = layer.mean(total)
        append_backward(loss, [x])
        return loss

    program, loss = program_of(describe)
    feed = {"x": np.random.RandomState(1).randn(4, 3).astype("float32")}
    want, gradients = in_torch(feed, lambda x: sum(((k + 1) * x).square().sum() * (3 - k) for k in range(3)))
    for one in read_back(program):
        got = run(one, feed, [loss, "x@GRAD"])
        same(got[0], want)
        same(got[1], gradients["x"])


def test_loops_and_branches_within_loops_write_to_one_array() -> None:
    def describe() -> Any:
        x, w = wanted("x", ["batch", 3]), wanted("u", [3, 3])
        out = layer.array_write(x, number(0))

        def outer(i: fs.Variable) -> None:
            def inner(j: fs.Variable) -> None:
                at = i * 2 + j
                value = layer.array_read(out, at)
                odd = layer.equal(j, number(1))
                chosen = layer.cond(odd, lambda: layer.tanh(layer.matmul(value, w)), lambda: value * value)
                layer.array_write(chosen, at + 1, out)

            rounds(number(2), inner)

        rounds(number(2), outer)
        loss = layer.mean(layer.reduce_sum(layer.tensor_array_to_tensor(out)[0]))
        append_backward(loss, [x, w])
        return out, loss

    program, (out, loss) = program_of(describe)
    feed = {"x": np.random.RandomState(1).randn(4, 3).astype("float32"), "u": numbers(1, 1)["u"]}

    def compute(x: Any, u: Any) -> Any:
        values = [x]
        for at in range(4):
            values.append(torch.tanh(values[-1] @ u) if at % 2 else values[-1] * values[-1])
        return sum(v.sum() for v in values)

    want, gradients = in_torch(feed, compute)
    for one in read_back(program):
        got = run(one, feed, [loss, out, "x@GRAD", "u@GRAD"])
        same(got[0], want)
        assert len(got[1]) == 5
        same(got[2], gradients["x"])
        same(got[3], gradients["u"])


def test_sequences_of_sequences_go_through_a_loop() -> None:
    """Of each paragraph, sentence by sentence: a state that the mean of the sentence's words moves."""
    lengths = [[2, 1, 3], [1, 2, 3, 1, 2, 1]]

    def describe() -> Any:
        x, h0 = wanted("x", [-1, 2], lod_level=2), wanted("h0", ["batch", 3])
        w, u = weights()
        table = layer.lod_rank_table(x)
        sentences, outputs = layer.lod_tensor_to_array(x, table), layer.create_array("float32")

        def step(i: fs.Variable, state: fs.Variable) -> fs.Variable:
            mean = layer.sequence_pool(layer.array_read(sentences, i), "average")
            new = layer.tanh(layer.matmul(mean, w) + layer.matmul(layer.shrink_memory(state, i, table), u))
            layer.array_write(new, i, outputs)
            return new

        rounds(layer.max_sequence_len(table), step, layer.reorder_lod_tensor_by_rank(h0, table))
        out = layer.array_to_lod_tensor(outputs, table)
        loss = layer.mean(layer.reduce_sum(out * out))
        append_backward(loss, [x, h0, w, u])
        return out, loss

    program, (out, loss) = program_of(describe)
    feed = numbers(10, 3)

    def compute(x: Any, h0: Any, w: Any, u: Any) -> Any:
        total, at, sentence = 0, 0, 0
        for k, count in enumerate(lengths[0]):
            h = h0[k]
            for _ in range(count):
                size, sentence = lengths[1][sentence], sentence + 1
                h, at = torch.tanh(x[at : at + size].mean(0) @ w + h @ u), at + size
                total = total + (h * h).sum()
        return total

    want, gradients = in_torch(feed, compute)
    for one in read_back(program):
        got = run(one, feed | {"x": LoDTensor(feed["x"], lengths)}, [loss, out, *(f"{n}@GRAD" for n in feed)])
        same(got[0], want)
        assert got[1].sequence_lengths == lengths[:1] and got[2].sequence_lengths == lengths
        for name, gradient in zip(feed, got[2:], strict=True):
            same(gradient, gradients[name])
