"""Persistables of open dims, as a file can describe them, whose values in the scope have other sizes: refused before any kernel runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.some import is_quick

import foreshape as fs
from foreshape import layer
from foreshape.language.wire import framework_pb2

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: fs.optimizer.SGD(0.1),
    "Momentum": lambda: fs.optimizer.Momentum(0.1, 0.9),
    "Adam": lambda: fs.optimizer.Adam(0.1),
    "AdamW": lambda: fs.optimizer.AdamW(0.1),
    "Adagrad": lambda: fs.optimizer.Adagrad(0.1),
    "RMSProp": lambda: fs.optimizer.RMSProp(0.1),
    "Ftrl": lambda: fs.optimizer.Ftrl(0.1),
    "Adadelta": lambda: fs.optimizer.Adadelta(0.1),
    "Adamax": lambda: fs.optimizer.Adamax(0.1),
    "DecayedAdagrad": lambda: fs.optimizer.DecayedAdagrad(0.1),
    "ProximalGD": lambda: fs.optimizer.ProximalGD(0.1),
    "Lion": lambda: fs.optimizer.Lion(0.1),
    "Lamb": lambda: fs.optimizer.Lamb(0.1),
    "LarsMomentum": lambda: fs.optimizer.LarsMomentum(0.1),
}


def dense() -> Any:
    return layer.fc(layer.fc(layer.data("x", shape=["batch", 7]), 6, activation="relu"), 5)


def normalised() -> Any:
    images = layer.data("x", shape=["batch", 3, 4, 4])
    return layer.batch_norm(layer.conv2d(images, 6, 3, padding=1))


def looked_up() -> Any:
    return layer.fc(layer.embedding(layer.data("ids", shape=["batch", 3], dtype="int64"), [9, 4]), 5, flatten_last=2)


def recurrent() -> Any:
    return layer.lstm(layer.data("x", shape=["words", 7], lod_level=1), 4)


FEEDS: dict[str, Any] = {
    "dense": {"x": np.ones((8, 7), "float32")},
    "normalised": {"x": np.ones((2, 3, 4, 4), "float32")},
    "looked_up": {"ids": np.arange(6).reshape(2, 3)},
    "recurrent": {"x": [np.ones((3, 7), "float32"), np.ones((2, 7), "float32")]},
}
NETWORKS = {"dense": dense, "normalised": normalised, "looked_up": looked_up, "recurrent": recurrent}
CASES = [
    *((network, "Momentum") for network in NETWORKS),
    *(pytest.param("dense", optimizer, marks=() if is_quick(optimizer, 4) else pytest.mark.long) for optimizer in OPTIMIZERS),
]


def opened(program: fs.Program) -> fs.Program:
    """The program as a file has it, and every dim of every persistable is open."""
    message = framework_pb2.ProgramDesc.FromString(program.to_bytes())
    for variable in message.blocks[0].vars:
        for field, _ in variable.ListFields():
            if field.number >= 1000:
                variable.ClearField(field.name)
        tensor = variable.type.lod_tensor.tensor
        if variable.persistable and variable.type.HasField("lod_tensor") and variable.name != "learning_rate_0":
            tensor.dims[:] = [-1] * len(tensor.dims)
    return fs.Program.from_bytes(message.SerializeToString())


def trained(network: str, optimizer: str) -> tuple[fs.Program, fs.Scope, str]:
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    with fs.program_guard(main, startup):
        out = NETWORKS[network]()
        loss = layer.mean(layer.square(out if not isinstance(out, tuple) else out[0]))
        OPTIMIZERS[optimizer]().minimize(loss)
    fs.Executor(seed=1).run(startup, scope=scope)
    return main, scope, loss.name


def other_sizes(value: np.ndarray) -> Iterator[np.ndarray]:
    """The value with each of its dims smaller, larger, 1 and 0, and with a dim less or more."""
    for axis, size in enumerate(value.shape):
        for other in {0, 1, size - 1, size + 1, 3 * size} - {size}:
            shape = (*value.shape[:axis], other, *value.shape[axis + 1 :])
            yield np.full(shape, 0.5, value.dtype)
    yield value.reshape(1, *value.shape)
    if value.ndim:
        yield value.reshape(-1)[0]


@pytest.mark.quick_cases("False-normalised-Momentum")
@pytest.mark.parametrize(("network", "optimizer"), CASES)
@pytest.mark.parametrize("check", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_value_of_another_size_than_the_rest_is_refused(network: str, optimizer: str, check: bool) -> None:
    main, scope, loss = trained(network, optimizer)
    program, executor, feed = opened(main), fs.Executor(check=check), FEEDS[network]
    want = executor.run(main, feed, [loss], copy_of(scope))[0]
    np.testing.assert_allclose(executor.run(program, feed, [loss], copy_of(scope))[0], want, rtol=1e-5)
    tried = 0
    for name in scope.names():
        for value in other_sizes(scope.get(name)):
            wrong = copy_of(scope)
            wrong.set(name, value)
            before = {n: wrong.get(n) for n in wrong.names()}
            try:
                got = executor.run(program, feed, [loss], wrong)[0]
            except (fs.ExecutionError, fs.GuardError, fs.ShapeError, fs.FeedError) as error:
                assert "the kernel" not in str(error), f"{name} {value.shape}: found by the kernel alone: {error}"
                for n, kept in before.items():
                    np.testing.assert_array_equal(wrong.get(n), kept)
            else:  # only where the network is defined so, as a table of more rows, or a 1 that broadcasts
                described = main.global_block.var(name)
                assert np.isfinite(got).all() and may_differ(described, value), f"{name}, {described.spec}, may not be {value.shape}"
            tried += 1
    assert tried > 20


def may_differ(variable: fs.Variable, value: np.ndarray) -> bool:
    dims = variable.spec.known_dims
    is_table = "emb" in variable.name
    return value.ndim == len(dims) and all(s in (d, 1) or (axis == 0 and is_table) for axis, (s, d) in enumerate(zip(value.shape, dims, strict=True)))


def copy_of(scope: fs.Scope) -> fs.Scope:
    out = fs.Scope()
    for name in scope.names():
        out.set(name, scope.get(name))
    return out
