"""Programs that tests describe, with loops and branches among others, and how they run them: in every form, and beside torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import foreshape as fs
from foreshape import layer

Built = tuple[fs.Program, fs.Program, Any]
X = np.random.RandomState(0).randn(5, 3).astype("float32")


# --- describing


def build(describe: Callable[[], Any]) -> Built:
    """A main and a startup program, and what the function gave that described them."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        return main, startup, describe()


def differentiable(name: str, shape: Sequence[Any], **kw: Any) -> fs.Variable:
    """An input that has a gradient."""
    out = layer.data(name, shape=shape, **kw)
    out.stop_gradient = False
    return out


def count(number: int) -> fs.Variable:
    return layer.fill_constant([1], "int64", number)


def less(i: fs.Variable, number: int) -> fs.Variable:
    return layer.less_than(i, count(number))


def listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given] if given is not None else []


def looped(body: Callable[..., Any], state: Sequence[Any], rounds: Any) -> list[Any]:
    """A loop of so many rounds (a number, or a variable), whose body takes its number and the state, and gives the new state."""
    limit = rounds if isinstance(rounds, fs.Variable) else count(rounds)
    done = layer.while_loop(lambda i, *s: layer.less_than(i, limit), lambda i, *s: [i + 1, *listed(body(i, *s))], [count(0), *state])
    return done[1:]


def trained(describe: Callable[[Any], Any]) -> tuple[fs.Program, list[Any]]:
    """A program of x, f32[batch, 3], that gives the loss that is described, the gradient of x and what else is named."""

    def with_gradient() -> list[Any]:
        loss, *more = listed(describe(differentiable("x", ["batch", 3])))
        return [loss, fs.append_backward(loss, ["x"])[0][1], *more]

    main, _, fetch = build(with_gradient)
    return main, fetch


# --- running


def started(startup: fs.Program, seed: int = 3) -> fs.Scope:
    scope = fs.Scope()
    fs.Executor(seed=seed).run(startup, scope=scope)
    return scope


def forms_of(program: fs.Program) -> list[fs.Program]:
    """The program, and itself after it was written to bytes, to text, and inferred again: all must compute the same."""
    loaded = fs.Program.from_bytes(program.to_bytes())
    assert loaded.to_bytes() == program.to_bytes()
    assert str(loaded) == str(program)
    parsed = fs.Program.parse(str(program))
    assert str(parsed) == str(program)
    again = program.clone()
    again.forget()
    assert again.infer() == []
    assert str(again) == str(program)
    return [program, loaded, parsed, again]


def run(program: fs.Program, feed: dict[str, Any], fetch: Sequence[Any], check: Any = False) -> list[Any]:
    """What is fetched, by variable or name, in a scope of its own."""
    names = [f if isinstance(f, str) else f.name for f in fetch]
    return fs.Executor(check=check).run(program, feed, names, fs.Scope())


def run_all(program: fs.Program, feed: dict[str, Any], fetch: Sequence[Any], scope: fs.Scope | None = None) -> list[Any]:
    """The fetched values, which every form of the program, checked or not, must give."""
    names = [f if isinstance(f, str) else f.name for f in fetch]
    first: list[Any] | None = None
    for form in forms_of(program):
        for check in (False, True):
            mine = fs.Scope()
            for name in scope.names() if scope is not None else ():
                mine.set(name, scope.get(name).copy())
            got = fs.Executor(seed=5, check=check).run(form, feed, names, mine)
            if first is None:
                first = got
            for a, b in zip(first, got, strict=True):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    assert first is not None
    return first


# --- comparing


def same(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-6)


def assert_loss_and_gradients(got: Sequence[Any], loss: torch.Tensor, *leaves: torch.Tensor) -> None:
    """What was fetched is a loss and its gradients as of torch's; zeros where torch has none."""
    loss.backward()
    for seen, leaf in zip(got, (None, *leaves), strict=True):
        same(seen, loss.detach() if leaf is None else torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)


def expect(main: fs.Program, fetch: Sequence[Any], eager: Callable[[Any], Any], feed: dict[str, Any] | None = None) -> list[Any]:
    """Compare loss and gradient with torch's, whatever form the program is in and however it is run. Returns what else was fetched."""
    x = torch.tensor(X.astype("float64"), requires_grad=True)
    loss = eager(x)
    loss.backward()
    assert x.grad is not None
    got: list[Any] = []
    for form in forms_of(main):
        for check in (False, True, "fused"):
            got = run(form, {"x": X, **(feed or {})}, fetch, check)
            np.testing.assert_allclose(got[0], loss.item(), rtol=1e-4)
            np.testing.assert_allclose(got[1], x.grad.numpy(), rtol=1e-4, atol=1e-5)
    return got[2:]
