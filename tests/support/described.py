"""What the tests of loops and branches describe and run programs with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import foreshape as fs
from foreshape import layer

X = np.random.RandomState(0).randn(5, 3).astype("float32")


def count(number: int) -> fs.Variable:
    return layer.fill_constant([1], "int64", number)


def looped(body: Callable[..., Any], state: Sequence[Any], rounds: Any) -> list[Any]:
    """A loop of so many rounds (a number, or a variable), whose body takes its number and the state, and gives the new state."""
    limit = rounds if isinstance(rounds, fs.Variable) else count(rounds)
    done = layer.while_loop(lambda i, *s: layer.less_than(i, limit), lambda i, *s: [i + 1, *body(i, *s)], [count(0), *state])
    return done[1:]


def trained(describe: Callable[[Any], Any]) -> tuple[fs.Program, list[Any]]:
    """A program of x, f32[batch, 3], that gives the loss that is described, the gradient of x and what else is named."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x = layer.data("x", shape=["batch", 3])
        x.stop_gradient = False
        loss, *more = (lambda given: given if isinstance(given, (list, tuple)) else [given])(describe(x))
        return main, [loss, fs.append_backward(loss, ["x"])[0][1], *more]


def expect(main: fs.Program, fetch: Sequence[Any], eager: Callable[[Any], Any], feed: dict[str, Any] | None = None) -> list[Any]:
    """Compare loss and gradient with torch's, whatever form the program is in and however it is run. Returns what else was fetched."""
    x = torch.tensor(X.astype("float64"), requires_grad=True)
    loss = eager(x)
    loss.backward()
    assert x.grad is not None
    names = [v.name for v in fetch]
    got: list[Any] = []
    again = main.clone()
    again.forget()
    assert again.infer() == []
    for form in (main, fs.Program.from_bytes(main.to_bytes()), fs.Program.parse(str(main)), again):
        for check in (False, True, "fused"):
            got = fs.Executor(check=check).run(form, {"x": X, **(feed or {})}, names, fs.Scope())
            np.testing.assert_allclose(got[0], loss.item(), rtol=1e-4)
            np.testing.assert_allclose(got[1], x.grad.numpy(), rtol=1e-4, atol=1e-5)
    return got[2:]
