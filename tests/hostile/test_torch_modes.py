"""What a user of torch has set around a call must not change what a step computes: autocast, default devices and types, transforms, classes of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from support.some import each

import foreshape as fs
from foreshape import layer

X = np.random.default_rng(1).normal(size=(5, 7)).astype("float32")


def network() -> tuple[fs.Program, Any, Any]:
    x = layer.data("x", input_size=7)
    made = layer.softmax(layer.fc(layer.dropout(layer.fc(x, 16, activation=layer.relu), 0.5), 3))
    cost = layer.mean(made * made)
    fs.optimizer.Momentum(0.1).minimize(cost)
    return fs.default_main_program(), made, cost


def trained(around: AbstractContextManager[Any], device: str = "cpu") -> list[Any]:
    """All that comes of three steps."""
    fs.reset()
    program, made, cost = network()
    executor, scope = fs.Executor(device, seed=3), fs.Scope()
    with around:
        executor.run(fs.default_startup_program(), scope=scope)
        out = [v for _ in range(3) for v in executor.run(program, {"x": X}, [made, cost], scope)]
    return [*out, *(scope.get(n) for n in scope.names())]


class _DefaultType:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


class _Mode(torch.overrides.TorchFunctionMode):
    """Lets every function give other numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if isinstance(out, torch.Tensor) and out.is_floating_point() else out


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu"),
    "a default device": lambda: torch.device("meta"),
    "a default type": _DefaultType,
    "functions of the user's": _Mode,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("name", AROUND)
def test_what_is_set_for_torch_changes_no_bit(name: str) -> None:
    for one, other in zip(trained(torch.enable_grad()), trained(AROUND[name]()), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_it_is_still_set_afterwards() -> None:
    with torch.autocast("cpu"), torch.device("meta"):
        trained(torch.enable_grad())
        assert torch.is_autocast_enabled("cpu")
        assert torch.empty(1).is_meta


def run(given: Any) -> Any:
    fs.reset()
    x = layer.data("x", input_size=7)
    made = layer.tanh(x)
    return fs.Executor().run(fs.default_main_program(), {"x": given}, [made], fs.Scope())[0]


class Doubling(torch.Tensor):
    """Answers with other numbers than a tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 2 if func is torch.tanh else out


def test_26_a_class_of_the_users_is_fed_as_a_tensor() -> None:
    np.testing.assert_array_equal(run(torch.tensor(X).as_subclass(Doubling)), torch.tanh(torch.tensor(X)).numpy())


@pytest.mark.parametrize("transform", each(3, ("grad", "vmap", "functionalize")))
def test_26_what_stands_for_other_tensors_is_refused(transform: str) -> None:
    inside = getattr(torch.func, transform)

    def feed(x: Any) -> Any:
        with pytest.raises(fs.FeedError, match="numbers in memory"):
            run(x)
        with pytest.raises(fs.ExecutionError, match="numbers in memory"):
            fs.Scope().set("w", x)
        return x.sum()

    inside(feed)(torch.ones(5, 7) if transform == "functionalize" else torch.ones(2, 5, 7))


def test_26_a_tensor_that_only_tells_its_shape_is_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(5, 7)
    with pytest.raises(fs.FeedError, match="a FakeTensor is no tensor with a number"):
        run(fake)
    nested = torch.nested.nested_tensor([torch.ones(7)] * 5)
    with pytest.raises(fs.FeedError, match="a nested tensor has no number"):
        run(nested)
